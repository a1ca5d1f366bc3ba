"""Every constant of an OpenVINO model has the name, dtype, shape and bytes that OpenVINO reads, and
hostile files get its verdict or a stricter one with a reason."""

from collections import Counter
from dataclasses import replace

import numpy as np
import openvino as ov
import pytest

import openvino_models
import reference
from openvino_hostile import CASES

MODELS = [
    "all_types",
    "shared",
    "compressed",
    "compressed_f16",
    "nested",
    "voice_detector",
    "voice_detector_f16",
]


@pytest.fixture(scope="module")
def openvino(tmp_path_factory):
    return openvino_models.write_models(tmp_path_factory.mktemp("openvino"))


def load(weightlift, path):
    report = weightlift.load(path, "--device", "host").expect(0).json()
    return [
        reference.Tensor(t["name"], t["dtype"], tuple(t["shape"]), t["length"], t["digest"])
        for t in report["tensors"]
    ]


def inspect(weightlift, path):
    """What the offsets of `inspect` lead to in the .bin."""
    data = path.with_suffix(".bin").read_bytes()
    tensors = []
    for t in weightlift.inspect(path).expect(0).json()["tensors"]:
        assert t["file"] == path.with_suffix(".bin").name
        part = data[t["offset"] : t["offset"] + t["length"]]
        digest = reference.digest(part)
        tensors.append(
            reference.Tensor(t["name"], t["dtype"], tuple(t["shape"]), len(part), digest)
        )
    return tensors


def assert_same(found, expected):
    """The same tensors; where a name stands twice in the reference, the rest must agree."""
    assert len({tensor.name for tensor in found}) == len(found), "names are unique"
    times = Counter(tensor.name for tensor in expected)
    once = {tensor.name: tensor for tensor in expected if times[tensor.name] == 1}
    by_name = {tensor.name: tensor for tensor in found}
    assert {name: by_name.get(name) for name in once} == once
    found_others = Counter(replace(t, name="") for t in found if t.name not in once)
    assert found_others == Counter(replace(t, name="") for t in expected if t.name not in once)


@pytest.mark.parametrize("look", [load, inspect])
@pytest.mark.parametrize("model", MODELS)
def test_constants_are_those_that_openvino_reads(weightlift, openvino, model, look):
    expected = openvino_models.read(openvino[model])
    assert expected
    assert_same(look(weightlift, openvino[model]), expected)


def test_every_element_type_is_in_the_test(openvino):
    """A type that a newer OpenVINO adds must fail here."""
    dtypes = {tensor.dtype for tensor in openvino_models.read(openvino["all_types"])}
    assert dtypes == set(openvino_models.DTYPES.values())
    names = {
        getattr(ov.Type, name).to_string()
        for name in dir(ov.Type)
        if isinstance(getattr(ov.Type, name), ov.Type)
    }
    assert names - {"dynamic"} == set(openvino_models.DTYPES)


def test_constants_in_bodies_have_names_of_their_own(weightlift, openvino):
    found = {t.name: t.digest for t in load(weightlift, openvino["nested"])}
    expected = {
        name: reference.digest(np.array(values, np.float32).tobytes())
        for name, values in openvino_models.NESTED.items()
    }
    assert {name: found.get(name) for name in expected} == expected
    assert len(found) == len(expected) + 3
    # The real model has such names too.
    expected = Counter(t.name for t in openvino_models.read(openvino["voice_detector"]))
    assert max(expected.values()) > 1


def test_bytes_that_are_shared_are_read_once(weightlift, openvino):
    report = weightlift.load(openvino["shared"], "--device", "host").expect(0).json()
    assert [t["length"] for t in report["tensors"]] == [4000] * 3
    assert report["bytes"]["planned"] == 4000


def test_cases_have_names_of_their_own():
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_verdicts(weightlift, tmp_path, case):
    path = tmp_path / "model.xml"
    path.write_bytes(case.xml)
    if case.weights is not None:
        path.with_suffix(".bin").write_bytes(case.weights)
    accepts = openvino_models.accepts(path)
    # A difference that is no more, because the reference changed, is to be taken off the list.
    assert accepts == (not case.laxer and (not case.kind or bool(case.stricter)))

    result = weightlift.load(path, "--device", "host")
    if case.kind:
        result.expect(1).error_line()
        assert result.json()["error"]["kind"] == case.kind, str(result)
    else:
        result.expect(0)
        if accepts:
            assert_same(load(weightlift, path), openvino_models.read(path))


def test_an_error_of_the_weights_says_what_and_where(weightlift, openvino, tmp_path):
    """OV-01: 16 KiB that were cut to 100 bytes, to none, or are a Git LFS pointer."""
    path = tmp_path / "model.xml"
    path.write_bytes(openvino["compressed"].read_bytes())
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9\n"
    for content in [bytes(100), b"", pointer]:
        path.with_suffix(".bin").write_bytes(content)
        error = weightlift.load(path, "--device", "host").expect(1).json()["error"]
        assert error["kind"] == "OutOfRange"
        assert error["context"]["tensor"] == "weights"
        assert str(error["context"]["expected"]) == str(64 * 64 * 4)
        assert str(error["context"]["actual"]) == str(len(content))
        assert "LFS" in str(error)
    path.with_suffix(".bin").unlink()
    error = weightlift.load(path, "--device", "host").expect(1).json()["error"]
    assert error["kind"] == "MissingWeights"
    context = error["context"]
    assert (context["file"], context["named_by"], context["files"]) == (
        "model.bin",
        "model.xml",
        "model.bin",
    )
    assert "--search-dir" in error["hint"]

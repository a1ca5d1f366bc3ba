"""GGUF: every tensor arrives with the name, dtype, shape, place and bytes that the package gguf
reads; wrong files get its verdict, or a stricter one with a reason."""

import json
import sys
from dataclasses import dataclass

import gguf
import pytest

import gguf_files
import reference
import schemas
from gguf_files import CASES

MODELS = [
    "numbers",
    "all-block-types",
    *[f"alignment-{alignment}" for alignment in [8, 16, 64, 4096, 65536]],
    "ranks",
    "metadata",
    "no-tensors",
    "123-tensors",
    "two-thousand",
]


@dataclass(frozen=True)
class Tensor:
    dtype: str
    shape: tuple
    offset: int
    length: int
    digest: str


def read(path) -> dict[str, Tensor]:
    """What the package reads from a file."""
    reader = gguf.GGUFReader(path)
    tensors = {}
    for tensor in reader.tensors:
        begin, length = int(tensor.data_offset), int(tensor.n_bytes)
        data = bytes(reader.data[begin : begin + length])
        assert data == tensor.data.tobytes()
        # The package has dimensions as the file does, the fastest first.
        shape = tuple(int(dim) for dim in reversed(tensor.shape))
        dtype = tensor.tensor_type.name
        tensors[tensor.name] = Tensor(dtype, shape, begin, length, reference.digest(data))
    return tensors


def accepts(path) -> bool:
    # The package has no error of its own: whatever it trips over comes out.
    try:
        read(path)
    except Exception:
        return False
    return True


def inspected(weightlift, path) -> list[dict]:
    return schemas.check("inspect", weightlift.inspect(path).expect(0).json())["tensors"]


def loaded(weightlift, path) -> list[dict]:
    result = weightlift.load(path, "--device", "host")
    return schemas.check("load", result.expect(0).json())["tensors"]


def assert_same(weightlift, path, expected):
    found = {t["name"]: t for t in inspected(weightlift, path)}
    digests = {t["name"]: t["digest"] for t in loaded(weightlift, path)}
    assert list(found) == list(expected), "the order of the file"
    assert digests.keys() == expected.keys()
    for name, tensor in expected.items():
        ours = found[name]
        ours = (ours["dtype"], tuple(ours["shape"]), ours["offset"], ours["length"], digests[name])
        theirs = (tensor.dtype, tensor.shape, tensor.offset, tensor.length, tensor.digest)
        assert ours == theirs, name


@pytest.fixture(scope="module")
def gguf_models(tmp_path_factory):
    return gguf_files.write_models(tmp_path_factory.mktemp("gguf"))


def test_all_models_are_compared(gguf_models):
    assert sorted(gguf_models) == sorted(MODELS)


@pytest.mark.parametrize("model", MODELS)
def test_generated_files(weightlift, gguf_models, model):
    assert_same(weightlift, gguf_models[model], read(gguf_models[model]))


def test_a_real_file(weightlift, tmp_path):
    path = gguf_files.real(tmp_path)
    expected = read(path)
    assert len(expected) > 200
    assert {tensor.dtype for tensor in expected.values()} > {"F32", "Q4_K"}
    assert_same(weightlift, path, expected)


def test_a_block_of_q8_1_is_that_of_ggml(weightlift, tmp_path):
    """The package says 40 bytes, as it was long ago: a difference that is to be seen if it goes."""
    assert gguf.GGML_QUANT_SIZES[gguf_files.Q8_1] == (32, 40)
    path = tmp_path / "q8_1.gguf"
    path.write_bytes(gguf_files.build([gguf_files.tensor("a", [64], 9)]))
    (tensor,) = inspected(weightlift, path)
    assert (tensor["dtype"], tensor["shape"], tensor["length"]) == ("Q8_1", [64], 72)


def test_metadata_are_what_the_package_reads(weightlift, gguf_models):
    path = gguf_models["metadata"]
    result = weightlift.run("inspect", path, "--json", "--metadata").expect(0)
    found = schemas.check("inspect", result.json())["metadata"]
    fields = gguf.GGUFReader(path).fields
    expected = {k: f.contents() for k, f in fields.items() if not k.startswith("GGUF.")}
    assert found == json.loads(json.dumps(expected, default=lambda number: number.item()))
    assert len(found["tokens"]) == 3000


# Wrong files.


def assert_refused(result, kind):
    result.expect(1).error_line()
    error = schemas.check("error", result.json())["error"]
    assert error["kind"] == kind, f"expected {kind}\n{result}"
    return error


def test_cases_have_names_of_their_own():
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_verdicts(weightlift, tmp_path, case):
    path = tmp_path / "model.gguf"
    path.write_bytes(case.content)
    if not case.endless:
        # A difference that is no more, because the reference changed, is to be taken off the list.
        assert accepts(path) == (not case.laxer and (not case.kind or bool(case.stricter)))
    if case.kind:
        assert_refused(weightlift.load(path, "--device", "host"), case.kind)
        assert_refused(weightlift.inspect(path), case.kind)
    elif case.laxer:
        (tensor,) = loaded(weightlift, path)
        begin = inspected(weightlift, path)[0]["offset"]
        data = case.content[begin : begin + tensor["length"]]
        assert 0 < tensor["length"] == len(data)
        assert tensor["digest"] == reference.digest(data)
    else:
        assert_same(weightlift, path, read(path))


def test_another_byte_order_by_the_package(weightlift, tmp_path):
    path = tmp_path / "big.gguf"
    other = gguf.GGUFEndian.BIG if sys.byteorder == "little" else gguf.GGUFEndian.LITTLE
    gguf_files.write(path, gguf_files.SPLIT, endianess=other)
    error = assert_refused(weightlift.load(path, "--device", "host"), "WrongEndian")
    assert "big-endian" in error["message"]


# Models of several files.


@pytest.fixture
def parts(tmp_path):
    parts = gguf_files.write_split(tmp_path / "model.gguf")
    assert len(parts) == 3
    return parts


def expected_of(parts) -> dict[str, str]:
    return {name: tensor.digest for part in parts for name, tensor in read(part).items()}


def test_any_part_is_the_model(weightlift, parts):
    expected = expected_of(parts)
    assert len(expected) == len(gguf_files.SPLIT)
    for part in parts:
        found = loaded(weightlift, part)
        assert {t["name"]: t["digest"] for t in found} == expected
        files = {t["file"] for t in inspected(weightlift, part)}
        assert files == {p.name for p in parts}


def test_a_missing_part(weightlift, parts):
    parts[1].unlink()
    for part in [parts[0], parts[2]]:
        error = assert_refused(weightlift.load(part, "--device", "host"), "MissingShards")
        assert parts[1].name in json.dumps(error)


def test_parts_with_each_others_names(weightlift, parts):
    second, third = parts[1].read_bytes(), parts[2].read_bytes()
    parts[1].write_bytes(third)
    parts[2].write_bytes(second)
    for part in parts:
        assert_refused(weightlift.load(part, "--device", "host"), "InvalidIndex")


def test_a_part_of_another_set(weightlift, parts, tmp_path):
    (tmp_path / "other").mkdir()
    others = gguf_files.write_split(tmp_path / "other" / "model.gguf", most=1)
    assert len(others) == 5
    parts[1].write_bytes(others[1].read_bytes())
    assert_refused(weightlift.load(parts[0], "--device", "host"), "InvalidIndex")


def test_a_part_under_another_name(weightlift, parts):
    renamed = parts[0].rename(parts[0].with_name("best-of-breed.gguf"))
    assert_refused(weightlift.load(renamed, "--device", "host"), "MissingShards")


@pytest.mark.parametrize("name", ["x-00001-of-00001.gguf", "best-of-breed.gguf"])
def test_names_of_whole_models(weightlift, tmp_path, name):
    path = tmp_path / name
    gguf_files.write(path, gguf_files.SPLIT)
    assert_same(weightlift, path, read(path))

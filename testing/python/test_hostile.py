"""Wrong files are refused with the right error, before anything is loaded; the verdict is that of
the package safetensors or a stricter one with a reason."""

import json

import pytest
import safetensors

import reference
import schemas
from files import SHARDS, build, raw, weight_map
from hostile import CASES


def reference_accepts(content: bytes) -> bool:
    try:
        reference.read_bytes(content)
    except safetensors.SafetensorError:
        return False
    return True


def assert_refused(result, kinds):
    result.expect(1).error_line()
    error = schemas.check("error", result.json())["error"]
    assert error["kind"] in kinds, f"expected {' or '.join(kinds)}\n{result}"
    return error


def test_cases_have_names_of_their_own():
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_verdicts_on_single_files(weightlift, tmp_path, case):
    accepts = reference_accepts(case.content)
    # A difference that is no more, because the reference changed, is to be taken off the list.
    assert accepts == (not case.laxer and (not case.kind or bool(case.stricter)))

    path = tmp_path / "model.safetensors"
    path.write_bytes(case.content)
    load = weightlift.load(path, "--device", "host")
    inspect = weightlift.inspect(path)
    if case.kind:
        assert_refused(load, [case.kind])
        assert_refused(inspect, [case.kind])
        return
    report = schemas.check("load", load.expect(0).json())
    schemas.check("inspect", inspect.expect(0).json())
    if accepts:
        expected = {t.name: t.digest for t in reference.read_bytes(case.content).values()}
        assert {t["name"]: t["digest"] for t in report["tensors"]} == expected
    else:
        # Opaque bytes: as many as the file gives the tensor.
        (tensor,) = report["tensors"]
        begin = len(case.content) - tensor["length"]
        assert tensor["length"] > 0
        assert tensor["digest"] == reference.digest(case.content[begin:])


def test_a_refused_file_is_refused_for_the_gpu_too(weightlift, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(build({"a": ("U8", (9,))})[:-1])
    result = weightlift.load(path, "--device", "cuda", gpu=True)
    assert_refused(result, ["Truncated"])


def test_the_error_names_the_tensor_in_one_line_whatever_its_name(weightlift, tmp_path):
    path = tmp_path / "model.safetensors"
    name = "a\nerror: forged\u001b[31m"
    header = {name: {"dtype": "U8", "shape": [3], "data_offsets": [0, 2]}}
    path.write_bytes(raw(header, bytes(2)))
    result = weightlift.load(path, "--device", "host")
    error = assert_refused(result, ["SizeMismatch"])
    assert "forged" in result.error_line()
    assert "\u001b" not in result.stderr
    assert error["context"]["tensor"] == name


# Models of several files.


@pytest.fixture
def model(tmp_path):
    """A right model of two shards, to be broken."""
    for shard, tensors in SHARDS.items():
        (tmp_path / shard).write_bytes(build(tensors))
    write_index(tmp_path, {"weight_map": weight_map()})
    return tmp_path


def write_index(folder, index):
    text = index if isinstance(index, str) else json.dumps(index)
    (folder / "model.safetensors.index.json").write_text(text)


FIRST, SECOND = SHARDS


def test_the_model_to_be_broken_is_right(weightlift, model):
    weightlift.load(model, "--device", "host").expect(0)


def test_missing_shard(weightlift, model):
    (model / SECOND).unlink()
    error = assert_refused(weightlift.load(model, "--device", "host"), ["MissingShards"])
    assert SECOND in json.dumps(error)


def test_tensor_not_in_its_shard(weightlift, model):
    write_index(model, {"weight_map": weight_map() | {"ghost": SECOND}})
    error = assert_refused(weightlift.load(model, "--device", "host"), ["NotInShard"])
    assert "ghost" in json.dumps(error)


def test_truncated_shard(weightlift, model):
    content = (model / SECOND).read_bytes()
    (model / SECOND).write_bytes(content[:-1])
    assert_refused(weightlift.load(model, "--device", "host"), ["Truncated"])


@pytest.mark.parametrize(
    "index",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"weight_map":null}',
        '{"weight_map":[]}',
        '{"weight_map":{"a":1}}',
        '{"weight_map":{"a":null}}',
    ],
)
def test_invalid_index(weightlift, model, index):
    write_index(model, index)
    assert_refused(weightlift.load(model, "--device", "host"), ["InvalidIndex"])


def test_tensor_twice_in_the_index(weightlift, model):
    write_index(model, f'{{"weight_map":{{"b.weight":"{SECOND}","b.weight":"{FIRST}"}}}}')
    kinds = ["DuplicateTensor", "InvalidIndex"]
    assert_refused(weightlift.load(model, "--device", "host"), kinds)


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "/etc/hostname",
        "C:\\x",
        "\\\\host\\share",
        "a/../../x",
        "s\\..\\x",
        "..",
        "",
        "a\0b",
    ],
)
def test_paths_that_leave_the_folder(weightlift, model, path):
    write_index(model, {"weight_map": weight_map() | {"a.weight": path}})
    error = assert_refused(weightlift.load(model, "--device", "host"), ["UnsafePath"])
    assert error["context"].get("path") == path


def test_a_folder_without_a_model(weightlift, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert_refused(weightlift.load(tmp_path, "--device", "host"), ["NoModel"])


def test_a_folder_with_two_models(weightlift, tmp_path):
    for name in ["one.safetensors", "two.safetensors"]:
        (tmp_path / name).write_bytes(build({"a": ("U8", (3,))}))
    kinds = ["AmbiguousModel", "DuplicateTensor"]
    assert_refused(weightlift.load(tmp_path, "--device", "host"), kinds)

"""Every tensor arrives with the name, dtype, shape and bytes that the package safetensors reads,
whatever the device, the route and the sizes, and the report accounts for every byte."""

from pathlib import Path

import pytest

import files
import reference
import schemas

SMALL = ["--block-size", "64KiB", "--piece-size", "4KiB", "--staging-budget", "128KiB"]

# Name: options, the route that all bytes must take, whether the fake GPU is there.
WAYS = {
    "host": (["--device", "host"], "host", False),
    "host-1-thread": (["--device", "host", "--reading-threads", "1"], "host", False),
    "host-7-threads-small": (
        ["--device", "host", "--reading-threads", "7", *SMALL],
        "host",
        False,
    ),
    "host-mapped-3-threads-small": (
        ["--device", "host", "--map-files", "--reading-threads", "3", *SMALL],
        "host",
        False,
    ),
    "pinned": (["--device", "cuda", "--route", "pinned"], "pinned", True),
    "pinned-1-thread": (
        ["--device", "cuda:0", "--route", "pinned", "--reading-threads", "1"],
        "pinned",
        True,
    ),
    "pinned-3-threads-small": (
        ["--device", "cuda", "--route", "pinned", "--reading-threads", "3", *SMALL],
        "pinned",
        True,
    ),
    "pinned-64-threads": (
        ["--device", "cuda", "--route", "pinned", "--reading-threads", "64"],
        "pinned",
        True,
    ),
    "pageable": (["--device", "cuda", "--route", "pageable"], "pageable", True),
    "pageable-0-threads": (
        ["--device", "cuda", "--route", "pageable", "--reading-threads", "0"],
        "pageable",
        True,
    ),
    "pageable-5-threads-small": (
        ["--device", "cuda", "--route", "pageable", "--reading-threads", "5", *SMALL],
        "pageable",
        True,
    ),
}

SINGLE_FILES = [
    "all-dtypes",
    *[f"header-{mod}-mod-8" for mod in range(8)],
    "zero-size",
    "only-zero-size",
    "no-tensors",
    "scalars",
    "thousand-tiny",
    "across-blocks",
    "backwards",
    "metadata-and-unknown-fields",
    "names",
]
FOLDERS = ["sharded", "hub-cache"]


def expected_of(path: Path) -> dict[str, reference.Tensor]:
    """What the reference reads; of a folder, from each shard what the index gives to it."""
    if path.is_file():
        return reference.read(path)
    shards = {shard: reference.read(path / shard) for shard in files.SHARDS}
    return {name: shards[shard][name] for name, shard in files.weight_map().items()}


def assert_loads_as(weightlift, path, way, expected):
    options, route, gpu = WAYS[way]
    result = weightlift.load(path, *options, gpu=gpu).expect(0)
    report = schemas.check("load", result.json())
    loaded = {
        tensor["name"]: reference.Tensor(
            tensor["name"],
            tensor["dtype"],
            tuple(tensor["shape"]),
            tensor["length"],
            tensor.get("digest"),
        )
        for tensor in report["tensors"]
    }
    assert len(loaded) == len(report["tensors"]), "a tensor stands twice in the report"
    assert loaded.keys() == expected.keys()
    wrong = [(loaded[name], expected[name]) for name in expected if loaded[name] != expected[name]]
    assert not wrong, f"{len(wrong)} tensors differ, the first (ours, reference): {wrong[0]}"

    length = sum(tensor.length for tensor in expected.values())
    assert report["bytes"]["planned"] == length
    assert report["bytes"]["delivered"] == length
    # Reads that have to be aligned may take more than is wanted.
    assert report["bytes"]["read"] >= length
    assert sum(report["routes"].values()) == length
    taken = {name for name, size in report["routes"].items() if size}
    assert taken == ({route} if length else set()), "a forced route never falls back"
    assert report["fallbacks"] == []
    if "--staging-budget" in options:
        assert report["staging_bytes_peak"] <= 128 << 10
    assert report["staging_bytes_peak"] <= 64 << 20


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", SINGLE_FILES + FOLDERS)
def test_generated_files(weightlift, models, model, way):
    path = models[model]
    assert_loads_as(weightlift, path, way, expected_of(path))


@pytest.mark.parametrize("way", WAYS)
def test_real_weights(weightlift, minilm, way, real_tensors):
    assert_loads_as(weightlift, minilm, way, real_tensors)


@pytest.fixture(scope="module")
def real_tensors(minilm):
    tensors = reference.read(minilm)
    assert len(tensors) > 100
    return tensors


def test_a_folder_with_one_file_is_that_file(weightlift, minilm, real_tensors):
    assert_loads_as(weightlift, minilm.parent, "host", real_tensors)


def test_all_dtypes_of_the_format_are_in_the_test(models):
    loaded = {tensor.dtype for tensor in reference.read(models["all-dtypes"]).values()}
    assert loaded == set(files.DTYPES)
    assert len(loaded) == 22


@pytest.mark.parametrize("model", SINGLE_FILES + FOLDERS + ["minilm"])
def test_inspect_says_where_the_bytes_lie(weightlift, models, minilm, model):
    path = minilm if model == "minilm" else models[model]
    folder = path if path.is_dir() else path.parent
    report = schemas.check("inspect", weightlift.inspect(path).expect(0).json())
    expected = expected_of(path)
    assert sorted(t["name"] for t in report["tensors"]) == sorted(expected)
    contents = {}
    for tensor in report["tensors"]:
        # An absolute file stays as it is.
        file = folder / tensor["file"]
        if file not in contents:
            contents[file] = file.read_bytes()
        begin, length = tensor["offset"], tensor["length"]
        data = contents[file][begin : begin + length]
        found = reference.Tensor(
            tensor["name"],
            tensor["dtype"],
            tuple(tensor["shape"]),
            len(data),
            reference.digest(data),
        )
        assert found == expected[tensor["name"]]


def test_only_the_tensors_asked_for_are_loaded(weightlift, models):
    path = models["all-dtypes"]
    patterns = ["--tensors", "t.F8*", "--tensors", "t.BF16"]
    report = weightlift.load(path, "--device", "host", *patterns).expect(0).json()
    schemas.check("load", report)
    expected = {
        name: tensor
        for name, tensor in reference.read(path).items()
        if name.startswith("t.F8") or name == "t.BF16"
    }
    assert len(expected) == 6
    assert {t["name"]: t["digest"] for t in report["tensors"]} == {
        name: tensor.digest for name, tensor in expected.items()
    }
    assert report["bytes"]["planned"] == sum(t.length for t in expected.values())

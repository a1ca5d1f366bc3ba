"""Copying out of mappings (`--map-files`) takes no more of the address space than reading does, and
what cannot be mapped is read (FS-14, MM-11)."""

import json
import resource
import struct
from pathlib import Path

import pytest

import reference
import schemas

LARGE = 24 << 30
SPACE = 1 << 30


def limit():
    resource.setrlimit(resource.RLIMIT_AS, (SPACE, SPACE))


@pytest.fixture(scope="module")
def sparse(tmp_path_factory):
    """24 GiB that take no room on the disk, and a small tensor behind them."""
    path = tmp_path_factory.mktemp("sparse") / "model.safetensors"
    small = bytes(range(256)) * 40
    header = {
        "large": {"dtype": "U8", "shape": [LARGE], "data_offsets": [0, LARGE]},
        "small": {
            "dtype": "U8",
            "shape": [len(small)],
            "data_offsets": [LARGE, LARGE + len(small)],
        },
    }
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.seek(LARGE, 1)
        file.write(small)
    return path, reference.digest(small)


@pytest.mark.parametrize("options", [[], ["--map-files"]], ids=["read", "mapped"])
def test_a_file_of_24_gib_where_1_gib_may_be_mapped(weightlift, sparse, options):
    path, digest = sparse
    listed = weightlift.run("inspect", path, "--json", prepare=limit).expect(0).json()
    assert {tensor["length"] for tensor in listed["tensors"]} == {LARGE, 10240}
    options = ["--device", "host", "--tensors", "small", "--reading-threads", "2", *options]
    report = weightlift.load(path, *options, prepare=limit).expect(0).json()
    schemas.check("load", report)
    assert [tensor["digest"] for tensor in report["tensors"]] == [digest]
    if "--map-files" in options and report["fallbacks"] == []:
        assert report["reads"] == {"buffered": 0, "mapped": 10240}


def test_a_file_that_cannot_be_mapped(weightlift):
    path = Path("/sys/kernel/notes")
    if not path.exists():
        pytest.skip(f"no {path}")
    options = ["--format", "raw", "--device", "host", "--map-files"]
    report = weightlift.load(path, *options).expect(0).json()
    schemas.check("load", report)
    assert [t["digest"] for t in report["tensors"]] == [reference.digest(path.read_bytes())]
    assert report["reads"] == {"buffered": report["bytes"]["read"], "mapped": 0}
    (fallback,) = report["fallbacks"]
    assert (fallback["from"], fallback["to"]) == ("mapped", "buffered")
    assert "mapping it: No such device (os error 19)" in fallback["reason"]


@pytest.mark.parametrize("options", [[], ["--device", "cuda"], ["--device=host", "--direct-io=on"]])
def test_mapping_is_for_the_host_and_the_page_cache(weightlift, sparse, options):
    result = weightlift.run("load", sparse[0], "--map-files", *options, gpu=True).expect(2)
    assert "map_files" in result.error_line()

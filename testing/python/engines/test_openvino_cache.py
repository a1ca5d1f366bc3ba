"""Blobs in files of OpenVINO's cache, which begin with a header of the cache's own."""

import openvino_runs as runs  # first: it skips where there is no package

import os

import numpy as np
import openvino as ov
import pytest
import weightlift.openvino


@pytest.fixture(scope="module")
def cached(tmp_path_factory):
    """A model, its blob as the cache keeps it and as `export_model` gives it, and its results."""
    folder = tmp_path_factory.mktemp("cache")
    path = runs.write(runs.matrices([500, 300, 100]), folder / "m.xml")
    core = ov.Core()
    core.set_property({"CACHE_DIR": str(folder / "cache")})
    compiled = core.compile_model(path, "CPU")
    (blob,) = (folder / "cache").glob("*.blob")
    return path, blob.read_bytes(), runs.exported(compiled), runs.run(compiled)


def imported(tmp_path, data):
    path = tmp_path / "1.blob"
    path.write_bytes(data)
    return weightlift.openvino.import_model(ov.Core(), path, "CPU")


def refused(tmp_path, data):
    with pytest.raises(weightlift.errors.FormatError) as caught:
        imported(tmp_path, data)
    assert caught.value.kind == "UnknownFormat" and caught.value.context["file"].endswith("1.blob")
    return str(caught.value)


def test_the_header_is_left_out(cached, tmp_path):
    _, whole, bare, expected = cached
    for data in (whole, bare):
        compiled = imported(tmp_path, data)
        assert runs.run(compiled) == expected
        facts = compiled.weightlift_report["openvino"]
        assert facts["offset"] == len(data) - len(bare) and facts["bytes"] == len(bare)


def test_a_header_of_another_length(cached, tmp_path):
    _, whole, bare, expected = cached
    start = len(whole) - len(bare)
    longer = whole[:start].replace(b'file_info="', b'more="' + b"x" * 5000 + b'" file_info="')
    assert longer != whole[:start]
    assert runs.run(imported(tmp_path, longer + bare)) == expected


@pytest.mark.parametrize("alignment", [1, 64, 4096])
def test_a_header_that_is_padded(cached, tmp_path, alignment):
    """As plugins ask for that import mappings: the header says so, and zeros follow it."""
    _, whole, bare, expected = cached
    line = whole[: len(whole) - len(bare)].replace(b'alignment="0"', b'alignment="%d"' % alignment)
    line += bytes(-len(line) % alignment)
    compiled = imported(tmp_path, line + bare)
    assert runs.run(compiled) == expected
    assert compiled.weightlift_report["openvino"]["offset"] == len(line)


def test_the_blob_lies_at_a_page(cached, tmp_path, monkeypatch):
    """Wherever it lies in the file: engines take over whole pages only."""
    _, whole, bare, _ = cached
    seen = []

    class Watched:
        def import_model(self, tensor, device, config):
            seen.append((tensor.data.ctypes.data % 4096, tensor.data.tobytes()))
            return ov.Core().import_model(tensor, device, config)

    (tmp_path / "1.blob").write_bytes(whole)
    weightlift.openvino.import_model(Watched(), tmp_path / "1.blob", "CPU")
    assert seen == [(0, bare)]


def test_another_builds_blob_is_refused(cached, tmp_path):
    whole = cached[1]
    assert "2024.1.0" in refused(tmp_path, whole.replace(b'ie_version="2026', b'ie_version="2024.1.0', 1))


def test_what_is_no_blob(cached, tmp_path):
    _, whole, bare, _ = cached
    start = len(whole) - len(bare)
    assert "empty" in refused(tmp_path, b"")
    assert "Git LFS" in refused(tmp_path, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert "XML" in refused(tmp_path, cached[0].read_bytes())
    assert "ends before" in refused(tmp_path, whole[:start])
    assert "cannot be read" in refused(tmp_path, whole[: start - 1])
    assert "cannot be read" in refused(tmp_path, whole.replace(b'<compiled_blob ', b'<compiled_blob a="&x;" '))
    assert "cannot be read" in refused(tmp_path, whole.replace(b'alignment="0"', b'alignment="-1"'))
    assert "cannot be read" in refused(tmp_path, whole.replace(b'alignment="0"', b'alignment="99999999999"'))
    doctype = b'<!DOCTYPE compiled_blob [<!ENTITY x "y">]><compiled_blob '
    assert "cannot be read" in refused(tmp_path, whole.replace(b"<compiled_blob ", doctype))


def test_any_header_is_read_or_refused(cached, tmp_path):
    """Bytes changed, cut out and doubled: a place inside the file, or an error of ours."""
    _, whole, bare, _ = cached
    header = whole[: len(whole) - len(bare)]
    random = np.random.default_rng(5)
    path = tmp_path / "1.blob"
    outcomes = set()
    for _ in range(500):
        data = bytearray(header)
        for _ in range(random.integers(1, 4)):
            at, length = random.integers(0, len(data)), int(random.integers(1, 30))
            change = random.integers(0, 3)
            data[at : at + length] = [random.bytes(length), b"", bytes(data[at : at + length]) * 2][change]
            data = data or bytearray(b"<?xml")
        path.write_bytes(bytes(data) + b"the blob")
        try:
            with weightlift.openvino.open_reader(path) as f:
                assert 0 <= f.tell() < len(data) + 8
            outcomes.add("read")
        except weightlift.errors.FormatError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_damaged_blobs_are_openvinos_to_refuse(cached, tmp_path):
    _, whole, bare, _ = cached
    for data in (whole[:-100], bare[:1000], bytes(5000), np.random.default_rng(1).bytes(5000)):
        with pytest.raises(RuntimeError):
            imported(tmp_path, data)


def test_a_cache_in_a_single_file(cached, tmp_path):
    core = ov.Core()
    core.set_property({"CACHE_DIR": str(tmp_path / "cache.bin")})
    core.compile_model(cached[0], "CPU")
    if not (tmp_path / "cache.bin").is_file():
        pytest.skip("this OpenVINO keeps no cache in a single file")
    assert "single file" in refused(tmp_path, (tmp_path / "cache.bin").read_bytes())


def test_a_small_blob_whose_weights_stay_where_they_are(cached, tmp_path):
    """OPTIMIZE_SIZE: OpenVINO reads the weights itself, from where the configuration says."""
    path, _, _, expected = cached
    small = {"CACHE_MODE": "OPTIMIZE_SIZE"}
    core = ov.Core()
    core.set_property({"CACHE_DIR": str(tmp_path / "cache"), **small})
    core.compile_model(path, "CPU")
    (blob,) = (tmp_path / "cache").glob("*.blob")
    assert blob.stat().st_size < path.with_suffix(".bin").stat().st_size / 10
    config = {"WEIGHTS_PATH": str(path.with_suffix(".bin")), **small}
    assert runs.run(weightlift.openvino.import_model(ov.Core(), blob, "CPU", config)) == expected


def test_rewritten_weights_are_not_taken_for_those_in_the_cache(tmp_path):
    """OpenVINO's own key of a model that it reads by its path knows the XML's time alone: other
    weights in the same file gave the results of the old ones. Weights in memory are part of the key."""
    path = runs.write(runs.matrices([50, 20], seed=1), tmp_path / "m.xml")
    core = ov.Core()
    core.set_property({"CACHE_DIR": str(tmp_path / "cache")})
    first = runs.run(weightlift.openvino.compile_model(core, path, "CPU"))
    xml = os.stat(path)
    other = runs.write(runs.matrices([50, 20], seed=2), tmp_path / "other.xml")
    path.with_suffix(".bin").write_bytes(other.with_suffix(".bin").read_bytes())
    assert os.stat(path) == xml
    second = runs.run(weightlift.openvino.compile_model(core, path, "CPU"))
    assert second != first and second == runs.run(ov.Core().compile_model(other, "CPU"))
    again = weightlift.openvino.compile_model(core, path, "CPU")
    assert again.get_property("LOADED_FROM_CACHE") and runs.run(again) == second


def test_a_stream(cached, tmp_path):
    _, whole, bare, expected = cached
    for data in (whole, bare):
        (tmp_path / "1.blob").write_bytes(data)
        with weightlift.openvino.open_reader(tmp_path / "1.blob", threads=2) as f:
            assert f.tell() == len(data) - len(bare)
            data = f.read()
        assert data == bare
    assert runs.run(ov.Core().import_model(data, "CPU")) == expected

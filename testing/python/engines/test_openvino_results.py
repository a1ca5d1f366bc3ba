"""Models and blobs that weightlift loaded are, and compute, what OpenVINO's own loading gives."""

import openvino_runs as runs  # first: it skips where there is no package

import shutil

import numpy as np
import openvino as ov
import pytest
import weightlift.openvino
from openvino import opset13 as op

import openvino_models

GENERATED = ["all_types", "shared", "compressed", "compressed_f16", "nested", "voice_detector", "voice_detector_f16"]


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    return openvino_models.write_models(tmp_path_factory.mktemp("generated"))


@pytest.fixture(scope="module")
def core():
    return ov.Core()


@pytest.mark.parametrize("name", GENERATED)
def test_constants(core, generated, name):
    path = generated[name]
    model = weightlift.openvino.read_model(core, path)
    assert runs.constants(model) == openvino_models.read(path)
    assert model.weightlift_report["openvino"]["bytes"] == path.with_suffix(".bin").stat().st_size


@pytest.mark.parametrize("name", ["compressed", "compressed_f16", "nested"])
def test_results_of_generated_models(core, generated, name):
    expected = runs.run(core.compile_model(generated[name], "CPU"))
    assert runs.run(weightlift.openvino.compile_model(core, generated[name], "CPU")) == expected
    read = weightlift.openvino.read_model(core, generated[name])
    assert runs.run(core.compile_model(read, "CPU")) == expected


@pytest.mark.parametrize("name", runs.OPEN)
def test_results_of_real_models(core, tmp_path, name):
    """In full and halved, compiled and imported."""
    model = runs.convert(name)
    for half in (False, True):
        path = tmp_path / f"{half}.xml"
        ov.save_model(model, path, compress_to_fp16=half)
        theirs = core.compile_model(path, "CPU")
        expected = runs.run(theirs, name)
        ours = weightlift.openvino.compile_model(core, path, "CPU")
        assert runs.run(ours, name) == expected
        assert runs.constants(weightlift.openvino.read_model(core, path)) == openvino_models.read(path)
        (tmp_path / "blob").write_bytes(runs.exported(ours))
        assert runs.run(weightlift.openvino.import_model(core, tmp_path / "blob", "CPU"), name) == expected


def test_random_layouts(core, tmp_path):
    """Constants of odd sizes at odd places, in a file that ends at any byte of a page."""
    random = np.random.default_rng(4)
    for case in range(12):
        nodes = []
        for number in range(random.integers(1, 12)):
            kind = random.choice(["u8", "i16", "f32", "f64", "u4"])
            nodes.append(openvino_models.constant(str(kind), (int(random.integers(1, 20_000)),), f"{case} {number}"))
        path = tmp_path / f"{case}.xml"
        ov.serialize(ov.Model([op.result(node) for node in nodes], [], "layout"), path)
        model = weightlift.openvino.read_model(core, path, reading_threads=int(random.integers(0, 5)))
        assert runs.constants(model) == openvino_models.read(path)


def test_the_weights_are_used_where_they_were_read_to(core, tmp_path):
    path = runs.write(runs.matrices([300, 200]), tmp_path / "m.xml")
    model = weightlift.openvino.read_model(core, path)
    (constant,) = [node for node in model.get_ops() if node.get_type_name() == "Constant"]
    assert constant.data.ctypes.data % 4096 == 0, "not a copy: those do not begin at a page"


def test_large_weights_lie_at_huge_pages(core, tmp_path):
    path = runs.write(runs.matrices([4096, 2304]), tmp_path / "m.xml")
    model = weightlift.openvino.read_model(core, path)
    (constant,) = [node for node in model.get_ops() if node.get_type_name() == "Constant"]
    assert constant.data.ctypes.data % (2 << 20) == 0
    assert runs.constants(model) == openvino_models.read(path)
    assert runs.run(core.compile_model(model, "CPU")) == runs.run(core.compile_model(path, "CPU"))


def test_weights_of_another_name_and_links(core, tmp_path):
    """The Hub's cache: links out of the snapshot's folder, to names that end in nothing."""
    path = runs.write(runs.matrices([30, 20]), tmp_path / "m.xml")
    expected = openvino_models.read(path)
    hub = tmp_path / "models--a--b"
    (hub / "blobs").mkdir(parents=True)
    (hub / "snapshots/1").mkdir(parents=True)
    for suffix in (".xml", ".bin"):
        shutil.move(path.with_suffix(suffix), hub / "blobs" / f"hash{suffix[1:]}")
        (hub / f"snapshots/1/openvino_model{suffix}").symlink_to(f"../../blobs/hash{suffix[1:]}")
    model = weightlift.openvino.read_model(core, hub / "snapshots/1/openvino_model.xml")
    assert runs.constants(model) == expected
    named = weightlift.openvino.read_model(core, str(hub / "blobs/hashxml"), hub / "blobs/hashbin")
    assert runs.constants(named) == expected
    compiled = weightlift.openvino.compile_model(core, hub / "blobs/hashxml", "CPU", weights=hub / "blobs/hashbin")
    assert compiled.weightlift_report["openvino"]["file"] == str(hub / "blobs/hashbin")


@pytest.mark.parametrize("device", ["AUTO", "AUTO:CPU", "HETERO:CPU", "BATCH:CPU"])
def test_devices_that_stand_for_others(core, tmp_path, device):
    path = runs.write(runs.matrices([300, 200, 100]), tmp_path / "m.xml")
    expected = runs.run(core.compile_model(path, device))
    compiled = weightlift.openvino.compile_model(core, path, device)
    shutil.rmtree(tmp_path)
    assert runs.run(compiled) == expected
    assert compiled.weightlift_report["openvino"]["memory"] == "openvino"


def test_a_model_without_constants(core, tmp_path):
    x = op.parameter([4], np.float32)
    path = runs.write(ov.Model([op.relu(x)], [x], "none"), tmp_path / "none.xml")
    given = np.array([-1, 0, 1, 2], np.float32)
    for there in (True, False):
        if not there:
            path.with_suffix(".bin").unlink(missing_ok=True)
        compiled = weightlift.openvino.compile_model(core, path, "CPU")
        assert compiled(given)[0].tolist() == [0, 0, 1, 2]
        assert compiled.weightlift_report["openvino"]["bytes"] == 0


def test_options_and_report(core, tmp_path):
    path = runs.write(runs.matrices([300, 200, 100]), tmp_path / "m.xml")
    told = []
    loader = weightlift.Loader(direct_io="off")
    compiled = weightlift.openvino.compile_model(
        core, path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}, reading_threads=2, loader=loader,
        progress=lambda done, total: told.append((done, total)),
    )  # fmt: skip
    size = path.with_suffix(".bin").stat().st_size
    assert told[-1] == (size, size)
    assert compiled.get_property("INFERENCE_PRECISION_HINT") == ov.Type.f32
    report = compiled.weightlift_report
    assert report["bytes"]["delivered"] == size and report["reads"] == {"buffered": size}
    assert report["openvino"]["memory"] == "openvino" and report["openvino"]["version"] == ov.get_version()
    with pytest.raises(weightlift.errors.InvalidOption):
        weightlift.openvino.read_model(core, path, reading_threads=65)
    with pytest.raises(TypeError):
        weightlift.openvino.read_model(core, path, route="pinned")


def test_cold_files_are_read_past_the_page_cache(core, tmp_path):
    """The whole file, at any length, and the blob behind a header: its place in the file is no page's."""
    path = runs.write(runs.matrices([3000, 1001]), tmp_path / "m.xml")
    expected = runs.run(core.compile_model(path, "CPU"))
    core_with_cache = ov.Core()
    core_with_cache.set_property({"CACHE_DIR": str(tmp_path / "cache")})
    core_with_cache.compile_model(path, "CPU")
    (blob,) = (tmp_path / "cache").glob("*.blob")
    try:
        loader = weightlift.Loader(direct_io="on")
        compiled = weightlift.openvino.compile_model(core, path, "CPU", loader=loader)
    except weightlift.errors.DirectIoUnavailable as error:
        pytest.skip(f"no direct reads here: {error}")
    assert compiled.weightlift_report["reads"]["direct"] > 0
    assert runs.run(compiled) == expected
    imported = weightlift.openvino.import_model(core, blob, "CPU", loader=loader)
    assert imported.weightlift_report["reads"]["direct"] > 0
    assert runs.run(imported) == expected

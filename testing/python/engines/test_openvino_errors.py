"""What is missing, too old, damaged or changed is said, before anything is read where that can be."""

import openvino_runs as runs  # first: it skips where there is no package

import os
import subprocess
import sys
import threading

import openvino as ov
import pytest
import weightlift.openvino


@pytest.fixture
def path(tmp_path):
    return runs.write(runs.matrices([300, 200, 100]), tmp_path / "m.xml")


def with_package(tmp_path, text, code):
    """Runs code where `import openvino` finds `text`, or nothing."""
    (tmp_path / "stand-in").mkdir()
    if text is not None:
        (tmp_path / "stand-in/openvino.py").write_text(text)
    else:
        (tmp_path / "stand-in/openvino.py").write_text("raise ModuleNotFoundError(\"No module named 'openvino'\")")
    path = os.pathsep.join([str(tmp_path / "stand-in"), os.environ["PYTHONPATH"]])
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    return done.stdout.strip() or done.stderr


CALLS = {
    "read_model(None, 'm.xml')": "2025.1",
    "compile_model(None, 'm.xml', 'CPU')": "2025.1",
    "import_model(None, 'm.blob', 'CPU')": "2025.4",
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("version", [None, "2024.6.0-17404-4c0f47d2335", "2025.0.0", "who knows"])
def test_absent_or_too_old(tmp_path, call, version):
    text = None if version is None else f"__version__ = {version!r}"
    code = f"import weightlift.openvino\ntry: weightlift.openvino.{call}\nexcept ImportError as error: print(error)"
    told = with_package(tmp_path, text, code)
    assert CALLS[call] in told and (version or "No module named") in told, told


def test_the_module_is_imported_without_openvino(tmp_path):
    code = "import sys, weightlift; weightlift.openvino; print('openvino' in sys.modules, 'numpy' in sys.modules)"
    assert with_package(tmp_path, None, code) == "False False"


def test_weights_that_are_missing_or_short(path):
    core = ov.Core()
    weights = path.with_suffix(".bin")
    whole = weights.read_bytes()
    for left in (whole[:-1], whole[:100], b"", b"version https://git-lfs.github.com/spec/v1\n"):
        weights.write_bytes(left)
        for call in (weightlift.openvino.read_model, weightlift.openvino.compile_model):
            with pytest.raises(weightlift.errors.FormatError) as caught:
                call(core, path)
            assert caught.value.kind == "OutOfRange" and "tensor" in caught.value.context, caught.value
    weights.unlink()
    with pytest.raises(weightlift.errors.WeightliftError) as caught:
        weightlift.openvino.read_model(core, path)
    assert caught.value.kind == "MissingWeights"
    (path.parent / "elsewhere").write_bytes(whole[:100])
    with pytest.raises(RuntimeError):
        weightlift.openvino.read_model(core, path, path.parent / "elsewhere")
    with pytest.raises(FileNotFoundError):
        weightlift.openvino.read_model(core, path, path.parent / "nowhere")


def test_models_that_are_none(tmp_path):
    core = ov.Core()
    with pytest.raises(weightlift.errors.FileNotFound):
        weightlift.openvino.read_model(core, tmp_path / "nothing.xml")
    with pytest.raises(weightlift.errors.FileNotFound):
        weightlift.openvino.import_model(core, tmp_path / "nothing.blob", "CPU")
    for call in (weightlift.openvino.read_model, weightlift.openvino.open_reader):
        with pytest.raises(weightlift.errors.WeightliftError):
            call(*([core] if call is weightlift.openvino.read_model else []), tmp_path)
    (tmp_path / "m.xml").write_text("no model")
    with pytest.raises(weightlift.errors.FormatError):
        weightlift.openvino.read_model(core, tmp_path / "m.xml")


def test_a_device_that_is_not_there(path):
    """In OpenVINO's words, and before anything is read."""
    core = ov.Core()
    asked = []
    for device in ("GPU", "NPU", "GPU.7"):
        if device.partition(".")[0] in core.available_devices:
            pytest.skip(f"there is a {device}")
        with pytest.raises(RuntimeError):
            weightlift.openvino.compile_model(core, path, device, progress=lambda *how: asked.append(how))
    assert not asked


def test_a_file_that_is_written_to_meanwhile(tmp_path):
    path = runs.write(runs.matrices([2048, 2048]), tmp_path / "m.xml")

    def write(done, total):
        with open(path.with_suffix(".bin"), "r+b") as f:
            f.write(b"!")

    with pytest.raises(weightlift.errors.Changed):
        weightlift.openvino.read_model(ov.Core(), path, progress=write)
    assert runs.run(weightlift.openvino.compile_model(ov.Core(), path, "CPU"))


def test_memory_that_is_not_there(tmp_path):
    """A blob of 64 GiB, all holes, in a process that may map 16."""
    with open(tmp_path / "1.blob", "wb") as f:
        f.truncate(64 << 30)
    code = f"""
import resource, openvino, weightlift.openvino
resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
try:
    weightlift.openvino.import_model(openvino.Core(), {str(tmp_path / "1.blob")!r}, "CPU")
except MemoryError as error:
    print(type(error).__name__, error.context["wanted"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["OutOfHostMemory", str(64 << 30)], done.stderr


def test_an_exception_of_the_callers_ends_the_load(path):
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        weightlift.openvino.read_model(ov.Core(), path, progress=stop)


def test_several_threads_at_once(path):
    core = ov.Core()
    expected = runs.run(core.compile_model(path, "CPU"))
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(runs.run(weightlift.openvino.compile_model(core, path, "CPU"))))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 6


class Plugin:
    """A core whose GPU gives memory, as far as one can tell without a GPU: it compiles on the CPU."""

    def __init__(self, give):
        self.core, self.give, self.asked = ov.Core(), give, []

    def get_default_context(self, device):
        self.asked.append(device)
        return self

    def create_host_tensor(self, kind, shape):
        self.given = self.give(kind, shape)
        return self.given

    def get_property(self, device, name):
        return "a GPU" if device.startswith("GPU") else self.core.get_property(device, name)

    def read_model(self, text, tensor):
        self.used = tensor.data.ctypes.data
        return self.core.read_model(text, tensor)

    def compile_model(self, model, device, config):
        return self.core.compile_model(model, "CPU", config)

    def import_model(self, tensor, device, config):
        self.used = tensor.data.ctypes.data
        return self.core.import_model(tensor, "CPU", config)


def at_a_page(kind, shape, off=0):
    whole = ov.Tensor(kind, [shape[0] + 8192])
    begin = -whole.data.ctypes.data % 4096 + off
    return ov.Tensor(whole, [begin], [begin + shape[0]])


def test_memory_of_a_gpus_plugin_is_taken(path, tmp_path):
    expected = runs.run(ov.Core().compile_model(path, "CPU"))
    core = Plugin(at_a_page)
    compiled = weightlift.openvino.compile_model(core, path, "GPU.0")
    assert core.asked == ["GPU.0"] and core.used == core.given.data.ctypes.data
    assert compiled.weightlift_report["openvino"]["memory"] == "usm_host"
    assert runs.run(compiled) == expected
    (tmp_path / "blob").write_bytes(runs.exported(compiled))
    compiled = weightlift.openvino.import_model(core, tmp_path / "blob", "GPU.0")
    assert core.used == core.given.data.ctypes.data
    assert runs.run(compiled) == expected


def test_a_plugin_that_gives_none_or_other_memory(path):
    def none(kind, shape):
        raise RuntimeError("not implemented")

    for give, why in ((none, "not implemented"), (lambda *wanted: at_a_page(*wanted, off=64), "begin at a page")):
        core = Plugin(give)
        facts = weightlift.openvino.compile_model(core, path, "GPU").weightlift_report["openvino"]
        assert facts["memory"] == "openvino" and why in facts["reason"]
        assert core.used % 4096 == 0
    core = Plugin(none)
    assert "CPU" in weightlift.openvino.compile_model(core, path, "CPU").weightlift_report["openvino"]["reason"]
    assert not core.asked

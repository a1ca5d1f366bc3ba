"""The examples in Rust, `examples/engines`, against the libraries inside the engines' wheels."""

import openvino_runs as runs  # first: it skips where there is no package

import importlib.util
import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import openvino as ov
import pytest
from onnx import helper, numpy_helper


@pytest.fixture
def example(tmp_path):
    """Runs an example on a model and noise, and returns what it wrote."""
    folder = os.environ.get("WEIGHTLIFT_ENGINES")
    assert folder, "WEIGHTLIFT_ENGINES must name the folder of the examples; `cargo xtask test` builds them and sets it"

    def run(name, model, given, **environment):
        given.tofile(tmp_path / "input")
        (tmp_path / "output").unlink(missing_ok=True)
        done = subprocess.run(
            [Path(folder) / name, model, tmp_path / "input", tmp_path / "output"],
            env={**os.environ, **environment}, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode == 0:
            return np.fromfile(tmp_path / "output", np.float32)
        assert done.returncode == 1, done
        return done.stderr

    return run


@pytest.fixture
def openvino_paths(tmp_path):
    """Where the crate finds the wheel's library: it asks for a name without a version."""
    libraries = Path(ov.__file__).parent / "libs"
    (found,) = libraries.glob("libopenvino_c.so.*")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libopenvino_c.so").symlink_to(found)
    return f"{tmp_path / 'lib'}:{libraries}"


@pytest.mark.parametrize("sizes", [[300, 200, 100], [3000, 3000, 100]])
def test_openvino(example, openvino_paths, tmp_path, sizes):
    path = runs.write(runs.matrices(sizes), tmp_path / "m.xml")
    given = np.random.default_rng(1).standard_normal((1, sizes[0])).astype(np.float32)
    expected = ov.Core().compile_model(path, "CPU")(given)[0]
    found = example("openvino", path, given, LD_LIBRARY_PATH=openvino_paths)
    assert found.tobytes() == expected.tobytes()


def test_openvino_without_constants(example, openvino_paths, tmp_path):
    x = ov.opset13.parameter([4], np.float32)
    path = runs.write(ov.Model([ov.opset13.relu(x)], [x], "none"), tmp_path / "none.xml")
    given = np.array([-1, 0, 1, 2], np.float32)
    assert example("openvino", path, given, LD_LIBRARY_PATH=openvino_paths).tolist() == [0, 0, 1, 2]


def test_openvino_says_what_is_missing(example, openvino_paths, tmp_path):
    path = runs.write(runs.matrices([30, 20]), tmp_path / "m.xml")
    given = np.zeros(30, np.float32)
    os.truncate(path.with_suffix(".bin"), 100)
    assert "m.bin" in example("openvino", path, given, LD_LIBRARY_PATH=openvino_paths)
    path.with_suffix(".bin").unlink()
    assert "m.bin" in example("openvino", path, given, LD_LIBRARY_PATH=openvino_paths)


def onnxruntime_library():
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None:
        pytest.skip("onnxruntime is not installed")
    (found,) = (Path(spec.submodule_search_locations[0]) / "capi").glob("libonnxruntime.so.*")
    return str(found)


def write_onnx(folder):
    """Two matrices and their biases, in two files."""
    random = np.random.default_rng(3)
    x, nodes, weights = "x", [], []
    for number, (inputs, outputs) in enumerate([(300, 2000), (2000, 100)]):
        for kind, shape in (("w", (inputs, outputs)), ("b", (outputs,))):
            weights.append(numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), f"{kind}{number}"))
        nodes += [
            helper.make_node("MatMul", [x, f"w{number}"], [f"y{number}"]),
            helper.make_node("Add", [f"y{number}", f"b{number}"], [f"z{number}"]),
        ]
        x = f"z{number}"
    graph = helper.make_graph(
        nodes, "two layers",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 300])],
        [helper.make_tensor_value_info(x, onnx.TensorProto.FLOAT, [1, 100])], weights,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    for weight in model.graph.initializer:
        onnx.external_data_helper.set_external_data(weight, f"{weight.name[0]}.data")
    (folder / "m").mkdir()
    onnx.save_model(model, folder / "m/m.onnx")
    assert {file.name for file in (folder / "m").iterdir()} == {"m.onnx", "w.data", "b.data"}
    return folder / "m/m.onnx"


def test_onnxruntime(example, tmp_path):
    library = onnxruntime_library()
    import onnxruntime

    path = write_onnx(tmp_path)
    given = np.random.default_rng(1).standard_normal((1, 300)).astype(np.float32)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": given})
    found = example("onnxruntime", path, given, ORT_DYLIB_PATH=library)
    assert found.tobytes() == expected.tobytes()
    os.truncate(path.parent / "w.data", 1000)
    assert "w.data" in example("onnxruntime", path, given, ORT_DYLIB_PATH=library)
    (path.parent / "w.data").unlink()
    assert "w.data" in example("onnxruntime", path, given, ORT_DYLIB_PATH=library)

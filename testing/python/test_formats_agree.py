"""The same weights in every format are the same tensors: names, types, shapes, bytes; and what they
share in a file, they share in memory."""

import importlib.util
from dataclasses import dataclass

import gguf
import numpy as np
import onnx
import openvino as ov
import pytest
import safetensors.numpy
from onnx import numpy_helper
from openvino import opset13 as op

import onnx_models
import reference
import schemas
from files import noise

# What numpy calls them, and what every report does.
DTYPES = {"float16": "F16", "float32": "F32", "int8": "I8", "int32": "I32"}
SHAPES = [(), (1,), (7,), (3, 5), (1, 1, 129), (2, 3, 4, 5), (1000, 33), (0,), (2, 0, 3)]


def array(dtype: str, shape: tuple, seed: str) -> np.ndarray:
    data = noise(int(np.prod(shape)) * np.dtype(dtype).itemsize, seed)
    return np.frombuffer(data, dtype=dtype).reshape(shape)


def weights() -> dict[str, np.ndarray]:
    found = {}
    for dtype in DTYPES:
        for number, shape in enumerate(SHAPES):
            name = f"layers.{number}.{dtype}_weight"
            found[name] = array(dtype, shape, name)
    return found


# Writers.


def write_safetensors(folder, arrays):
    path = folder / "model.safetensors"
    safetensors.numpy.save_file(arrays, path)
    return path


def write_gguf(folder, arrays):
    # A scalar is a tensor of no dimensions, which its writer writes and its reader reads, though ggml
    # shows it as one of four dimensions of 1 as it does every tensor.
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(None, "llama")
    for name, data in arrays.items():
        writer.add_tensor(name, data)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_onnx(folder, arrays):
    path = folder / "model.onnx"
    tensors = [numpy_helper.from_array(data, name) for name, data in arrays.items()]
    onnx.save(onnx_models.model(tensors), path)
    return path


def write_onnx_external(folder, arrays):
    path = folder / "model.onnx"
    tensors = [numpy_helper.from_array(data, name) for name, data in arrays.items()]
    onnx.save(
        onnx_models.model(tensors),
        path,
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    assert (folder / "weights.bin").stat().st_size >= sum(a.nbytes for a in arrays.values())
    return path


def write_openvino(folder, arrays):
    path = folder / "model.xml"
    results = []
    for name, data in arrays.items():
        constant = op.constant(data)
        constant.set_friendly_name(name)
        results.append(op.result(constant))
    ov.serialize(ov.Model(results, [], "model"), path)
    return path


def write_pytorch(folder, arrays):
    import torch

    path = folder / "model.pt"
    torch.save({name: torch.from_numpy(data.copy()) for name, data in arrays.items()}, path)
    return path


WRITERS = {
    "safetensors": write_safetensors,
    "gguf": write_gguf,
    "onnx": write_onnx,
    "onnx-external": write_onnx_external,
    "openvino": write_openvino,
    "pytorch": write_pytorch,
}


def written(folder, name, arrays):
    """A model in that format; skips, and says so, what needs PyTorch where it is not."""
    if name == "pytorch" and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed; `cargo xtask test --torch` installs it")
    return WRITERS[name](folder, arrays)


# What is seen of them.


@dataclass(frozen=True)
class Seen:
    dtype: str
    shape: tuple
    length: int
    digest: str


def expected(arrays) -> dict[str, Seen]:
    return {
        name: Seen(DTYPES[str(a.dtype)], a.shape, a.nbytes, reference.digest(a.tobytes()))
        for name, a in arrays.items()
    }


WAYS = {
    "host": (["--device", "host"], False),
    "fake GPU": (["--device", "cuda", "--route", "pinned"], True),
}


def loaded(weightlift, path, way):
    options, gpu = WAYS[way]
    return schemas.check("load", weightlift.load(path, *options, gpu=gpu).expect(0).json())


def inspected(weightlift, path):
    return schemas.check("inspect", weightlift.inspect(path).expect(0).json())


def seen(weightlift, path, way) -> dict[str, Seen]:
    """By load, after inspect has said the same but for the bytes."""
    report = loaded(weightlift, path, way)
    tensors = {
        t["name"]: Seen(t["dtype"], tuple(t["shape"]), t["length"], t["digest"])
        for t in report["tensors"]
    }
    rows = inspected(weightlift, path)["tensors"]
    assert len(rows) == len(report["tensors"]) == len(tensors), "a name stands twice"
    for row in rows:
        assert row.get("strides") is None, row
        of_load = tensors[row["name"]]
        assert (row["dtype"], tuple(row["shape"]), row["length"]) == (
            of_load.dtype,
            of_load.shape,
            of_load.length,
        )
    return tensors


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", WRITERS)
def test_the_same_weights_are_the_same_tensors(weightlift, tmp_path, name, way):
    arrays = weights()
    path = written(tmp_path, name, arrays)
    found, wanted = seen(weightlift, path, way), expected(arrays)
    assert found.keys() == wanted.keys()
    different = [(key, found[key], wanted[key]) for key in wanted if found[key] != wanted[key]]
    assert not different, different[:3]
    # No two that have bytes are alike, so none can stand for another.
    assert len({one.digest for one in wanted.values() if one.length}) == 4 * 7


# Sharing.


def tied_pytorch(folder):
    import torch

    base = torch.from_numpy(array("float32", (6, 8), "base").copy())
    tensors = {
        "embed": base,
        "head": base,
        "parameter": torch.nn.Parameter(base),
        "rows": base[2:4],
        "transposed": base.t(),
        "alone": torch.ones(3),
    }
    path = folder / "model.pt"
    torch.save(tensors, path)
    return path, {"alone"}, base.nbytes + 12


def tied_onnx(folder):
    data = noise(200, "base")
    (folder / "w.bin").write_bytes(data)
    places = {"embed": (0, 160), "head": (0, 160), "rows": (40, 80), "alone": (160, 40)}
    tensors = []
    for name, (offset, length) in places.items():
        tensor = onnx.TensorProto(
            name=name,
            data_type=onnx.TensorProto.FLOAT,
            dims=[length // 4],
            data_location=onnx.TensorProto.EXTERNAL,
        )
        for key, value in [("location", "w.bin"), ("offset", offset), ("length", length)]:
            tensor.external_data.add(key=key, value=str(value))
        tensors.append(tensor)
    path = folder / "model.onnx"
    onnx.save(onnx_models.model(tensors), path)
    return path, {"alone"}, 200


def tied_openvino(folder):
    """Its writer puts equal bytes into the file once."""
    base = array("float32", (6, 8), "base")
    arrays = {"embed": base, "head": base.copy(), "alone": array("float32", (3,), "alone")}
    path = write_openvino(folder, arrays)
    assert path.with_suffix(".bin").stat().st_size == base.nbytes + 12
    return path, {"alone"}, base.nbytes + 12


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [tied_pytorch, tied_onnx, tied_openvino])
def test_what_is_shared_is_read_once(weightlift, tmp_path, make, way):
    if make is tied_pytorch and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed; `cargo xtask test --torch` installs it")
    path, alone, length = make(tmp_path)
    storages = {t["name"]: t["storage"] for t in inspected(weightlift, path)["tensors"]}
    shared = {storages[name] for name in storages if name not in alone}
    assert len(shared) == 1
    assert all(storages[name] not in shared for name in alone)
    report = loaded(weightlift, path, way)
    for count in ["planned", "read", "delivered"]:
        assert report["bytes"][count] == length
    digests = {t["name"]: t["digest"] for t in report["tensors"]}
    assert digests.keys() == storages.keys()
    assert digests["embed"] == digests["head"]

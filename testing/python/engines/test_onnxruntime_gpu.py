"""ONNX Runtime's sessions on a real GPU. Runs where WEIGHTLIFT_TEST_GPU=1 says that there is one.

Needs onnxruntime-gpu, torch (for CUDA's libraries), numpy and weightlift, and no other file of this folder:
models are written as the Protocol Buffers that they are.
"""

import ctypes
import gc
import os

import pytest

if os.environ.get("WEIGHTLIFT_TEST_GPU") != "1":
    pytest.skip("WEIGHTLIFT_TEST_GPU=1 says that there is a GPU", allow_module_level=True)

import numpy as np

torch = pytest.importorskip("torch")
import onnxruntime  # noqa: E402
import weightlift  # noqa: E402
import weightlift.onnxruntime  # noqa: E402
from weightlift import _onnx, _onnxruntime  # noqa: E402

if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
    pytest.skip("this onnxruntime has no CUDA: install onnxruntime-gpu", allow_module_level=True)
onnxruntime.set_default_logger_severity(3)

LEVELS = ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"]
CUDA = [("CUDAExecutionProvider", {"device_id": 0, "use_tf32": 0}), "CPUExecutionProvider"]
CPU = ["CPUExecutionProvider"]
SIDE = 512
NUMBERS = {"float32": 1, "uint8": 2, "int8": 3, "int64": 7, "float16": 10}


def varint(value):
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(at, value):
    if isinstance(value, int):
        return varint(at << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(at << 3 | 2) + varint(len(value)) + value


def node(operator, inputs, outputs, domain="", **attributes):
    out = b"".join(field(1, name) for name in inputs.split()) + b"".join(field(2, name) for name in outputs.split())
    out += field(4, operator)
    for name, value in attributes.items():
        if isinstance(value, int):
            out += field(5, field(1, name) + field(3, value) + field(20, 2))
        else:
            out += field(5, field(1, name) + b"".join(field(8, each) for each in value) + field(20, 7))
    return field(1, out + field(7, domain))


def value_info(name, shape, dtype="float32"):
    dims = b"".join(field(1, field(1, size)) for size in shape)
    return field(1, name) + field(2, field(1, field(1, NUMBERS[dtype]) + field(2, dims)))


def write(folder, nodes, weights, inputs, outputs, gap=0):
    """A model with its weights in a file, each `gap` bytes behind the one before."""
    folder.mkdir(exist_ok=True, parents=True)
    content, graph = bytearray(b"\xee" * gap), b"".join(nodes) + field(2, "main")
    for name, array in weights.items():
        place = {"location": "weights.bin", "offset": str(len(content)), "length": str(array.nbytes)}
        pairs = b"".join(field(13, field(1, key) + field(2, text)) for key, text in place.items())
        dims = b"".join(field(1, size) for size in array.shape)
        graph += field(5, dims + field(2, NUMBERS[array.dtype.name]) + field(8, name) + pairs + field(14, 1))
        content += array.tobytes() + b"\xee" * gap
    graph += b"".join(field(11, each) for each in inputs) + b"".join(field(12, each) for each in outputs)
    imports = field(8, field(1, "") + field(2, 21)) + field(8, field(1, "com.microsoft") + field(2, 1))
    (folder / "weights.bin").write_bytes(content)
    (folder / "model.onnx").write_bytes(field(1, 10) + field(7, graph) + imports)
    return folder / "model.onnx"


def weight(seed, *shape, dtype=np.float32):
    random = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.integer):
        return random.integers(0, 100, shape).astype(dtype)
    return ((random.random(shape, np.float32) - 0.5) * np.float32(12 / shape[0]) ** 0.5).astype(dtype)


def squares(count, side=SIDE):
    return {f"W{n}": weight(n, side, side) for n in range(count)}


SQUARE = [value_info("x", (SIDE, SIDE))], [value_info("y", (SIDE, SIDE))]


def chain(folder, gap=0):
    nodes = [
        node("MatMul", "x W0", "a"),
        node("Add", "a B", "b"),
        node("Gemm", "b W1 B", "c", transB=1),
        node("Gather", "W2 rows", "d"),
        node("MatMul", "c d", "e"),
        node("MatMul", "e W3", "f"),
        node("MatMul", "f W0", "y"),
    ]
    weights = squares(4) | {"B": weight(9, SIDE)}
    inputs = [*SQUARE[0], value_info("rows", (SIDE,), "int64")]
    return write(folder, nodes, weights, inputs, SQUARE[1], gap)


def folded(folder, gap=0):
    """Weights that constant folding eats: of all kinds, also those that are handed over."""
    nodes = [
        node("Transpose", "W0", "t", perm=[1, 0]),
        node("MatMul", "x t", "a"),
        node("MatMul", "W1 W2", "w"),
        node("MatMul", "a w", "b"),
        node("MatMul", "b W0", "y"),
    ]
    return write(folder, nodes, squares(3), *SQUARE, gap)


def moved(folder, gap=0):
    """Transpositions that an optimizer moves through others' inputs, whose weights it changes in place."""
    nodes = [
        node("MatMul", "x W0", "a"),
        node("Transpose", "a", "b", perm=[1, 0]),
        node("Add", "b W1", "c"),
        node("Mul", "c W2", "d"),
        node("Transpose", "d", "e", perm=[1, 0]),
        node("MatMul", "e W0", "y"),
    ]
    return write(folder, nodes, squares(3), *SQUARE, gap)


def quantized(folder, gap=0):
    blocks = SIDE // 32
    weights = {
        "B": weight(1, SIDE * 4, blocks, 16, dtype=np.uint8),
        "scales": (weight(2, SIDE * 4 * blocks) * 0.01).astype(np.float16),
        "W": weight(3, SIDE * 4, SIDE, dtype=np.float16),
    }
    nodes = [
        node("MatMulNBits", "x B scales", "a", "com.microsoft", K=SIDE, N=SIDE * 4, bits=4, block_size=32),
        node("MatMul", "a W", "y"),
    ]
    shape = (SIDE, SIDE)
    return write(folder, nodes, weights, [value_info("x", shape, "float16")], [value_info("y", shape, "float16")], gap)


def convolution(folder, gap=0):
    weights = {"K": weight(1, 64, 64, 5, 5), "L": weight(2, 64, 64, 3, 3)}
    nodes = [node("Conv", "x K", "a", pads=[2, 2, 2, 2]), node("Relu", "a", "b"), node("Conv", "b L", "y")]
    return write(folder, nodes, weights, [value_info("x", (1, 64, 32, 32))], [value_info("y", (1, 64, 30, 30))], gap)


MODELS = [chain, folded, moved, quantized, convolution]


def feed(session):
    made = {}
    for wanted in session.get_inputs():
        dtype = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64}[wanted.type]
        made[wanted.name] = weight(77, *wanted.shape, dtype=dtype)
    return made


def options(level="ORT_ENABLE_ALL"):
    made = onnxruntime.SessionOptions()
    made.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    return made


@pytest.fixture
def addresses(monkeypatch):
    """Where each weight is that was handed over last."""
    found = {}
    value = _onnxruntime._value

    def noted(tensor, weight):
        found[weight.info.name] = weight.tensor.address
        return value(tensor, weight)

    monkeypatch.setattr(_onnxruntime, "_value", noted)
    return found


def zero(address, nbytes):
    torch.zeros(1, device="cuda")  # makes the device's context the thread's
    torch.cuda.synchronize()
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuMemsetD8_v2(ctypes.c_uint64(address), ctypes.c_ubyte(0), ctypes.c_size_t(nbytes)) == 0
    torch.cuda.synchronize()


def free():
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(0)[0]


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("gap", [0, 3, 4096])
def test_results_at_every_level(make, gap, tmp_path):
    path = make(tmp_path, gap)
    for level in LEVELS:
        plain = onnxruntime.InferenceSession(path, options(level), providers=CUDA)
        inputs = feed(plain)
        expected = plain.run(None, inputs)[0]
        on_cpu = onnxruntime.InferenceSession(path, options(level), providers=CPU).run(None, inputs)[0]
        ours = weightlift.onnxruntime.session(path, options(level), providers=CUDA)
        found = ours.run(None, inputs)[0]
        assert ours.get_providers()[0] == "CUDAExecutionProvider"
        scale = np.abs(on_cpu).max()
        assert np.isfinite(found).all() and scale > 0
        precision = 1e-2 if found.dtype == np.float16 else 1e-4
        assert np.abs(found.astype(float) - expected).max() <= precision * scale, (level, ours.weightlift_report)
        assert np.abs(found.astype(float) - on_cpu).max() <= 2 * precision * scale, level
        print(make.__name__, gap, level, sorted(ours.weightlift_report["in_place"]), ours.weightlift_report["host"])


@pytest.mark.parametrize("level", LEVELS)
def test_a_weight_that_is_changed_on_the_device_changes_the_result(level, tmp_path, addresses):
    path = chain(tmp_path)
    ours = weightlift.onnxruntime.session(path, options(level), providers=CUDA)
    inputs = feed(ours)
    assert {"W0", "W1", "W2", "W3"} == set(ours.weightlift_report["in_place"]), ours.weightlift_report["host"]
    assert all(address % 256 == 0 for address in addresses.values())
    before = ours.run(None, inputs)[0]
    assert before.any()
    zero(addresses["W3"], SIDE * SIDE * 4)
    assert not ours.run(None, inputs)[0].any()


def test_everything_but_the_session_is_gone(tmp_path):
    path = chain(tmp_path)
    opened = weightlift.open(path)
    ours = weightlift.onnxruntime.session(opened, options(), providers=CUDA)
    inputs = feed(ours)
    expected = ours.run(None, inputs)[0]
    del opened
    weightlift.default_loader().release()
    (tmp_path / "weights.bin").write_bytes(b"\xff" * 100)
    path.unlink()
    gc.collect()
    # What was let go of wrongly is somebody else's afterwards.
    others = [torch.full((SIDE, SIDE), 7.0, device="cuda") for _ in range(200)]
    del others
    torch.cuda.empty_cache()
    for _ in range(3):
        assert (ours.run(None, inputs)[0] == expected).all()


def test_memory_that_the_session_does_not_want_is_given_back(tmp_path):
    side = 8192
    size = side * side * 4  # 256 MiB
    weights = squares(4, side)
    nodes = [node("MatMul", "x W0", "a"), node("MatMul", "W1 W2", "w"), node("Slice", "w from to", "v"),
             node("MatMul", "a W3", "b"), node("MatMul", "b v", "y")]  # fmt: skip
    weights |= {"from": np.array([0, 0]), "to": np.array([side, 16])}
    path = write(tmp_path, nodes, weights, [value_info("x", (1, side))], [value_info("y", (1, 16))])
    del weights
    # What every first session of a process takes.
    small = weightlift.onnxruntime.session(chain(tmp_path / "small"), options(), providers=CUDA)
    small.run(None, feed(small))
    del small
    start = free()
    ours = weightlift.onnxruntime.session(path, options(), providers=CUDA)
    report = ours.weightlift_report
    taken = start - free()
    print(report["in_place"], report["host"], taken)
    assert set(report["in_place"]) == {"W0", "W3"}, report["host"]
    assert report["given_back"] == 2 * size
    # Two weights, the arena's beginning, and nothing of the two that are folded.
    assert 2 * size <= taken <= 2 * size + (200 << 20)
    ours.run(None, feed(ours))
    del ours
    assert start - free() < 100 << 20


def test_no_leak_of_device_memory(tmp_path):
    path = chain(tmp_path)

    def many(count):
        for _ in range(count):
            ours = weightlift.onnxruntime.session(path, options(), providers=CUDA)
            ours.run(None, feed(ours))
        del ours
        return free()

    before = many(5)
    assert before - many(100) < 32 << 20
    assert weightlift.default_loader().quarantined() == (0, 0)


def test_a_change_under_its_name_is_noticed(tmp_path, monkeypatch):
    path = moved(tmp_path)
    plain = onnxruntime.InferenceSession(path, options(), providers=CUDA)
    inputs = feed(plain)
    monkeypatch.setattr(_onnx, "_CARRIES", _onnx._CARRIES | {b"Add", b"Mul"})
    ours = weightlift.onnxruntime.session(path, options(), providers=CUDA)
    assert np.allclose(ours.run(None, inputs)[0], plain.run(None, inputs)[0], rtol=1e-4, atol=1e-4)
    print(ours.weightlift_report["host"])
    assert "W0" in ours.weightlift_report["in_place"]
    assert "W1" in ours.weightlift_report["host"]


def test_without_providers_the_gpu_is_taken(tmp_path):
    ours = weightlift.onnxruntime.session(chain(tmp_path), options())
    assert ours.weightlift_report["device"] == "cuda:0"
    ours.set_providers(CPU)
    assert ours.weightlift_report["device"] == "host"
    with pytest.raises(weightlift.errors.DeviceError):
        weightlift.onnxruntime.session(chain(tmp_path), providers=[("CUDAExecutionProvider", {"device_id": 99})])

"""ONNX models to run, with their weights laid into files in many ways, and ONNX Runtime's own answer."""

import sys

import pytest

if sys.version_info < (3, 11):
    pytest.skip("the package is for Python 3.11 and later", allow_module_level=True)

import hashlib
import importlib.util
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

onnxruntime.set_default_logger_severity(3)

LEVELS = ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"]
SIZE = 192  # A square of floats of this side is 144 KiB: more than the least that is handed over.
CPU = ["CPUExecutionProvider"]


def options(level="ORT_ENABLE_ALL", prepacking=True):
    made = onnxruntime.SessionOptions()
    made.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    if not prepacking:
        made.add_session_config_entry("session.disable_prepacking", "1")
    return made


def weight(seed, *shape, dtype=np.float32):
    random = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.integer):
        return random.integers(0, 100, shape).astype(dtype)
    return (random.random(shape, np.float32) - 0.5).astype(dtype)


def value(name, *shape, number=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, number, shape)


def node(operator, inputs, outputs, **attributes):
    return helper.make_node(operator, inputs.split(), outputs.split(), **attributes)


def initializers(weights):
    return [numpy_helper.from_array(array, name) for name, array in weights.items()]


def build(nodes, weights, inputs=None, outputs=None, functions=(), domains=()):
    square = value("x", SIZE, SIZE), value("y", SIZE, SIZE)
    graph = helper.make_graph(nodes, "main", inputs or [square[0]], outputs or [square[1]], initializers(weights))
    imports = [helper.make_opsetid("", 21), *(helper.make_opsetid(name, 1) for name in domains)]
    return helper.make_model(graph, ir_version=10, opset_imports=imports, functions=list(functions))


def tensors(model):
    """Every tensor with raw data of a model, those in subgraphs, attributes and functions too."""
    todo = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    yield from model.graph.initializer
    while todo:
        for attribute in todo.pop().attribute:
            if attribute.HasField("t"):
                yield attribute.t
            for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from graph.initializer
                todo.extend(graph.node)


def spread(model, folder, *, gap=0, files=("weights.bin",), length=True, least=0):
    """Writes the model, its tensors' data into files by turns, each ``gap`` bytes behind the one before."""
    folder.mkdir(parents=True, exist_ok=True)
    model = onnx.ModelProto.FromString(model.SerializeToString())
    contents = {name: bytearray(b"\xee" * gap) for name in files}
    for number, tensor in enumerate(tensors(model)):
        data = tensor.raw_data
        if not tensor.HasField("raw_data") or len(data) < least:
            continue
        location = files[number % len(files)]
        entries = {"location": location, "offset": len(contents[location]), "length": len(data)}
        if not length:
            del entries["length"]
        contents[location] += data + b"\xee" * gap
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, entry in entries.items():
            tensor.external_data.add(key=key, value=str(entry))
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def feed(session):
    """Inputs for a session, the same each time."""
    made: dict = {}
    if {each.name for each in session.get_inputs()} == {"input", "state", "sr"}:
        # Speech, 32 ms of it behind 4 ms that were there before.
        return {"input": weight(1, 1, 576), "state": weight(2, 2, 1, 128), "sr": np.array(16000)}
    for number, wanted in enumerate(session.get_inputs()):
        shape = [size if isinstance(size, int) else (1 if at == 0 else 64) for at, size in enumerate(wanted.shape)]
        dtype = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32,
                 "tensor(bool)": np.bool_, "tensor(float16)": np.float16}[wanted.type]  # fmt: skip
        made[wanted.name] = weight(number, *shape, dtype=dtype) if dtype != np.bool_ else np.ones(shape, dtype)
    return made


def own_answer(model, made):
    """What ONNX Runtime answers by itself, all data being in the model."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), made, providers=CPU)
    inputs = feed(session)
    return inputs, session.run(None, inputs)


def digest(answers):
    return hashlib.sha256(b"".join(np.ascontiguousarray(answer).tobytes() for answer in answers)).hexdigest()


def same(ours, theirs):
    assert len(ours) == len(theirs)
    for mine, their in zip(ours, theirs):
        assert mine.dtype == their.dtype and mine.shape == their.shape
        assert mine.tobytes() == their.tobytes()


# Models, by what is to be right about them.


def chain():
    """MatMul, Gemm and Gather, which use weights as they are, and small ones between."""
    weights = {f"W{n}": weight(n, SIZE, SIZE) for n in range(4)}
    weights |= {"B": weight(8, SIZE), "bias": weight(9, SIZE), "empty": weight(10, 0, 3)}
    return build(
        [
            node("MatMul", "x W0", "a"),
            node("Add", "a B", "b"),
            node("Gemm", "b W1 bias", "c", transB=1),
            node("Relu", "c", "d"),
            node("MatMul", "d W2", "e"),
            node("Constant", "", "rows", value=numpy_helper.from_array(np.arange(SIZE)[::-1].copy())),
            node("Gather", "W3 rows", "f"),
            node("Add", "e f", "g"),
            # The same weight a second time.
            node("MatMul", "g W0", "h"),
            node("Concat", "h empty2", "y", axis=0),
            node("Constant", "", "wide", value=numpy_helper.from_array(np.array([0, SIZE]))),
            node("Reshape", "empty wide", "empty2", allowzero=1),
        ],
        weights,
    )


def sorted_nodes(model):
    """Nodes in an order that ONNX allows."""
    known = {"", *(i.name for i in model.graph.input), *(i.name for i in model.graph.initializer)}
    todo, done = list(model.graph.node), []
    while todo:
        ready = [n for n in todo if all(name in known for name in n.input)]
        assert ready
        for each in ready:
            todo.remove(each)
            done.append(each)
            known.update(each.output)
    del model.graph.node[:]
    model.graph.node.extend(done)
    return model


def folded():
    """Weights that constant folding eats, one beside a use as it is."""
    weights = {f"W{n}": weight(n, SIZE, SIZE) for n in range(4)}
    return build(
        [
            node("Transpose", "W0", "t", perm=[1, 0]),
            node("MatMul", "x t", "a"),
            node("MatMul", "a W0", "b"),
            # Of two constants, a constant.
            node("MatMul", "W1 W2", "w"),
            node("MatMul", "b w", "c"),
            node("MatMul", "c W3", "y"),
        ],
        weights,
    )


def moved():
    """Transpositions that an optimizer moves through others' inputs, whose weights it changes in place."""
    weights = {"W": weight(1, SIZE, SIZE), "V": weight(2, SIZE), "M": weight(3, SIZE, SIZE), "Q": weight(4, SIZE, SIZE)}
    return build(
        [
            node("MatMul", "x M", "a"),
            node("Transpose", "a", "b", perm=[1, 0]),
            node("Add", "b W", "c"),
            node("Mul", "c V", "d"),
            node("Where", "k d Q", "e"),
            node("Transpose", "e", "f", perm=[1, 0]),
            node("MatMul", "f M", "y"),
        ],
        weights | {"k": weight(5, SIZE, SIZE) > 0},
    )


def branches():
    """An If in an If, a Loop, an attribute and a function with data of their own, names that stand twice, and a
    weight of the main graph that a branch uses."""
    f32 = TensorProto.FLOAT

    def branch(name, seed, *more):
        out = f"{name}_out"
        nodes = [node("MatMul", "a W", f"{name}_a"), node("MatMul", f"{name}_a M", out), *more]
        return helper.make_graph(
            nodes, name, [], [helper.make_tensor_value_info(more[-1].output[0] if more else out, f32, None)],
            initializers({"W": weight(seed, SIZE, SIZE)}),
        )  # fmt: skip

    inner = node("If", "yes", "then_if", then_branch=branch("in_then", 3), else_branch=branch("in_else", 4))
    step = helper.make_graph(
        [node("MatMul", "state L", "next"), node("Identity", "go", "on"), node("Identity", "next", "seen")],
        "step",
        [value("i", number=7), value("go", number=9), value("state", SIZE, SIZE)],
        [value("on", number=9), value("next", SIZE, SIZE), value("seen", SIZE, SIZE)],
        initializers({"L": weight(6, SIZE, SIZE)}),
    )
    constant = node("Constant", "", "k", value=numpy_helper.from_array(weight(7, SIZE, SIZE)))
    own = helper.make_function(
        "own", "Scaled", ["p"], ["q"],
        [node("Constant", "", "s", value=numpy_helper.from_array(weight(8, SIZE, SIZE))), node("MatMul", "p s", "q")],
        [helper.make_opsetid("", 21)],
    )  # fmt: skip
    return build(
        [
            node("MatMul", "x M", "a"),
            node("Constant", "", "yes", value=numpy_helper.from_array(np.array(True))),
            node("ReduceSum", "x", "sum", keepdims=0),
            node("Constant", "", "zero", value=numpy_helper.from_array(np.float32(1e9))),
            node("Less", "sum zero", "less"),
            node("If", "less", "b", then_branch=branch("then", 2, inner), else_branch=branch("else", 5)),
            node("Constant", "", "times", value=numpy_helper.from_array(np.array(2))),
            node("Loop", "times yes b", "c every", body=step),
            constant,
            node("MatMul", "c k", "d"),
            helper.make_node("Scaled", ["d"], ["y"], domain="own"),
        ],
        {"M": weight(1, SIZE, SIZE)},
        functions=[own],
        domains=["own"],
    )


def quantized():
    """MatMulNBits, and weights of 4 and 8 bits that are dequantized."""
    blocks = SIZE // 32
    weights = {
        "B": weight(1, SIZE * 8, blocks, 16, dtype=np.uint8),
        "scales": weight(2, SIZE * 8 * blocks),
        "zero": weight(3, SIZE * 8 * ((blocks + 1) // 2), dtype=np.uint8),
        "Q": weight(4, SIZE * 8, SIZE, dtype=np.int8),
        "N": weight(5, SIZE, SIZE).astype(ml_dtypes.int4),
        "F": weight(6, SIZE, SIZE).astype(ml_dtypes.float8_e4m3fn),
        "H": weight(7, SIZE, SIZE).astype(ml_dtypes.bfloat16),
        "s": np.float32(0.5),
    }
    return build(
        [
            helper.make_node("MatMulNBits", ["x", "B", "scales", "zero"], ["a"], domain="com.microsoft",
                             K=SIZE, N=SIZE * 8, bits=4, block_size=32),  # fmt: skip
            node("DequantizeLinear", "Q s", "q"),
            node("MatMul", "a q", "b"),
            node("DequantizeLinear", "N s", "n"),
            node("MatMul", "b n", "c"),
            node("Cast", "F", "f", to=TensorProto.FLOAT),
            node("MatMul", "c f", "d"),
            node("Cast", "H", "h", to=TensorProto.FLOAT),
            node("MatMul", "d h", "y"),
        ],
        weights,
        domains=["com.microsoft"],
    )


def convolution():
    """Weights that ONNX Runtime lays out anew for the processor."""
    weights = {"K": weight(1, 64, 16, 5, 5), "k": weight(2, 64), "L": weight(3, 64, 64, 3, 3), "P": weight(4, 64, 1, 1)}
    return build(
        [
            node("Conv", "x K k", "a", pads=[2, 2, 2, 2]),
            node("Relu", "a", "b"),
            node("Transpose", "b", "c", perm=[0, 2, 3, 1]),
            node("Transpose", "c", "d", perm=[0, 3, 1, 2]),
            node("Mul", "d P", "e"),
            node("Conv", "e L", "y"),
        ],
        weights,
        [value("x", 1, 16, 24, 24)],
        [value("y", 1, 64, 22, 22)],
    )


MODELS = {
    "chain": lambda: sorted_nodes(chain()),
    "folded": folded,
    "moved": moved,
    "branches": branches,
    "quantized": quantized,
    "convolution": convolution,
}


def real():
    """Models inside of packages, small ones, found without importing these."""
    found = {}
    for package, pattern in {"silero_vad": "silero_vad.onnx", "rapidocr": "*.onnx", "magika": "*.onnx"}.items():
        spec = importlib.util.find_spec(package)
        assert spec, f"{package} is not installed; `cargo xtask test` installs it"
        home = Path(spec.submodule_search_locations[0])
        for path in sorted(home.rglob(pattern)):
            found[f"{package}/{path.name}"] = path
    return found


def random_squares(seed):
    """A graph of what optimizers fold, fuse and move, over square matrices."""
    random = np.random.default_rng(seed)
    weights, nodes, last = {}, [], "x"
    for number in range(random.integers(4, 12)):
        operator = random.choice(["MatMul", "Add", "Mul", "Sub", "Max", "Transpose", "Transpose", "Relu", "Where", "Gather"])
        name, out = f"W{number}", f"t{number}"
        if operator not in ("Transpose", "Relu"):
            known = [each for each in weights if each.startswith("W")]
            if known and random.random() < 0.3:
                name = random.choice(known)
            weights.setdefault(name, weight(seed * 100 + number, SIZE, SIZE))
        if operator == "Transpose":
            nodes.append(node(operator, last, out, perm=[1, 0]))
        elif operator == "Relu":
            nodes.append(node(operator, last, out))
        elif operator == "Where":
            weights["k"] = weight(5, SIZE, SIZE) > 0
            nodes.append(node(operator, f"k {last} {name}", out))
        elif operator == "Gather":
            weights["rows"] = np.arange(SIZE)[::-1].copy()
            nodes += [node(operator, f"{name} rows", f"{out}g"), node("Add", f"{out}g {last}", out)]
        else:
            nodes.append(node(operator, f"{last} {name}" if random.random() < 0.7 else f"{name} {last}", out))
        last = out
    return build([*nodes, node("Identity", last, "y")], weights)

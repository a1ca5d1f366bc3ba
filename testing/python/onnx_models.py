"""ONNX models to load, made by the package onnx, and what that package reads of them."""

import importlib.util
import warnings
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes  # noqa: F401  (types that numpy lacks)
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import (
    _get_all_tensors,
    convert_model_to_external_data,
    uses_external_data,
)

import reference

# In the order of their numbers in ONNX, from 1.
DTYPES = [
    "F32",
    "U8",
    "I8",
    "U16",
    "I16",
    "I32",
    "I64",
    "STRING",
    "BOOL",
    "F16",
    "F64",
    "U32",
    "U64",
    "C64",
    "C128",
    "BF16",
    "F8_E4M3",
    "F8_E4M3FNUZ",
    "F8_E5M2",
    "F8_E5M2FNUZ",
    "U4",
    "I4",
    "F4",
    "F8_E8M0",
    "U2",
    "I2",
    "F6_E2M3",
    "F6_E3M2",
]
TYPES = dict(enumerate(DTYPES, 1))
STRING = TensorProto.STRING


@dataclass(frozen=True)
class Found:
    """A tensor as the reference has it; its own name may be empty or not the only one."""

    name: str
    dtype: str
    shape: tuple
    digest: str


def data_of(tensor: TensorProto, folder: Path) -> bytes:
    """The bytes that raw_data has or would have."""
    if tensor.data_type == STRING:
        strings = list(tensor.string_data)
        ends = np.cumsum([0, *map(len, strings)])
        return np.uint32([len(strings), *ends]).tobytes() + b"".join(strings)
    if uses_external_data(tensor):
        entries = {entry.key: entry.value for entry in tensor.external_data}
        offset = int(entries.get("offset", 0))
        length = int(entries["length"])
        return (folder / entries["location"]).read_bytes()[offset : offset + length]
    if tensor.HasField("raw_data"):
        return tensor.raw_data
    return numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data


def found(tensor: TensorProto, folder: Path) -> Found:
    digest = reference.digest(data_of(tensor, folder))
    return Found(tensor.name, TYPES[tensor.data_type], tuple(tensor.dims), digest)


def read(path: Path) -> tuple[dict[str, Found], list[Found]]:
    """The initializers of the main graph by name, and all tensors.

    What `_get_all_tensors` passes over is added: sparse tensors, and the initializers of graphs
    inside of functions.
    """
    model = onnx.load(path, load_external_data=False)
    initializers = [found(tensor, path.parent) for tensor in model.graph.initializer]
    tensors = list(_get_all_tensors(model))
    for graph in graphs(model.graph, *model.functions):
        tensors += sparse_of(graph)
    for graph in graphs(*model.functions):
        tensors += getattr(graph, "initializer", [])
    everything = [found(tensor, path.parent) for tensor in tensors]
    return {tensor.name: tensor for tensor in initializers}, everything


def graphs(*outer):
    """These graphs and functions, and all graphs in them."""
    todo = list(outer)
    while todo:
        graph = todo.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                todo.extend(attribute.graphs)
                if attribute.HasField("g"):
                    todo.append(attribute.g)


def sparse_of(graph):
    tensors = list(getattr(graph, "sparse_initializer", []))
    for node in graph.node:
        for attribute in node.attribute:
            tensors.extend(attribute.sparse_tensors)
            if attribute.HasField("sparse_tensor"):
                tensors.append(attribute.sparse_tensor)
    for tensor in tensors:
        yield tensor.values
        yield tensor.indices


def values(number: int, count: int):
    """Values that differ, of the type of that number."""
    if number == STRING:
        return [f"text {i} ä".encode() for i in range(count)]
    dtype = helper.tensor_dtype_to_np_dtype(number)
    if number == TensorProto.BOOL:
        return np.arange(count) % 3 == 0
    if DTYPES[number - 1].startswith(("I", "U")):
        bits = int(DTYPES[number - 1][1:])
        low = -(2 ** (bits - 1)) if DTYPES[number - 1][0] == "I" else 0
        span = 2 ** min(bits, 62)
        return np.array([low + i * 7919 % span for i in range(count)]).astype(dtype)
    if number == TensorProto.COMPLEX64 or number == TensorProto.COMPLEX128:
        return (np.arange(count) * (1 - 0.5j)).astype(dtype)
    return (np.arange(1, count + 1) * 0.25).astype(np.float32).astype(dtype)


def tensor(name, number, shape, raw=True):
    count = int(np.prod(shape))
    if raw and number != STRING:
        array = np.asarray(values(number, count)).reshape(shape)
        return numpy_helper.from_array(array, name)
    return helper.make_tensor(name, number, shape, values(number, count))


def model(initializers=(), nodes=(), functions=(), sparse=(), producer="", **properties):
    graph = helper.make_graph(
        list(nodes), "main", [], [], list(initializers), sparse_initializer=list(sparse)
    )
    imports = [helper.make_opsetid("", 22), helper.make_opsetid("own", 1)]
    result = helper.make_model(
        graph, functions=list(functions), opset_imports=imports, producer_name=producer
    )
    helper.set_model_props(result, properties)
    return result


def all_types(raw):
    """Every type in shapes that fill bytes and shapes that do not."""
    shapes = {"odd": (5,), "even": (2, 8), "one": (1,), "scalar": (), "empty": (0, 3), "six": (3,)}
    return model(
        tensor(f"{name}.{where}", number, shape, raw)
        for number, name in TYPES.items()
        for where, shape in shapes.items()
    )


def subgraph(name, *initializers, nodes=()):
    return helper.make_graph(list(nodes), name, [], [], list(initializers))


def sparse(name, number=1):
    indices = helper.make_tensor("", TensorProto.INT64, (3,), [2, 4, 8])
    return helper.make_sparse_tensor(tensor(name, number, (3,)), indices, [16])


def everywhere():
    """Tensors wherever they can stand, several of one name."""
    f32 = TensorProto.FLOAT
    constant = helper.make_node("Constant", [], ["c"], value=tensor("", 7, (2,), raw=False))
    named = helper.make_node("Constant", [], ["d"], name="node", value=tensor("W", f32, (3,)))
    loop = helper.make_node(
        "Loop", [], ["l"], body=subgraph("body", tensor("W", f32, (4,)), nodes=[constant])
    )
    branch = helper.make_node(
        "If",
        [],
        ["i"],
        name="If_0",
        then_branch=subgraph("then", tensor("W", f32, (5,)), tensor("V", 10, (6,)), nodes=[loop]),
        else_branch=subgraph("else", tensor("W", f32, (7,))),
    )
    scan = helper.make_node("Scan", [], ["s"], body=subgraph("scan", tensor("U", 12, (8,))))
    several = helper.make_node(
        "Several",
        [],
        ["v"],
        domain="own",
        tensors=[tensor("", f32, (2,)), tensor("T", 8, (2,))],
        graphs=[subgraph("g", tensor("W", f32, (9,))), subgraph("h", tensor("", f32, (10,)))],
        sparse_tensors=[sparse("P"), sparse("P", 11)],
    )
    lone = helper.make_node("Constant", [], ["e"], sparse_value=sparse(""))
    inner = helper.make_node("Constant", [], ["o"], value=tensor("W", 16, (11,)))
    function = helper.make_function(
        "own", "F", [], ["o"], [inner, scan], [helper.make_opsetid("", 22)]
    )
    nodes = [constant, named, branch, scan, several, lone]
    return model(
        [tensor("W", f32, (12,)), tensor("big", f32, (999,))],
        nodes,
        [function],
        [sparse("Z")],
    )


def tied():
    """Two tensors over the same bytes, and one that overlaps them."""
    result = model(tensor(name, 1, (16,)) for name in ["a", "b", "c"])
    for number, offset in enumerate([3, 3, 35]):
        external(result, "tied.bin", offset=offset, length=64, number=number)
    return result


def external(result, location, number=0, **entries):
    """Moves an initializer's data, which somebody else writes, to a file."""
    target = result.graph.initializer[number]
    target.ClearField("raw_data")
    target.data_location = TensorProto.EXTERNAL
    del target.external_data[:]
    for key, value in {"location": location, **entries}.items():
        target.external_data.add(key=key, value=str(value))
    return result


def write_models(folder: Path) -> dict[str, Path]:
    """The generated models by name."""
    made = {}

    def save(name, result, convert=None):
        path = folder / name / "model.onnx"
        path.parent.mkdir()
        if convert:
            convert_model_to_external_data(result, size_threshold=0, **convert)
        onnx.save(result, path)
        made[name] = path

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save("types-raw", all_types(raw=True))
        save("types-typed", all_types(raw=False))
        save("types-external", all_types(raw=True), {"location": "model.onnx.data"})
        save("everywhere", everywhere())
        save("everywhere-external", everywhere(), {"location": "d.bin", "convert_attribute": True})
        save(
            "file-per-tensor",
            model(tensor(f"t{i}", 1, (i + 1,)) for i in range(5)),
            {"all_tensors_to_one_file": False},
        )
        save("no-tensors", model())
        save("tied", tied())
    data = np.arange(33, dtype=np.float32).tobytes()
    (folder / "tied" / "tied.bin").write_bytes(data)
    return made


def real_models() -> dict[str, Path]:
    """Models inside of packages, found without importing these."""
    paths = {}
    for package in ["magika", "rapidocr", "silero_vad", "onnx"]:
        spec = importlib.util.find_spec(package)
        assert spec, f"{package} is not installed; `cargo xtask test` installs it"
        home = Path(spec.submodule_search_locations[0])
        files = sorted(home.rglob("*.onnx"))
        assert files, home
        paths |= {f"{package}/{file.relative_to(home)}": file for file in files}
    return paths

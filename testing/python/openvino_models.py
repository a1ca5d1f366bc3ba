"""Models of OpenVINO, made and read back by its own package."""

import importlib.util
import struct
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as op

import reference
from files import noise

# OpenVINO's element types and what weightlift calls them.
DTYPES = {
    "boolean": "BOOL",
    "bf16": "BF16",
    "f16": "F16",
    "f32": "F32",
    "f64": "F64",
    "i4": "I4",
    "i8": "I8",
    "i16": "I16",
    "i32": "I32",
    "i64": "I64",
    "u1": "U1",
    "u2": "U2",
    "u3": "U3",
    "u4": "U4",
    "u6": "U6",
    "u8": "U8",
    "u16": "U16",
    "u32": "U32",
    "u64": "U64",
    "nf4": "NF4",
    "f4e2m1": "F4",
    "f8e4m3": "F8_E4M3",
    "f8e5m2": "F8_E5M2",
    "f8e8m0": "F8_E8M0",
    "string": "STRING",
}
SHAPES = [(), (1,), (5,), (9,), (11,), (3, 3), (0, 4), (2, 3, 4)]


def constant(element_type, shape, name):
    """A constant full of noise, in the bytes that its type takes packed."""
    if element_type == "string":
        count = int(np.prod(shape))
        words = [noise(i % 7, f"{name} {i}").hex() for i in range(count)]
        tensor = ov.Tensor(np.array(words, dtype=str).reshape(shape))
    else:
        tensor = ov.Tensor(getattr(ov.Type, element_type), ov.Shape(shape))
        packed = np.frombuffer(noise(tensor.byte_size, name), np.uint8)
        if element_type == "boolean":
            packed = packed & 1
        if tensor.byte_size:
            tensor.data.reshape(-1).view(np.uint8)[:] = packed
    node = op.constant(tensor)
    node.set_friendly_name(name)
    return node


def floats(values, name):
    node = op.constant(np.array(values, np.float32))
    node.set_friendly_name(name)
    return node


def all_types() -> ov.Model:
    nodes = [
        constant(element_type, shape, f"{element_type}/{'x'.join(map(str, shape))}")
        for element_type in DTYPES
        for shape in SHAPES
    ]
    return ov.Model([op.result(node) for node in nodes], [], 'all & "types"')


def shared() -> ov.Model:
    """The same bytes as two types, which the writer stores once."""
    nodes = [constant(t, (1000,), "same bytes") for t in ["f32", "i32", "u32"]]
    for node in nodes:
        node.set_friendly_name(node.get_element_type().to_string())
    return ov.Model([op.result(node) for node in nodes], [], "shared")


def compressed() -> ov.Model:
    """Floats that `save_model` halves."""
    x = op.parameter([64], np.float32, name="x")
    weights = np.frombuffer(noise(64 * 64, "weights"), np.uint8).astype(np.float32) / 256
    product = op.matmul(floats(weights.reshape(64, 64), "weights"), x, False, False)
    return ov.Model([op.result(product)], [x], "compressed")


def nested() -> ov.Model:
    """Bodies of If, Loop and TensorIterator, in each of them a constant `w`; two more outside."""
    x = op.parameter([4], np.float32, name="x")

    def body(value):
        parameter = op.parameter([4], np.float32)
        total = op.add(parameter, floats([value] * 4, "w"))
        return ov.Model([op.result(total)], [parameter], "body"), parameter

    condition = op.constant(np.array(True))
    condition.set_friendly_name("condition")
    choice = op.if_op(condition)
    choice.set_friendly_name("if")
    (then, then_input), (other, other_input) = body(1), body(2)
    choice.set_then_body(then)
    choice.set_else_body(other)
    choice.set_input(x.output(0), then_input, other_input)
    chosen = choice.set_output(then.results[0], other.results[0])

    state = op.parameter([4], np.float32)
    go_on = op.constant(np.array(True))
    go_on.set_friendly_name("go on")
    total = op.add(state, floats([3] * 4, "w"))
    loop_body = ov.Model([op.result(total), op.result(go_on)], [state], "body")
    trips = op.constant(np.array(3, np.int64))
    trips.set_friendly_name("trips")
    loop = op.loop(trips, condition)
    loop.set_friendly_name("loop")
    loop.set_function(loop_body)
    loop.set_special_body_ports([-1, 1])
    loop.set_merged_input(state, chosen, total.output(0))
    looped = loop.get_iter_value(total.output(0), -1)

    iterator = op.tensor_iterator()
    iterator.set_friendly_name("iterator")
    item = op.parameter([1], np.float32)
    result = op.add(item, floats([4], "w"))
    iterator.set_body(ov.Model([op.result(result)], [item], "body"))
    iterator.set_sliced_input(item, looped, 0, 1, 1, -1, 0)
    iterated = iterator.get_concatenated_slices(result.output(0), 0, 1, 1, -1, 0)

    out = op.add(op.add(iterated, floats([5] * 4, "w")), floats([6] * 4, "w"))
    return ov.Model([op.result(out)], [x], "nested")


# The bytes of each constant of `nested`, by the name that weightlift gives it.
NESTED = {
    "if/w": [1] * 4,
    "if/w#2": [2] * 4,
    "loop/w": [3] * 4,
    "iterator/w": [4],
    "w": [5] * 4,
    "w#2": [6] * 4,
}


def voice_detector() -> ov.Model:
    """A real model, with If and constants in it, from the package silero-vad."""
    # The package itself wants torch when it is imported.
    package = importlib.util.find_spec("silero_vad")
    folder = Path(package.submodule_search_locations[0]) / "data"
    return ov.convert_model(folder / "silero_vad_op18_ifless.onnx")


def write_models(folder: Path) -> dict[str, Path]:
    """The .xml files by name; each has its .bin beside it."""
    models = {}
    for make in [all_types, shared, compressed, nested, voice_detector]:
        name = make.__name__
        model = make()
        models[name] = folder / f"{name}.xml"
        ov.serialize(model, models[name])
        if make in (compressed, voice_detector):
            models[f"{name}_f16"] = folder / f"{name}_f16.xml"
            ov.save_model(model, models[f"{name}_f16"])
    return models


def read_model(path: Path) -> ov.Model:
    # Without mapping, so that Windows lets go of the file.
    core = ov.Core()
    core.set_property({"ENABLE_MMAP": False})
    return core.read_model(path)


def accepts(path: Path) -> bool:
    """Whether OpenVINO takes the model, and whether its names are text."""
    try:
        for node in read_model(path).get_ops():
            node.get_friendly_name()
    except (RuntimeError, UnicodeDecodeError):
        return False
    return True


def read(path: Path) -> list[reference.Tensor]:
    """All constants as OpenVINO reads them, those in bodies too; names may stand twice."""
    return list(_constants(read_model(path)))


def _constants(model):
    for node in model.get_ops():
        kind = node.get_type_name()
        if kind == "Constant":
            yield _tensor(node)
        elif kind == "If":
            yield from _constants(node.get_then_body())
            yield from _constants(node.get_else_body())
        elif kind == "Loop":
            yield from _constants(node.get_function())
        elif kind == "TensorIterator":
            yield from _constants(node.get_body())


def _tensor(node) -> reference.Tensor:
    element_type = node.get_element_type().to_string()
    data = _packed(node) if element_type == "string" else node.data.tobytes()
    return reference.Tensor(
        node.get_friendly_name(),
        DTYPES[element_type],
        tuple(node.get_output_shape(0)),
        len(data),
        reference.digest(data),
    )


def _packed(node) -> bytes:
    """Strings as the .bin holds them: their number, where each begins and the last ends, the text."""
    words = [word.encode() for word in node.get_value_strings()]
    ends = np.cumsum([0, *map(len, words)])
    return struct.pack(f"<{len(ends) + 1}i", len(words), *ends) + b"".join(words)

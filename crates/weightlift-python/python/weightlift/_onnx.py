"""An ONNX model's own bytes: its initializers, who uses them, and tensors that have to move into them.

weightlift's index has read and checked the model before; what is looked up here is what an engine has to
be told and the index does not keep. Field numbers are those of onnx.proto.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, NamedTuple

from .errors import FormatError

# Name and bits of each type, by its number less one.
_TYPES = [
    ("F32", 32), ("U8", 8), ("I8", 8), ("U16", 16), ("I16", 16), ("I32", 32), ("I64", 64), ("STRING", 0),
    ("BOOL", 8), ("F16", 16), ("F64", 64), ("U32", 32), ("U64", 64), ("C64", 64), ("C128", 128), ("BF16", 16),
    ("F8_E4M3", 8), ("F8_E4M3FNUZ", 8), ("F8_E5M2", 8), ("F8_E5M2FNUZ", 8), ("U4", 4), ("I4", 4), ("F4", 4),
    ("F8_E8M0", 8), ("U2", 2), ("I2", 2), ("F6_E2M3", 6), ("F6_E3M2", 6),
]  # fmt: skip

# Operators of ONNX and of ONNX Runtime that have weights as inputs and whose weights no optimizer of ONNX
# Runtime changes under their names. Those that move transpositions do so with inputs of elementwise
# operators, Concat, Pad, DequantizeLinear and others.
_CARRIES = {
    b"MatMul", b"Gemm", b"Conv", b"ConvTranspose", b"Gather", b"LSTM", b"GRU", b"RNN",
    b"MatMulInteger", b"QLinearMatMul", b"ConvInteger", b"QLinearConv",
    b"FusedMatMul", b"FusedGemm", b"FusedConv", b"MatMulNBits", b"MatMulBnb4", b"DynamicQuantizeMatMul",
    b"MatMulIntegerToFloat", b"QGemm", b"GatherBlockQuantized", b"MoE", b"QMoE", b"Attention", b"QAttention",
    b"EmbedLayerNormalization", b"MatMulFpQ4", b"FusedMatMulActivation",
}  # fmt: skip
_DOMAINS = (b"", b"ai.onnx", b"com.microsoft")


class Initializer(NamedTuple):
    """An initializer of the main graph."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    location: str | None
    """The file that it lies in, as the model spells it; ``None`` in the model itself."""
    raw: tuple[int, int] | None
    """Where its bytes begin and end in the model, if they are there as they are in memory."""


class Graph:
    """The main graph of a serialized model."""

    def __init__(self, data: bytes):
        self.data = data
        self.initializers: dict[str, Initializer] = {}
        self.inner: set[str] = set()
        """Names of initializers in subgraphs."""
        self._uses: dict[bytes, set[bytes]] = {}
        outputs: set[bytes] = set()
        nodes: list[tuple[int, int]] = []
        for number, at, end in fields(data, 0, len(data)):
            if number != 7:
                continue
            for number, at, end in fields(data, at, end):
                if number == 1:
                    nodes.append((at, end))
                elif number == 5:
                    found = _initializer(data, at, end)
                    self.initializers[found.name] = found
                elif number == 12:
                    outputs |= {data[s:e] for number, s, e in fields(data, at, end) if number == 1}
        names = {name.encode() for name in self.initializers}
        for at, end in nodes:
            self._node(at, end, names)
        for name in names & outputs:
            self._uses.setdefault(name, set()).add(b"the graph's outputs")

    def is_used(self, name: str) -> bool:
        """Whether a node, or the graph as its output, has it."""
        return name.encode() in self._uses

    def _node(self, at: int, end: int, names: set[bytes]) -> None:
        data = self.data
        inputs: list[bytes] = []
        operator = domain = b""
        for number, start, stop in fields(data, at, end):
            if number == 1:
                name = data[start:stop]
                if name in names:
                    inputs.append(name)
            elif number == 4:
                operator = data[start:stop]
            elif number == 7:
                domain = data[start:stop]
        if inputs:
            if domain not in _DOMAINS:
                operator = domain + b"." + operator
            for name in inputs:
                self._uses.setdefault(name, set()).add(operator)
        # Attributes with graphs say that they are such: type (20) is GRAPH (5) or GRAPHS (10).
        if data.find(b"\xa0\x01\x05", at, end) >= 0 or data.find(b"\xa0\x01\x0a", at, end) >= 0:
            for number, start, stop in fields(data, at, end):
                if number == 5:
                    self._attribute(start, stop, names)

    def _attribute(self, at: int, end: int, names: set[bytes]) -> None:
        for number, start, stop in fields(self.data, at, end):
            if number not in (6, 11):
                continue
            for number, first, last in fields(self.data, start, stop):
                if number == 1:
                    self._node(first, last, names)
                elif number == 5:
                    self.inner.add(_initializer(self.data, first, last).name)

    def changers(self, name: str) -> set[str]:
        """The operators that use an initializer and of which it is not known that no optimizer changes their
        weights under their names."""
        return {use.decode(errors="replace") for use in self._uses.get(name.encode(), set()) - _CARRIES}


def with_inner_data(data: bytes, fetch: Callable[[str, int, int], bytes], small: int = 0) -> tuple[bytes, int]:
    """The model with the data of all tensors in it that lie in files, of the main graph's initializers only
    those of fewer than ``small`` bytes, and how many these are. ``fetch(location, offset, length)`` reads."""
    inlined = _Inline(data, fetch, small)
    return inlined.message(0, len(data), _MODEL) or data, inlined.count


def with_outer_data(data: bytes, names: set[str], location: str) -> bytes:
    """The model with the data of these initializers of its main graph, which are in it as they are in memory, in
    a file at ``location``: the model's own file, as it was before."""
    parts: list[bytes] = []
    for begin, finish, number, at, end in _pieces(data, 0, len(data)):
        if number != 7 or end is None:
            parts.append(data[begin:finish])
            continue
        graph: list[bytes] = []
        done = at
        for begin, finish, number, start, stop in _pieces(data, at, end):
            if number != 5 or stop is None or stop - start < 128:
                continue
            found = _initializer(data, start, stop)
            if found.name in names and found.raw is not None:
                graph += [data[done:begin], _field(5, _outside(data, start, stop, location))]
                done = finish
        parts.append(_field(7, b"".join([*graph, data[done:end]])))
    return b"".join(parts)


def _outside(data: bytes, at: int, end: int, location: str) -> bytes:
    kept: list[bytes] = []
    entries = {"location": location}
    for begin, finish, number, start, stop in _pieces(data, at, end):
        if number == 9:
            entries |= {"offset": str(start), "length": str(stop - start)}
        elif number not in (13, 14):
            kept.append(data[begin:finish])
    pairs = [_field(13, _field(1, key.encode()) + _field(2, value.encode())) for key, value in entries.items()]
    # data_location (14) is EXTERNAL (1).
    return b"".join([*kept, *pairs, b"\x70\x01"])


# What of a message is looked into: by the field's number, what is in it.
_TENSOR: dict[int, Any] = {}
_SPARSE: dict[int, Any] = {1: _TENSOR, 2: _TENSOR}
_ATTRIBUTE: dict[int, Any] = {5: _TENSOR, 10: _TENSOR, 22: _SPARSE, 23: _SPARSE}
_NODE = {5: _ATTRIBUTE}
_ATTRIBUTE |= {6: {1: _NODE, 5: _TENSOR, 15: _SPARSE}}
_ATTRIBUTE[11] = _ATTRIBUTE[6]
_INITIALIZER: dict[int, Any] = {}
_MODEL = {7: {1: _NODE, 5: _INITIALIZER, 15: _SPARSE}, 25: {7: _NODE, 11: _ATTRIBUTE}}


class _Inline:
    def __init__(self, data: bytes, fetch: Callable[[str, int, int], bytes], small: int):
        self.data = data
        self.fetch = fetch
        self.small = small
        self.count = 0

    def message(self, at: int, end: int, inside: dict[int, Any]) -> bytes | None:
        """The message's new bytes, or ``None`` if it stays as it is."""
        if self.data.find(b"location", at, end) < 0:
            return None
        if inside is _TENSOR or inside is _INITIALIZER:
            return self.tensor(at, end, None if inside is _TENSOR else self.small)
        parts: list[bytes] = []
        done = at
        for begin, _, number, start, stop in _pieces(self.data, at, end):
            new = self.message(start, stop, inside[number]) if stop is not None and number in inside else None
            if new is not None:
                parts += [self.data[done:begin], _field(number, new)]
                done = stop
        if not parts:
            return None
        return b"".join([*parts, self.data[done:end]])

    def tensor(self, at: int, end: int, below: int | None) -> bytes | None:
        entries: dict[bytes, bytes] = {}
        external = False
        kept: list[bytes] = []
        for begin, finish, number, start, stop in _pieces(self.data, at, end):
            if number == 14:
                external = start == 1
            elif number == 13 and stop is not None:
                pair = {n: self.data[s:e] for n, s, e in fields(self.data, start, stop)}
                entries[pair.get(1, b"")] = pair.get(2, b"")
            else:
                kept.append(self.data[begin:finish])
        if not external:
            return None
        length = int(entries.get(b"length", b"0") or 0) or _nbytes(_initializer(self.data, at, end))
        if below is not None and length >= below:
            return None
        offset = int(entries.get(b"offset", b"0") or 0)
        self.count += 1
        return b"".join(kept) + _field(9, self.fetch(entries[b"location"].decode(), offset, length))


def _initializer(data: bytes, at: int, end: int) -> Initializer:
    shape: list[int] = []
    number_of_type = 0
    name, location, external, raw = b"", None, False, None
    for number, start, stop in fields(data, at, end):
        if number == 1:
            if stop is None:
                shape.append(start)
            else:
                while start < stop:
                    value, start = _varint(data, start)
                    shape.append(value)
        elif number == 2:
            number_of_type = start
        elif number == 8:
            name = data[start:stop]
        elif number == 9:
            raw = (start, stop)
        elif number == 13 and stop is not None:
            pair = {n: data[s:e] for n, s, e in fields(data, start, stop)}
            if pair.get(1) == b"location":
                location = pair.get(2, b"").decode()
        elif number == 14:
            external = start == 1
    known = 0 < number_of_type <= len(_TYPES)
    dtype = _TYPES[number_of_type - 1][0] if known else f"ONNX_{number_of_type}"
    return Initializer(name.decode(), dtype, tuple(shape), location if external else None, None if external else raw)


def _nbytes(found: Initializer) -> int:
    bits = dict(_TYPES).get(found.dtype, 0)
    for size in found.shape:
        bits *= size
    return -(-bits // 8)


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, Any]]:
    """A message's fields: the number, then the place of what has a length, or a value and ``None``."""
    while at < end:
        key = data[at]
        at += 1
        if key > 127:
            key, at = _varint(data, at - 1)
        wire = key & 7
        if wire == 2:
            length = data[at]
            at += 1
            if length > 127:
                length, at = _varint(data, at - 1)
            yield key >> 3, at, at + length
            at += length
        elif wire == 0:
            value, at = _varint(data, at)
            yield key >> 3, value, None
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            yield key >> 3, int.from_bytes(data[at : at + size], "little"), None
            at += size
        else:
            raise FormatError(f"this is no ONNX model: a field of type {wire} at byte {at}")


def _pieces(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int, Any]]:
    """The same, each behind where it begins, with its number, and ends."""
    for number, start, stop in fields(data, at, end):
        key, finish = _varint(data, at)
        if stop is not None:
            finish = stop
        elif key & 7:
            finish += 8 if key & 7 == 1 else 4
        else:
            finish = _varint(data, finish)[1]
        yield at, finish, number, start, stop
        at = finish


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _to_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, content: bytes) -> bytes:
    return _to_varint(number << 3 | 2) + _to_varint(len(content)) + content

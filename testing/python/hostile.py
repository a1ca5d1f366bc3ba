"""Files that are wrong, or look it, each with the verdict expected of weightlift."""

import json
import struct
from dataclasses import dataclass, field

from files import build, raw


@dataclass(frozen=True)
class Case:
    name: str
    content: bytes = field(repr=False)
    # The error's kind; none if the file is right.
    kind: str = ""
    # Why weightlift refuses what the reference accepts, or the other way round.
    stricter: str = ""
    laxer: str = ""


def entry(begin, end, shape=None, dtype="U8"):
    shape = [end - begin] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def twice(first, second):
    """A header with the key `a` twice, which no JSON writer would make."""
    return f'{{"a":{json.dumps(first)},"a":{json.dumps(second)}}}'


def prefix(length, rest=b""):
    return struct.pack("<Q", length) + rest


def shape(dimensions, length=0, dtype="U8"):
    """One tensor of that shape and that many bytes; the shape is text, so that it can be wrong."""
    return raw(
        f'{{"a":{{"dtype":"{dtype}","shape":{dimensions},"data_offsets":[0,{length}]}}}}',
        bytes(length),
    )


def in_entry(text):
    """One right tensor of no bytes with more text in its entry."""
    return raw(f'{{"a":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]{text}}}}}')


GOOD = build({"a": ("F32", (4,)), "b": ("U8", (9,)), "c": ("BF16", (5,))})
HEADER_END = 8 + struct.unpack("<Q", GOOD[:8])[0]
LFS_POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)

ONE_NAME = "one name twice: which of the two is meant cannot be told"

CASES = [
    # Right, though they may not look it.
    Case("good", GOOD),
    Case("empty header", raw("{}")),
    Case("data order differs", raw({"b": entry(4, 8), "a": entry(0, 4)}, bytes(8))),
    Case("trailing spaces", raw('{"a":' + json.dumps(entry(0, 1)) + "}   ", bytes(1))),
    Case("unknown field", in_entry(',"extra":{"deep":[1,null,"x"]}')),
    Case("metadata null", raw('{"__metadata__":null}')),
    Case("metadata empty", raw('{"__metadata__":{}}')),
    Case("escaped name", raw('{"\\u0061\\n":' + json.dumps(entry(0, 1)) + "}", bytes(1))),
    Case("bool that is 2", raw({"a": entry(0, 1, [1], "BOOL")}, b"\2")),
    Case("zero elements last", raw({"a": entry(0, 4), "b": entry(4, 4, [0])}, bytes(4))),
    Case("zero elements first", raw({"b": entry(0, 0, [0]), "a": entry(0, 4)}, bytes(4))),
    Case("two of zero elements", raw({"a": entry(0, 0, [0]), "b": entry(0, 0, [0])})),
    Case("F4 even", shape("[2,8]", 8, "F4")),
    Case("many dimensions", shape("[" + ",".join(["1"] * 40) + "]", 1)),
    # The header's length.
    Case("nothing", b"", "Truncated"),
    Case("seven bytes", bytes(7), "Truncated"),
    Case("length 0", prefix(0), "InvalidHeader"),
    Case("length past the end", prefix(3, b"{}"), "HeaderPastEof"),
    Case("length 2^64-1", prefix(2**64 - 1, b"{}"), "HeaderTooLarge"),
    Case("length 2^63", prefix(2**63, b"{}"), "HeaderTooLarge"),
    Case("length 2^64-8", prefix(2**64 - 8, b"{}"), "HeaderTooLarge"),
    Case("length over the limit", prefix(100_000_001, b"{}"), "HeaderTooLarge"),
    Case("length at the limit", prefix(100_000_000, b"{}"), "HeaderPastEof"),
    Case(
        "header over the limit",
        prefix(100_000_001, b"{}" + b" " * 99_999_999),
        "HeaderTooLarge",
    ),
    # Other formats.
    Case("Git LFS pointer", LFS_POINTER, "NotSafetensors"),
    Case("HTML", b"<!DOCTYPE html><html><body>Not found</body></html>", "NotSafetensors"),
    Case("zip", b"PK\3\4" + bytes(60), "NotSafetensors"),
    Case("GGUF", b"GGUF\3\0\0\0" + bytes(60), "NotSafetensors"),
    Case("pickle", b"\x80\x02}q\0X\5\0\0\0helloq\1K\1s.", "NotSafetensors"),
    # Truncated or too long.
    Case("one byte short", GOOD[:-1], "Truncated"),
    Case("cut within a tensor", GOOD[: HEADER_END + 20], "Truncated"),
    Case("no data", GOOD[:HEADER_END], "Truncated"),
    Case("cut within the header", GOOD[: HEADER_END - 5], "HeaderPastEof"),
    Case("one byte long", GOOD + b"\0", "TrailingBytes"),
    Case("one byte and no tensor", raw("{}", b"\0"), "TrailingBytes"),
    # Layout.
    Case("overlap", raw({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)), "Overlap"),
    Case("same range", raw({"a": entry(0, 4), "b": entry(0, 4)}, bytes(4)), "Overlap"),
    Case("hole", raw({"a": entry(0, 4), "b": entry(8, 12)}, bytes(12)), "Hole"),
    Case("hole at the start", raw({"a": entry(4, 8)}, bytes(8)), "Hole"),
    Case("reversed", raw({"a": entry(8, 0, [8])}, bytes(8)), "Reversed"),
    Case(
        "zero elements within another",
        raw({"a": entry(0, 4), "b": entry(2, 2, [0])}, bytes(4)),
        "Overlap",
    ),
    Case(
        "zero elements past the end",
        raw({"a": entry(0, 4), "b": entry(9, 9, [0])}, bytes(4)),
        "Hole",
    ),
    Case("offset 2^64-1", raw({"a": entry(0, 2**64 - 1)}), "Overflow"),
    Case(
        "begin and end at 2^64-1",
        raw({"a": entry(2**64 - 1, 2**64 - 1, [0])}),
        "Hole",
    ),
    # Shapes.
    Case("shape too small", raw({"a": entry(0, 8, [7])}, bytes(8)), "SizeMismatch"),
    Case("shape too large", raw({"a": entry(0, 8, [3], "F32")}, bytes(8)), "SizeMismatch"),
    Case("product 2^80", shape("[1099511627776,1099511627776]"), "Overflow"),
    Case("product wraps to 2", shape("[9223372036854775809,2]", 2), "Overflow"),
    Case("bytes wrap to 0", shape("[4611686018427387904]", 0, "F32"), "Overflow"),
    Case("2^63 before 0", shape("[9223372036854775808,4,0]"), "Overflow"),
    Case(
        "2^63 after 0",
        shape("[0,9223372036854775808,4]"),
        "Overflow",
        stricter="the reference's verdict depends on the order of the dimensions",
    ),
    Case("dimension 2^64", shape("[18446744073709551616]"), "InvalidHeader"),
    Case("dimension -2", shape("[-2]"), "InvalidHeader"),
    Case("dimension 2.0", shape("[2.0]", 2), "InvalidHeader"),
    Case("F4 of 3", shape("[3]", 1, "F4"), "Misaligned"),
    Case("F4 of 1", shape("[1]", 1, "F4"), "Misaligned"),
    Case("F6 of 3", shape("[3]", 2, "F6_E2M3"), "Misaligned"),
    Case(
        "65 dimensions",
        shape("[" + ",".join(["1"] * 65) + "]", 1),
        "LimitExceeded",
        stricter="no framework has more than 64 dimensions; a header is bounded in every way",
    ),
    # Dtypes.
    Case(
        "unknown dtype",
        shape("[2]", 1, "I4"),
        laxer="kept as opaque bytes: refusing one tensor must not refuse the model",
    ),
    Case(
        "dtype in lower case",
        shape("[2]", 8, "f32"),
        laxer="a dtype that is not known, whatever it resembles: kept as opaque bytes",
    ),
    Case(
        "dtype that is a number",
        raw('{"a":{"dtype":1,"shape":[0],"data_offsets":[0,0]}}'),
        "InvalidHeader",
    ),
    # Names twice.
    Case(
        "tensor twice, same entry",
        raw(twice(entry(0, 8), entry(0, 8)), bytes(8)),
        "DuplicateTensor",
        stricter=ONE_NAME,
    ),
    Case(
        "tensor twice, other dtype",
        raw(twice(entry(0, 8, [2], "F32"), entry(0, 8, [2], "I32")), bytes(8)),
        "DuplicateTensor",
        stricter=ONE_NAME,
    ),
    Case(
        "tensor twice, other range",
        raw(twice(entry(0, 4), entry(4, 8)), bytes(8)),
        "DuplicateTensor",
    ),
    Case(
        "tensor twice, once escaped",
        raw(f'{{"a":{json.dumps(entry(0, 8))},"\\u0061":{json.dumps(entry(0, 8))}}}', bytes(8)),
        "DuplicateTensor",
        stricter=ONE_NAME,
    ),
    Case(
        "metadata key twice",
        raw('{"__metadata__":{"k":"1","k":"2"}}'),
        "DuplicateMetadata",
        stricter=ONE_NAME,
    ),
    Case(
        "metadata twice",
        raw('{"__metadata__":{},"__metadata__":{}}'),
        "DuplicateMetadata",
    ),
    Case("field twice", in_entry(',"dtype":"U8"'), "InvalidHeader"),
    # Entries.
    Case("no offsets", raw('{"a":{"dtype":"U8","shape":[0]}}'), "InvalidHeader"),
    Case("no shape", raw('{"a":{"dtype":"U8","data_offsets":[0,0]}}'), "InvalidHeader"),
    Case("no dtype", raw('{"a":{"shape":[0],"data_offsets":[0,0]}}'), "InvalidHeader"),
    Case(
        "three offsets",
        raw('{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0,0]}}'),
        "InvalidHeader",
    ),
    Case(
        "offset -1", raw('{"a":{"dtype":"U8","shape":[0],"data_offsets":[-1,0]}}'), "InvalidHeader"
    ),
    Case("entry that is a list", raw('{"a":[]}'), "InvalidHeader"),
    Case("entry that is null", raw('{"a":null}'), "InvalidHeader"),
    Case("metadata that is no text", raw('{"__metadata__":{"k":1}}'), "InvalidHeader"),
    Case("metadata that is a list", raw('{"__metadata__":[]}'), "InvalidHeader"),
    # Text.
    Case("list instead of object", raw("[]"), "InvalidHeader"),
    Case("byte order mark", raw(b"\xef\xbb\xbf{}"), "InvalidHeader"),
    Case("NUL padding", raw(b"{}\0\0"), "InvalidHeader"),
    Case("text after the object", raw("{}x"), "InvalidHeader"),
    Case("two objects", raw("{}{}"), "InvalidHeader"),
    Case(
        "not UTF-8",
        raw(b'{"\xff":' + json.dumps(entry(0, 1)).encode() + b"}", bytes(1)),
        "InvalidHeader",
    ),
    Case(
        "lone surrogate",
        raw('{"\\ud800":' + json.dumps(entry(0, 1)) + "}", bytes(1)),
        "InvalidHeader",
    ),
    Case("NaN", in_entry(',"x":NaN'), "InvalidHeader"),
    Case("5000 deep", in_entry(',"x":' + "[" * 5000 + "]" * 5000), "InvalidHeader"),
    Case("unclosed", raw('{"a":'), "InvalidHeader"),
    Case("trailing comma", raw('{"__metadata__":{},}'), "InvalidHeader"),
    Case(
        "leading space",
        raw(" {}"),
        "InvalidHeader",
        stricter="the format's text says that a header begins with `{`",
    ),
]

"""OpenVINO models that are wrong, or look it, each with the verdict expected of weightlift."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    name: str
    xml: bytes = field(repr=False)
    # The error's kind; none if the model is right.
    kind: str = ""
    weights: bytes | None = field(default=bytes(range(16)), repr=False)
    # Why weightlift refuses what OpenVINO accepts, or the other way round.
    stricter: str = ""
    laxer: str = ""


def data(element_type="f32", shape="4", offset="0", size="16"):
    return f'<data element_type="{element_type}" shape="{shape}" offset="{offset}" size="{size}"/>'


def net(
    inside=None,
    *,
    name='name="w"',
    layer='id="0" type="Const" version="opset1"',
    root='version="11"',
    before='<?xml version="1.0"?>',
    more="",
    after="",
):
    """A model of one constant and a result."""
    inside = data() if inside is None else inside
    return (
        f'{before}<net name="n" {root}><layers><layer {name} {layer}>{inside}<output>'
        f'<port id="0" precision="FP32"/></output></layer><layer id="1" name="r" type="Result" '
        f'version="opset1"><input><port id="0" precision="FP32"/></input></layer></layers><edges>'
        f'<edge from-layer="0" from-port="0" to-layer="1" to-port="0"/></edges>{more}<rt_info/>'
        f"</net>{after}"
    ).encode()


GOOD = net()
UNCONNECTED = (
    '<layer id="7" name="u" type="Const" version="opset1">'
    '<data element_type="f32" shape="4" offset="999" size="16"/></layer>'
)
PREFIX = "OpenVINO reads the number at the start and passes over the rest"
WRAPS = "OpenVINO's product of the dimensions wraps, and the tensor has no such bytes"
GROUPS = "OpenVINO checks the bits, but the last group of elements reaches beyond them"
TWICE = "one thing said twice: which of the two is meant cannot be told"
NOT_XML = "not well-formed XML"
ENCODING = "UTF-8 is what OpenVINO writes"
DOCTYPE = "no writer declares a document type, and its entities are a way to attack a reader"

CASES = [
    # Right, though they may not look it.
    Case("good", GOOD),
    Case("version 10", net(root='version="10"')),
    Case("longer weights", GOOD, weights=bytes(100)),
    Case("scalar", net(data(shape=""))),
    Case("size larger than needed", net(data(shape="2"))),
    Case("empty tensor of size 0", net(data(shape="0, 4", size="0"))),
    Case("empty tensor of size 1", net(data(shape="0, 4", size="1"))),
    Case("empty tensor at the end", net(data(shape="0", size="0", offset="16"))),
    Case("empty tensor and empty weights", net(data(shape="0", size="0")), weights=b""),
    Case("leading zeros", net(data(offset="00"))),
    Case("spaces in the shape", net(data(shape="2 , 2"))),
    Case("u3", net(data("u3", "9", size="6"))),
    Case("u6", net(data("u6", "9", size="9"))),
    Case("u4", net(data("u4", "5", size="3"))),
    Case("type in upper case", net(data("BF16", size="8"))),
    Case("single quotes", net(data().replace('"', "'"))),
    Case("character references", net(data("f&#51;2", "&#x34;", size="1&#54;"))),
    Case("entities in the name", net(name='name="a&amp;b&lt;&quot;&#10;c"')),
    Case("line breaks in the name", net(name='name="a\nb\tc\r\nd"')),
    Case("same name as the result", net(name='name="r"')),
    Case("no declaration", net(before="")),
    Case("byte order mark", b"\xef\xbb\xbf" + GOOD),
    Case("comments", net(more="<!-- <layer/> -->", after="<!-- x -->\n")),
    Case("CDATA", net(more="<![CDATA[<layer>]]>")),
    Case(
        "unknown elements and attributes",
        net(layer='id="0" a="" type="Const" version="x1"').replace(b"x1", b"opset1"),
    ),
    # OV-01: the weights.
    Case("weights cut", net(data(shape="4096", size="16384")), "OutOfRange", bytes(100)),
    Case("weights one byte short", GOOD, "OutOfRange", bytes(15)),
    Case("weights empty", GOOD, "OutOfRange", b""),
    Case("weights missing", GOOD, "MissingWeights", None),
    Case(
        "weights missing for an empty tensor",
        net(data(shape="0", size="0")),
        "MissingWeights",
        None,
    ),
    Case("size reaches beyond", net(data(size="17")), "OutOfRange"),
    Case(
        "empty tensor of size 1 at the end",
        net(data(shape="0", size="1", offset="16")),
        "OutOfRange",
    ),
    Case("empty tensor beyond the end", net(data(shape="0", size="0", offset="17")), "OutOfRange"),
    Case("u3 of too few bytes", net(data("u3", "9", size="4")), "SizeMismatch", stricter=GROUPS),
    Case("u6 of too few bytes", net(data("u6", "9", size="7")), "SizeMismatch", stricter=GROUPS),
    Case("u4 of too few bytes", net(data("u4", "5", size="2")), "SizeMismatch"),
    Case("size too small", net(data(size="15")), "SizeMismatch"),
    Case("size 0", net(data(size="0")), "SizeMismatch"),
    Case(
        "unconnected constant beyond the end",
        GOOD.replace(b"</layers>", UNCONNECTED.encode() + b"</layers>"),
        "OutOfRange",
        stricter="OpenVINO never looks at a layer that leads nowhere; we say what the file holds",
    ),
    # OV-02: offsets.
    Case("offset 2^64-16", net(data(offset="18446744073709551600")), "InvalidHeader"),
    Case("offset 2^64", net(data(offset="18446744073709551616")), "InvalidHeader"),
    Case("offset -4", net(data(offset="-4")), "InvalidHeader"),
    Case("offset 99999", net(data(offset="99999")), "OutOfRange"),
    Case("offset 1", net(data(offset="1")), "OutOfRange"),
    Case("offset 0x0", net(data(offset="0x0")), "InvalidHeader"),
    Case("offset empty", net(data(offset="")), "InvalidHeader"),
    Case("offset abc", net(data(offset="abc")), "InvalidHeader"),
    Case("offset 0.0", net(data(offset="0.0")), "InvalidHeader"),
    Case("offset with a space after", net(data(offset="0 ")), "InvalidHeader"),
    Case("offset with a space before", net(data(offset=" 0")), "InvalidHeader", stricter=PREFIX),
    Case("offset +0", net(data(offset="+0")), "InvalidHeader", stricter=PREFIX),
    Case("size -16", net(data(size="-16")), "InvalidHeader"),
    Case("size 16abc", net(data(size="16abc")), "InvalidHeader"),
    Case("size 2^64-1", net(data(size="18446744073709551615")), "OutOfRange"),
    # Shapes.
    Case("shape -4", net(data(shape="-4")), "InvalidHeader"),
    Case("shape abc", net(data(shape="abc")), "InvalidHeader"),
    Case("shape of a space", net(data(shape=" ")), "InvalidHeader"),
    Case("shape ?", net(data(shape="?")), "InvalidHeader"),
    Case("shape 4,,1", net(data(shape="4,,1")), "InvalidHeader"),
    Case("shape ,4", net(data(shape=",4")), "InvalidHeader"),
    Case("shape 4,", net(data(shape="4,")), "InvalidHeader", stricter=PREFIX),
    Case("shape 4.0", net(data(shape="4.0")), "InvalidHeader", stricter=PREFIX),
    Case("shape 0x4", net(data(shape="0x4")), "InvalidHeader", stricter=PREFIX),
    Case("shape 2 2", net(data(shape="2 2")), "InvalidHeader", stricter=PREFIX),
    Case("shape 1..4", net(data(shape="1..4")), "InvalidHeader", stricter=PREFIX),
    Case("shape 2^63", net(data(shape="9223372036854775808")), "Overflow"),
    Case("shape 2^64", net(data(shape="18446744073709551616")), "InvalidHeader"),
    Case(
        "shape 2^32 x 2^32", net(data(shape="4294967296, 4294967296")), "Overflow", stricter=WRAPS
    ),
    Case("shape 2^62", net(data(shape="4611686018427387904")), "Overflow", stricter=WRAPS),
    # Types.
    Case(
        "unknown type",
        net(data("f2")),
        laxer="kept as opaque bytes: one tensor must not refuse the model",
    ),
    Case(
        "port's name of a type",
        net(data("FP32")),
        laxer="a type that is not known, whatever it resembles",
    ),
    # Layers.
    Case("no data", net(""), "InvalidHeader"),
    Case("no element_type", net('<data shape="4" offset="0" size="16"/>'), "InvalidHeader"),
    Case("no shape", net('<data element_type="f32" offset="0" size="16"/>'), "InvalidHeader"),
    Case("no offset", net('<data element_type="f32" shape="4" size="16"/>'), "InvalidHeader"),
    Case("no size", net('<data element_type="f32" shape="4" offset="0"/>'), "InvalidHeader"),
    Case("no id", net(layer='type="Const" version="opset1"'), "InvalidHeader"),
    Case("no name", net(name=""), "InvalidHeader"),
    Case("no layer version", net(layer='id="0" type="Const"'), "InvalidHeader"),
    Case("two data", net(data() + data("i32")), "InvalidHeader", stricter=TWICE),
    Case(
        "attribute twice",
        net(data().replace("shape", 'element_type="i32" shape')),
        "InvalidHeader",
        stricter=TWICE,
    ),
    Case(
        "root's version twice",
        net(root='version="11" version="10"'),
        "InvalidHeader",
        stricter=TWICE,
    ),
    Case(
        "bytes in an attribute",
        net(data().replace("shape", 'value="abcdefghijklmnop" shape')),
        "Unsupported",
        stricter="OpenVINO takes the bytes of the attribute, which nothing writes",
    ),
    # The root.
    *[
        Case(f"version {version}", net(root=f'version="{version}"'), "Unsupported")
        for version in ["9", "12", "7", "", "x", "11.5"]
    ],
    Case("version 011", net(root='version="011"'), "Unsupported", stricter=PREFIX),
    Case("no version", net(root=""), "InvalidHeader"),
    Case("other XML", b'<?xml version="1.0"?><svg width="1"/>', "UnknownFormat"),
    Case(
        "other namespace",
        GOOD.replace(b"<net", b"<o:net").replace(b"/net>", b"/o:net>"),
        "UnknownFormat",
    ),
    Case("web page", b"<!DOCTYPE html><html><body>404</body></html>", "UnknownFormat"),
    Case("cached blob", b'<?xml version="1.0"?><compiled_blob/>\nOVCPU_RR', "UnknownFormat"),
    # Document types.
    Case("document type", net(before="<!DOCTYPE net>"), "Unsupported", stricter=DOCTYPE),
    Case(
        "document type from a file",
        net(before='<!DOCTYPE net SYSTEM "file:///etc/hostname">'),
        "Unsupported",
        stricter=DOCTYPE,
    ),
    Case(
        "entity of a document type",
        net(data("&a;"), before='<!DOCTYPE net [<!ENTITY a "f32">]>'),
        "Unsupported",
    ),
    # Text.
    Case("cut in the root's end", GOOD[:-3], "Truncated"),
    Case("cut in the middle", GOOD[:200], "Truncated"),
    Case("end tags do not match", GOOD.replace(b"</layers>", b"</layer>"), "InvalidHeader"),
    Case("value without quotes", net(more="<a b=c/>"), "InvalidHeader"),
    Case("attribute without value", net(more="<a b/>"), "InvalidHeader"),
    Case("unknown entity", net(name='name="a&foo;b"'), "InvalidHeader", stricter=NOT_XML),
    Case("bare ampersand", net(name='name="a & b"'), "InvalidHeader", stricter=NOT_XML),
    Case("reference to NUL", net(name='name="a&#0;b"'), "InvalidHeader", stricter=NOT_XML),
    Case("reference to a surrogate", net(name='name="a&#xD800;b"'), "InvalidHeader"),
    Case("text after the root", net(after="x"), "InvalidHeader", stricter=NOT_XML),
    Case("NUL after the root", net(after="\0"), "InvalidHeader", stricter=NOT_XML),
    Case("two roots", net(after="<net/>"), "InvalidHeader", stricter=NOT_XML),
    Case("text before the root", net(before="<!-- -->text"), "InvalidHeader", stricter=NOT_XML),
    Case(
        "not UTF-8 in a comment",
        net(more="<!-- x -->").replace(b"x -->", b"\xe9 -->"),
        "InvalidHeader",
        stricter=NOT_XML,
    ),
    Case("not UTF-8 in the name", GOOD.replace(b'"w"', b'"\xe9"'), "InvalidHeader"),
    Case(
        "Latin-1",
        net(before='<?xml version="1.0" encoding="ISO-8859-1"?>'),
        "Unsupported",
        stricter=ENCODING,
    ),
    Case("UTF-16", GOOD.decode().encode("utf-16"), "Unsupported", stricter=ENCODING),
    Case(
        "5000 deep",
        net(more="<a>" * 5000 + "</a>" * 5000),
        "LimitExceeded",
        stricter="no writer nests so deep; a header is bounded in every way",
    ),
    Case(
        "65 dimensions",
        net(data(shape=", ".join(["1"] * 65))),
        "LimitExceeded",
        stricter="no framework has more than 64 dimensions; a header is bounded in every way",
    ),
]

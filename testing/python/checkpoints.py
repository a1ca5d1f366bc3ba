"""Checkpoints as PyTorch writes them, right ones and ones to be refused."""

import io
import json
import os
import struct
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path

import torch

# Names of data types here and in weightlift's index.
DTYPES = {
    "float32": "F32",
    "float64": "F64",
    "float16": "F16",
    "bfloat16": "BF16",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "bool": "BOOL",
    "complex64": "C64",
    "complex128": "C128",
    "complex32": "C32",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "float4_e2m1fn_x2": "F4",
}


def dtype_name(tensor) -> str:
    return DTYPES[str(tensor.dtype).removeprefix("torch.")]


def noise(dtype, *shape):
    """A tensor of any bytes, of any type."""
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    elements = torch.Size(shape).numel()
    data = torch.randint(0, 256, (elements * dtype.itemsize,), dtype=torch.uint8)
    if dtype == torch.bool:
        data &= 1
    return torch.empty(0, dtype=dtype).set_(
        data.untyped_storage(), 0, shape, torch.empty(shape, device="meta").stride()
    )


def every_dtype():
    return {f"t.{name}": noise(name, 3, 4) for name in DTYPES}


def views():
    base = noise("float32", 6, 8)
    words = noise("uint16", 5, 5)
    return {
        "base": base,
        "tied": base,
        "row": base[2],
        "rows": base[1:4],
        "column": base[:, 3],
        "block": base[1:5, 2:7],
        "steps": base[::2, ::3],
        "transposed": base.t(),
        "permuted": base.reshape(2, 3, 8).permute(2, 0, 1),
        "expanded": base[0].expand(5, 8),
        "diagonal": base.diagonal(),
        "channels_last": noise("float16", 2, 3, 4, 5).to(memory_format=torch.channels_last),
        "scalar": base[1, 1],
        "one": base[1:2, 1:2],
        "nothing": base[3:3],
        "nothing_beyond": base[6:, 5:],
        "empty": torch.empty(0, 4),
        "flat": base.view(-1)[7:],
        "words": words,
        "words.transposed": words.t(),
        "words.slice": words[1:, 3],
        "bits": (noise("uint8", 9) > 99)[1::2],
    }


def parameters():
    weight = torch.nn.Parameter(noise("float32", 4, 4).nan_to_num())
    marked = torch.nn.Parameter(torch.ones(3))
    marked.note = "an attribute"
    plain = torch.ones(2)
    plain.note = [1, "an attribute of a plain tensor"]
    return OrderedDict(
        weight=weight,
        bias=weight[0].detach(),
        frozen=torch.nn.Parameter(weight, False),
        marked=marked,
        plain=plain,
    )


def training():
    """What a training script saves: more than tensors, and deep."""
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)
    )
    model[2].weight = torch.nn.Parameter(model[0].weight.detach()[:2].repeat(1, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, amsgrad=True)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2])
    for _ in range(2):
        model(torch.rand(5, 4)).sum().backward()
        optimizer.step()
        schedule.step()
    return {
        "epoch": 3,
        "large": 1 << 100,
        "loss": float("nan"),
        "name": "\u00e9\u4e2d",
        "odd": "\ud800",
        "bytes": b"\0\xff",
        "array": bytearray(b"abc"),
        "set": {1, 2},
        "complex": 1j,
        "none": None,
        "flags": (True, False),
        "size": torch.Size([1, 2]),
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        "layout": torch.strided,
        "count": Counter({"a": 1}),
        "storage": torch.ones(2).untyped_storage(),
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": schedule.state_dict(),
        "rng": torch.get_rng_state(),
        "list": [torch.ones(1), (torch.ones(2), [torch.ones(3)])],
        "numbers": {0: torch.ones(1), -5: {1: torch.ones(1)}},
        "": {"": torch.ones(1), "a.b": torch.ones(1)},
    }


def models():
    """By name: what to save, and how."""
    torch.manual_seed(5)
    found = {
        "every-dtype": (every_dtype(), {}),
        "views": (views(), {}),
        "parameters": (parameters(), {}),
        "training": (training(), {}),
        "tensor": (noise("int16", 5), {}),
        "parameter": (torch.nn.Parameter(torch.ones(3)), {}),
        "tuple": ((torch.ones(1), [torch.ones(2)]), {}),
        "nothing": ({}, {}),
    }
    for protocol in [2, 3, 4, 5]:
        found[f"protocol-{protocol}"] = (training() | views(), {"pickle_protocol": protocol})
    # More records than an archive without ZIP64 can count.
    tiny = {f"t{i}": torch.full((1,), i % 256, dtype=torch.uint8) for i in range(66_000)}
    found["many"] = (tiny, {})
    return found


def write_models(folder: Path) -> dict[str, Path]:
    paths = {}
    for name, (what, options) in models().items():
        paths[name] = folder / f"{name}.pt"
        torch.save(what, paths[name], **options)
    from torch.utils.serialization import config

    with config.patch({"save.compute_crc32": False, "save.storage_alignment": 4096}):
        paths["no-checksums"] = folder / "no-checksums.pt"
        torch.save(views(), paths["no-checksums"])
    for name, options in {"repacked": {}, "repacked-zip64": {"force_zip64": True}}.items():
        paths[name] = folder / f"{name}.pth"
        paths[name].write_bytes(repack(paths["views"].read_bytes(), **options))
    return paths


def records(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def repack(content: bytes, change=lambda name, data: data, *, force_zip64=False, method=0) -> bytes:
    """The same archive by Python's writer, with records changed."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in records(content).items():
            data = change(name, data)
            if data is not None:
                with archive.open(name, "w", force_zip64=force_zip64) as record:
                    record.write(data)
    return file.getvalue()


def save(what, **options) -> bytes:
    file = io.BytesIO()
    torch.save(what, file, **options)
    return file.getvalue()


def load(path):
    """What PyTorch's reader of weights makes of a file."""
    return torch.load(path, map_location="cpu", weights_only=True)


def flatten(value, path=()):
    """Names and tensors, by rules of its own: keys and positions, joined by dots."""
    if isinstance(value, torch.Tensor):
        yield ".".join(path) if path else "tensor", value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from flatten(inner, (*path, str(key)))
    elif isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        for position, inner in enumerate(value):
            yield from flatten(inner, (*path, str(position)))


def whole(tensor) -> bytes:
    """The bytes of the tensor's storage."""
    storage = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    return storage.numpy().tobytes()


def covered(tensor) -> bytes:
    """The bytes from a tensor's first element to its last, with what lies between."""
    if tensor.numel() == 0:
        return b""
    size = tensor.element_size()
    last = sum((dim - 1) * stride for dim, stride in zip(tensor.shape, tensor.stride()))
    begin = tensor.storage_offset() * size
    return whole(tensor)[begin : begin + (last + 1) * size]


def logical(tensor) -> bytes:
    """The bytes of the elements in the order of their indices."""
    if tensor.numel() == 0:
        return b""
    size = tensor.element_size()
    # Bytes of any type can be copied as bytes; not every type can.
    data = torch.empty(0, dtype=torch.uint8).set_(tensor.detach().untyped_storage())
    strides = [stride * size for stride in tensor.stride()]
    view = data.as_strided((*tensor.shape, size), (*strides, 1), tensor.storage_offset() * size)
    return view.contiguous().numpy().tobytes()


def big_endian(content: bytes, widths: dict[str, int]) -> bytes:
    """The archive as a big-endian machine would have written it."""

    def change(name, data):
        folder, _, key = name.partition("/")
        if key == "byteorder":
            return b"big"
        width = widths.get(key.removeprefix("data/"), 1)
        if not key.startswith("data/") or width == 1:
            return data
        return b"".join(data[i : i + width][::-1] for i in range(0, len(data), width))

    return repack(content, change)


# What must be refused.


class Runs:
    """Runs something where a pickle of it is loaded."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


class OfItsOwn(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)


def hostile() -> dict[str, tuple[bytes, str]]:
    """By name: a file, and the kind of its error. PyTorch's reader refuses all of them too, but
    those in STRICTER."""
    torch.manual_seed(6)
    right = {"w": torch.ones(3, 4), "b": torch.ones(4)}
    content = save(right)
    pickle = next(data for name, data in records(content).items() if name.endswith("/data.pkl"))

    def changed(old: bytes, new: bytes) -> bytes:
        """With other bytes in the pickle, of whatever length."""
        assert old in pickle, old

        def change(name, data):
            return data.replace(old, new, 1) if name.endswith("/data.pkl") else data

        return repack(content, change)

    def record(name: str, new) -> bytes:
        return repack(content, lambda n, data: new if n.partition("/")[2] == name else data)

    quantized = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)
    jit, legacy = io.BytesIO(), io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), jit)
    torch.save(right, legacy, _use_new_zipfile_serialization=False)
    unsafe = "UnsafePickle"
    return {
        "system": (save({"w": Runs(os.system, "true")}), unsafe),
        "eval": (save({"w": Runs(eval, "1")}), unsafe),
        "exec": (save({"w": Runs(exec, "1")}, pickle_protocol=4), unsafe),
        "getattr": (save({"w": Runs(getattr, "x", "upper")}), unsafe),
        "import": (save({"w": Runs(__import__, "os")}), unsafe),
        "torch.load": (save({"w": Runs(torch.load, "x")}), unsafe),
        "open": (save([Runs(open, "/etc/hostname")], pickle_protocol=5), unsafe),
        "path": (save({"args": Path("x")}), unsafe),
        "module": (save(torch.nn.Linear(2, 2)), unsafe),
        "own-module": (save({"model": OfItsOwn()}), unsafe),
        "sparse": (save({"w": torch.eye(3).to_sparse()}), "Unsupported"),
        "sparse-csr": (save({"w": torch.eye(3).to_sparse_csr()}), "Unsupported"),
        "quantized": (save({"w": quantized}), "Unsupported"),
        "meta": (save({"w": torch.empty(3, device="meta")}), "Unsupported"),
        "conjugated": (save({"w": torch.ones(3, dtype=torch.complex64).conj()}), "Unsupported"),
        "negated": (save({"w": torch.ones(3, dtype=torch.complex64).conj().imag}), "Unsupported"),
        "nested": (save({"w": torch.nested.nested_tensor([torch.ones(1)])}), "Unsupported"),
        "torchscript": (jit.getvalue(), "Unsupported"),
        "legacy": (legacy.getvalue(), "Unsupported"),
        "compressed": (repack(content, method=zipfile.ZIP_DEFLATED), "Unsupported"),
        "protocol-0": (save(right, pickle_protocol=0), "InvalidHeader"),
        "protocol-1": (save(right, pickle_protocol=1), "InvalidHeader"),
        "half": (content[: len(content) // 2], "Truncated"),
        "no-end": (content[:-22], "Truncated"),
        "one-byte-short": (content[:-1], "Truncated"),
        "one-byte-more": (content + b"x", "TrailingBytes"),
        "bytes-before": (b"PK\x03\x04" + content, "InvalidHeader"),
        "no-pickle": (record("data.pkl", None), "UnknownFormat"),
        "no-version": (record("version", None), "InvalidHeader"),
        "future-version": (record("version", b"99"), "Unsupported"),
        "byteorder": (record("byteorder", b"middle"), "InvalidHeader"),
        "no-storage": (record("data/1", None), "InvalidHeader"),
        "short-storage": (record("data/0", bytes(47)), "SizeMismatch"),
        "shape-too-large": (changed(b"K\x03K\x04\x86", b"K\x04K\x04\x86"), "OutOfRange"),
        "stride-too-large": (changed(b"K\x04K\x01\x86", b"K\x05K\x01\x86"), "OutOfRange"),
        "stride-below-zero": (
            changed(b"K\x04K\x01\x86", b"\x8a\x01\xffK\x01\x86"),
            "InvalidHeader",
        ),
        "offset-too-large": (changed(b"QK\x00", b"QK\x01"), "OutOfRange"),
        "offset-below-zero": (changed(b"QK\x00", b"Q\x8a\x01\xff"), "InvalidHeader"),
        "offset-overflows": (
            changed(b"QK\x00", b"Q\x8a\x08" + struct.pack("<q", 2**63 - 1)),
            "Overflow",
        ),
        "no-class": (changed(b"FloatStorage", b"GhostStorage"), unsafe),
        "no-function": (changed(b"_rebuild_tensor_v2", b"_rebuild_tensor_v9"), unsafe),
        "cut-pickle": (changed(pickle, pickle[:-5]), "Truncated"),
        "long-pickle": (changed(pickle, pickle + b"N."), "TrailingBytes"),
        "same-name": (changed(b"X\x01\x00\x00\x00b", b"X\x01\x00\x00\x00w"), "DuplicateTensor"),
    }


# What PyTorch's reader accepts, and why it is refused here.
STRICTER = {
    "sparse": "the values would come without their places",
    "sparse-csr": "the values would come without their places",
    "quantized": "the numbers would come without their scale",
    "meta": "there is nothing to load",
    "conjugated": "the bytes are not the numbers",
    "negated": "the bytes are not the numbers",
    "legacy": "storages lie behind the pickle, in an order that another pickle says",
    "compressed": "what is compressed cannot be read where it lies",
    "one-byte-more": "the end of an archive is the end of its file",
    "long-pickle": "what follows the end is there for another reader",
    "same-name": "nothing says which of two tensors is meant",
}


def write_sharded(folder: Path) -> dict[str, torch.Tensor]:
    """Two shards as transformers wrote them, and what the index gives to each."""
    shards = {
        "pytorch_model-00001-of-00002.bin": {"emb": noise("float16", 7, 4)},
        "pytorch_model-00002-of-00002.bin": {"head": noise("float16", 7, 4)},
    }
    shards["pytorch_model-00001-of-00002.bin"]["emb.t"] = shards[
        "pytorch_model-00001-of-00002.bin"
    ]["emb"].t()
    weight_map = {name: shard for shard, tensors in shards.items() for name in tensors}
    for shard, tensors in shards.items():
        torch.save(tensors | {"stale": torch.ones(1)}, folder / shard)
    index = {"metadata": {"total_size": 112}, "weight_map": weight_map}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return {name: tensor for tensors in shards.values() for name, tensor in tensors.items()}

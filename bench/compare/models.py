"""The models that all loaders read: safetensors files, and the same bytes in the forms that some ask for.

A model is a folder of shards. Beside them in `forms/` lie what FlashPack and torch.load read, and an
ONNX model whose weights are the shards themselves (their bytes as external data). `reference.json` has
what every loader's tensors must come to, by an independent read of the files.
"""

import concurrent.futures
import glob
import json
import os
import struct
import subprocess
import sys

import numpy

import checksum

HERE = os.path.dirname(os.path.abspath(__file__))
FORMS = ["torch", "flashpack", "onnx"]


class Model:
    def __init__(self, folder):
        self.folder = os.path.abspath(folder)
        self.name = os.path.basename(self.folder)
        self.shards = sorted(glob.glob(os.path.join(self.folder, "*.safetensors")))
        if not self.shards:
            raise SystemExit(f"no .safetensors in {folder}: `make` makes a model")

    def form(self, name):
        """The file of a form, if it is there."""
        ending = {"torch": "pt", "flashpack": "flashpack", "onnx": "onnx"}[name]
        # ONNX Runtime takes no external data from outside of the model's folder.
        folder = self.folder if name == "onnx" else os.path.join(self.folder, "forms")
        return os.path.join(folder, f"model.{ending}")

    def files(self, form):
        """The files that hold the bytes which a loader of this form reads."""
        return self.shards if form in ("safetensors", "onnx") else [self.form(form)]

    def reference(self):
        """Label of every tensor, by name: computed once, and again if a file has changed."""
        path = os.path.join(self.folder, "reference.json")
        files = [[os.path.basename(shard), os.stat(shard).st_size, os.stat(shard).st_mtime_ns] for shard in self.shards]
        if os.path.exists(path):
            with open(path) as file:
                known = json.load(file)
            if known["files"] == files:
                return known["tensors"]
        tensors = {}
        with concurrent.futures.ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
            for shard in self.shards:
                data = numpy.memmap(shard, dtype=numpy.uint8, mode="r")
                infos = list(tensors_of(shard))
                sums = pool.map(lambda info: checksum.of_bytes(data[info[3] : info[3] + info[4]]), infos)
                tensors.update({name: checksum.label(dtype, shape, total) for (name, dtype, shape, _, _), total in zip(infos, sums)})
        with open(path, "w") as file:
            json.dump({"files": files, "tensors": tensors}, file)
        return tensors

    def facts(self):
        """What stands beside the figures, and by which results of the same model are known."""
        reference = self.reference()
        lengths = [info[4] for shard in self.shards for info in tensors_of(shard)]
        whole = checksum.of_bytes(numpy.frombuffer("".join(sorted(f"{k}={v}" for k, v in reference.items())).encode(), numpy.uint8))
        return {
            "name": self.name, "files": len(self.shards), "tensors": len(lengths), "bytes": sum(lengths),
            "largest": max(lengths), "smallest": min(lengths), "digest": f"{whole & (1 << 64) - 1:016x}",
        }  # fmt: skip


def header(shard):
    """The JSON header of a safetensors file, and where its data begin."""
    with open(shard, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        infos = json.loads(file.read(length))
    infos.pop("__metadata__", None)
    return infos, 8 + length


def tensors_of(shard):
    """(name, dtype, shape, offset in the file, length) of each tensor."""
    infos, start = header(shard)
    for name, info in infos.items():
        begin, end = info["data_offsets"]
        yield name, info["dtype"], info["shape"], start + begin, end - begin


def make(folder, gib, shards, small, size, forms):
    """A model of a few large tensors, or of many small ones, and its forms."""
    if not glob.glob(os.path.join(folder, "*.safetensors")):
        os.makedirs(folder, exist_ok=True)
        if small:
            command = ["make_small.py", os.path.join(folder, "model.safetensors"), str(small), str(size)]
        else:
            command = ["make_model.py", folder, str(gib), str(shards)]
        subprocess.run([sys.executable, os.path.join(HERE, "..", command[0]), *command[1:]], check=True)
    model = Model(folder)
    for form in forms:
        path = model.form(form)
        if os.path.exists(path):
            continue
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            {"torch": _torch, "flashpack": _flashpack, "onnx": _onnx}[form](model, path + ".part")
            os.rename(path + ".part", path)
        except Exception as error:  # whoever reads this form fails then, and says so
            print(f"no {form} form: {type(error).__name__}: {error}", flush=True)
    print(json.dumps(model.facts()), flush=True)


def _state(model):
    from safetensors.torch import load_file

    state = {}
    for shard in model.shards:
        state.update(load_file(shard))
    return state


def _torch(model, path):
    import torch

    torch.save(_state(model), path)


def _flashpack(model, path):
    from flashpack import pack_to_file

    pack_to_file(_state(model), path, None)


def _onnx(model, path):
    """One Gather for each tensor, whose indices come when it is run: nothing folds or moves a weight, and
    the outputs are the weights, so that they can be compared. The types are whole numbers of the same
    width: bytes are bytes. Written as Protocol Buffers here: the package onnx need not be there."""

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

    def value_info(name, number, shape):
        dims = b"".join(field(1, field(1, size) if isinstance(size, int) else field(2, size)) for size in shape)
        return field(1, name) + field(2, field(1, field(1, number) + field(2, dims)))

    nodes, weights, inputs, outputs = [], [], {}, []
    for shard in model.shards:
        for name, dtype, shape, offset, length in tensors_of(shard):
            if not shape or not length:
                raise ValueError(f"{name} has no rows to gather")
            elements = 1
            for size in shape:
                elements *= size
            number = {1: 2, 2: 4, 4: 12, 8: 13}[length // elements]  # UINT8, UINT16, UINT32, UINT64
            rows = f"rows{shape[0]}"
            inputs[rows] = value_info(rows, 7, [rows])
            nodes.append(field(1, field(1, name) + field(1, rows) + field(2, f"out.{name}") + field(4, "Gather")))
            place = {"location": os.path.basename(shard), "offset": str(offset), "length": str(length)}
            pairs = b"".join(field(13, field(1, key) + field(2, text)) for key, text in place.items())
            dims = b"".join(field(1, size) for size in shape)
            weights.append(field(5, dims + field(2, number) + field(8, name) + pairs + field(14, 1)))
            outputs.append(field(12, value_info(f"out.{name}", number, [rows, *shape[1:]])))
    graph = b"".join(nodes) + field(2, "weights") + b"".join(weights)
    graph += b"".join(field(11, value) for value in inputs.values()) + b"".join(outputs)
    with open(path, "wb") as file:
        file.write(field(1, 10) + field(7, graph) + field(8, field(2, 17)))

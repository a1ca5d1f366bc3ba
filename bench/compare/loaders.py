"""The loaders, and how each is called: as its documentation shows first, and in the way found fastest.

A way prepares (imports, settings; not timed) and returns a function that loads all tensors and returns
them by name (timed). `reads` is what the way asks for: `cache` through the page cache, `direct` past it,
`any` if it leaves that to the loader. `asks` is the route that it should have taken, where the loader tells
its route: that becomes `load.took()`. What a sample is good for is decided in verdict.py.
"""

import os
import re
from typing import Callable, NamedTuple

from models import header


class Way(NamedTuple):
    loader: str
    setting: str
    package: str
    call: str
    gives: str
    prepare: Callable
    devices: tuple = ("cuda",)
    reads: str = "any"
    asks: str = ""
    form: str = "safetensors"
    environment: dict = {}

    @property
    def name(self):
        return f"{self.loader}, {self.setting}"


def weightlift(model, device):
    import weightlift as package
    import weightlift.torch  # noqa: F401 - its import is not what is timed

    def load():
        opened = package.open(model.folder)
        # What weightlift.torch.load_file does, with the report at hand.
        loaded = opened.load(device=device, framework="torch")
        load.report = opened.report
        return loaded

    load.took = lambda: told(load.report)
    return load


def weightlift_into(model, device):
    import torch
    import weightlift as package
    import weightlift.torch

    opened = package.open(model.folder)
    made = {i.name: torch.empty(i.shape, dtype=weightlift.torch.dtype_of(i.dtype), device=device) for i in opened.tensors}
    if device != "cpu":
        torch.cuda.synchronize()

    def load():
        package.load_into(opened, made)
        load.report = opened.report
        return made

    load.took = lambda: told(load.report)
    return load


def weightlift_numpy(model, device):
    import weightlift as package
    import weightlift.numpy  # noqa: F401

    def load():
        opened = package.open(model.folder)
        loaded = opened.load(device="host", framework="numpy")
        load.report = opened.report
        return loaded

    load.took = lambda: told(load.report)
    return load


def told(report):
    """The routes by which bytes came, and every fallback."""
    routes = "+".join(sorted(name for name, count in report["routes"].items() if count))
    return routes + "".join(f"; {each['from']} became {each['to']}: {each['reason']}" for each in report["fallbacks"])


def safetensors(model, device):
    from safetensors.torch import load_file

    return lambda: merged(load_file(shard, device=device) for shard in model.shards)


def safetensors_numpy(model, device):
    from safetensors.numpy import load_file

    return lambda: merged(load_file(shard) for shard in model.shards)


def safetensors_prefetch(model, device):
    """From version 0.9 on: all shards at once, eight threads each."""
    from safetensors import safe_open

    def load():
        loaded = {}
        load.keep = [safe_open(shard, framework="pt", device=device, backend="pread") for shard in model.shards]
        for tensors in [each.prefetch(threads=8) for each in load.keep]:
            with tensors:
                loaded.update(tensors)
        return loaded

    return load


def fastsafetensors(model, device):
    from fastsafetensors import SafeTensorsFileLoader

    def load():
        loader = SafeTensorsFileLoader(None, device=device, nogds=True)
        loader.add_filenames({0: model.shards})
        buffers = loader.copy_files_to_device()
        load.keep = loader, buffers
        return {name: buffers.get_tensor(name) for name in loader.get_keys()}

    return load


def instanttensor(backend=None, **settings):
    def prepare(model, device):
        from instanttensor import BackendPolicy, safe_open

        if backend:
            settings["backend"] = getattr(BackendPolicy, backend)

        def load():
            # It sorts the list that it gets, and begins to load in its constructor.
            with safe_open(list(model.shards), framework="pt", device=device, **settings) as opened:
                return dict(opened.tensors())

        return load

    return prepare


def runai(model, device):
    from runai_model_streamer import SafetensorsStreamer

    def load():
        with SafetensorsStreamer() as streamer:
            streamer.stream_files(model.shards, device=device)
            return dict(streamer.get_tensors())

    return load


def kvikio(**settings):
    def prepare(model, device):
        """A buffer for each file, and views into it."""
        import kvikio as package
        import kvikio.defaults
        import torch

        if settings:
            kvikio.defaults.set(settings)

        def load():
            loaded = {}
            for shard in model.shards:
                infos, start = header(shard)
                size = os.path.getsize(shard) - start
                buffer = torch.empty(size, dtype=torch.uint8, device=device)
                with package.CuFile(shard, "r") as file:
                    if file.pread(buffer, size=size, file_offset=start).get() != size:
                        raise RuntimeError("a short read")
                loaded.update(views(torch, buffer, infos))
            return loaded

        return load

    return prepare


def flashpack(model, device):
    from flashpack.deserialization import iterate_from_flash_tensor, read_flashpack_file

    def load():
        storage, meta = read_flashpack_file(model.form("flashpack"), device=device)
        return dict(iterate_from_flash_tensor(storage, meta))

    return load


def torch_load(mmap):
    def prepare(model, device):
        import torch

        return lambda: torch.load(model.form("torch"), map_location=device, mmap=mmap, weights_only=True)

    return prepare


def numpy_fromfile(model, device):
    import numpy

    def load():
        loaded = {}
        for shard in model.shards:
            infos, start = header(shard)
            data = numpy.fromfile(shard, dtype=numpy.uint8, offset=start)
            for name, info in infos.items():
                begin, end = info["data_offsets"]
                kind = {"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1",
                        "U64": "u8", "U32": "u4", "U16": "u2", "U8": "u1", "BOOL": "?"}[info["dtype"]]  # fmt: skip
                loaded[name] = data[begin:end].view(kind).reshape(info["shape"])
        return loaded

    return load


def onnxruntime(reading_threads=None):
    def prepare(model, device):
        """A session whose weights are the shards' bytes. The weights are looked at by running it."""
        import numpy
        import onnxruntime as package

        if not os.path.exists(model.form("onnx")):
            raise RuntimeError("no model.onnx: `make --forms onnx` writes it")
        options = package.SessionOptions()
        options.log_severity_level = 1
        providers = ["CPUExecutionProvider"]
        if device != "cpu":
            settings = {"device_id": 0}
            if reading_threads is not None:
                settings["external_data_loader_reading_threads"] = reading_threads
            providers.insert(0, ("CUDAExecutionProvider", settings))

        def load():
            load.session = package.InferenceSession(model.form("onnx"), options, providers=providers)
            return {}

        def weights():
            """The tensors, by a run that is in no figure; a part at a time, for they come to the host."""
            rows = {each.name: numpy.arange(int(each.name[4:])) for each in load.session.get_inputs()}
            names = [each.name for each in load.session.get_outputs()]
            for at in range(0, len(names), 64):
                part = names[at : at + 64]
                yield dict(zip((name[4:] for name in part), load.session.run(part, rows)))

        def took():
            if device != "cpu" and "CUDAExecutionProvider" not in load.session.get_providers():
                return "CPUExecutionProvider"
            return logged_path(load.log())

        load.weights, load.took = weights, took
        return load

    return prepare


def logged_path(log):
    """Which of its loaders ONNX Runtime says that it took; None if it does not say."""
    return "+".join(sorted(set(re.findall(r"\bpath=(\w+)", log)))) or None


def views(torch, buffer, infos):
    """Tensors over a buffer, as a safetensors header has them; copies where they are not aligned."""
    names = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64", "BOOL": "bool", "U8": "uint8",
             "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
             "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}  # fmt: skip
    loaded = {}
    for name, info in infos.items():
        begin, end = info["data_offsets"]
        dtype, part = getattr(torch, names[info["dtype"]]), buffer[begin:end]
        loaded[name] = (part if begin % dtype.itemsize == 0 else part.clone()).view(dtype).view(info["shape"])
    return loaded


def merged(parts):
    loaded = {}
    for part in parts:
        loaded.update(part)
    return loaded


BOTH = ("cuda", "cpu")
OWN, VIEWS = "own memory each", "views of a buffer"
WAYS = [
    Way("weightlift", "default", "weightlift", "`load_file(folder, device)`", OWN, weightlift, BOTH, asks="pinned"),
    Way("weightlift", "load_into", "weightlift", "`load_into(model, tensors)`", "the caller's", weightlift_into, BOTH, asks="pinned"),
    Way("weightlift", "numpy", "weightlift", "`weightlift.numpy.load_file`", VIEWS, weightlift_numpy, ("cpu",), asks="host"),
    Way("safetensors", "default", "safetensors", "`load_file(file, device)` for each file", OWN, safetensors, BOTH, "cache"),
    Way("safetensors", "numpy", "safetensors", "`safetensors.numpy.load_file`", OWN, safetensors_numpy, ("cpu",), "cache"),
    Way("safetensors 0.9", "default", "safetensors", "`load_file(file, device)` for each file", OWN, safetensors, BOTH),
    Way("safetensors 0.9", "best", "safetensors", "`safe_open(backend=\"pread\").prefetch(threads=8)`, all files at once", OWN, safetensors_prefetch),
    # nogds: without GPUDirect Storage, which the machines measured so far do not have.
    Way("fastsafetensors", "default", "fastsafetensors", "`SafeTensorsFileLoader(nogds=True)`, past the page cache", VIEWS, fastsafetensors),
    Way("fastsafetensors", "best", "fastsafetensors", "the same with FASTSAFETENSORS_ODIRECT=0", VIEWS, fastsafetensors, reads="cache",
        environment={"FASTSAFETENSORS_ODIRECT": "0"}),
    Way("InstantTensor", "default", "instanttensor", "`safe_open(files, device)`, past the page cache", OWN, instanttensor()),
    Way("InstantTensor", "best", "instanttensor", "`backend=BUFFERED`", OWN, instanttensor("BUFFERED"), reads="cache"),
    Way("InstantTensor", "io_depth=64", "instanttensor", "`backend=BUFFERED, io_depth=64`", OWN, instanttensor("BUFFERED", io_depth=64), reads="cache"),
    Way("Run:ai", "default", "runai-model-streamer", "`SafetensorsStreamer().stream_files(files, device)`", OWN, runai),
    Way("Run:ai", "best", "runai-model-streamer", "the same with RUNAI_STREAMER_FS_STRATEGY=io_uring_buffered", OWN, runai, reads="cache",
        environment={"RUNAI_STREAMER_FS_STRATEGY": "io_uring_buffered"}),
    Way("KvikIO", "default", "kvikio-cu13", "`CuFile(file).pread(buffer)`, views by the header", VIEWS, kvikio()),
    Way("KvikIO", "best", "kvikio-cu13", "the same with 16 threads and tasks of 16 MiB", VIEWS, kvikio(num_threads=16, task_size=16 << 20)),
    Way("FlashPack", "default", "flashpack", "`read_flashpack_file(file, device)`, of a converted model", VIEWS, flashpack, form="flashpack"),
    Way("FlashPack", "best", "flashpack", "the same with FLASHPACK_DIRECT_IO=0", VIEWS, flashpack, reads="cache", form="flashpack",
        environment={"FLASHPACK_DIRECT_IO": "0"}),
    Way("torch", "default", "torch", "`torch.load(file, map_location=device)`, of a converted model", OWN, torch_load(False), BOTH, "cache", form="torch"),
    Way("torch", "best", "torch", "the same with `mmap=True`", OWN, torch_load(True), BOTH, "cache", form="torch"),
    Way("numpy", "fromfile", "numpy", "`numpy.fromfile`, views by the header", VIEWS, numpy_fromfile, ("cpu",), "cache"),
    Way("ONNX Runtime", "default", "onnxruntime-gpu", "`InferenceSession` on the files as external data", "the session's", onnxruntime(), BOTH, form="onnx"),
    Way("ONNX Runtime", "classic", "onnxruntime-gpu", "the same with external_data_loader_reading_threads=0", "the session's", onnxruntime(0), form="onnx"),
    Way("ONNX Runtime", "pinned", "onnxruntime-gpu", "the same with external_data_loader_reading_threads=4", "the session's", onnxruntime(4), asks="pinned", form="onnx"),
]  # fmt: skip
BY_NAME = {way.name: way for way in WAYS}


def chosen(names, device):
    """Ways by names: of a loader (`KvikIO`), of a setting (`best`), of both (`KvikIO, best` as `KvikIO/best`), of all."""
    kind = "cpu" if device == "cpu" else "cuda"
    there = [way for way in WAYS if kind in way.devices]
    if not names:
        return there
    found, picked = set(), []
    for way in there:
        by = {way.loader, way.setting, f"{way.loader}/{way.setting}"} & set(names)
        found |= by
        if by:
            picked.append(way)
    if unknown := set(names) - found:
        raise SystemExit(f"no such loader or setting for {device}: {', '.join(sorted(unknown))}; there are {', '.join(f'{w.loader}/{w.setting}' for w in there)}")
    return picked

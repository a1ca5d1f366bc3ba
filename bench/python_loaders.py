"""The first load of a process from Python: weightlift beside other loaders of safetensors.

    python bench/python_loaders.py [--rounds 7] [--loaders NAME,...] [--path NAME=FOLDER]... [--out FILE] FOLDER

FOLDER holds a model in shards (bench/make_model.py makes one). Its files are read once before, and
are in the page cache then, which is checked. Every sample is a process of its own, forked from one
that has imported torch and not touched CUDA: it makes the CUDA context, imports the loader, and then
makes one call that loads all tensors to cuda:0 as torch's; the clock stops when the device has
them. The order of the loaders is shuffled every round. All tensors are summed up as whole numbers on
the GPU afterwards, and what differs between loaders is an error. Each loader is called in the way
that was found to be its fastest with files in the page cache. `--path` puts a folder before the
others for one loader's imports, for versions of a package that cannot stand side by side. A loader
that fails or is not there is told, with its error.

The ceiling is that of the same run: copies of 64 MiB from pinned memory, once every round.
"""

import argparse
import ctypes
import glob
import importlib.metadata
import json
import mmap
import multiprocessing
import os
import platform
import random
import statistics
import struct
import sys
import time
import traceback

DEVICE = "cuda:0"


def files_of(folder):
    return sorted(glob.glob(os.path.join(folder, "*.safetensors")))


def load_weightlift(folder, files):
    import weightlift.torch

    return lambda: weightlift.torch.load_file(folder, device=DEVICE)


def load_weightlift_into(folder, files):
    import torch
    import weightlift
    import weightlift.torch

    model = weightlift.open(folder)
    made = {i.name: torch.empty(i.shape, dtype=weightlift.torch.dtype_of(i.dtype), device=DEVICE) for i in model.tensors}
    torch.cuda.synchronize()

    def load():
        weightlift.load_into(model, made)
        return made

    return load


def load_safetensors(folder, files):
    from safetensors.torch import load_file

    def load():
        loaded = {}
        for file in files:
            loaded.update(load_file(file, device=DEVICE))
        return loaded

    return load


def load_safetensors_prefetch(folder, files):
    """From version 0.9 on: all shards at once, eight threads each."""
    from safetensors import safe_open

    def load():
        loaded = {}
        opened = [safe_open(file, framework="pt", device=DEVICE, backend="pread") for file in files]
        for tensors in [each.prefetch(threads=8) for each in opened]:
            with tensors:
                loaded.update(tensors)
        return loaded

    return load


def load_fastsafetensors(folder, files):
    os.environ["FASTSAFETENSORS_ODIRECT"] = "0"
    from fastsafetensors import SafeTensorsFileLoader

    def load():
        loader = SafeTensorsFileLoader(None, device=DEVICE, nogds=True)
        loader.add_filenames({0: files})
        buffers = loader.copy_files_to_device()
        load.keep = loader, buffers
        return {name: buffers.get_tensor(name) for name in loader.get_keys()}

    return load


def load_instanttensor(folder, files):
    from instanttensor import BackendPolicy, safe_open

    def load():
        loaded = {}
        with safe_open(list(files), framework="pt", device=DEVICE, backend=BackendPolicy.BUFFERED) as opened:
            loaded.update(opened.tensors())
        return loaded

    return load


def load_kvikio(folder, files):
    """A buffer for each file, sixteen threads, and views into it."""
    import kvikio
    import kvikio.defaults
    import torch

    kvikio.defaults.set({"num_threads": 16, "task_size": 16 << 20})

    def load():
        loaded = {}
        for file in files:
            with open(file, "rb") as opened:
                (length,) = struct.unpack("<Q", opened.read(8))
                header = json.loads(opened.read(length))
            size = os.path.getsize(file) - 8 - length
            buffer = torch.empty(size, dtype=torch.uint8, device=DEVICE)
            with kvikio.CuFile(file, "r") as opened:
                if opened.pread(buffer, size=size, file_offset=8 + length).get() != size:
                    raise RuntimeError("a short read")
            header.pop("__metadata__", None)
            for name, info in header.items():
                begin, end = info["data_offsets"]
                loaded[name] = buffer[begin:end].view(torch.bfloat16).view(info["shape"])
        return loaded

    return load


def load_runai(folder, files):
    os.environ["RUNAI_STREAMER_FS_STRATEGY"] = "io_uring_buffered"
    from runai_model_streamer import SafetensorsStreamer

    def load():
        with SafetensorsStreamer() as streamer:
            streamer.stream_files(files, device=DEVICE)
            return dict(streamer.get_tensors())

    return load


# Name, how to load, the package whose version is told.
LOADERS = {
    "weightlift": (load_weightlift, "weightlift"),
    "weightlift load_into": (load_weightlift_into, "weightlift"),
    "safetensors": (load_safetensors, "safetensors"),
    "safetensors prefetch": (load_safetensors_prefetch, "safetensors"),
    "fastsafetensors": (load_fastsafetensors, "fastsafetensors"),
    "InstantTensor": (load_instanttensor, "instanttensor"),
    "KvikIO": (load_kvikio, "kvikio-cu13"),
    "Run:ai": (load_runai, "runai-model-streamer"),
}


def sample(name, folder, path, answer):
    """One first load, in a process of its own."""
    try:
        if path:
            sys.path.insert(0, path)
        import torch

        torch.cuda.init()
        torch.empty(1, device=DEVICE)
        torch.cuda.synchronize()
        if name == "ceiling":
            return answer.send({"seconds": copies(torch), "bytes": 64 << 20})
        files = files_of(folder)
        prepare, package = LOADERS[name]
        load = prepare(folder, files)
        started, processor = time.perf_counter(), time.process_time()
        loaded = load()
        torch.cuda.synchronize()
        seconds, processor = time.perf_counter() - started, time.process_time() - processor
        sums = sorted((key, int(tensor.view(torch.int16).sum(dtype=torch.int64))) for key, tensor in loaded.items())
        answer.send({
            "seconds": seconds, "processor": processor, "bytes": sum(tensor.nbytes for tensor in loaded.values()),
            "tensors": len(loaded), "sum": hash(tuple(sums)), "version": importlib.metadata.version(package),
            "allocated": torch.cuda.memory_allocated(), "resident": resident_peak(),
        })  # fmt: skip
    except BaseException as error:
        last = traceback.format_exception_only(error)[-1].strip()
        answer.send({"error": last[:300]})
    finally:
        answer.close()
        # What loaders do at exit is not measured, and some hang there.
        os._exit(0)


def copies(torch):
    """Seconds for 64 MiB from pinned memory, the median of many."""
    here = torch.ones(64 << 20, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(64 << 20, dtype=torch.uint8, device=DEVICE)
    took = []
    for _ in range(20):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        there.copy_(here, non_blocking=True)
        end.record()
        torch.cuda.synchronize()
        took.append(begin.elapsed_time(end) / 1000)
    return statistics.median(took)


def resident_peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def run(name, folder, path, timeout):
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=sample, args=(name, folder, path, theirs))
    process.start()
    theirs.close()
    try:
        answer = ours.recv() if ours.poll(timeout) else {"error": f"no answer in {timeout} s"}
    except EOFError:
        answer = {"error": "the process died"}
    process.join(5)
    if process.is_alive():
        process.kill()
        process.join()
    return answer


def warm(files):
    for path in files:
        with open(path, "rb", buffering=0) as file:
            buffer = bytearray(1 << 24)
            while file.readinto(buffer):
                pass


def share_cached(files):
    there = pages = 0
    libc = ctypes.CDLL(None, use_errno=True)
    for path in files:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        answer = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        if libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(size), answer) != 0:
            raise SystemExit(f"mincore: {os.strerror(ctypes.get_errno())}")
        there += sum(page & 1 for page in answer)
        pages += len(answer)
    return there / pages


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--loaders", default=",".join(LOADERS))
    parser.add_argument("--path", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--timeout", type=float, default=30)
    parser.add_argument("--seconds", type=float, default=500, help="no round begins after so many")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    names = arguments.loaders.split(",")
    unknown = [name for name in names if name not in LOADERS]
    if unknown:
        parser.error(f"no such loader: {', '.join(unknown)}; there are {', '.join(LOADERS)}")
    paths = dict(each.split("=", 1) for each in arguments.path)
    files = files_of(arguments.folder)
    if not files:
        parser.error(f"no .safetensors in {arguments.folder}")
    import torch  # noqa: F401 - imported once for all samples; it does not touch CUDA

    warm(files)
    cached = share_cached(files)
    if cached < 0.999:
        raise SystemExit(f"{cached:.1%} of the files are in the page cache: too little memory?")
    print(f"{platform.node()}: Linux {platform.release()}, {os.cpu_count()} processors, {len(files)} files, "
          f"{sum(map(os.path.getsize, files)) / 1e9:.2f} GB", flush=True)  # fmt: skip
    samples = {name: [] for name in ["ceiling", *names]}
    began = time.monotonic()
    for number in range(arguments.rounds):
        if time.monotonic() - began > arguments.seconds:
            print(f"stopped after {number} rounds", flush=True)
            break
        order = list(samples)
        random.shuffle(order)
        for name in order:
            answer = run(name, arguments.folder, paths.get(name), arguments.timeout)
            samples[name].append(answer)
            told = answer.get("error") or f"{answer['bytes'] / answer['seconds'] / 1e9:.1f} GB/s in {answer['seconds']:.3f} s"
            print(f"round {number + 1}: {name}: {told}", flush=True)
            if "error" in answer and len(samples[name]) >= 2:
                # It will not work the third time.
                del samples[name]
                samples_failed.setdefault(name, answer["error"])
    return report(arguments, samples, files)


samples_failed = {}


def report(arguments, samples, files):
    sums = {answer["sum"] for name, answers in samples.items() for answer in answers if "sum" in answer}
    rate = lambda answer: answer["bytes"] / answer["seconds"] / 1e9  # noqa: E731
    medians = {}
    for name, answers in samples.items():
        rates = sorted(rate(answer) for answer in answers if "error" not in answer)
        if rates:
            medians[name] = statistics.median(rates), rates
    if "ceiling" not in medians:
        print(samples_failed.get("ceiling", "no sample of the ceiling"))
        return 1
    ceiling = medians.pop("ceiling")
    print(f"\npinned copies of 64 MiB: {ceiling[0]:.1f} GB/s ({ceiling[1][0]:.1f} to {ceiling[1][-1]:.1f})\n")
    print("| loader | version | GB/s, median | range | of the copies | processor s | resident MB | torch's MB |")
    print("|---|---|---|---|---|---|---|---|")
    for name, (median, rates) in sorted(medians.items(), key=lambda each: -each[1][0]):
        good = [answer for answer in samples[name] if "error" not in answer]
        middle = lambda key: statistics.median(answer[key] for answer in good)  # noqa: B023, E731
        print(
            f"| {name} | {good[0]['version']} | {median:.1f} | {rates[0]:.1f} to {rates[-1]:.1f} ({len(rates)}) | "
            f"{median / ceiling[0]:.0%} | {middle('processor'):.2f} | {middle('resident') / 1e6:.0f} | {middle('allocated') / 1e6:.0f} |"
        )
    for name, error in samples_failed.items():
        print(f"{name}: {error}")
    others = {name: median for name, (median, _) in medians.items() if not name.startswith("weightlift")}
    if "weightlift" in medians and others:
        best = max(others, key=others.get)
        print(f"\nweightlift is {medians['weightlift'][0] / others[best]:.2f} times the best other, {best}")
    if arguments.out:
        with open(arguments.out, "w") as file:
            json.dump({"machine": platform.release(), "samples": samples, "failed": samples_failed}, file, indent=1)
    if len(sums) > 1:
        print("the tensors of some loaders differ from those of others")
        return 1
    return 0


if __name__ == "__main__":
    # The same for all processes: sums are compared by their hashes.
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())

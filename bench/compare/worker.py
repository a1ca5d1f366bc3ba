"""One sample, in a process of its own: forked from one that has imported torch and not touched CUDA.

What comes before the first call (the context, the import of the loader) is timed apart. The clock of a call
starts before it and stops when the device has everything; on the host, when a byte of every page has been
looked at, because some loaders only map a file.
"""

import gc
import importlib.metadata
import os
import sys
import tempfile
import time
import traceback

import checksum
from measure import evict, fill, resident


def sample(way, model, size, device, state, later, path, answer):
    """Sends `first` when the first call begins, then the answer. Never returns."""
    log = tempfile.TemporaryFile()
    try:
        if path:
            sys.path.insert(0, path)
        os.environ.update(way.environment)
        if way.loader == "ONNX Runtime":
            # Its log goes to standard error, and is where its route is told.
            os.dup2(log.fileno(), 2)
        answer.send(("answer", measure(way, model, size, device, state, later, answer, log)))
    except BaseException as error:
        answer.send(("answer", {"error": traceback.format_exception_only(error)[-1].strip()[:400]}))
    finally:
        answer.close()
        # What loaders do at exit is not measured, and some hang there.
        os._exit(0)


def measure(way, model, size, device, state, later, answer, log):
    gpu = None
    context = time.perf_counter()
    if device != "cpu":
        import torch as gpu

        gpu.cuda.init()
        gpu.empty(1, device=device)
        gpu.cuda.synchronize()
    imported = time.perf_counter()
    load = way.prepare(model, device)
    load.log = lambda: read_all(log)
    ready = time.perf_counter()
    files = model.files(way.form)
    on_disk = sum(map(os.path.getsize, files))
    calls, digests, digests_of = [], [], []
    count = 1 + (later if state == "warm" else 0)
    for number in range(count):
        cached = bring(files, state, on_disk)
        disk, processor = disk_bytes(), time.process_time()
        before = used(gpu)
        if number == 0:
            answer.send(("first", None))
        started = time.perf_counter()
        loaded = load()
        if gpu:
            gpu.cuda.synchronize()
        elif way.loader != "ONNX Runtime":
            touch(loaded)
        seconds = time.perf_counter() - started
        calls.append({
            "seconds": seconds, "processor_seconds": time.process_time() - processor, "cached": cached,
            "disk_bytes": disk_bytes() - disk, "device_bytes": used(gpu) - before,
            "took": load.took() if hasattr(load, "took") else "",
        })  # fmt: skip
        if number == 0:
            answer.send(("landed", None))
        if number in (0, count - 1):
            digests.append(labels(load, loaded, model))
            digests_of.append(number)
        loaded = load.keep = load.session = None
        gc.collect()
        if gpu:
            gpu.cuda.empty_cache()
    return {
        "state": state, "calls": calls, "digests": digests, "digests_of": digests_of,
        "bytes": size, "version": version(way.package), "resident_peak": resident_peak(),
        "context_seconds": imported - context, "import_seconds": ready - imported,
    }  # fmt: skip


def bring(files, state, size):
    """Brings files into a state of the page cache; the share that the kernel says is there."""
    for file in files:
        {"warm": fill, "cold": evict}[state](file)
    return sum(resident(file) * os.path.getsize(file) for file in files) / size


def touch(loaded):
    """Looks at a byte of every page of every tensor, each one's first among them."""
    total = 0
    for tensor in loaded.values():
        if hasattr(tensor, "data_ptr"):
            import torch

            total += int(tensor.detach().contiguous().reshape(-1).view(torch.uint8)[::4096].sum(dtype=torch.int64))
        else:
            import numpy

            total += int(tensor.reshape(-1).view(numpy.uint8)[::4096].sum(dtype=numpy.uint64))
    return total


def labels(load, loaded, model):
    if not hasattr(load, "weights"):
        return checksum.of_tensors(loaded)
    # As whole numbers: the type is that of the file, which the model's writer took it from.
    reference, found = model.reference(), {}
    for part in load.weights():
        for name, label in checksum.of_tensors(part).items():
            kind = reference[name].split("[")[0]
            found[name] = kind + label[label.index("[") :]
    return found


def used(gpu):
    """Bytes of the device's memory that are in use, by anybody."""
    if not gpu:
        return 0
    free, total = gpu.cuda.mem_get_info()
    return total - free


def disk_bytes():
    """What this process has had read from disks, by the kernel's count, whichever way it read."""
    with open("/proc/self/io") as counts:
        return next(int(line.split()[1]) for line in counts if line.startswith("read_bytes"))


def resident_peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def version(package):
    for name in (package, "onnxruntime" if package == "onnxruntime-gpu" else package):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"


def read_all(log):
    log.flush()
    log.seek(0)
    return log.read().decode(errors="replace")

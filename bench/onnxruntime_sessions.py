"""How long an ONNX Runtime session takes to be there, and to have run once, by who loads its weights.

    PYTHONPATH=... python3 bench/onnxruntime_sessions.py [--device cuda|cpu] [--sizes 4,16] [--states warm,cold]
        [--ways weightlift,classic,pinned] [--context up] [--samples 7] [--folder /tmp/weightlift-bench]
        [--json FILE]

makes a model of square MatMuls with so many GiB of external data in the folder, unless it is there, and
times from the call to the session, and from the call to the end of the first run:

- weightlift: `weightlift.onnxruntime.session`;
- classic: `InferenceSession` with `external_data_loader_reading_threads` 0 (on the CPU: as it is);
- pinned: the same with 4, the loader through pinned memory (only with CUDA).

Every sample is a fresh process, in which everything is imported and nothing else done before the call,
so that the driver's start is in the time, unless `--context up` has the device's context retained
before, as in a process that uses the GPU already;
all ways take turns, in an order that is shuffled every round. Before a cold sample the file is evicted with
posix_fadvise, before a warm one it is read; both are verified with mincore. Which way ONNX Runtime's
loader took is what its log says in a run that is not timed (`path=`), and results of all ways are
compared (1.31.1 writes no such line: then it says so). With CUDA, torch is imported for its libraries where it is installed. Needs numpy, onnxruntime
and weightlift, and no network. Prints each sample as a line of JSON and a Markdown table at the end.
"""

import argparse
import ctypes
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time

from measure import evict, fill

GIB = 1 << 30


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--sizes", default="4,16", help="GiB of external data, with commas")
    parser.add_argument("--states", default="warm,cold")
    parser.add_argument("--ways")
    parser.add_argument("--context", choices=["none", "up"], default="none")
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--side", type=int, default=8192, help="rows and columns of a weight")
    parser.add_argument("--folder", default="/tmp/weightlift-bench")
    parser.add_argument("--json", help="a file for all samples")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--log", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("model", nargs="?", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(options)
    ways = (options.ways or ("weightlift,classic" + (",pinned" if options.device == "cuda" else ""))).split(",")
    samples, verified = [], {}
    for size in (float(size) for size in options.sizes.split(",")):
        model, data = make(options, size)
        outputs = {}
        for way in ways:
            # The first run of all is timed by nobody: it brings libraries into the page cache.
            fill(data)
            verified[way] = sample(options, model, way, outputs, log=True)["loader"]
            emit({"way": way, "loader": verified[way], "gib": size})
        for state in options.states.split(","):
            for number in range(options.samples):
                for way in random.sample(ways, len(ways)):
                    {"warm": fill, "cold": evict}[state](data)
                    taken = sample(options, model, way, outputs)
                    taken |= {"gib": size, "state": state, "way": way, "round": number}
                    samples.append(taken)
                    emit(taken)
    show(samples, ways)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"device": options.device, "context": options.context, "loaders": verified, "samples": samples}, file, indent=1)


def emit(entry):
    print(json.dumps(entry), flush=True)


def make(options, size):
    """A model of the size in GiB, and its data: weights that differ, and results that stay near 1."""
    import numpy as np

    # The CPU has no MatMul of half floats: it would convert the weights.
    dtype, number = (np.float16, 10) if options.device == "cuda" else (np.float32, 1)
    side = options.side
    nbytes = side * side * dtype().itemsize
    count = max(int(size * GIB) // nbytes, 1)
    folder = os.path.join(options.folder, f"{options.device}-{count}x{side}")
    os.makedirs(folder, exist_ok=True)
    data, model = os.path.join(folder, "weights.bin"), os.path.join(folder, "model.onnx")
    if not os.path.exists(model) or os.path.getsize(data) != count * nbytes:
        values = (np.random.default_rng(1).random((side, side), np.float32) - 0.5) * np.float32(12 / side) ** 0.5
        values = values.astype(dtype)
        with open(data, "wb") as file:
            for weight in range(count):
                file.write(np.roll(values, weight, axis=0).data)
            file.flush()
            os.fsync(file.fileno())
        with open(model, "wb") as file:
            file.write(message(count, side, number, nbytes))
    return model, data


def message(count, side, number, nbytes):
    """The model as Protocol Buffers: onnx itself need not be there."""

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

    def value_info(name):
        shape = b"".join(field(1, field(1, size)) for size in (1, side))
        return field(1, name) + field(2, field(1, field(1, number) + field(2, shape)))

    graph = b""
    for at in range(count):
        source, target = ("x" if at == 0 else f"h{at}"), ("y" if at == count - 1 else f"h{at + 1}")
        graph += field(1, field(1, source) + field(1, f"W{at}") + field(2, target) + field(4, "MatMul"))
    graph += field(2, "bench")
    for at in range(count):
        place = {"location": "weights.bin", "offset": str(at * nbytes), "length": str(nbytes)}
        pairs = b"".join(field(13, field(1, key) + field(2, text)) for key, text in place.items())
        graph += field(5, field(1, side) * 2 + field(2, number) + field(8, f"W{at}") + pairs + field(14, 1))
    graph += field(11, value_info("x")) + field(12, value_info("y"))
    return field(1, 10) + field(7, graph) + field(8, field(2, 17))


def sample(options, model, way, outputs, log=False):
    import numpy as np

    command = [sys.executable, os.path.abspath(__file__), "--device", options.device, "--context", options.context]
    command += ["--worker", way, model]
    done = subprocess.run(command + ["--log"] * log, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{way}: {done.stdout}{done.stderr}")
    taken = json.loads(done.stdout.splitlines()[-1])
    output = np.array(taken.pop("output"))
    first = outputs.setdefault("first", output)
    if not np.isfinite(output).all() or not np.allclose(output, first, rtol=0.02, atol=0.02):
        raise SystemExit(f"{way} has another result: {output} and not {first}")
    if log:
        paths = set(re.findall(r"path=(\w+)", done.stdout + done.stderr))
        own = f"weightlift, {taken.get('in_place', 0)} bytes in place" if "in_place" in taken else "its log does not say"
        taken["loader"] = "+".join(sorted(paths)) or own
    return taken


def work(options):
    import numpy as np

    if options.device == "cuda":
        try:
            import torch  # noqa: F401
        except ImportError:
            pass
    import onnxruntime

    if options.device == "cuda" and hasattr(onnxruntime, "preload_dlls") and "torch" not in sys.modules:
        onnxruntime.preload_dlls(directory="")
    made = onnxruntime.SessionOptions()
    made.log_severity_level = 1 if options.log else 3
    providers = ["CPUExecutionProvider"]
    settings = {"device_id": 0}
    if options.worker == "weightlift":
        from weightlift.onnxruntime import session as create
    else:
        create = onnxruntime.InferenceSession
        settings["external_data_loader_reading_threads"] = {"classic": 0, "pinned": 4}[options.worker]
    if options.device == "cuda":
        providers.insert(0, ("CUDAExecutionProvider", settings))
    if options.device == "cuda" and options.context == "up":
        retain_context()
    started = time.perf_counter()
    session = create(options.model, made, providers=providers)
    there = time.perf_counter()
    wanted = session.get_inputs()[0]
    dtype = {"tensor(float16)": np.float16, "tensor(float)": np.float32}[wanted.type]
    feed = {"x": (np.arange(wanted.shape[1])[None] % 7 / 7).astype(dtype)}
    output = session.run(None, feed)[0]
    ended = time.perf_counter()
    if options.device == "cuda" and "CUDAExecutionProvider" not in session.get_providers():
        raise SystemExit("the session has no CUDA")
    taken = {"session_seconds": there - started, "run_seconds": ended - started, "output": output[0, :64].tolist()}
    report = getattr(session, "weightlift_report", None)
    if report is not None:
        load = report["load"] or {}
        taken |= {"in_place": report["bytes"], "load_seconds": report["seconds"]["load"],
                  "routes": load.get("routes"), "host": len(report["host"])}  # fmt: skip
    print(json.dumps(taken), flush=True)
    # Giving everything back is not a part of this.
    os._exit(0)


def retain_context():
    """Starts the driver and the first device's context, as whoever uses the GPU in a process does."""
    cuda, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
    calls = [
        lambda: cuda.cuInit(0),
        lambda: cuda.cuDeviceGet(ctypes.byref(device), 0),
        lambda: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
    ]
    if any(call() for call in calls):
        raise SystemExit("the driver does not start")


def show(samples, ways):
    def of(size, state, way, what):
        return [each[what] for each in samples if (each["gib"], each["state"], each["way"]) == (size, state, way)]

    def spread(values):
        return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"

    print("\n| GiB | file | loaded by | call to session, s | to the end of the first run, s | session, of weightlift's |")
    print("|---|---|---|---|---|---|")
    for size, state in dict.fromkeys((each["gib"], each["state"]) for each in samples):
        for way in ways:
            session, run = of(size, state, way, "session_seconds"), of(size, state, way, "run_seconds")
            beside = of(size, state, "weightlift", "session_seconds")
            times = statistics.median(a / b for a, b in zip(session, beside)) if beside else float("nan")
            print(f"| {size:g} | {state} | {way} | {spread(session)} | {spread(run)} | {times:.2f} |", flush=True)


if __name__ == "__main__":
    main()

"""How fast weights come into host memory, beside other loaders of the same bytes.

    python3 bench/host_rivals.py --make FOLDER GIB
    python3 bench/host_rivals.py [--states warm,cold] [--samples 7] [--json FILE] [--settings NAME=VALUE,...]
        [--examples target/release/examples] FOLDER

The first form writes the same random F32 tensors as model.safetensors and as an OpenVINO model,
model.xml and model.bin. The second loads each file with weightlift and with whoever else reads it:
the package safetensors (`load_file`, and `safe_open` with every tensor taken), OpenVINO
(`Core.read_model`, mapped as it does unless told otherwise, and read with ENABLE_MMAP off) and
numpy's `fromfile` of model.bin. weightlift is the library itself (`examples/load`) and, where the
Python package can be imported, `weightlift.numpy.load_file` too.

Some of these map the file, and read a page when it is first looked at. So all of them, weightlift
too, look at one byte of every page of every tensor, within the time; all must come to the same sum.
The time begins after imports, with the call that opens the file, and ends with that sum. Processor
seconds are of that time too, except for `examples/load`, where they are the whole process's.

Every sample is a process of its own, all ways take turns, shuffled, and before each the files are
brought into the state, cold (nothing of them in the page cache) or warm (all of it), and the kernel
is asked whether they are in it. Prints a table for each state; --json writes the samples.
"""

import argparse
import json
import os
import random
import resource
import struct
import sys
import time

from measure import Cache, machine, ratio, rounds, run, spread, table, write

# Ways, with the file that each reads. `--settings` are for `examples/load`.
WAYS = {
    "weightlift, model.safetensors": "model.safetensors",
    "weightlift in Python, model.safetensors": "model.safetensors",
    "safetensors load_file": "model.safetensors",
    "safetensors safe_open": "model.safetensors",
    "weightlift, model.xml": "model.xml",
    "OpenVINO read_model": "model.xml",
    "OpenVINO read_model, ENABLE_MMAP off": "model.xml",
    "numpy fromfile, model.bin": "model.bin",
}
ROWS = 2048
MATRIX = ROWS * ROWS * 4


def make(folder, gib):
    """Tensors of 16 MiB, each with one of 8 KiB beside it as layers have."""
    os.makedirs(folder, exist_ok=True)
    values = random.Random(1)
    chunk = values.randbytes(MATRIX)
    header, layers, edges, end = {}, [], [], 0
    with open(os.path.join(folder, "data"), "wb") as data:
        for number in range(max(1, int(gib * 2**30 / MATRIX))):
            # Another rotation for each: no two look alike.
            turn = number * 977 % MATRIX // 4 * 4
            for kind, shape, size in [("w", [ROWS, ROWS], MATRIX), ("b", [ROWS], ROWS * 4)]:
                header[f"layer{number}.{kind}"] = {
                    "dtype": "F32", "shape": shape, "data_offsets": [end, end + size],
                }  # fmt: skip
                layers.append((f"layer{number}.{kind}", shape, end, size))
                data.write((chunk[turn:] + chunk[:turn])[:size])
                end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "data"), "rb") as data, open(
        os.path.join(folder, "model.safetensors"), "wb"
    ) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        while part := data.read(1 << 24):
            file.write(part)
    os.rename(os.path.join(folder, "data"), os.path.join(folder, "model.bin"))
    constants = []
    for number, (name, shape, offset, size) in enumerate(layers):
        dims = "".join(f"<dim>{dim}</dim>" for dim in shape)
        numbers = ", ".join(map(str, shape))
        constants.append(
            f'<layer id="{2 * number}" name="{name}" type="Const" version="opset1">'
            f'<data element_type="f32" shape="{numbers}" offset="{offset}" size="{size}"/>'
            f'<output><port id="0" precision="FP32">{dims}</port></output></layer>'
            f'<layer id="{2 * number + 1}" name="{name}.result" type="Result" version="opset1">'
            f'<input><port id="0" precision="FP32">{dims}</port></input></layer>'
        )
        edges.append(f'<edge from-layer="{2 * number}" from-port="0" to-layer="{2 * number + 1}" to-port="0"/>')
    with open(os.path.join(folder, "model.xml"), "w") as file:
        file.write(
            '<?xml version="1.0"?><net name="weights" version="11"><layers>'
            + "\n".join(constants) + "</layers><edges>" + "\n".join(edges) + "</edges></net>\n"
        )  # fmt: skip


def touched(arrays):
    """The sum of one byte of every page, each tensor's first byte among them."""
    import numpy

    return sum(int(array.reshape(-1).view(numpy.uint8)[::4096].sum(dtype=numpy.uint64)) for array in arrays)


def whole(path):
    """What `touched` would say of each tensor, for all of them as one array."""
    import numpy

    data = numpy.fromfile(path, dtype=numpy.uint8)
    sizes, start, total = [MATRIX, ROWS * 4], 0, 0
    for number in range(len(data) // sum(sizes) * 2):
        total += touched([data[start : start + sizes[number % 2]]])
        start += sizes[number % 2]
    return total


def sample_here(way, folder):
    """One sample, in this process. Imports come before the clock starts."""
    path = os.path.join(folder, WAYS[way])
    if way == "safetensors load_file":
        from safetensors.numpy import load_file

        def load():
            return touched(load_file(path).values())

    elif way == "safetensors safe_open":
        from safetensors import safe_open

        def load():
            with safe_open(path, "numpy") as file:
                return touched([file.get_tensor(name) for name in file.keys()])

    elif way.startswith("OpenVINO"):
        import openvino

        def load():
            core = openvino.Core()
            if "off" in way:
                core.set_property({"ENABLE_MMAP": False})
            model = core.read_model(path)
            # Views of OpenVINO's own memory, not copies.
            return touched([op.data for op in model.get_ops() if op.get_type_name() == "Constant"])

    elif way.startswith("weightlift"):
        import weightlift.numpy

        def load():
            return touched(weightlift.numpy.load_file(path).values())

    else:
        import numpy

        def load():
            return whole(path)

    import numpy  # noqa: F401

    before = resource.getrusage(resource.RUSAGE_SELF)
    started = time.monotonic()
    total = load()
    seconds = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({
        "seconds": seconds, "sum": total,
        "own_processor_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    }))  # fmt: skip


class Bench:
    def __init__(self, options):
        self.options = options
        self.size = os.path.getsize(os.path.join(options.folder, "model.bin"))
        self.caches = {
            file: Cache(options.examples, [os.path.join(options.folder, file) for file in files])
            for file, files in {
                "model.safetensors": ["model.safetensors"],
                "model.xml": ["model.xml", "model.bin"],
                "model.bin": ["model.bin"],
            }.items()
        }
        self.sums = set()

    def sample(self, state, way):
        self.caches[WAYS[way]].bring(state)
        path = os.path.join(self.options.folder, WAYS[way])
        if way in ("weightlift, model.safetensors", "weightlift, model.xml"):
            program = os.path.join(self.options.examples, "load")
            report = run([program, path, "host", self.options.settings, "touch"])
            sample = {**report, "report": report["seconds"], "seconds": report["touched_seconds"], "sum": report["touched_sum"]}
        else:
            sample = run([sys.executable, os.path.abspath(__file__), "--one", way, self.options.folder])
            sample["processor_seconds"] = sample["own_processor_seconds"]
        self.sums.add(sample["sum"])
        if len(self.sums) > 1:
            raise SystemExit(f"{way} has other bytes than the ways before")
        sample["bytes_per_second"] = self.size / sample["seconds"]
        return sample

    def ways(self):
        """Those that can be had here."""
        missing = {}
        for name, package in [("weightlift in Python", "weightlift"), ("safetensors", "safetensors"), ("OpenVINO", "openvino")]:
            try:
                __import__(package)
            except ImportError as error:
                missing.update({way: str(error) for way in WAYS if way.startswith(name)})
        for way, why in missing.items():
            print(f"skipped: {way}: {why}", flush=True)
        return [way for way in WAYS if way not in missing]

    def state(self, state, ways):
        samples = rounds(ways, self.options.samples, lambda way: self.sample(state, way))
        print(f"\n{state}\n", flush=True)
        first = "weightlift, model.safetensors"
        rows = [
            [
                way,
                spread([sample["bytes_per_second"] / 1e9 for sample in taken]),
                spread(ratio(samples, first, way, lambda sample: sample["bytes_per_second"])),
                spread([sample["processor_seconds"] for sample in taken]),
                spread([sample["disk_bytes"] / self.size for sample in taken]),
                spread([sample["peak_memory_bytes"] / 2**20 for sample in taken], 0),
            ]
            for way, taken in samples.items()
        ]
        table(["way", "GB/s", f"`{first}` is faster by, by pairs", "processor s", "of the bytes from the disk", "peak memory, MiB"], rows)
        return samples


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--make", nargs=2, metavar=("FOLDER", "GIB"))
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--states", default="warm,cold")
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--settings", default="")
    parser.add_argument("--examples", default="target/release/examples")
    parser.add_argument("--json")
    parser.add_argument("folder", nargs="?")
    options = parser.parse_args()
    if options.make:
        return make(options.make[0], float(options.make[1]))
    if options.one:
        return sample_here(*options.one)
    if not options.folder:
        parser.error("which folder? --make writes one")
    files = [os.path.join(options.folder, name) for name in ("model.safetensors", "model.bin")]
    line = machine(files)
    print(line, flush=True)
    bench = Bench(options)
    ways = bench.ways()
    states = {state: bench.state(state, ways) for state in options.states.split(",")}
    write(options.json, machine=line, states=states)


main()

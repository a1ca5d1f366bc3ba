"""How long OpenVINO takes to have a model, on weights that weightlift loads and on its own.

    python3 bench/openvino_loads.py --make FOLDER GIB
    python3 bench/openvino_loads.py [--states warm,cold] [--samples 7] [--ways WAY;...] [--out FILE]
        [--examples target/release/examples] FOLDER

The first form writes a model of linear layers of 64 MiB each, model.xml and model.bin, with random
F32, and model.blob, what `export_model` gives of it on the CPU. The second loads these with
weightlift.openvino and with OpenVINO itself: `read_model`, mapped as it does unless told otherwise, and
with ENABLE_MMAP off; `import_model` of the file's bytes.

Of each sample there are two times: from the call to its return, and from the call to the end of the
first inference, compilation included. A mapped file is read only then, and the CPU plugin makes its
own form of the weights then: the second time is the one to compare. All must come to the same result.
The peak of memory is that of the process up to the return of the call, and beside it up to the end,
in parts of the model's bytes; Python and OpenVINO themselves, some 70 MiB, are in it.

Every sample is a process of its own, all ways take turns, shuffled, and before each the files are
brought into the state, cold (nothing of them in the page cache) or warm (all of it), and the kernel is
asked whether they are in it. Prints a table for each state; --out gets a line of JSON for the machine
and for each sample.
"""

import argparse
import hashlib
import json
import os
import resource
import sys
import time

from measure import Cache, machine, ratio, rounds, run, spread, table

# Ways, and the files that each reads.
WAYS = {
    "weightlift read_model": ["model.xml", "model.bin"],
    "OpenVINO read_model": ["model.xml", "model.bin"],
    "OpenVINO read_model, ENABLE_MMAP off": ["model.xml", "model.bin"],
    "weightlift import_model": ["model.blob"],
    "OpenVINO import_model": ["model.blob"],
}
FIRST = {"read_model": "weightlift read_model", "import_model": "weightlift import_model"}
SIDE = 4096


def make(folder, gib):
    import numpy
    import openvino
    from openvino import opset13 as op

    os.makedirs(folder, exist_ok=True)
    random = numpy.random.default_rng(1)
    matrix = random.standard_normal((SIDE, SIDE), numpy.float32) / numpy.float32(SIDE**0.5)
    # An open batch: the plugin's own form of the weights comes with the first inference.
    x = op.parameter([-1, SIDE], numpy.float32, name="x")
    y = x
    for number in range(max(1, round(gib * 2**30 / matrix.nbytes))):
        # Another rotation for each: no two look alike.
        y = op.tanh(op.matmul(y, op.constant(numpy.roll(matrix, number * 977)), False, True))
    model = openvino.Model([op.result(y)], [x], "layers")
    openvino.save_model(model, os.path.join(folder, "model.xml"), compress_to_fp16=False)
    blob = openvino.Core().compile_model(model, "CPU").export_model()
    with open(os.path.join(folder, "model.blob"), "wb") as file:
        file.write(blob if isinstance(blob, bytes) else blob.getvalue())


def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def sample_here(way, folder):
    """One sample, in this process. Imports come before the clock starts."""
    import numpy
    import openvino
    import weightlift.openvino

    core = openvino.Core()
    # The plugin is loaded, whatever comes.
    core.get_property("CPU", "FULL_DEVICE_NAME")
    core.set_property("CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    given = numpy.ones((1, SIDE), numpy.float32)
    xml, blob = os.path.join(folder, "model.xml"), os.path.join(folder, "model.blob")
    if "off" in way:
        core.set_property({"ENABLE_MMAP": False})
    report = None
    before = resource.getrusage(resource.RUSAGE_SELF)
    started = time.monotonic()
    if way == "weightlift read_model":
        loaded = weightlift.openvino.read_model(core, xml)
    elif way == "weightlift import_model":
        loaded = weightlift.openvino.import_model(core, blob, "CPU")
    elif way == "OpenVINO import_model":
        with open(blob, "rb") as file:
            loaded = core.import_model(file.read(), "CPU")
    else:
        loaded = core.read_model(xml)
    returned, peak_returned = time.monotonic() - started, peak()
    compiled = core.compile_model(loaded, "CPU") if "read_model" in way else loaded
    result = compiled(given)[0]
    ran = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    if way.startswith("weightlift"):
        report = {key: loaded.weightlift_report[key] for key in ("reads", "routes", "openvino")}
    print(json.dumps({
        "seconds_to_return": returned, "seconds_to_first_run": ran,
        "peak_to_return_bytes": peak_returned, "peak_to_first_run_bytes": peak(),
        "own_processor_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "result": hashlib.sha256(result.tobytes()).hexdigest(), "report": report,
    }))  # fmt: skip


class Bench:
    def __init__(self, options):
        self.options = options
        self.size = os.path.getsize(os.path.join(options.folder, "model.bin"))
        self.results = set()
        self.out = open(options.out, "a") if options.out else None

    def write(self, **line):
        if self.out:
            self.out.write(json.dumps(line) + "\n")
            self.out.flush()

    def sample(self, state, way):
        files = [os.path.join(self.options.folder, name) for name in WAYS[way]]
        Cache(self.options.examples, files).bring(state)
        sample = run([sys.executable, os.path.abspath(__file__), "--one", way, self.options.folder])
        self.results.add(sample["result"])
        if len(self.results) > 1:
            raise SystemExit(f"{way} comes to another result than the ways before")
        self.write(state=state, way=way, bytes=self.size, **sample)
        return sample

    def state(self, state, ways):
        samples = rounds(ways, self.options.samples, lambda way: self.sample(state, way))
        print(f"\n{state}\n", flush=True)
        rows = []
        for way, taken in samples.items():
            ours = FIRST[way.split(",")[0].split()[-1]]
            beside = ratio(samples, way, ours, lambda s: s["seconds_to_first_run"]) if ours in samples else None
            rows.append([
                way,
                spread([s["seconds_to_return"] for s in taken]),
                spread([s["seconds_to_first_run"] for s in taken]),
                spread(beside) if beside else "",
                spread([s["own_processor_seconds"] for s in taken]),
                spread([s["peak_to_return_bytes"] / self.size for s in taken]),
                spread([s["peak_to_first_run_bytes"] / self.size for s in taken]),
            ])  # fmt: skip
        table(
            ["way", "s to the return", "s to the first run's end", "of weightlift's, by pairs", "processor s",
             "peak memory to the return, of the model", "to the first run's end"],
            rows,
        )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--make", nargs=2, metavar=("FOLDER", "GIB"))
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--states", default="warm,cold")
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--ways", default=";".join(WAYS), help="separated by ;")
    parser.add_argument("--out")
    parser.add_argument("--examples", default="target/release/examples")
    parser.add_argument("folder", nargs="?")
    options = parser.parse_args()
    if options.make:
        return make(options.make[0], float(options.make[1]))
    if options.one:
        return sample_here(*options.one)
    if not options.folder:
        parser.error("which folder? --make writes one")
    ways = options.ways.split(";")
    unknown = [way for way in ways if way not in WAYS]
    if unknown:
        parser.error(f"no such way: {', '.join(unknown)}; there are {'; '.join(WAYS)}")
    import openvino

    line = machine([os.path.join(options.folder, name) for name in ("model.bin", "model.blob")])
    line += f", openvino {openvino.get_version()}"
    print(line, flush=True)
    bench = Bench(options)
    bench.write(machine=line)
    for state in options.states.split(","):
        bench.state(state, ways)


main()

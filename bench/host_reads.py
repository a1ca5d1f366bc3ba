"""Loads into host memory, cold, warm and half in the page cache, beside plain reads of the same files.

    python3 bench/host_reads.py [--states cold,warm,1:2:8388608,half] [--samples 7] [--json FILE]
        [--threads 1,2,4,8,16] [--sizes 1,4,16] [--search 2] [--examples target/release/examples] FOLDER

FOLDER holds a safetensors model (bench/make_model.py FOLDER GIB SHARDS), on a disk that has direct
reads. States: `cold`, `warm`; `half`, the first half of each file in the cache; EVERY:OF:BYTES, so
many of so many stretches of that length, such as every second 8 MiB. Before every sample the files
are brought into the state and the kernel is asked whether they are in it
(`weightlift bench-part cache`); a sample that begins otherwise is an error.

The plain reader is that of `weightlift bench` (`weightlift bench-part reads`): threads that take
pieces of the files from one counter, through the cache or past it, into new memory in huge pages as
a load has to, or into the same small memory again and again (`same memory`: the disk's or the
cache's limit, not what a load does). For each of its kinds the best of all numbers of threads and
sizes (MiB) is looked for first, in --search rounds in the same state; its samples then take turns
with those of the loads.

Every sample is a process of its own; its seconds begin when it opens the files and end when the
last byte is there. Prints a table for each state and, with --json, writes the samples.
"""

import argparse
import glob
import itertools
import os
import statistics

from measure import MIB, Cache, machine, ratio, rounds, run, spread, table, write

LOADS = {"auto": "direct_io=auto", "direct (direct_io=on)": "direct_io=on", "buffered (direct_io=off)": "direct_io=off"}
# Kind of read and of memory of the plain reader.
PLAIN = {
    "plain direct": ("direct", "new"),
    "plain direct, same memory": ("direct", "same"),
    "plain buffered": ("buffered", "new"),
    "plain buffered, same memory": ("buffered", "same"),
}


def rate(sample):
    return sample["bytes_per_second"]


class Bench:
    def __init__(self, options, files):
        self.options, self.files = options, files
        self.cache = Cache(options.examples, files)
        self.size = sum(map(os.path.getsize, files))

    def plain(self, state, kind, threads, mib):
        way, memory = PLAIN[kind]
        self.cache.bring(state)
        command = [self.cache.weightlift, "bench-part", "reads", f"--threads={threads}"]
        command.append(f"--size={mib * MIB}")
        command += ["--direct"] * (way == "direct") + ["--new-memory"] * (memory == "new")
        sample = run([*command, *self.files])
        if sample["bytes"] != self.size:
            raise SystemExit(f"{kind} read {sample['bytes']} bytes of {self.size}")
        sample["bytes_per_second"] = self.size / sample["seconds"]
        return sample

    def load(self, state, way):
        self.cache.bring(state)
        program = os.path.join(self.options.examples, "load")
        sample = run([program, self.options.folder, "host", LOADS[way]])
        delivered = sample["bytes"]["delivered"]
        # The whole call, headers included, counted as the bytes of the tensors.
        sample["bytes_per_second"] = delivered / sample["seconds"]["total"]
        return sample

    def best(self, state, kind):
        """The number of threads and the MiB a read that are best in this state."""
        settings = list(itertools.product(self.options.threads, self.options.sizes))
        found = rounds(settings, self.options.search, lambda setting: self.plain(state, kind, *setting))
        return max(settings, key=lambda setting: statistics.median(map(rate, found[setting])))

    def state(self, state):
        kinds = [kind for kind in PLAIN if not (state == "warm" and "direct" in kind)]
        best = {kind: self.best(state, kind) for kind in kinds}
        loads = [way for way in LOADS if not (state == "warm" and "on" in LOADS[way])]

        def sample(way):
            return self.load(state, way) if way in LOADS else self.plain(state, way, *best[way])

        samples = rounds([*loads, *kinds], self.options.samples, sample)
        self.show(state, samples, best)
        return {"best": {kind: dict(zip(("threads", "mib"), best[kind])) for kind in best}, "samples": samples}

    def show(self, state, samples, best):
        print(f"\n{state}\n", flush=True)
        rows = []
        for way, taken in samples.items():
            note = f", {best[way][0]} threads, {best[way][1]} MiB" if way in best else ""
            direct = [sample["reads"].get("direct", 0) / self.size for sample in taken if "reads" in sample]
            rows.append([
                way + note,
                spread([rate(sample) / 1e9 for sample in taken]),
                spread([100 * part for part in ratio(samples, "auto", way, rate)], 0),
                spread([sample["processor_seconds"] for sample in taken]),
                spread([sample["disk_bytes"] / self.size for sample in taken]),
                f"{100 * statistics.median(direct):.0f} %" if direct else "",
            ])
        table(["way", "GB/s", "`auto` in % of it, by pairs", "processor s", "of the bytes from the disk", "direct"], rows)


def numbers(text):
    return [int(number) for number in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--states", default=f"cold,warm,1:2:{8 * MIB},half")
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--search", type=int, default=2)
    parser.add_argument("--threads", type=numbers, default=[1, 2, 4, 8, 16])
    parser.add_argument("--sizes", type=numbers, default=[1, 4, 16])
    parser.add_argument("--examples", default="target/release/examples")
    parser.add_argument("--json")
    parser.add_argument("folder")
    options = parser.parse_args()
    files = sorted(glob.glob(os.path.join(options.folder, "*.safetensors")))
    if not files:
        parser.error(f"{options.folder} holds no safetensors files")
    line = machine(files)
    print(line, flush=True)
    bench = Bench(options, files)
    states = {state: bench.state(state) for state in options.states.split(",")}
    write(options.json, machine=line, states=states)


main()

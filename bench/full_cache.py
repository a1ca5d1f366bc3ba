"""Loads into host memory on a machine whose memory is full of cached files, as servers' mostly is.

    python3 bench/full_cache.py [--state warm|cold] [--samples 5] [--load NAME=PROGRAM]... MODEL FOLDER...

Before every sample all files of the FOLDERs are read, until they fill the page cache, and then the
model's are brought into the state; what free memory is left in pieces of 2 MiB or more is noted. PROGRAM
is `target/release/examples/load`, or several builds of it that take turns. Prints each sample, and a
table: seconds of the load, processor seconds of the process. Choose folders with more bytes than the
machine has memory.
"""

import argparse
import glob
import json
import os
import resource
import statistics
import subprocess


def read(path):
    buffer = bytearray(1 << 20)
    try:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    except OSError:
        pass  # somebody else's, or gone


def large_pieces():
    """MiB of free memory in pieces of 2 MiB or more."""
    with open("/proc/buddyinfo") as file:
        rows = [line.split("zone")[1].split()[1:] for line in file]
    return sum(int(count) << order - 9 << 1 for row in rows for order, count in enumerate(row) if order >= 9)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--state", choices=["warm", "cold"], default="warm")
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--load", action="append", default=[])
    parser.add_argument("model")
    parser.add_argument("folders", nargs="+")
    options = parser.parse_args()
    programs = dict(way.split("=", 1) for way in options.load or ["load=target/release/examples/load"])
    files = glob.glob(os.path.join(options.model, "*.safetensors"))
    taken = {name: [] for name in programs}
    for number in range(options.samples):
        for name in list(programs)[:: 1 if number % 2 else -1]:
            for folder in options.folders:
                for at, _, names in os.walk(folder):
                    for each in names:
                        if os.path.isfile(os.path.join(at, each)) and not os.path.islink(os.path.join(at, each)):
                            read(os.path.join(at, each))
            for path in files:
                if options.state == "warm":
                    read(path)
                else:
                    with open(path, "rb") as file:
                        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            large, before = large_pieces(), resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run([programs[name], options.model, "host"], capture_output=True, text=True, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            report = json.loads(done.stdout.splitlines()[-1])
            processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            sample = {"way": name, "state": options.state, "seconds": report["seconds"]["total"]}
            sample |= {"processor_seconds": processor, "reads": report["reads"], "large_mib": large}
            taken[name].append(sample)
            print(json.dumps(sample), flush=True)
    print("\n| build | state | s, median (range) | processor s |\n|---|---|---|---|")
    for name, samples in taken.items():
        seconds = [sample["seconds"] for sample in samples]
        processor = statistics.median(sample["processor_seconds"] for sample in samples)
        spread = f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
        print(f"| {name} | {options.state} | {spread} | {processor:.2f} |")


main()

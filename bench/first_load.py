"""How fast the first load of a process is, as a share of the limit measured in the same run.

    python3 bench/first_load.py --load 'COMMAND' --ceilings 'COMMAND' [--device cuda|host]
        [--settings NAME=VALUE,...]... [--samples 7] FOLDER

COMMAND of --load is called as `COMMAND FOLDER DEVICE SETTINGS` and prints a report as JSON
(`target/release/examples/load` does); that of --ceilings prints its own
(`target/release/examples/ceilings`). Every sample is a fresh process; settings and the ceiling
take turns in an order that is shuffled every round. The page cache is filled before, and what
is shown is the median with the range. Prints a Markdown table, then the samples as JSON.
"""

import argparse
import glob
import json
import os
import platform
import random
import shlex
import statistics
import subprocess


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--load", required=True)
    parser.add_argument("--ceilings", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--settings", action="append", default=[])
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("folder")
    options = parser.parse_args()
    files = sorted(glob.glob(os.path.join(options.folder, "*.safetensors")))
    for file in files:
        with open(file, "rb", buffering=0) as opened:
            buffer = bytearray(16 << 20)
            while opened.readinto(buffer):
                pass
    size = sum(map(os.path.getsize, files))
    print(f"{platform.platform()}, {os.cpu_count()} processors, {size / 1e9:.2f} GB in {len(files)} files", flush=True)
    ways = options.settings or [""]
    samples = {way: [] for way in ways}
    ceilings = []
    gpu = options.device.startswith("cuda")
    for _ in range(options.samples):
        turns = [*ways, None]
        random.shuffle(turns)
        for way in turns:
            if way is None:
                measure = ["--bus"] if gpu else ["--cache", str(options.threads), *files]
                ceilings.append(run([*shlex.split(options.ceilings), *measure]))
            else:
                samples[way].append(run([*shlex.split(options.load), options.folder, options.device, way]))
    key = "bus" if gpu else "cache_fresh"
    limits = [ceiling[key] for ceiling in ceilings]
    limit = statistics.median(limits)
    print(f"limit ({key}): {limit / 1e9:.2f} GB/s ({min(limits) / 1e9:.2f} to {max(limits) / 1e9:.2f})")
    if not gpu:
        reused = statistics.median(ceiling["cache_reused"] for ceiling in ceilings)
        print(f"the same reads into one small buffer a thread: {reused / 1e9:.2f} GB/s")
    print("| settings | GB/s, median (range) | of the limit | route | pinned MiB | pin ms | allocate ms | open ms | first byte ms | wait disk ms |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for way in ways:
        rates = [report["bytes_per_second"] for report in samples[way]]
        middle = lambda name: 1e3 * statistics.median(report["seconds"][name] for report in samples[way])
        routes = {"+".join(report["routes"]) for report in samples[way]}
        pinned = max(report["pinned_bytes"] for report in samples[way]) >> 20
        first = 1e3 * statistics.median(
            report["seconds"]["first_byte"] - report["seconds"]["driver_wait"] for report in samples[way]
        )
        print(
            f"| {way or 'default'} | {statistics.median(rates) / 1e9:.2f} ({min(rates) / 1e9:.2f} to {max(rates) / 1e9:.2f})"
            f" | {100 * statistics.median(rates) / limit:.1f} % | {'/'.join(routes)} | {pinned} | {middle('pin'):.1f}"
            f" | {middle('allocate'):.1f} | {middle('open'):.1f} | {first:.1f} | {middle('waiting_for_disk'):.1f} |",
            flush=True,
        )
    print(json.dumps({"ceilings": ceilings, "samples": samples}))


main()

"""How fast loads are whose files are not in the page cache, beside plain direct reads.

    python3 bench/cold_load.py --load 'COMMAND' [--device cuda|host] [--samples 7]
        [--settings NAME=VALUE,...]... FOLDER

COMMAND is called as `COMMAND FOLDER DEVICE SETTINGS` and prints a report as JSON
(`target/release/examples/load` does). Before every sample the files are dropped from the cache,
and a sample whose files were still there is an error (`mincore`; needs to own the files). Ways
take turns in an order that is shuffled every round; `plain` is one `dd iflag=direct bs=4M` for
each file, all at once. Prints a Markdown table of medians with ranges, then the samples as JSON.
"""

import argparse
import ctypes
import glob
import json
import mmap
import os
import platform
import random
import resource
import shlex
import statistics
import subprocess
import time


def cached_pages(path):
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        mapped = mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    if libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(size), pages) != 0:
        raise SystemExit(f"mincore: {os.strerror(ctypes.get_errno())}")
    return sum(page & 1 for page in pages)


def evict(files):
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    left = sum(map(cached_pages, files))
    if left:
        raise SystemExit(f"{left} pages could not be dropped from the cache")


def plain(files):
    started = time.monotonic()
    reads = [
        subprocess.Popen(["dd", f"if={path}", "of=/dev/null", "bs=4M", "iflag=direct"], stderr=subprocess.DEVNULL)
        for path in files
    ]
    if any(read.wait() for read in reads):
        raise SystemExit("dd failed: does the file system have direct reads?")
    return time.monotonic() - started


def processor_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--load", required=True)
    parser.add_argument("--device", default="host")
    parser.add_argument("--settings", action="append", default=[])
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("folder")
    options = parser.parse_args()
    files = sorted(glob.glob(os.path.join(options.folder, "*.safetensors")))
    size = sum(map(os.path.getsize, files))
    print(f"{platform.platform()}, {os.cpu_count()} processors, {size / 1e9:.2f} GB in {len(files)} files", flush=True)
    ways = options.settings or ["direct_io=auto", "direct_io=on", "direct_io=off"]
    samples = {way: [] for way in ["plain", *ways]}
    for _ in range(options.samples):
        turns = list(samples)
        random.shuffle(turns)
        for way in turns:
            evict(files)
            before = processor_seconds()
            if way == "plain":
                seconds = plain(files)
                sample = {
                    "bytes_per_second": size / seconds,
                    "seconds": seconds,
                    "reads": {"direct": size},
                    "overlapped": None,
                }
            else:
                command = [*shlex.split(options.load), options.folder, options.device, way]
                done = subprocess.run(command, capture_output=True, text=True, timeout=300)
                if done.returncode != 0:
                    raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
                report = json.loads(done.stdout.splitlines()[-1])
                driver, wait = (report["seconds"][name] for name in ["driver", "driver_wait"])
                sample = {
                    "bytes_per_second": report["bytes_per_second"],
                    "seconds": report["seconds"]["total"],
                    "reads": report["reads"],
                    "read_ahead": report.get("read_ahead_bytes", 0),
                    "overlapped": 1 - wait / driver if driver else None,
                }
            sample["processor_seconds"] = processor_seconds() - before
            samples[way].append(sample)
    print("| way | GB/s, median (range) | s in all | processor s | direct | driver's start overlapped |")
    print("|---|---|---|---|---|---|")
    for way, taken in samples.items():
        rates = [sample["bytes_per_second"] / 1e9 for sample in taken]
        processor = statistics.median(sample["processor_seconds"] for sample in taken)
        direct = statistics.median(sample["reads"].get("direct", 0) for sample in taken) / size
        overlaps = [sample["overlapped"] for sample in taken if sample["overlapped"] is not None]
        overlap = f"{100 * statistics.median(overlaps):.0f} %" if overlaps else ""
        print(
            f"| {way} | {statistics.median(rates):.2f} ({min(rates):.2f} to {max(rates):.2f})"
            f" | {statistics.median(sample['seconds'] for sample in taken):.2f}"
            f" | {processor:.2f} | {100 * direct:.0f} % | {overlap} |",
            flush=True,
        )
    print(json.dumps({"samples": samples}))


main()

"""What the scripts of this folder share: processes that are timed, and what the page cache holds."""

import ctypes
import json
import mmap
import os
import platform
import random
import statistics
import subprocess
import sys
import time

MIB = 1 << 20


def run(command, timeout=600):
    """Runs a process; the object that it prints last, with what it cost.

    `processor_seconds` and `disk_bytes` are the kernel's count for the whole process: what it
    submitted to disks, whichever way it read.
    """
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # Both are short: no pipe fills up before the process ends.
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - started
    output, errors = process.stdout.read(), process.stderr.read()
    process.stdout.close()
    process.stderr.close()
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {errors.strip()}")
    sample = json.loads(output.splitlines()[-1])
    sample["process_seconds"] = seconds
    sample["processor_seconds"] = usage.ru_utime + usage.ru_stime
    sample["disk_bytes"] = usage.ru_inblock * 512
    sample["peak_memory_bytes"] = usage.ru_maxrss * 1024
    return sample


class Cache:
    """Brings files into a state of the page cache, and sees to it that they are in it."""

    def __init__(self, examples, files):
        # cargo puts the command beside the folder of the examples.
        self.weightlift = os.path.join(os.path.dirname(os.path.abspath(examples)), "weightlift")
        self.files = files

    def bring(self, state):
        """`cold`, `warm`, `half` or EVERY:OF:BYTES, as `weightlift bench --states` has them; an error
        where the files do not come there."""
        return run([self.weightlift, "bench-part", "cache", f"--state={state}", *self.files])


def resident(path):
    """The share of a file that is in the page cache, by mincore.

    Of a file that is not ours and that we may not write the kernel says that all of it is: a cold
    state cannot be had there, and whoever asks for one gets an error.
    """
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return 1.0
        with mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE) as mapped:
            pages = -(-len(mapped) // mmap.PAGESIZE)
            found = (ctypes.c_ubyte * pages)()
            start = ctypes.c_char.from_buffer(mapped)
            address = ctypes.c_void_p(ctypes.addressof(start))
            failed = ctypes.CDLL(None, use_errno=True).mincore(address, ctypes.c_size_t(len(mapped)), found)
            why = ctypes.get_errno()
            del start
    if failed:
        raise RuntimeError(f"{path}: mincore: {os.strerror(why)}")
    # Only the lowest bit says something.
    return bytes(found).translate(bytes(value & 1 for value in range(256))).count(1) / pages


def fill(path):
    """Reads a file into the page cache, all of it."""
    if resident(path) < 1:
        buffer = bytearray(16 << 20)
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    if (there := resident(path)) < 1:
        raise RuntimeError(f"{path} does not stay in the page cache, of which it has {there:.1%}: too little memory?")


def evict(path):
    """Drops a file from the page cache, all of it."""
    for _ in range(5):
        with open(path, "rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if (there := resident(path)) == 0:
            return
        time.sleep(0.2)
    raise RuntimeError(f"{path} does not leave the page cache, which has {there:.1%} of it")


def rounds(ways, count, sample):
    """`count` samples of every way: `sample(way)`. In each round all take their turn, shuffled."""
    samples = {way: [] for way in ways}
    for number in range(count):
        turns = list(samples)
        random.shuffle(turns)
        for way in turns:
            samples[way].append(sample(way))
        print(f"round {number + 1} of {count}", file=sys.stderr, flush=True)
    return samples


def spread(values, digits=2):
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def ratio(samples, way, other, value):
    """Of each round the quotient of the two ways: what both met in common falls out."""
    pairs = zip(samples[way], samples[other])
    return [value(sample) / value(beside) for sample, beside in pairs]


def table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


def machine(files):
    """The machine and the files, as a line for people and for the results."""
    status = os.stat(files[0])
    disk = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    # The longest mount point that the file lies below.
    mounts = [line.split() for line in open("/proc/self/mountinfo")]
    mount = next((fields for fields in reversed(mounts) if fields[2] == disk), None)
    kind = mount[mount.index("-") + 1] if mount else "unknown"
    size = sum(map(os.path.getsize, files))
    return (
        f"{platform.platform()}, {len(os.sched_getaffinity(0))} processors, {kind} on disk {disk}, "
        f"load {os.getloadavg()[0]:.1f}, {size / 1e9:.2f} GB in {len(files)} files"
    )


def write(path, **results):
    if path:
        with open(path, "w") as file:
            json.dump(results, file, indent=1)
            file.write("\n")

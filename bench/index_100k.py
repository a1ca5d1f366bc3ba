#!/usr/bin/env python3
"""Opening a file of 100,000 tensors: weightlift against the package safetensors.

    python bench/index_100k.py [--weightlift target/release/weightlift] [--pairs 9]

What is timed is not the same on both sides, and the difference is in the reference's favour:

* weightlift: the whole process of `weightlift inspect --json`, from its start to its end, with the
  writing of 100,000 entries of JSON into a pipe that this program empties.
* safetensors: inside a fresh Python process, from before `safe_open` to after `.keys()`. The start
  of Python and the imports are not counted.

The two take turns, so that a change of the machine's speed meets both; one pair before the first is
not counted. The page cache is warm. The package needs numpy for its `safe_open`; the environment
that `cargo xtask test` makes has both.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TENSORS = 100_000
ELEMENTS = 16

REFERENCE = """
import sys, time
from safetensors import safe_open
begin = time.perf_counter()
with safe_open(sys.argv[1], framework="np") as file:
    count = len(file.keys())
print(time.perf_counter() - begin, count)
"""


def write_model(path: Path):
    """100,000 small tensors with names as long as those of real models."""
    entries, length = {}, ELEMENTS * 2
    for i in range(TENSORS):
        entries[f"model.layers.{i // 100}.mlp.experts.{i % 100}.down_proj.weight"] = {
            "dtype": "BF16",
            "shape": [ELEMENTS],
            "data_offsets": [i * length, (i + 1) * length],
        }
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + bytes(TENSORS * length))
    return len(header)


def time_weightlift(binary: Path, model: Path) -> float:
    begin = time.perf_counter()
    output = subprocess.run(
        [binary, "inspect", model, "--json"], check=True, stdout=subprocess.PIPE
    ).stdout
    seconds = time.perf_counter() - begin
    assert len(json.loads(output)["tensors"]) == TENSORS
    return seconds


def time_reference(model: Path) -> float:
    output = subprocess.run(
        [sys.executable, "-c", REFERENCE, model], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    seconds, count = output.split()
    assert int(count) == TENSORS
    return float(seconds)


def machine() -> dict[str, str]:
    facts = {
        "system": f"{platform.system()} {platform.release()}",
        "processor": platform.processor() or platform.machine(),
        "usable processors": str(len(os.sched_getaffinity(0))),
        "python": platform.python_version(),
        "safetensors": importlib.metadata.version("safetensors"),
        "numpy": importlib.metadata.version("numpy"),
    }
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                facts["processor"] = line.split(":", 1)[1].strip()
                break
    load = os.getloadavg()[0]
    facts["load average before"] = f"{load:.2f}"
    return facts


def row(name: str, seconds: list[float]) -> str:
    middle = statistics.median(seconds)
    return (
        f"{name:<24}{middle * 1e3:>9.1f}{min(seconds) * 1e3:>9.1f}{max(seconds) * 1e3:>9.1f}"
        f"{(max(seconds) - min(seconds)) / middle * 100:>8.0f} %"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = Path(__file__).resolve().parent.parent
    target = Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
    parser.add_argument("--weightlift", type=Path, default=target / "release" / "weightlift")
    parser.add_argument("--pairs", type=int, default=9)
    arguments = parser.parse_args()
    if arguments.pairs < 7:
        parser.error("fewer than 7 pairs say nothing")
    if not arguments.weightlift.is_file():
        parser.error(
            f"{arguments.weightlift} is missing: cargo build --release --package weightlift-cli"
        )

    for name, fact in machine().items():
        print(f"{name:<24}{fact}")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.safetensors"
        header = write_model(model)
        print(f"{'file':<24}{TENSORS} tensors, header of {header / 1e6:.1f} MB")
        ours, theirs = [], []
        for _ in range(arguments.pairs + 1):
            ours.append(time_weightlift(arguments.weightlift.resolve(), model))
            theirs.append(time_reference(model))
    ours, theirs = ours[1:], theirs[1:]

    print(
        f"\n{arguments.pairs} pairs{'':<17}{'median':>9}{'min':>9}{'max':>9}{'spread':>10}   (ms)"
    )
    print(row("weightlift, process", ours))
    print(row("safetensors, in process", theirs))
    wins = sum(a < b for a, b in zip(ours, theirs, strict=True))
    ratio = statistics.median(theirs) / statistics.median(ours)
    print(f"\nweightlift was faster in {wins} of {arguments.pairs} pairs", end="; ")
    print(f"the medians differ {ratio:.2f} times")


if __name__ == "__main__":
    main()

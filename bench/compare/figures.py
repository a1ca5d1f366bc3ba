"""Figures of the results of one or several parts, and how parts become one.

A part is what one run measured: one model, one device, one state. Parts of one comparison are put side by
side and not stirred: what is compared with what (shares of a ceiling, pairs) stays within a part.
"""

import json
import os
import statistics
from typing import NamedTuple

from verdict import MEASURED, STATUSES

BASE = ("weightlift", "default")
# What has to be the same for figures to stand in one table. The boot is not: a machine of the same kind is fine.
MACHINE = ("kernel", "processors", "gpu", "driver", "torch")


class Mismatch(Exception):
    pass


def merge(results):
    """The parts of several results, each part once. Figures of another model, version or kind of machine
    under the same name are refused."""
    parts = {}
    for result in results:
        for part in result.get("parts", [result]):
            if part.get("schema") != 1:
                raise Mismatch(f"results of schema {part.get('schema')}: 1 is known here")
            parts.setdefault(part["id"], part)
    models, versions, first = {}, {}, None
    for part in parts.values():
        first = first or part
        name, facts = part["model"]["name"], part["model"]
        if models.setdefault(name, facts) != facts:
            raise Mismatch(f"two models are called {name}: {models[name]} and {facts}")
        for key in MACHINE:
            if (one := first["machine"][key]) != (other := part["machine"][key]) and first["device"] == part["device"]:
                raise Mismatch(f"parts of different machines: {key} is {one} and {other}")
        for sample in part["samples"]:
            if "version" in sample and versions.setdefault(sample["loader"], sample["version"]) != sample["version"]:
                raise Mismatch(f"{sample['loader']} is of version {versions[sample['loader']]} and {sample['version']}")
    return {"schema": 1, "parts": list(parts.values())}


class Spread(NamedTuple):
    median: float
    low: float
    high: float
    count: int

    def text(self, digits=1):
        return f"{self.median:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def spread(values):
    values = list(values)
    return Spread(statistics.median(values), min(values), max(values), len(values)) if values else None


def ceiling(part):
    """(what, bytes a second): the slowest of what the bytes have to go through; the faster way to the disk."""
    found = {}
    for taken in part["ceilings"]:
        for name, rate in taken.items():
            if isinstance(rate, float):
                found.setdefault(name, []).append(rate)
    medians = {name: statistics.median(rates) for name, rates in found.items()}
    disks = [name for name in medians if name.startswith("disk")]
    if disks:
        best = max(disks, key=medians.get)
        medians = {name: rate for name, rate in medians.items() if name == best or not name.startswith("disk")}
    return min(medians.items(), key=lambda each: each[1]) if medians else None


def series(part):
    """A row for each way and status, the fastest first, those that are not measured last."""
    rows, size, limit = {}, part["model"]["bytes"], ceiling(part)
    for sample in part["samples"]:
        rows.setdefault((sample["loader"], sample["setting"], sample["status"]), []).append(sample)
    base = {s["round"]: s["calls"][0]["seconds"] for s in rows.get((*BASE, MEASURED), [])}
    answer = []
    for (loader, setting, status), samples in rows.items():
        row = {"loader": loader, "setting": setting, "status": status, "samples": len(samples)}
        row["why"] = sorted({sample["why"] for sample in samples if sample["why"]})
        row["version"] = next((sample["version"] for sample in samples if "version" in sample), None)
        if all("calls" in sample for sample in samples):
            first = [sample["calls"][0] for sample in samples]
            later = [call for sample in samples for call in sample["calls"][1:]]
            row["first"] = spread(size / call["seconds"] for call in first)
            row["rates"] = sorted(size / call["seconds"] for call in first)
            row["later"] = spread(size / call["seconds"] for call in later)
            row["seconds"] = spread(call["seconds"] for call in first)
            row["processor"] = spread(call["processor_seconds"] for call in first)
            row["disk"] = spread(call["disk_bytes"] / size for call in first)
            row["device"] = spread(call["device_bytes"] for call in first)
            row["memory"] = spread(sample["memory_taken"] for sample in samples)
            row["share"] = row["first"].median / limit[1] if limit else None
            # By pairs of one round: what both met in common falls out.
            row["pairs"] = spread(s["calls"][0]["seconds"] / base[s["round"]] for s in samples if s["round"] in base)
        answer.append(row)
    return sorted(answer, key=lambda row: (STATUSES.index(row["status"]), -row["first"].median if "first" in row else 0))


def table(part):
    """The rows as Markdown, and below it what is no figure."""
    limit = ceiling(part)
    head = ["loader", "version", "GB/s, first call", "later calls", "of the ceiling", "weightlift is faster by", "processor s", "memory, MB", "on the device, MB", "from the disk"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    notes = []
    for row in series(part):
        name = f"{row['loader']}, {row['setting']}"
        if row["status"] != MEASURED:
            name += f" (**{row['status']}**)"
            notes.append(f"{row['loader']}, {row['setting']}: {row['status']}, {row['samples']} samples: {'; '.join(row['why'])}")
        if row["status"] not in ("measured", "fallback", "unverified") or "first" not in row:
            continue
        giga = lambda each: Spread(*(value / 1e9 for value in each[:3]), each.count).text() if each else ""  # noqa: E731
        lines.append("| " + " | ".join([
            name, str(row["version"]), f"{giga(row['first'])}, {row['samples']}", giga(row["later"]),
            f"{row['share']:.0%}" if row["share"] else "", row["pairs"].text(2) if row["pairs"] else "",
            f"{row['processor'].median:.2f}", f"{row['memory'].median / 1e6:.0f}",
            f"{row['device'].median / 1e6:.0f}" if part["device"] != "cpu" else "",
            f"{row['disk'].median:.0%}",
        ]) + " |")  # fmt: skip
    if limit:
        notes.insert(0, f"Ceiling: {limit[0]}, {limit[1] / 1e9:.1f} GB/s.")
    if part["machine"].get("nvidia_fs") is False:
        notes.append("No nvidia-fs on this machine: nothing here is GPUDirect Storage.")
    return "\n".join(lines), notes


def describe(results):
    machine, model = results["machine"], results["model"]
    gpu = f"{machine['gpu']}, driver {machine['driver']}, {machine.get('bus', 'bus unknown')}, " if machine["gpu"] else ""
    return (
        f"{gpu}{machine['processors']} processors, Linux {machine['kernel']}, {machine['file_system']}, torch {machine['torch']}; "
        f"{model['name']}: {model['bytes'] / 1e9:.2f} GB, {model['tensors']} tensors in {model['files']} files; {results['device']}, {results['state']}"
    )


def write(path, results):
    """Whole or not at all."""
    if not path:
        return
    with open(f"{path}.part", "w") as file:
        json.dump(results, file, indent=1)
        file.write("\n")
    os.replace(f"{path}.part", path)

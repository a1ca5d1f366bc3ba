"""A part of a comparison: some loaders on one model in one state of the page cache, in a few minutes.

Every sample is a process of its own, and all ways take their turn in each round, in an order that is
shuffled anew, so that what changes with time meets all alike. What the machine can do at best is measured
in every round too. The results are written after every round: who stops a run keeps what it measured.
"""

import importlib.metadata
import json
import multiprocessing
import os
import platform
import random
import subprocess
import time
import uuid

import ceilings
import worker
from figures import describe, write
from loaders import chosen
from models import Model
from verdict import FAILED, judge

SCHEMA = 1


def run(options):
    model = Model(options.model)
    device, state = options.device, options.state
    ways = chosen([name for name in options.loaders.split(",") if name], device)
    paths = dict(each.split("=", 1) for each in options.path)
    if ours := [way.loader for way in ways if way.loader == "safetensors 0.9" and way.loader not in paths]:
        # Both versions have one name: without a folder of its own it would be the other one's figure.
        ways = [way for way in ways if way.loader not in ours]
        print("left out: safetensors 0.9: its folder is to be named by --path", flush=True)
    # Once for all samples; it does not touch CUDA.
    if device != "cpu" or not _absent("torch"):
        import torch  # noqa: F401
    reference, facts = model.reference(), model.facts()
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    results = {
        "schema": SCHEMA, "id": str(uuid.uuid4()), "command": options.command, "seed": seed,
        "machine": machine(device, model.shards), "model": facts, "device": device, "state": state,
        "loaders": {way.name: {"call": way.call, "gives": way.gives} for way in ways},
        "ceilings": [], "samples": [], "dropped": {},
    }  # fmt: skip
    print(f"{describe(results)}; seed {seed}", flush=True)
    order, began, longest = random.Random(seed), time.monotonic(), 0.0
    for number in range(1, options.rounds + 1):
        round_began = time.monotonic()
        if round_began - began + longest > options.seconds:
            print(f"stopped after {number - 1} rounds: no time for another in {options.seconds:g} s", flush=True)
            break
        turns = ["ceilings", *ways]
        order.shuffle(turns)
        for way in turns:
            if way == "ceilings":
                taken = forked(_ceilings, model.shards, device, state, options.timeout)
                results["ceilings"].append({"round": number, **taken})
                print(f"round {number}: ceilings: {told(taken)}", flush=True)
            elif way.name not in results["dropped"]:
                taken = one(way, model, facts["bytes"], device, state, options.later, paths.get(way.loader), options.timeout)
                status, why = judge({"state": state, **taken}, way, device, reference)
                # The labels have done what they are for: a hundred thousand of them are no result.
                taken.pop("digests", None)
                results["samples"].append({"loader": way.loader, "setting": way.setting, "round": number, "status": status, "why": why, **taken})
                rates = " ".join(f"{facts['bytes'] / call['seconds'] / 1e9:.2f}" for call in taken.get("calls", []))
                print(f"round {number}: {way.name}: {status}{': ' + why if why else ''} {rates and rates + ' GB/s'}", flush=True)
                of_way = [s["status"] for s in results["samples"] if (s["loader"], s["setting"]) == (way.loader, way.setting)]
                if of_way[-2:] == [FAILED] * 2:
                    # It would not work the third time either.
                    results["dropped"][way.name] = why
        longest = max(longest, time.monotonic() - round_began)
        write(options.out, results)
    write(options.out, results)
    return results


def _absent(name):
    import importlib.util

    return importlib.util.find_spec(name) is None


def one(way, model, size, device, state, later, path, timeout):
    """One sample, with the most memory that the machine was short of meanwhile: what a loader pins is
    not in its process's resident memory everywhere."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    arguments = (way, model, size, device, state, later, path, theirs)
    process = context.Process(target=worker.sample, args=arguments)
    process.start()
    theirs.close()
    deadline, base, lowest = time.monotonic() + timeout, None, None
    answer = {"error": f"no answer in {timeout:g} s"}
    try:
        while time.monotonic() < deadline:
            if ours.poll(0.01):
                kind, value = ours.recv()
                if kind == "first":
                    base = lowest = available()
                elif kind == "landed":
                    lowest, base, fell = None, None, base - min(lowest, available())
                else:
                    answer = value
                    break
            elif base is not None:
                lowest = min(lowest, available())
    except EOFError:
        answer = {"error": "the process died"}
    if "calls" in answer:
        answer["memory_taken"] = max(0, fell)
    end(process)
    return answer


def forked(work, *arguments):
    """What `work` returns, from a process of its own."""
    *arguments, timeout = arguments
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_send, args=(theirs, work, arguments))
    process.start()
    theirs.close()
    try:
        answer = ours.recv() if ours.poll(timeout) else {"error": f"no answer in {timeout:g} s"}
    except EOFError:
        answer = {"error": "the process died"}
    end(process)
    return answer


def _send(pipe, work, arguments):
    try:
        pipe.send(work(*arguments))
    except BaseException as error:
        pipe.send({"error": f"{type(error).__name__}: {error}"})
    finally:
        pipe.close()
        os._exit(0)


def end(process):
    process.join(5)
    if process.is_alive():
        process.kill()
        process.join()


def _ceilings(files, device, state):
    taken = {}
    if device != "cpu":
        taken["bus"] = ceilings.pinned_copies(device)
    size = sum(map(os.path.getsize, files))
    worker.bring(files, state, size)
    if state == "warm":
        taken["page cache"] = ceilings.reads(files)
    else:
        try:
            taken["disk, direct"] = ceilings.reads(files, direct=True)
        except OSError as error:
            taken["unavailable"] = f"direct reads: {error}"
        worker.bring(files, state, size)
        taken["disk, buffered"] = ceilings.reads(files)
    return taken


def available():
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def machine(device, files):
    status = os.stat(files[0])
    disk = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    with open("/proc/self/mountinfo") as mounts:
        mount = next((fields for fields in map(str.split, mounts) if fields[2] == disk), None)
    facts = {
        "kernel": platform.release(), "python": platform.python_version(), "processors": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "file_system": mount[mount.index("-") + 1] if mount else "unknown", "gpu": None, "driver": None,
    }  # fmt: skip
    for package in ("torch", "numpy"):
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            facts[package] = None
    if device != "cpu":
        facts |= (told_of := forked(_gpu, device, 60))
        if "error" in told_of:
            raise SystemExit(f"error: {device}: {told_of['error']}")
    with open("/proc/sys/kernel/random/boot_id") as boot:
        facts["boot"] = boot.read().strip()
    return facts


def _gpu(device):
    import torch

    # Without nvidia-fs nothing is GPUDirect Storage, whatever a loader's mode is called.
    facts = {"gpu": torch.cuda.get_device_name(device), "nvidia_fs": os.path.exists("/proc/driver/nvidia-fs/stats")}
    try:
        with open("/sys/module/nvidia/version") as version:
            facts["driver"] = version.read().strip()
    except OSError:
        facts["driver"] = "unknown"
    try:
        asked = ["nvidia-smi", "--query-gpu=pcie.link.gen.max,pcie.link.width.max", "--format=csv,noheader"]
        line = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()[torch.device(device).index or 0]
        facts["bus"] = "PCIe {} x{}".format(*map(str.strip, line.split(",")))
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
        pass  # not everywhere: the name says nothing of the link then
    return facts


def told(taken):
    return ", ".join(f"{name} {rate / 1e9:.1f} GB/s" if isinstance(rate, float) else f"{name}: {rate}" for name, rate in taken.items())

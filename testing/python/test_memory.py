"""Loads with little memory: control groups, limits on address space and on locked memory."""

import os
import struct
import subprocess
import tempfile
from pathlib import Path

import pytest

import files
from command import Command

MIB = 1 << 20
GIB = 1 << 30

# Version 1 of control groups has a tree for memory, version 2 one for all.
GROUPS = [
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
    ("/sys/fs/cgroup", "memory.max"),
]


@pytest.fixture
def group():
    """A memory group of 512 MiB."""
    why = "there are no memory groups"
    for tree, limit in GROUPS:
        path = Path(tree) / f"weightlift-test-{os.getpid()}"
        if not (Path(tree) / "cgroup.procs").exists():
            continue
        try:
            path.mkdir()
        except OSError as error:
            why = f"cannot make a memory group: {error}"
            continue
        try:
            (path / limit).write_text(str(512 * MIB))
            yield path
            return
        except OSError as error:
            why = f"cannot limit a memory group: {error}"
        finally:
            path.rmdir()
    pytest.skip(why)


def sparse(path: Path, lengths: list[int], end: bytes) -> Path:
    """Tensors that are holes, but for the last bytes of each."""
    entries, start, data = {}, 0, []
    for number, length in enumerate(lengths):
        offsets = [start, start + length]
        entries[f"t{number}"] = {"dtype": "U8", "shape": [length], "data_offsets": offsets}
        start += length
        data.append(start - len(end))
    header = files.raw(entries)
    with path.open("wb") as file:
        file.write(header)
        for at in data:
            file.seek(len(header) + at)
            file.write(end)
    return path


def started_in(group: Path, command: Command) -> Command:
    """The command within a group: a shell enters it and becomes the command."""
    enter = f'echo $$ > "{group}/cgroup.procs" && exec "$@"'
    return command.started_by("sh", "-c", enter, "sh")


def test_a_shard_of_8_gib_needs_its_ring_and_no_more(weightlift, tmp_path, group):
    """MM-07, MM-13: in a group of 512 MiB, page cache included, to a device that keeps nothing.
    A loader that keeps a shard, or a part of it that grows with it, is killed there."""
    length = 8 * GIB - 77
    path = sparse(tmp_path / "large.safetensors", [length], b"the end")
    command = started_in(group, weightlift).with_environment(FAKE_CUDA="discard=1")
    options = ["--device", "cuda:0", "--route", "pinned", "--staging-budget", "256MiB", "--json"]
    report = command.run("load", path, *options, gpu=True).expect(0).json()
    assert report["bytes"]["delivered"] == length
    assert report["staging_bytes_peak"] <= report["pinned_bytes"] == 256 * MIB


def test_listing_24_gib_maps_nothing_of_it(weightlift, tmp_path):
    """MM-11: a map of the file would not fit into the address space, nor would its data."""
    lengths = [4 * GIB] * 6
    paths = [sparse(tmp_path / "large.safetensors", lengths, b"the end"), gguf(tmp_path, lengths)]
    small = weightlift.within(512 * MIB)
    for path in paths:
        listed = small.inspect(path).expect(0).json()
        assert [tensor["length"] for tensor in listed["tensors"]] == lengths
        plan = small.run("plan", path, "--json").expect(0).json()
        assert plan["bytes"] == sum(lengths)
        refused = small.run("load", path, "--device", "host", "--json").expect(1)
        assert refused.json()["error"]["kind"] == "OutOfHostMemory"


def gguf(folder: Path, lengths: list[int]) -> Path:
    """The same as GGUF, whose readers map files as a rule."""
    header = b"GGUF" + struct.pack("<IQQ", 3, len(lengths), 0)
    start = 0
    for number, length in enumerate(lengths):
        name = f"t{number}".encode()
        header += struct.pack("<Q", len(name)) + name + struct.pack("<IQIQ", 1, length, 24, start)
        start += length
    header += bytes(-len(header) % 32)
    path = folder / "large.gguf"
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + start)
    return path


@pytest.mark.parametrize(
    ("options", "gpu"),
    [
        (["--device", "host"], False),
        (["--device", "host", "--direct-io", "on"], False),
        (["--device", "host", "--pin-host"], True),
        (["--device", "cuda:0"], True),
    ],
    ids=["host", "direct", "pinned-host", "cuda"],
)
def test_little_locked_memory_is_no_obstacle(weightlift, options, gpu):
    """MM-01: 64 KiB, as containers have it, for a user without privileges. What the driver pins
    the kernel does not count, and io_uring has to be content with less or give way."""
    content = files.build({"a": ("U8", (3 * MIB + 5,)), "b": ("F32", (1000,))})
    # The tests' own folders are closed to others.
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        os.chmod(file.name, 0o644)
        as_nobody = ["setpriv", "--reuid=65534", "--clear-groups"] if os.geteuid() == 0 else []
        limited = weightlift.started_by("prlimit", "--memlock=65536:65536", *as_nobody)
        probe = [*limited.before, str(weightlift.binary), "--version"]
        done = subprocess.run(probe, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"cannot be somebody else here: {done.stderr.strip()}")
        done = limited.load(file.name, *options, gpu=gpu)
    if "--direct-io" in options and done.code == 1:
        assert done.json()["error"]["kind"] == "DirectIoUnavailable"
        pytest.skip("files in the temporary folder have no direct reads")
    report = done.expect(0).json()
    assert report["bytes"]["delivered"] == 3 * MIB + 4005
    assert report["fallbacks"] == []

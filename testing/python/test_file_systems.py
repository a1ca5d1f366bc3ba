"""What a model lies on decides how it is read, and never what is read.

File systems are mounted where that is possible; what a machine cannot do is skipped and told.
"""

import errno
import json
import os
import signal
import time

import pytest
import xxhash

import files
from mounts import Mounts, loop_device

MIB = 1 << 20

# Past the page cache where it serves, never, or always.
MODES = ["auto", "off", "on"]


@pytest.fixture
def mounts(tmp_path):
    made = Mounts(tmp_path)
    yield made
    made.close()


def model(tensors: dict[str, bytes]) -> bytes:
    entries, start = {}, 0
    for name, data in tensors.items():
        offsets = [start, start + len(data)]
        entries[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": offsets}
        start += len(data)
    return files.raw(entries, b"".join(tensors.values()))


# Ends that no page or block has, and more than one piece.
NOISE = {f"t{length}": files.noise(length, str(length)) for length in (1, 4097, 3 * MIB + 77)}


def digests(tensors: dict[str, bytes]) -> dict[str, str]:
    return {name: xxhash.xxh3_64_hexdigest(data) for name, data in tensors.items()}


def load(weightlift, mounts, path, mode, *options, gpu=False):
    """What is said of a load where the mounts are."""
    command = weightlift.started_by(*mounts.enter)
    return command.load(path, "--direct-io", mode, *options, gpu=gpu)


def assert_loads(weightlift, mounts, path, tensors, mode, *options):
    """The report of a good load to the host; one to a device goes before it."""
    reports = []
    for device, gpu in (("cuda:0", True), ("host", False)):
        done = load(weightlift, mounts, path, mode, "--device", device, *options, gpu=gpu)
        report = done.expect(0).json()
        loaded = {tensor["name"]: tensor["digest"] for tensor in report["tensors"]}
        assert loaded == digests(tensors), f"{device} {mode}"
        reports.append(report)
    return reports[-1]


def decision(report, what):
    found = [one for one in report["decisions"] if one["what"] == what]
    return (found[0]["chosen"], found[0]["reason"]) if found else None


def put(mounts, point, content: bytes):
    path = point / "model.safetensors"
    with mounts.inside(path).open("wb") as file:
        file.write(content)
        # Direct reads bring what is on the disk.
        os.fsync(file.fileno())
    return path


@pytest.mark.parametrize("mode", MODES)
def test_ext4(weightlift, mounts, mode):
    path = put(mounts, mounts.ext4(), model(NOISE))
    report = assert_loads(weightlift, mounts, path, NOISE, mode)
    length = report["bytes"]["read"]
    if mode != "auto":  # where what was just written is in the cache
        assert report["reads"] == ({"buffered": length} if mode == "off" else report["reads"])
        assert report["reads"].get("direct", 0) == (length if mode == "on" else 0)


@pytest.mark.parametrize("mode", MODES)
def test_memory_is_read_buffered(weightlift, mounts, mode):
    """FS-05: direct reads of tmpfs were an error before Linux 6.6, and gain nothing since."""
    path = put(mounts, mounts.tmpfs(), model(NOISE))
    if mode == "on":
        done = load(weightlift, mounts, path, mode, "--device", "host")
        assert done.code == 0 or done.json()["error"]["kind"] == "DirectIoUnavailable"
        return
    report = assert_loads(weightlift, mounts, path, NOISE, mode)
    assert report["reads"] == {"buffered": report["bytes"]["read"]}
    expected = ("buffered", "tmpfs lies in memory") if mode == "auto" else None
    assert decision(report, "reads") == expected
    assert report["fallbacks"] == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("below", ["ext4", "tmpfs"])
def test_overlay(weightlift, mounts, mode, below):
    """FS-13: as in a container's image. Direct reads are had where the file system below has them."""
    lower = getattr(mounts, below)()
    put(mounts, lower, model(NOISE))
    path = mounts.overlay(lower) / "model.safetensors"
    if below == "tmpfs" and mode == "on":
        done = load(weightlift, mounts, path, mode, "--device", "host")
        assert done.code == 0 or done.json()["error"]["kind"] == "DirectIoUnavailable"
        return
    report = assert_loads(weightlift, mounts, path, NOISE, mode)
    if mode == "on":
        assert report["reads"]["direct"] == report["bytes"]["read"]
    # One that was changed in the container lies above.
    changed = {"t": files.noise(2 * MIB + 1, "changed")}
    put(mounts, path.parent, model(changed))
    assert_loads(weightlift, mounts, path, changed, "auto" if below == "tmpfs" else mode)


@pytest.mark.parametrize("mode", MODES)
def test_btrfs(weightlift, mounts, mode):
    """FS-12: compressed bytes, holes and files within the metadata cannot be read past the cache;
    the kernel reads them otherwise and says nothing."""
    point = mounts.btrfs()
    contents = {
        "compressed": {"t": b"weights" * 500_000, "u": files.noise(MIB, "u")},
        "inline": {"t": files.noise(900, "t")},
        "noise": NOISE,
    }
    for name, tensors in contents.items():
        (point_of := mounts.inside(point / name)).mkdir()
        path = put(mounts, point / name, model(tensors))
        assert point_of.is_dir()
        assert_loads(weightlift, mounts, path, tensors, mode)
    # A hole from the header to the last page.
    zeros = {"t": bytes(5 * MIB), "u": files.noise(5000, "end")}
    content = model(zeros)
    path = put(mounts, point, content[:4000])
    with mounts.inside(path).open("r+b") as file:
        file.truncate(len(content))
        file.seek(len(content) - 5000)
        file.write(content[-5000:])
        os.fsync(file.fileno())
    assert_loads(weightlift, mounts, path, zeros, mode)


def served(tmp_path, tensors):
    """A folder to be served, with a model in it."""
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(model(tensors))
    return folder


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("server", [[], ["--direct-io"]], ids=["cached", "direct_io"])
def test_fuse(weightlift, mounts, tmp_path, server, mode):
    """FS-11, FS-14: read through the cache unless told otherwise, and never mapped: with `direct_io`
    such a file has no shared mappings."""
    with mounts.fuse(served(tmp_path, NOISE), *server) as (point, _):
        report = assert_loads(weightlift, mounts, point / "model.safetensors", NOISE, mode)
    length = report["bytes"]["read"]
    assert report["reads"].get("direct", 0) == (length if mode == "on" else 0)
    if mode == "auto":
        assert decision(report, "reads") == ("buffered", "fuse is served by a program")
    assert report["fallbacks"] == []


@pytest.mark.parametrize("where", ["open", "read"])
def test_fuse_without_direct_reads(weightlift, mounts, tmp_path, where):
    """FS-11: what the server refuses, and when, matters only where direct reads are forced."""
    with mounts.fuse(served(tmp_path, NOISE), "--refuse", where) as (point, _):
        path = point / "model.safetensors"
        for mode in ("auto", "off"):
            assert_loads(weightlift, mounts, path, NOISE, mode)
        for options in (["--device", "host"], ["--device", "cuda:0"]):
            done = load(weightlift, mounts, path, "on", *options, gpu=True).expect(1)
            error = done.json()["error"]
            assert error["kind"] == "DirectIoUnavailable"
            assert "EINVAL" in done.error_line() and "model.safetensors" in done.error_line()


@pytest.mark.parametrize("mode", MODES)
def test_a_read_that_the_server_fails_is_an_error_with_the_file(weightlift, mounts, tmp_path, mode):
    """FS-15: a map of the file would end the process by a signal."""
    with mounts.fuse(served(tmp_path, NOISE), "--fail-from", 2 * MIB) as (point, _):
        path = point / "model.safetensors"
        for options, gpu in ((["--device", "host"], False), (["--device", "cuda:0"], True)):
            done = load(weightlift, mounts, path, mode, *options, gpu=gpu).expect(1)
            error = done.json()["error"]
            assert error["kind"] == "Io"
            assert os.strerror(errno.EIO) in done.error_line()
            assert "model.safetensors" in done.error_line()


@pytest.mark.parametrize("server", [[], ["--direct-io"]], ids=["cached", "direct_io"])
def test_fuse_mapped(weightlift, mounts, tmp_path, server):
    """FS-14, FS-15: where mappings are asked for, a file that has none is read by calls, and a page
    that cannot be read is an error and no signal."""
    folder = served(tmp_path, NOISE)
    asked = ["--map-files", "--device", "host"]
    with mounts.fuse(folder, *server) as (point, _):
        done = load(weightlift, mounts, point / "model.safetensors", "auto", *asked)
        report = done.expect(0).json()
    loaded = {tensor["name"]: tensor["digest"] for tensor in report["tensors"]}
    assert loaded == digests(NOISE)
    # Linux maps files of `direct_io` for reading alone, or not at all.
    assert report["reads"].get("mapped", 0) in (0, report["bytes"]["read"])
    assert server or report["reads"]["mapped"]
    with mounts.fuse(folder, *server, "--fail-from", 2 * MIB) as (point, _):
        done = load(weightlift, mounts, point / "model.safetensors", "auto", *asked).expect(1)
    assert done.json()["error"]["kind"] == "Io"
    assert "model.safetensors" in done.error_line()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("gpu", [False, True], ids=["host", "cuda"])
def test_a_server_that_dies_is_an_error_and_no_hang(weightlift, mounts, tmp_path, gpu, mode):
    """MM-08: all readers wait for a server, and it is killed."""
    folder = served(tmp_path, NOISE)
    with mounts.fuse(folder, "--wait-from", 2 * MIB) as (point, server):
        path = point / "model.safetensors"
        command = weightlift.started_by(*mounts.enter)
        device = "cuda:0" if gpu else "host"
        arguments = ["load", path, "--json", "--direct-io", mode, "--device", device]
        process = command.start(*arguments, gpu=gpu)
        assert server.stdout.readline() == "waits\n"
        assert process.poll() is None, "the load did not wait for the read"
        server.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        stdout, stderr = process.communicate(timeout=60)
        assert time.monotonic() - killed < 20
    assert process.returncode == 1, stderr.decode()
    assert json.loads(stdout)["error"]["kind"] == "Io"
    assert b"model.safetensors" in stderr
    assert stderr.count(b"error:") == 1


def test_a_rotating_disk_has_two_readers(weightlift, mounts):
    """FS-19, with a loop device that says it rotates."""
    point = mounts.ext4()
    path = put(mounts, point, model(NOISE))
    rotates = loop_device(mounts, point) / "queue/rotational"
    before = rotates.read_text()
    try:
        try:
            rotates.write_text("1")
        except OSError as error:
            pytest.skip(f"a loop device cannot be made to rotate: {error}")
        small = ["--piece-size", "64KiB"]
        report = assert_loads(weightlift, mounts, path, NOISE, "auto", *small)
        few = min(2, len(os.sched_getaffinity(0)))
        assert report["reading_threads"] == few
        assert decision(report, "readers") == (str(few), "the disk rotates")
        assert decision(report, "reads") == ("buffered", "its disk rotates")
        four = [*small, "--reading-threads", "4"]
        told = assert_loads(weightlift, mounts, path, NOISE, "auto", *four)
        assert told["reading_threads"] == 4
        assert decision(told, "readers") is None
        rotates.write_text("0")
        report = assert_loads(weightlift, mounts, path, NOISE, "auto")
        assert decision(report, "readers") is None
    finally:
        # The device is somebody else's next.
        rotates.write_text(before)

"""The command line's promises: exit codes, what goes to which stream, interruption."""

import ctypes
import os
import signal
import time

import pytest

import schemas
from files import build, raw


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / "model.safetensors"
    path.write_bytes(build({"a": ("F32", (4,)), "b": ("U8", (9,))}))
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ["load"],
        ["load", "PATH", "--no-such-option"],
        ["load", "PATH", "--reading-threads", "65"],
        ["load", "PATH", "--reading-threads", "-1"],
        ["load", "PATH", "--reading-threads", "many"],
        ["load", "PATH", "--block-size", "banana"],
        ["load", "PATH", "--block-size", "64kb5"],
        ["load", "PATH", "--staging-budget", "99999999999GiB"],
        ["load", "PATH", "--device", "tpu"],
        ["load", "PATH", "--device", "cuda:x"],
        ["load", "PATH", "--route", "teleport"],
        ["no-such-command"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_2(weightlift, small, arguments):
    arguments = [str(small) if a == "PATH" else a for a in arguments]
    result = weightlift.run(*arguments).expect(2)
    assert result.stdout == ""
    assert result.stderr.strip()


@pytest.mark.parametrize("size", ["64KiB", "1MiB", "1MB", "65536"])
def test_sizes_can_be_written_in_several_ways(weightlift, small, size):
    report = weightlift.load(small, "--device", "host", "--block-size", size).expect(0).json()
    assert report["bytes"]["delivered"] == 25


@pytest.mark.parametrize("command", ["load", "inspect", "plan"])
def test_a_missing_file_is_1_and_named(weightlift, tmp_path, command):
    missing = tmp_path / "missing.safetensors"
    result = weightlift.run(command, missing).expect(1)
    assert "missing.safetensors" in result.error_line()
    assert result.stdout == ""


@pytest.mark.parametrize("command", ["load", "inspect"])
def test_with_json_the_error_is_also_data(weightlift, tmp_path, command):
    result = weightlift.run(command, tmp_path / "missing.safetensors", "--json").expect(1)
    result.error_line()
    schemas.check("error", result.json())


def test_without_a_driver_a_gpu_is_an_error_and_auto_is_not(weightlift, small):
    if has_driver():
        pytest.skip("this machine has a CUDA driver")
    result = weightlift.load(small, "--device", "cuda").expect(1)
    result.error_line()
    schemas.check("error", result.json())
    report = weightlift.load(small, "--device", "auto").expect(0).json()
    assert taken(report) == {"host"}


def test_auto_takes_the_gpu_where_there_is_one(weightlift, small):
    report = weightlift.load(small, "--device", "auto", gpu=True).expect(0).json()
    assert report["bytes"]["delivered"] == 25
    assert taken(report) and "host" not in taken(report)


def test_a_device_that_is_not_there_is_an_error(weightlift, small):
    result = weightlift.load(small, "--device", "cuda:77", gpu=True).expect(1)
    result.error_line()
    schemas.check("error", result.json())


def test_a_pattern_that_fits_no_tensor_is_an_error(weightlift, small):
    result = weightlift.load(small, "--device", "host", "--tensors", "nothing.*").expect(1)
    result.error_line()
    assert result.json()["error"]["kind"] == "NotFound"


def test_digests_are_there_only_when_asked_for(weightlift, small):
    report = weightlift.run("load", small, "--device", "host", "--json").expect(0).json()
    schemas.check("load", report)
    assert [tensor for tensor in report["tensors"] if "digest" in tensor] == []


def test_quiet_prints_nothing(weightlift, small):
    result = weightlift.run("load", small, "--device", "host", "--quiet").expect(0)
    assert (result.stdout, result.stderr) == ("", "")


def test_people_are_told_of_each_tensor(weightlift, small):
    stdout = weightlift.run("inspect", small).expect(0).stdout
    assert "F32" in stdout
    assert "U8" in stdout


def test_a_plan_says_what_it_would_do_and_a_demo_works(weightlift, small):
    assert weightlift.run("plan", small).expect(0).stdout.strip()
    assert weightlift.run("demo").expect(0).stdout.strip()


def test_ctrl_c_ends_a_load_with_130(weightlift, tmp_path):
    """Interrupted while it surely loads: once it holds 200 MB of 4 GiB."""
    path = tmp_path / "large.safetensors"
    length = 4 << 30
    header = {"a": {"dtype": "U8", "shape": [length], "data_offsets": [0, length]}}
    with open(path, "wb") as file:
        file.write(raw(header))
        # A hole: it takes no room on the disk.
        file.truncate(file.tell() + length)
    slow = ["--reading-threads", "1", "--piece-size", "4KiB", "--block-size", "64KiB"]
    process = weightlift.start("load", path, "--device", "host", *slow, "--quiet")
    try:
        deadline = time.monotonic() + 60
        while process.poll() is None and resident(process.pid) < 200_000_000:
            assert time.monotonic() < deadline, "the load did not begin"
            time.sleep(0.001)
        assert process.poll() is None, (process.returncode, process.communicate())
        process.send_signal(signal.SIGINT)
        interrupted = time.monotonic()
        stdout, stderr = process.communicate(timeout=60)
        seconds = time.monotonic() - interrupted
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, (stdout, stderr)
    assert b"panicked" not in stderr
    # To give 4 GiB back to the kernel takes a moment.
    assert seconds < 10


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def taken(report):
    """The routes by which bytes went."""
    return {name for name, size in report["routes"].items() if size}


def resident(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

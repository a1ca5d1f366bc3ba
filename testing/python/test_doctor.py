"""`weightlift doctor` tells the truth about machines that are made to have one shortcoming each."""

import errno
import os
import subprocess
import tempfile

import pytest

import files
import schemas
from mounts import Mounts
from test_io_uring import CALLS, forbid
from test_memory import group, started_in  # noqa: F401: a fixture

MIB = 1 << 20
CONTENT = files.build({"a": ("U8", (3 * MIB + 5,)), "b": ("F32", (1000,))})


@pytest.fixture
def mounts(tmp_path):
    made = Mounts(tmp_path)
    yield made
    made.close()


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(CONTENT)
    return path


def doctor(weightlift, *arguments, gpu=False, prepare=None):
    """What it found, as JSON; that people are told the same is seen too."""
    done = weightlift.run("doctor", *arguments, "--json", gpu=gpu, prepare=prepare).expect(0)
    found = schemas.check("doctor", done.json())
    text = weightlift.run("doctor", *arguments, gpu=gpu, prepare=prepare).expect(0).stdout
    assert f"auto: route       {found['auto']['route']} ({found['auto']['reason']})" in text
    assert f"auto: device      {found['auto']['device']} " in text
    for finding in found["findings"]:
        assert f"to do: {finding['todo']}" in text
    if not found["findings"]:
        assert text.endswith("Nothing stands in the way.\n")
    return found


def whats(found):
    return [finding["what"] for finding in found["findings"]]


def load(weightlift, path, *options, gpu=False):
    return weightlift.run("load", path, "--json", *options, gpu=gpu).expect(0).json()


def test_no_gpu(weightlift, model):
    found = doctor(weightlift, model)
    assert found["devices"] == [] and found["no_device"]["kind"] == "NoDriver"
    assert (found["auto"]["device"], found["auto"]["route"]) == ("host", "host")
    assert any(what.startswith("no CUDA driver was found") for what in whats(found))
    # And so a load does.
    report = load(weightlift, model)
    assert report["devices"] == ["host"] and report["routes"].keys() == {"host"}
    decided = {each["what"]: each for each in report["decisions"]}
    assert decided["device"]["reason"] == found["auto"]["device_reason"]
    assert decided["route"]["reason"] == found["auto"]["reason"]


def test_a_gpu_without_cufile(weightlift, model):
    found = doctor(weightlift, model, gpu=True)
    (device,) = found["devices"]
    assert found["no_device"] is None
    assert device["name"].startswith("Fake GPU") and device["cuda"].startswith("CUDA ")
    assert 0 < device["memory_free"] <= device["memory_total"]
    assert "no" in found["machine"]["cufile"] and not found["system"]["nvidia_fs"]
    assert (found["auto"]["device"], found["auto"]["route"]) == ("cuda:0", "pinned")
    report = load(weightlift, model, gpu=True)
    assert report["devices"] == ["cuda:0"] and report["routes"].keys() == {"pinned"}
    assert report["pinned_bytes"] <= found["auto"]["pinned_bytes"]
    decided = {each["what"]: each for each in report["decisions"]}
    assert decided["route"]["reason"] == found["auto"]["reason"]


def test_cufile_is_found_where_it_is(weightlift, model, tmp_path):
    """Any library of that name: it is only looked for, and the text says that nothing uses it."""
    folder = tmp_path / "libraries"
    folder.mkdir()
    (folder / "libcufile.so.0").symlink_to(weightlift.fake_cuda / "libcuda.so.1")
    command = weightlift.with_environment(LD_LIBRARY_PATH=str(folder))
    found = doctor(command, model)
    assert found["machine"]["cufile"] == {"yes": "libcufile.so.0"}
    text = command.run("doctor").stdout
    assert "cuFile as libcufile.so.0, no nvidia-fs; no route of this version uses it" in text


@pytest.mark.parametrize("kind", ["tmpfs", "ext4", "overlay"])
def test_what_a_model_lies_on(weightlift, mounts, kind):
    if kind == "overlay":
        lower = mounts.ext4("lower")
        mounts.inside(lower / "model.safetensors").write_bytes(CONTENT)
        os.sync()
        point = mounts.overlay(lower)
    else:
        point = getattr(mounts, kind)()
        mounts.inside(point / "model.safetensors").write_bytes(CONTENT)
        os.sync()
    command = weightlift.started_by(*mounts.enter)
    path = point / "model.safetensors"
    found = doctor(command, path)
    (file,) = found["path"]["files"]
    assert found["path"]["format"] == "safetensors" and file["bytes"] == len(CONTENT)
    storage = found["path"]["storage"]
    assert (storage["file_system"], storage["kind"]) == {
        "tmpfs": ("tmpfs", "memory"), "ext4": ("ext4", "disk"), "overlay": ("overlay", "overlay"),
    }[kind]  # fmt: skip
    # It was just written; pieces of 1 MiB that are there whole are counted.
    assert file["cached_bytes"] is None or file["cached_bytes"] >= 3 * MIB
    report = load(command, path, "--device", "host")
    if file["buffered"]:
        assert report["reads"].keys() <= {"cached", "buffered", "unknown"}
    if kind == "tmpfs":
        assert file["buffered"] == "tmpfs lies in memory" and file["residency"] == "memory"


def test_what_is_cached_is_counted(weightlift, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(files.build({"a": ("U8", (8 * MIB,))}))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    (cold,) = doctor(weightlift, path)["path"]["files"]
    if cold["residency"] in ("unknown", "memory"):
        pytest.skip(f"nobody tells what is cached here ({cold['storage']['file_system']})")
    assert cold["cached_bytes"] < MIB, "only its header was looked at"
    path.read_bytes()
    (warm,) = doctor(weightlift, path)["path"]["files"]
    assert warm["cached_bytes"] == path.stat().st_size


def test_a_limit_of_a_memory_group(weightlift, model, group):  # noqa: F811
    found = doctor(started_in(group, weightlift), model)
    limit = found["machine"]["memory_limit"]
    assert (limit["bytes"], limit["group"]) == (512 * MIB, str(group))
    assert found["machine"]["available_memory"] <= 512 * MIB
    assert any(str(group) in what for what in whats(found)), "less than 1 GiB is little"


def test_io_uring_that_is_forbidden(weightlift, model):
    found = doctor(weightlift, model, prepare=forbid(CALLS["io_uring_setup"], errno.EPERM))
    assert "no" in found["machine"]["io_uring"]
    assert any(what.startswith("there is no io_uring: ") for what in whats(found))


def test_a_path_that_is_no_model(weightlift, tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("no model")
    found = doctor(weightlift, text)
    assert found["path"]["format"] is None and found["path"]["no_model"]["kind"]
    (file,) = found["path"]["files"]
    assert file["bytes"] == 8
    found = doctor(weightlift, tmp_path)
    assert found["path"]["files"] == [] and any("is no model" in what for what in whats(found))


def test_a_path_that_is_not_there(weightlift, tmp_path):
    done = weightlift.run("doctor", tmp_path / "nowhere", "--json").expect(1)
    assert schemas.check("error", done.json())["error"]["kind"] == "FileNotFound"
    assert "nowhere" in weightlift.run("doctor", tmp_path / "nowhere").expect(1).error_line()


def test_names_are_shown_on_one_line(weightlift, tmp_path):
    path = tmp_path / "a\n\x1b[31m.safetensors"
    path.write_bytes(CONTENT)
    text = weightlift.run("doctor", path).expect(0).stdout
    assert "\x1b" not in text and "a\\n\\u{1b}[31m.safetensors" in text


def test_other_users_files(weightlift):
    """Not ours and not writable: where the kernel does not tell what is cached, that is said."""
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    as_nobody = ["setpriv", "--reuid=65534", "--clear-groups"]
    # The tests' own folders are closed to others.
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as shared:
        shared.write(CONTENT)
        shared.flush()
        os.chmod(shared.name, 0o644)
        probe = [*as_nobody, weightlift.binary, "inspect", shared.name]
        done = subprocess.run(probe, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"cannot be somebody else here: {done.stderr.strip()}")
        found = doctor(weightlift.started_by(*as_nobody), shared.name)
    (file,) = found["path"]["files"]
    if file["residency"] != "unknown":
        pytest.skip(f"this kernel tells others by {file['residency']}")
    assert file["cached_bytes"] is None and file["buffered"]
    assert any(what.startswith("nobody tells what of") for what in whats(found))

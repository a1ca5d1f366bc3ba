"""`verify=`: tensors are compared with a manifest while they are read."""

import os
import subprocess

import numpy as np
import pytest
import safetensors.numpy

import weightlift


@pytest.fixture
def model(tmp_path):
    """A model, and its manifest as the command writes it."""
    path = tmp_path / "model.safetensors"
    tensors = {"a": np.arange(100_000, dtype=np.float32), "b": np.ones((3, 5), np.int16)}
    safetensors.numpy.save_file(tensors, path)
    manifest = tmp_path / "manifest.json"
    command = [os.environ["WEIGHTLIFT_BIN"], "verify", path, "--write", "--manifest", manifest]
    subprocess.run(command, check=True, capture_output=True)
    return path, manifest


def damage(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def ways():
    yield "open", lambda path, **call: weightlift.open(path).load("host", **call)
    yield "numpy", weightlift.numpy.load_file
    yield "torch", lambda path, **call: pytest.importorskip("weightlift.torch").load_file(path, **call)


@pytest.mark.parametrize("load", [way for _, way in ways()], ids=[name for name, _ in ways()])
def test_what_is_right_loads_and_what_is_not_is_named(model, load):
    path, manifest = model
    assert set(load(path, verify=manifest)) == {"a", "b"}
    damage(path)
    with pytest.raises(weightlift.errors.Mismatch) as raised:
        load(path, verify=str(manifest))
    assert isinstance(raised.value, ValueError)
    assert raised.value.context["tensor"] in ("a", "b")
    assert raised.value.context["expected"] != raised.value.context["actual"]
    assert set(load(path)) == {"a", "b"}


def test_the_report_tells_what_was_compared(model):
    path, manifest = model
    opened = weightlift.open(path)
    opened.load("host", tensors="b", verify=manifest)
    assert opened.report["verified_tensors"] == 1
    assert opened.report["seconds"]["verify"] > 0
    opened.load("host")
    assert opened.report["verified_tensors"] == 0


def test_what_is_no_manifest_is_an_error(model):
    path, manifest = model
    manifest.write_text("{}")
    with pytest.raises(weightlift.errors.InvalidManifest):
        weightlift.open(path).load("host", verify=manifest)
    with pytest.raises(FileNotFoundError):
        weightlift.open(path).load("host", verify=manifest.with_name("missing"))


def test_nothing_is_verified_where_nothing_is_read(model):
    torch = pytest.importorskip("weightlift.torch")
    path, manifest = model
    with pytest.raises(weightlift.errors.InvalidOption):
        torch.load_file(path, device="meta", verify=manifest)

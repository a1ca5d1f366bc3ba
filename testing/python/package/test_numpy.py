"""numpy: the same arrays as safetensors', over memory of ours."""

import gc
import random
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy
import weightlift
import weightlift.numpy


def same(ours, theirs):
    assert set(ours) == set(theirs)
    for name, array in theirs.items():
        assert ours[name].dtype == array.dtype and ours[name].shape == array.shape, name
        assert ours[name].tobytes() == array.tobytes(), name


def test_all_types_scalars_and_empty_ones(small, large):
    for path in (small, str(small)):
        same(weightlift.numpy.load_file(path), safetensors.numpy.load_file(path))
    # Theirs knows no bfloat16 here.
    same(weightlift.numpy.load(small.read_bytes()), safetensors.numpy.load_file(small))
    shards = {}
    for file in large.glob("*.safetensors"):
        shards |= safetensors.numpy.load_file(file)
    same(weightlift.numpy.load_file(large), shards)
    same(weightlift.open(small).load(framework="numpy"), safetensors.numpy.load_file(small))


def test_arrays_are_writable_and_outlive_each_other(small):
    loaded = weightlift.numpy.load_file(small)
    array = loaded.pop("int32")
    before = array.copy()
    del loaded
    gc.collect()
    assert (array == before).all()
    array += 1
    assert (array == before + 1).all()


# LT-06
def test_the_file_may_be_written_again_while_its_arrays_live(tmp_path):
    path = tmp_path / "a.safetensors"
    safetensors.numpy.save_file({"a": np.arange(100_000)}, path)
    loaded = weightlift.numpy.load_file(path)
    safetensors.numpy.save_file({"a": loaded["a"] + 1}, path)
    assert (loaded["a"] == np.arange(100_000)).all()
    assert (weightlift.numpy.load_file(path)["a"] == np.arange(100_000) + 1).all()


def test_tensors_anywhere_in_a_file(tmp_path):
    # A header of an odd length: nothing is aligned.
    header = b'{"a":{"dtype":"F64","shape":[3],"data_offsets":[0,24]},"b":{"dtype":"F32","shape":[2],"data_offsets":[24,32]}}  '
    a, b = np.array([1.5, 2.5, 3.5]), np.array([4.5, 5.5], np.float32)
    for pad in range(8):
        text = header + b" " * pad
        (tmp_path / "m.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + a.tobytes() + b.tobytes())
        same(weightlift.numpy.load_file(tmp_path / "m.safetensors"), {"a": a, "b": b})


def test_a_type_that_numpy_lacks_is_said_before_anything_is_read(models):
    for path in models.values():
        model = weightlift.open(path)
        lacking = {info.dtype for info in model.tensors if info.dtype not in weightlift.numpy._DTYPES | weightlift.numpy._ML_DTYPES}
        if lacking:
            with pytest.raises(TypeError, match="numpy has no type"):
                model.load(framework="numpy")
            assert model.report is None
            # Also where some are asked for, and only if they are among those.
            name = next(info.name for info in model.tensors if info.dtype in lacking)
            for asked in ([name], name, iter([name])):
                with pytest.raises(TypeError, match="numpy has no type"):
                    model.load(framework="numpy", tensors=asked)
            assert model.report is None
            with weightlift.safe_open(path, "np") as opened, pytest.raises(TypeError):
                opened.get_tensor(name)
            had = [info.name for info in model.tensors if info.dtype not in lacking]
            assert set(model.load(framework="numpy", tensors=had)) == set(had)
            break
    else:
        pytest.fail("no model has a type that numpy lacks")


def test_without_ml_dtypes_the_error_names_the_package(small):
    code = f"import sys; sys.modules['ml_dtypes'] = None; import weightlift.numpy as w; w.load_file({str(small)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "pip install ml_dtypes" in done.stderr.splitlines()[-1]


def test_a_gpu_is_not_for_numpy(small):
    with pytest.raises(ValueError, match="host memory"):
        weightlift.open(small).load("cuda", framework="numpy")


def test_strides_of_checkpoints_are_kept():
    # A transposed view, as PyTorch's checkpoints have them: rows of 3 in steps of 1.
    memory = np.arange(6, dtype=np.int16)
    view = weightlift.numpy.view(memory.tobytes(), "I16", (3, 2), (1, 3))
    assert (view == memory.reshape(2, 3).T).all()


def test_safe_open_and_slices(small):
    with weightlift.safe_open(small, "np") as ours, safetensors.safe_open(small, "np") as theirs:
        assert ours.keys() == sorted(theirs.keys()) and ours.metadata() == theirs.metadata()
        assert ours.offset_keys() == theirs.offset_keys()
        for name in theirs.keys():
            assert ours.get_tensor(name).tobytes() == theirs.get_tensor(name).tobytes()
        for index in [np.s_[:], np.s_[1:], np.s_[1:2, 2:], np.s_[..., 1], np.s_[0], np.s_[-1, 3], np.s_[:, -2], np.s_[2:2]]:
            mine, other = ours.get_slice("float32")[index], theirs.get_slice("float64")[:].astype(np.float32)[index]
            assert mine.shape == other.shape
            expected = theirs.get_tensor("float32")[index]
            assert np.array_equal(mine, expected), index
        with pytest.raises(weightlift.SafetensorError, match="does not contain tensor"):
            ours.get_slice("nope")
        same(ours.get_tensors(), {name: theirs.get_tensor(name) for name in theirs.keys()})
    with pytest.raises(weightlift.SafetensorError, match="closed"):
        ours.keys()
    with pytest.raises(FileNotFoundError, match="No such file or directory: /nope"):
        weightlift.safe_open("/nope", "np")


def outcome(call):
    """What comes of a call: an array's type, shape and bytes, or an exception's name and words."""
    try:
        array = np.asarray(call())
    except (weightlift.SafetensorError, safetensors.SafetensorError, OverflowError) as error:
        return type(error).__name__, str(error)
    except BaseException as error:
        return type(error).__name__, None
    return array.dtype, array.shape, array.tobytes()


def any_index(chance, shape):
    number = lambda: chance.choice([-9, -3, -1, 0, 1, 2, 3, 7, 100])  # noqa: E731
    end = lambda: chance.choice([None, None, number()])  # noqa: E731
    kinds = [
        number, number, lambda: slice(end(), end()), lambda: slice(end(), end()), lambda: slice(None),
        lambda: slice(end(), end(), chance.choice([1, 2, 3, -1, 0])), lambda: Ellipsis,
        lambda: chance.choice([None, [], [0], True, np.int64(0), "a", 1.5, np.zeros(2, int)]),
    ]  # fmt: skip
    one = lambda: chance.choice(kinds)()  # noqa: E731
    return one() if chance.random() < 0.4 else tuple(one() for _ in range(chance.randrange(len(shape) + 3)))


@pytest.mark.parametrize("framework", ["np", "flax"])
def test_slices_answer_as_safetensors_do(tmp_path, framework):
    if framework == "flax":
        pytest.importorskip("jax", reason="jax is installed by cargo xtask test --torch")
    chance = random.Random(9)
    shapes = [(), (1,), (7,), (0,), (3, 4), (2, 0, 3), (2, 3, 1, 2)]
    path = tmp_path / "m.safetensors"
    tensors = {str(n): np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for n, shape in enumerate(shapes)}
    safetensors.numpy.save_file(tensors, path)
    refused = 0
    with weightlift.safe_open(path, framework) as ours, safetensors.safe_open(path, framework) as theirs:
        for _ in range(2000 if framework == "np" else 200):
            name = chance.choice(list(tensors))
            index = any_index(chance, tensors[name].shape)
            expected = outcome(lambda: theirs.get_slice(name)[index])
            if expected[0] in ("PanicException", "ValueError", "SystemError", "MemoryError"):
                continue  # Ends before starts: theirs takes the difference for a huge length.
            assert outcome(lambda: ours.get_slice(name)[index]) == expected, (name, index)
            refused += isinstance(expected[0], str)
    assert refused > 50


def test_a_slice_reads_only_its_rows(large):
    with weightlift.safe_open(large, "np") as opened:
        rows = opened.get_slice("1.3")[100:110, 5]
        assert opened._open.report["bytes"]["read"] == 10 * 1000 * 4
        assert np.array_equal(rows, opened.get_tensor("1.3")[100:110, 5])

"""numpy: the same arrays as safetensors', over memory of ours."""

import gc
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
        for index in [np.s_[:], np.s_[1:], np.s_[1:2, 2:], np.s_[..., 1], np.s_[0], np.s_[-1, 3], np.s_[:, -2], np.s_[2:2], np.s_[:-1]]:
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


def test_a_slice_reads_only_its_rows(large):
    with weightlift.safe_open(large, "np") as opened:
        rows = opened.get_slice("1.3")[100:110, 5]
        assert opened._open.report["bytes"]["read"] == 10 * 1000 * 4
        assert np.array_equal(rows, opened.get_tensor("1.3")[100:110, 5])

"""stream: owned tensors, in bounded memory, in the files' order."""

import gc
import threading
import time

import numpy as np
import pytest
import safetensors.numpy
import weightlift


def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096


# LT-01
def test_what_is_kept_stays_what_it_was(large):
    kept = list(weightlift.stream(large, framework="numpy", window=6_000_000))
    names = [name for name, _ in kept]
    assert names == [f"{shard}.{number}" for shard in (1, 2) for number in range(8)]
    for shard in large.glob("*.safetensors"):
        for name, array in safetensors.numpy.load_file(shard).items():
            assert np.array_equal(dict(kept)[name], array), name


# LT-02
def test_a_slow_consumer_on_another_thread_sees_what_was_given(large):
    expected = {}
    for shard in large.glob("*.safetensors"):
        expected |= safetensors.numpy.load_file(shard)
    wrong = []

    def check(name, array):
        time.sleep(0.005)
        if not np.array_equal(array, expected[name]):
            wrong.append(name)

    threads = []
    for name, array in weightlift.stream(large, framework="numpy", window=5_000_000):
        threads.append(threading.Thread(target=check, args=(name, array)))
        threads[-1].start()
        del array
    [thread.join() for thread in threads]
    assert not wrong


# LT-03, LT-04: whatever ends first.
def test_tensors_outlive_the_stream_and_the_model(large):
    model = weightlift.open(large)
    stream = weightlift.stream(model, framework="numpy", window=5_000_000)
    _, first = next(stream)
    copy = first.copy()
    stream.close()
    del stream, model
    gc.collect()
    assert np.array_equal(first, copy)


def test_memory_is_bounded_by_the_window(large):
    list(weightlift.stream(large, framework="numpy", window=8_000_000, tensors=["1.0"]))
    gc.collect()
    before = resident()
    most = 0
    for _, array in weightlift.stream(large, framework="numpy", window=8_000_000):
        array = None  # noqa: F841 - let go of
        most = max(most, resident() - before)
    assert most < 30_000_000, f"{most} bytes for a model of 64 MB"


def test_a_part_and_its_order(large):
    names = ["2.3", "1.5", "1.1"]
    streamed = [name for name, _ in weightlift.stream(large, framework="numpy", tensors=names)]
    assert streamed == ["1.1", "1.5", "2.3"]
    with pytest.raises(KeyError):
        weightlift.stream(large, framework="numpy", tensors=["nope"])


def test_a_file_that_changes_ends_the_stream(tmp_path):
    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file({name: np.zeros(1000) for name in "abc"}, path)
    stream = weightlift.stream(path, framework="numpy", window=8000)
    next(stream)
    time.sleep(0.02)
    safetensors.numpy.save_file({name: np.ones(1000) for name in "abc"}, path)
    with pytest.raises(weightlift.errors.Changed):
        next(stream)


def test_errors_come_with_the_call_and_not_with_the_first_tensor(tmp_path, models):
    with pytest.raises(FileNotFoundError):
        weightlift.stream(tmp_path / "nope")

"""stream: owned tensors, in bounded memory, in the files' order."""

import gc
import itertools
import os
import random
import subprocess
import sys
import textwrap
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


# LT-03, LT-04
def test_the_order_in_which_things_end_does_not_matter(large):
    with safetensors.safe_open(large / "model-00001-of-00002.safetensors", "np") as theirs:
        expected = theirs.get_tensor("1.1")
    before = threads()
    for order in itertools.permutations(["close", "stream", "model", "loader", "first"]):
        held = {"loader": weightlift.Loader(), "model": weightlift.open(large)}
        held["stream"] = weightlift.stream(held["model"], framework="numpy", window=16_000_000, loader=held["loader"])
        held["first"] = next(held["stream"])
        kept = next(held["stream"])[1]
        for what in order:
            if what != "close":
                del held[what]
            elif "stream" in held:
                held["stream"].close()
        assert threads() == before, order
        assert np.array_equal(kept, expected), order


def test_memory_is_bounded_by_the_window(large):
    list(weightlift.stream(large, framework="numpy", window=16_000_000, tensors=["1.0"]))
    gc.collect()
    before = resident()
    most = 0
    for _, array in weightlift.stream(large, framework="numpy", window=16_000_000):
        array = None  # noqa: F841 - let go of
        time.sleep(0.02)  # The part behind is there by then.
        most = max(most, resident() - before)
    # The part that is given out, the one behind, and what a load needs for itself.
    assert 8_000_000 < most < 24_000_000, f"{most} bytes for a model of 64 MB"


def test_no_more_is_loaded_and_not_given_out_than_the_window_or_the_largest_tensor(tmp_path, monkeypatch):
    import weightlift.numpy

    chance = random.Random(5)
    for round in range(30):
        sizes = [chance.choice([1, 10, 100, 1000, 5000]) for _ in range(20)]
        tensors = {f"{number:02}": np.full(size, number, np.uint8) for number, size in enumerate(sizes)}
        safetensors.numpy.save_file(tensors, tmp_path / "m.safetensors")
        window = chance.choice([0, 1, 100, 2000, 6000, 12_000, 1 << 30])
        begun, most, given = 0, 0, 0
        start = weightlift.numpy._start

        def counted(model, device, infos, **call):
            nonlocal begun, most
            begun += sum(info.nbytes for info in infos)
            most = max(most, begun - given)
            return start(model, device, infos, **call)

        with monkeypatch.context() as patched:
            patched.setattr(weightlift.numpy, "_start", counted)
            for name, array in weightlift.stream(tmp_path / "m.safetensors", framework="numpy", window=window):
                assert np.array_equal(array, tensors[name])
                given += array.nbytes
        assert begun == given == sum(sizes), round
        assert most <= max(window, *sizes), (window, sizes)


def threads():
    return len(os.listdir("/proc/self/task"))


def test_the_next_part_is_loaded_while_the_receiver_works(large, tmp_path):
    path = tmp_path / "m.safetensors"
    tensors = {name: np.full(1000, ord(name)) for name in "abcdef"}
    safetensors.numpy.save_file(tensors, path)
    stream = weightlift.stream(path, framework="numpy", window=32_000)  # two tensors at a time
    before = threads()
    assert next(stream)[0] == "a"
    ends = time.monotonic() + 30
    while threads() > before:
        assert time.monotonic() < ends
        time.sleep(0.001)
    # From now on nothing can be read, and c and d are there. The error comes after all that is good.
    os.truncate(path, 10)
    got = ["a"]
    with pytest.raises(weightlift.errors.Changed):
        for name, array in stream:
            assert np.array_equal(array, tensors[name])
            got.append(name)
    assert got == list("abcd")
    assert list(stream) == []


def test_progress_is_told_on_the_receivers_thread(large):
    told = []
    progress = lambda *at: told.append((threading.get_ident(), *at))  # noqa: E731
    list(weightlift.stream(large, framework="numpy", window=16_000_000, progress=progress))
    assert {ident for ident, _, _ in told} == {threading.get_ident()}
    assert sum(done == total for _, done, total in told) == 8


def run(code, *arguments, **environment):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], capture_output=True, text=True,
        timeout=120, env={**os.environ, **environment},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_a_load_ahead_ends_with_its_stream(large, fake_driver):
    """A job that waits two seconds for its driver: cancelled, let go of, interrupted, or with an
    interpreter that ends."""
    code = """
    import gc, os, signal, sys, threading, time, weightlift
    model = weightlift.open(sys.argv[1])
    begin = lambda: model._start("cuda:0", model.keys(), lambda loaded: {t.name: t for t in loaded})
    def timed(what):
        started = time.perf_counter()
        what()
        print(time.perf_counter() - started)
    job = begin()
    timed(job.cancel)
    try:
        job.result()
    except ValueError:
        pass
    def let_go():
        global job
        job = None
    job = begin()
    timed(let_go)
    def interrupted():
        threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            begin().result()
        except KeyboardInterrupt:
            pass
    timed(interrupted)
    assert len(begin().result()) == 16
    print(weightlift.default_loader().quarantined())
    """
    slow = {"LD_LIBRARY_PATH": str(fake_driver.parent), "FAKE_CUDA": "init_delay_ms=2000"}
    status, out, err = run(code, large, **slow)
    assert (status, err) == (0, "")
    *took, left = out.splitlines()
    assert all(float(each) < 0.5 for each in took) and len(took) == 3 and left == "(0, 0)", out


@pytest.mark.parametrize("kept", ["stream", "cycle", "job"])
def test_an_interpreter_ends_silently_with_an_unfinished_stream(large, fake_driver, kept):
    code = """
    import sys, weightlift
    model = weightlift.open(sys.argv[1])
    stream = weightlift.stream(model, framework="numpy", window=16_000_000)
    print(next(stream)[0])
    if sys.argv[2] == "cycle":
        class Holder: pass
        holder = Holder()
        holder.itself, holder.stream = holder, stream
        sys.modules["kept"] = holder
        del holder, stream
    elif sys.argv[2] == "job":
        kept = model._start("cuda:0", model.keys(), dict)
    """
    violations = fake_driver.parent / f"violations-{kept}"
    violations.unlink(missing_ok=True)
    slow = {
        "LD_LIBRARY_PATH": str(fake_driver.parent), "FAKE_CUDA": "copy_delay_us=20000",
        "FAKE_CUDA_VIOLATIONS": str(violations),
    }  # fmt: skip
    assert run(code, large, kept, **slow) == (0, "1.0\n", "")
    assert not violations.exists(), violations.read_text()


# GP-05
def test_a_forked_child_goes_on_with_the_stream(large):
    code = """
    import os, sys, weightlift
    expected = weightlift.numpy.load_file(sys.argv[1])
    for _ in range(20):
        stream = weightlift.stream(sys.argv[1], framework="numpy", window=16_000_000)
        name, array = next(stream)
        child = os.fork()
        rest = dict(stream)
        good = len(rest) == 15 and all((rest[name] == expected[name]).all() for name in rest)
        if child == 0:
            os._exit(0 if good else 1)
        assert good and os.waitpid(child, 0)[1] == 0
    print("well")
    """
    assert run(code, large) == (0, "well\n", "")


def test_a_load_beside_writes_where_it_is_told(large, on_fake):
    """As torch's memory is given on a GPU: before the load begins, kept until it is over."""
    model = weightlift.open(large)
    theirs = model.load("cuda:0", loader=on_fake, tensors=["1.*"])
    infos = [info for info in model.tensors if info.name.startswith("2.")]
    targets = dict(zip((info.storage for info in infos), theirs.values()))
    places = {storage: (tensor.address, tensor.nbytes, tensor, None) for storage, tensor in targets.items()}
    kept = next(iter(targets.values()))
    before = sys.getrefcount(kept)
    job = model._start("cuda:0", [info.name for info in infos], lambda loaded: loaded, places, loader=on_fake)
    assert len(job.result()) == 8
    expected = model.load("host", tensors=["2.*"])
    for info in infos:
        assert targets[info.storage].tobytes() == expected[info.name].tobytes()
    del places, job
    gc.collect()
    assert sys.getrefcount(kept) == before - 1, "the reference that places held is gone"
    # A storage for which there is no memory is an error, and nothing hangs.
    with pytest.raises(weightlift.errors.InternalError):
        model._start("cuda:0", [infos[0].name], dict, {}, loader=on_fake).result()


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

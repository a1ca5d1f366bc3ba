"""Ctrl-C at any time: soon, with nothing left under way, and the next load works."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy
from mounts import Mounts

TIMES = 200

# Calls again and again until it is interrupted, as often as it is told; every interrupt comes at
# another time. What is left after that, and whether the bytes are right, is printed.
ROUNDS = """
import gc, json, os, random, signal, sys, threading, time
import numpy as np
import weightlift, weightlift.numpy

path, truth, device, times = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
model = weightlift.open(path)
target = {info.name: np.zeros(info.shape, np.float32) for info in model.tensors}
first = next(iter(target))

def streamed(**options):
    for name, array in weightlift.stream(model, framework="numpy", window=4 << 20, **options):
        pass

def sliced():
    with weightlift.safe_open(path, "np") as opened:
        opened.get_slice(first)[1:300]

def read():
    with weightlift.open_reader(path, window=1 << 20) as f:
        f.read(3 << 20)

def beside():
    names = [info.name for info in model.tensors]
    job = model._start(device, names, lambda loaded: loaded)
    job.result()

on_host = [lambda: weightlift.numpy.load_file(path), streamed, sliced, lambda: weightlift.load_into(model, target)]
on_gpu = [lambda: model.load(device), lambda: model.load(device, reading_threads=4), beside]
calls = on_host if device == "host" else on_gpu

def interrupted(call, after):
    sent, stopped = [], threading.Event()

    def send():
        time.sleep(after)
        while not stopped.is_set():
            sent.append(time.perf_counter())
            os.kill(os.getpid(), signal.SIGINT)
            stopped.wait(2)

    thread = threading.Thread(target=send)
    try:
        thread.start()
        while True:
            call()
    except KeyboardInterrupt:
        ended = time.perf_counter()
    stopped.set()
    thread.join()
    return ended - sent[0]

chance = random.Random(1)
for call in calls:
    call()
gc.collect()
files, threads = (len(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task"))
took = [interrupted(calls[number % len(calls)], chance.uniform(0, 0.08)) for number in range(times)]
gc.collect()
left = {"files": len(os.listdir("/proc/self/fd")) - files, "threads": len(os.listdir("/proc/self/task")) - threads}
good = safe = True
want = weightlift.numpy.load_file(truth)
for name, tensor in (model.load(device)).items():
    good &= tensor.tobytes() == want[name].tobytes()
if device == "host":
    weightlift.load_into(model, target)
    good &= all(np.array_equal(target[name], want[name]) for name in want)
    good &= all(np.array_equal(array, want[name]) for name, array in weightlift.stream(path, framework="numpy"))
print(json.dumps({"took": took, "left": left, "good": bool(good), "given_up": weightlift.default_loader().quarantined()}))
"""


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    random = np.random.default_rng(4)
    tensors = {f"t{number}": random.random((500, 1000), np.float32) for number in range(8)}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return folder / "model.safetensors"


def judge(done):
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    took = sorted(told["took"])
    assert len(took) == TIMES
    # Another program may have the processors for a while.
    assert took[int(0.95 * TIMES)] <= 0.2 and took[-1] < 2, took[-20:]
    assert told["good"] and told["given_up"] == [0, 0]
    assert told["left"] == {"files": 0, "threads": 0}
    assert done.stderr == ""


# GP-08
def test_200_interrupts_of_loads_from_a_slow_server(model, tmp_path):
    mounts = Mounts(tmp_path)
    try:
        # 16 MB in requests of 128 KiB, one after the other: a tenth of a second. What is waited for
        # is a read of 4 MiB by each reader.
        with mounts.fuse(model.parent, "--direct-io", "--delay-ms", 0.5) as (point, _):
            run = [*mounts.enter, sys.executable, "-c", ROUNDS, point / model.name, model, "host", TIMES]
            judge(subprocess.run([*map(str, run)], capture_output=True, text=True, timeout=300))
    finally:
        mounts.close()


# GP-08
def test_200_interrupts_of_loads_to_a_gpu_that_copies_slowly(model, fake_driver, tmp_path):
    violations = tmp_path / "violations"
    environment = {
        **os.environ, "LD_LIBRARY_PATH": str(fake_driver.parent), "FAKE_CUDA": "copy_delay_us=8000",
        "FAKE_CUDA_VIOLATIONS": str(violations),
    }  # fmt: skip
    run = [sys.executable, "-c", ROUNDS, model, model, "cuda:0", TIMES]
    judge(subprocess.run([*map(str, run)], capture_output=True, text=True, timeout=300, env=environment))
    assert not violations.exists(), violations.read_text()

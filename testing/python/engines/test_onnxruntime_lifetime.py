"""Who keeps the weights, for how long, and how much memory there is of them.

Each test is a program of its own: what goes wrong here ends a process, and memory is the process's.
"""

import onnxruntime_models as models  # first: it skips where there is no package

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PRELUDE = """
import gc, os, sys
sys.path.insert(0, {here!r})
import onnxruntime_models as models
import numpy as np, onnxruntime, weightlift, weightlift.onnxruntime

def session(path, made=None):
    return weightlift.onnxruntime.session(path, made, providers=models.CPU)

def memory(name="RssAnon"):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name + ":"))

def churn():
    # What was let go of wrongly is somebody else's afterwards.
    gc.collect()
    for _ in range(3):
        full = [np.full(size, 0xa5, np.uint8) for size in (4096, 150_000, 1 << 20, 48 << 20)]
    del full
"""


def program(text, *arguments):
    text = PRELUDE.format(here=str(Path(__file__).parent)) + text
    done = subprocess.run([sys.executable, "-c", text, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("prepacking", [False, True])
@pytest.mark.parametrize("name", models.MODELS)
def test_everything_but_the_session_is_gone(name, prepacking, tmp_path):
    """And the files are gone, cut, or others."""
    model = models.MODELS[name]()
    inputs, expected = models.own_answer(model, models.options(prepacking=prepacking))
    paths = [models.spread(model, tmp_path / str(n), files=("a.bin", "b.bin")) for n in range(4)]
    np.savez(tmp_path / "inputs.npz", **inputs)
    program(
        """
folder, prepacking, digest = sys.argv[1], sys.argv[2] == "True", sys.argv[3]
inputs = dict(np.load(folder + "/inputs.npz"))
for number in range(4):
    here = f"{folder}/{number}"
    made = models.options(prepacking=prepacking)
    opened = weightlift.open(f"{here}/model.onnx")
    ours = session(opened, made)
    del made, opened
    weightlift.default_loader().release()
    for file in ("model.onnx", "a.bin", "b.bin"):
        path = f"{here}/{file}"
        size = os.path.getsize(path)
        if number == 0:
            os.unlink(path)
        elif number == 1:
            os.truncate(path, 0)
        elif number == 2:
            open(path, "r+b").write(b"\\xff" * size)
        else:
            open(path + ".new", "wb").write(b"\\xff" * size)
            os.replace(path + ".new", path)
    churn()
    for _ in range(2):
        assert models.digest(ours.run(None, inputs)) == digest, number
""",
        tmp_path, prepacking, models.digest(expected),
    )  # fmt: skip
    assert not paths[0].exists()


def test_a_thousand_sessions(tmp_path):
    path = models.spread(models.MODELS["chain"](), tmp_path)
    print(program(
        """
def many(count):
    for number in range(count):
        ours = session(sys.argv[1], models.options(prepacking=number % 2 == 0))
        ours.run(None, models.feed(ours))
        # W3 is folded, the others are packed.
        assert len(ours.weightlift_report["in_place"]) == (3 if number % 2 else 0)
many(100)
gc.collect()
before, files, maps = memory(), len(os.listdir("/proc/self/fd")), len(open("/proc/self/maps").readlines())
many(1000)
gc.collect()
grown = memory() - before
print("a thousand sessions:", grown, "bytes more")
# The weights of one are 590 kB.
assert grown < 20 << 20, grown
assert len(os.listdir("/proc/self/fd")) <= files
assert len(open("/proc/self/maps").readlines()) <= maps + 50
""",
        path,
    ))  # fmt: skip


def test_what_the_session_adds_to_our_memory(tmp_path):
    """With prepacking off less than 5 %: the weights are used where they are."""
    one = 4096
    weights = {f"W{n}": models.weight(n, one, one) for n in range(16)}  # 1 GiB
    nodes = [models.node("MatMul", f"{'x' if n == 0 else n} W{n}", "y" if n == 15 else f"{n + 1}") for n in range(16)]
    model = models.build(nodes, weights, [models.value("x", 1, one)], [models.value("y", 1, one)])
    # Data apart from the message, which may not have 2 GiB with it.
    path = models.spread(model, tmp_path)
    del model, weights
    out = program(
        """
names = [f"W{n}" for n in range(16)]
before = memory()
loaded = weightlift.open(sys.argv[1]).load("host")
own = memory() - before
assert own > 16 << 26
del loaded
gc.collect()
before = memory()
ours = session(sys.argv[1], models.options(prepacking=False))
assert sorted(ours.weightlift_report["in_place"]) == sorted(names), ours.weightlift_report["host"]
with_session = memory() - before
ours.run(None, {"x": np.ones((1, 4096), np.float32)})
after_run = memory() - before
print(f"our memory {own}, with the session {with_session} ({with_session / own:.4f}), after a run {after_run} ({after_run / own:.4f})")
assert with_session < 1.05 * own and after_run < 1.05 * own
# Where weights are packed, what the session did not keep is given back: there is one copy, not two.
del ours
gc.collect()
before = memory()
ours = session(sys.argv[1], models.options())
assert ours.weightlift_report["given_back"] == 16 << 26, ours.weightlift_report["host"]
packed = memory() - before
print(f"with packed weights {packed} ({packed / own:.4f})")
assert packed < 1.25 * own
""",
        path,
    )
    print(out)


def test_the_memory_of_a_session_goes_with_it(tmp_path):
    path = models.spread(models.MODELS["chain"](), tmp_path)
    program(
        """
def maps():
    return sum("weights.bin" in line for line in open("/proc/self/maps"))
ours = session(sys.argv[1], models.options(prepacking=False))
assert maps() > 0
# The mapping is all: no file is open.
assert not any(os.readlink(f"/proc/self/fd/{fd}").endswith((".bin", ".onnx")) for fd in os.listdir("/proc/self/fd")
               if os.path.exists(f"/proc/self/fd/{fd}"))
inner = ours._sess
del ours
gc.collect()
# Who still runs it has the memory.
feeds = {each.name: np.ones(each.shape, np.float32) for each in inner.inputs_meta}
inner.run([inner.outputs_meta[0].name], feeds, None)
del inner
gc.collect()
assert maps() == 0
""",
        path,
    )


def test_an_interpreter_that_ends_with_sessions(tmp_path):
    path = models.spread(models.MODELS["moved"](), tmp_path)
    program("keep = [session(sys.argv[1], models.options(prepacking=n % 2 == 0)) for n in range(4)]", path)

"""Who keeps the weights, for how long, and how much memory there is of them.

Each test is a program of its own: what goes wrong here ends a process, and memory is the process's.
"""

import openvino_runs as runs  # first: it skips where there is no package

import subprocess
import sys

import openvino as ov
import pytest

# What every program begins with. `alone(x)`: there is nothing but x, and what it keeps.
PRELUDE = """
import ctypes, gc, os, sys
sys.path[:0] = {path!r}
import numpy as np, openvino as ov, weightlift.openvino
import openvino_runs as runs
folder = {folder!r}
core = ov.Core()

def memory(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name + ":"))

def churn():
    # What was let go of wrongly is somebody else's afterwards.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    for _ in range(3):
        full = [np.full(size, 0xa5, np.uint8) for size in (4096, 1 << 20, 48 << 20)]
    del full
"""


def program(folder, text):
    text = PRELUDE.format(path=sys.path, folder=str(folder)) + text
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr}"
    return done.stdout.split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model whose weights are above the threshold of huge pages, and a small one; blobs of both."""
    folder = tmp_path_factory.mktemp("lifetime")
    for name, sizes in (("large", [3000, 3000, 100]), ("small", [300, 200, 100])):
        path = runs.write(runs.matrices(sizes), folder / f"{name}.xml")
        compiled = ov.Core().compile_model(path, "CPU")
        (folder / f"{name}.blob").write_bytes(runs.exported(compiled))
    return folder


CALLS = {
    "read": "compiled = core.compile_model(weightlift.openvino.read_model(core, xml), 'CPU')",
    "compile": "compiled = weightlift.openvino.compile_model(core, xml, 'CPU')",
    "import": "compiled = weightlift.openvino.import_model(core, blob, 'CPU')",
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("size", ["large", "small"])
@pytest.mark.parametrize("then", ["deleted", "rewritten"])
def test_nothing_but_the_compiled_model_is_left(folder, tmp_path, call, size, then):
    """The CPU plugin reads weights in the first inference: what a model does not keep is gone then."""
    for suffix in (".xml", ".bin", ".blob"):
        (tmp_path / f"{size}{suffix}").write_bytes((folder / f"{size}{suffix}").read_bytes())
    told = program(tmp_path, f"""
xml, bin, blob = [os.path.join(folder, {size!r} + suffix) for suffix in (".xml", ".bin", ".blob")]
expected = runs.run(core.compile_model({str(folder / size)!r} + ".xml", "CPU"))
{CALLS[call]}
del core
for path in (xml, bin, blob):
    if {then!r} == "deleted":
        os.unlink(path)
    else:
        with open(path, "r+b") as f:
            f.write(b"!" * os.path.getsize(path))
churn()
assert runs.run(compiled) == expected
request = compiled.create_infer_request()
values = runs.feed(compiled)
output = compiled.output(0)
del compiled
churn()
assert request.infer(values)[output].tobytes() == expected[0]
print("right")
""")  # fmt: skip
    assert told == ["right"]


def test_a_model_alone_keeps_its_constants(folder):
    told = program(folder, """
model = weightlift.openvino.read_model(core, os.path.join(folder, "large.xml"))
del core
before = runs.constants(model)
churn()
assert runs.constants(model) == before
copy = model.clone()
nodes = [node for node in model.get_ops() if node.get_type_name() == "Constant"]
del model
churn()
assert runs.constants(copy) == before
del copy
churn()
print(len([node.data.sum() for node in nodes]))
""")  # fmt: skip
    assert told == ["2"]


@pytest.mark.parametrize(
    "call, name, times",
    [
        ("read_model(core, path)", "small.xml", 1000),
        ("import_model(core, path, 'CPU')", "small.blob", 1000),
        ("compile_model(core, path, 'CPU')", "small.xml", 100),
        ("read_model(core, path)", "large.xml", 40),
        ("read_model(core, path, progress=fail)", "large.xml", 40),
    ],
)
def test_models_that_are_dropped_leave_nothing(folder, call, name, times):
    path = folder / name
    size = path.with_suffix(".bin").stat().st_size
    maps, first, last = map(int, program(folder, f"""
path = {str(path)!r}
def fail(done, total):
    raise InterruptedError
def count(times):
    for _ in range(times):
        try:
            weightlift.openvino.{call}
        except InterruptedError:
            pass
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/maps") as maps:
        return len(maps.readlines())
# What is made once: threads, pools, the plugin's own caches.
before, first = count({times} // 4), memory("VmRSS")
after, last = count({times}), memory("VmRSS")
print(after - before, first, last)
"""))  # fmt: skip
    # A leak of one in ten would be many times that.
    assert last - first < max(8 << 20, times * size // 20), f"{(last - first) >> 20} MiB more after {times} times"
    assert maps < times // 4


@pytest.mark.parametrize("call", ["read_model(core, 'm.xml')", "import_model(core, 'm.blob', 'CPU')"])
def test_there_is_one_copy_of_the_weights(tmp_path, call):
    """The highest memory of the process up to the end of the call, beside what it had before. With an
    open batch: of a model whose shapes are all known the plugin makes its own form of the weights
    when it imports it, half as large, whoever loaded them."""
    path = runs.write(runs.matrices([8192, 8192], batch=-1), tmp_path / "m.xml")
    (tmp_path / "m.blob").write_bytes(runs.exported(ov.Core().compile_model(path, "CPU")))
    size = path.with_suffix(".bin").stat().st_size
    before, peak = map(int, program(tmp_path, f"""
os.chdir(folder)
core.get_property("CPU", "FULL_DEVICE_NAME")
before = memory("VmRSS")
with open("/proc/self/clear_refs", "w") as f:
    f.write("5")  # the highest so far is forgotten
kept = weightlift.openvino.{call}
print(before, memory("VmHWM"))
"""))  # fmt: skip
    assert peak - before < 1.1 * size, f"{(peak - before) / size:.2f} times the model"
    assert peak - before > 0.9 * size, "the weights are in the memory that is measured"

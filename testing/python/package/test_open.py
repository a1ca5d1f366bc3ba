"""Opening models and loading them to plain tensors; errors; options; the process around it."""

import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
import safetensors.numpy
import weightlift


def python(code, **environment):
    """Runs code in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120,
        env={**os.environ, **environment},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_importing_takes_no_framework_and_little_time():
    code = """
    import sys, time
    before = set(sys.modules)
    started = time.perf_counter()
    import weightlift
    took = time.perf_counter() - started
    heavy = {"numpy", "torch", "jax", "tqdm", "ml_dtypes"} & set(sys.modules)
    print(took, sorted(heavy), weightlift.__version__, *dir(weightlift))
    """
    status, out, err = python(code)
    assert status == 0, err
    # The best of three: another program may have the processor.
    best = min(float(python(code)[1].split()[0]) for _ in range(3))
    assert best < 0.05
    assert " [] " in out
    for name in weightlift.__all__:
        assert hasattr(weightlift, name), name


def test_a_model_tells_what_is_in_it(small):
    with weightlift.open(small) as model:
        with safetensors.safe_open(small, "np") as theirs:
            assert sorted(model.keys()) == sorted(theirs.keys())
            assert model.metadata == theirs.metadata()
            for info in model.tensors:
                assert list(info.shape) == theirs.get_slice(info.name).get_shape()
                assert info.dtype == theirs.get_slice(info.name).get_dtype()
        raw = small.read_bytes()
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        start = 8 + int.from_bytes(raw[:8], "little")
        for info in model.tensors:
            begin, end = header[info.name]["data_offsets"]
            assert (info.offset, info.nbytes, info.file) == (start + begin, end - begin, "small.safetensors")
        assert "scalar" in model and "nope" not in model and len(model) == len(model.keys()) == len(list(model))
        assert model.format == "safetensors" and model.path == str(small)
        assert model.report is None
        with pytest.raises(KeyError) as raised:
            model["nope"]
        assert isinstance(raised.value, weightlift.SafetensorError)


def test_plain_tensors_are_buffers_that_outlive_the_model(small):
    model = weightlift.open(small)
    loaded = model.load("host")
    report = model.report
    assert report["routes"] == {"host": model.nbytes} and report["schema"] == 1
    expected = safetensors.numpy.load_file(small)
    del model
    gc.collect()
    assert list(loaded) and set(loaded) == set(expected)
    for name, tensor in loaded.items():
        assert bytes(memoryview(tensor)) == expected[name].tobytes() == tensor.tobytes()
        assert tensor.shape == expected[name].shape and tensor.device == "host"
    view = memoryview(loaded.pop("float32"))
    del loaded
    gc.collect()
    assert bytes(view) == expected["float32"].tobytes()
    view[0] = 7  # ours to write


def test_some_tensors_by_name_and_pattern(small):
    model = weightlift.open(small)
    assert set(model.load("host", tensors=["uint*", "scalar"])) == {"uint8", "uint16", "uint32", "uint64", "scalar"}
    assert set(model.load("host", tensors="scalar")) == {"scalar"}
    assert model.load("host", tensors=[]) == {}
    with pytest.raises(weightlift.SafetensorError, match="nope"):
        model.load("host", tensors=["scalar", "nope"])
    odd = "odd*[name]{a,b}?\\"
    with weightlift.safe_open(small, "np") as opened:
        assert opened.get_tensor(odd).tolist() == [0, 1, 2]


def test_other_formats_and_folders(models, large):
    for path in models.values():
        assert len(weightlift.open(path)) >= 0
    assert len(weightlift.open(large)) == 16
    raw = weightlift.open(large / "model-00001-of-00002.safetensors", format="raw")
    assert [info.dtype for info in raw.tensors] == ["U8"]


ERRORS = [
    (lambda path: weightlift.open(path / "nope"), FileNotFoundError, "FileNotFound"),
    (lambda path: weightlift.open(path / "in"), weightlift.SafetensorError, None),
    (lambda path: weightlift.open(path / "bad.safetensors"), weightlift.SafetensorError, None),
    (lambda path: weightlift.open(path / "bad.safetensors"), ValueError, None),
    (lambda path: weightlift.open(path / "x", format="gguuf"), ValueError, "UnknownFormat"),
    (lambda path: weightlift.Loader(reading_threads=65), ValueError, "InvalidOption"),
    (lambda path: weightlift.Loader(no_such=1), ValueError, "InvalidOption"),
    (lambda path: weightlift.open(path / "good.safetensors").load("cuda"), RuntimeError, "NoDriver"),
    (lambda path: weightlift.open(path / "good.safetensors").load("tpu"), ValueError, "InvalidOption"),
    (lambda path: weightlift.open(path / "good.safetensors").load(True), ValueError, "InvalidOption"),
    (lambda path: weightlift.open(path / "good.safetensors").load("host", route="pinned"), ValueError, "InvalidRoute"),
    (lambda path: weightlift.open(path / "good.safetensors").load("host", framework="tf"), ValueError, "InvalidOption"),
]


@pytest.mark.parametrize(("call", "builtin", "kind"), ERRORS)
def test_errors_are_ours_and_the_fitting_built_in(tmp_path, call, builtin, kind):
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 100)
    (tmp_path / "in").mkdir()
    safetensors.numpy.save_file({"a": np.zeros(3)}, tmp_path / "good.safetensors")
    (tmp_path / "x").write_bytes(b"x")
    with pytest.raises(builtin) as raised:
        call(tmp_path)
    error = raised.value
    assert isinstance(error, weightlift.WeightliftError)
    assert kind is None or error.kind == kind
    assert str(error) and "\n" not in str(error)
    if isinstance(error, OSError):
        assert error.errno and error.filename
    # As a process pool needs it.
    assert type(pickle.loads(pickle.dumps(error))) is type(error)


def test_panics_are_exceptions():
    """Planted ones, in a build for debugging: in a load, in a load beside, and where there is no wall
    of ours and PyO3's stops it. The process goes on."""
    code = f"""
    import weightlift
    from weightlift import _native
    try:
        _native._panic("guarded")
    except weightlift.errors.InternalError as error:
        print(error.kind, error.hint)
    try:
        _native._panic("job").result()
    except weightlift.errors.InternalError as error:
        print(error.kind)
    try:
        _native._panic("elsewhere")
    except BaseException as error:
        print(type(error).__name__)
    """
    from weightlift import _native

    assert hasattr(_native, "_panic"), "the tests are for a build with debug assertions"
    status, out, err = python(code)
    assert (status, out) == (0, "Internal please report it\nInternal\nPanicException\n"), err
    assert err.count("planted") == 3


def test_every_kind_of_error_has_a_class():
    from weightlift import errors

    for kind, cls in errors._BY_KIND.items():
        made = errors._make(kind, "text", "text", {"path": "p"}, "do this", None, False)
        assert type(made) is cls and made.kind == kind and made.hint == "do this"
        assert any("do this" in note for note in made.__notes__)
    assert type(errors._make("InvalidHeader", "t", "t", {}, None, None, True)) is weightlift.SafetensorError


def test_options_and_devices(small, on_fake):
    loader = weightlift.Loader(reading_threads=3, staging_budget="64MiB", block_size=1 << 20, pin_host=False, device=1)
    assert loader.options["staging_budget"] == "64MiB" and loader.options["pin_host"] == "off"
    assert loader.options["device"] == "cuda:1"
    model = weightlift.open(small)
    for device in (0, "0", "cuda", "cuda:0"):
        loaded = model.load(device, loader=on_fake)
        assert {tensor.device for tensor in loaded.values()} == {"cuda:0"}
    with pytest.raises(weightlift.errors.InvalidDevice):
        model.load(7, loader=on_fake)
    with pytest.raises(ValueError, match="staging_budget"):
        model.load("host", staging_budget=1 << 20, loader=on_fake)
    model.load("host", staging_budget="1MiB", reading_threads=2)
    assert model.report["reading_threads"] >= 1


def test_loads_to_a_gpu_bring_the_same_bytes(small, large, on_fake):
    for path in (small, large):
        model = weightlift.open(path)
        on_host, on_gpu = model.load("host"), model.load("cuda:0", loader=on_fake)
        assert model.report["devices"] == ["cuda:0"]
        for name, tensor in on_gpu.items():
            assert tensor.digest() == on_host[name].digest(), name
            assert tensor.tobytes() == on_host[name].tobytes(), name
        with pytest.raises(BufferError):
            memoryview(next(iter(on_gpu.values())))
    assert on_fake.quarantined() == (0, 0)


def test_progress_is_told_on_the_calling_thread(large, capsys):
    told = []
    model = weightlift.open(large)
    model.load("host", progress=lambda *at: told.append((threading.get_ident(), *at)))
    assert told[-1] == (threading.get_ident(), model.nbytes, model.nbytes)
    assert [at for _, at, _ in told] == sorted(at for _, at, _ in told)
    model.load("host", progress=True)
    assert "100%" in capsys.readouterr().err

    class Mine(Exception):
        pass

    def fails(done, total):
        raise Mine

    with pytest.raises(Mine):
        model.load("host", progress=fails)
    assert len(model.load("host")) == 16, "the next one works"


def test_loads_from_several_threads(large):
    model = weightlift.open(large)
    expected = {name: tensor.digest() for name, tensor in model.load("host").items()}
    wrong = []

    def load():
        for _ in range(3):
            loaded = model.load("host")
            wrong.extend(name for name in loaded if loaded[name].digest() != expected[name])

    threads = [threading.Thread(target=load) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong


def test_other_threads_run_while_one_loads(large):
    counted = 0
    done = False

    def count():
        nonlocal counted
        while not done:
            counted += 1
            time.sleep(0.0005)

    thread = threading.Thread(target=count)
    thread.start()
    before = counted
    for _ in range(5):
        weightlift.open(large).load("host")
    during = counted - before
    done = True
    thread.join()
    assert during > 5


def test_a_hundred_loads_leave_nothing(large):
    code = f"""
    import gc, os, threading, weightlift
    def resident():
        return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    model = weightlift.open({str(large)!r})
    for round in range(100):
        loaded = model.load("host", tensors=["1.*"])
        if round == 9:
            gc.collect(); before = resident(), len(os.listdir("/proc/self/fd"))
    del loaded
    gc.collect()
    print((resident() - before[0]) / 1e6, len(os.listdir("/proc/self/fd")) - before[1], len(os.listdir("/proc/self/task")))
    """
    status, out, err = python(code)
    assert status == 0, err
    grown, files, threads = map(float, out.split())
    assert grown < 10, f"{grown} MB more"
    assert (files, threads) == (0, 1)


def slow_driver(fake_driver, milliseconds):
    return {"LD_LIBRARY_PATH": str(fake_driver.parent), "FAKE_CUDA": f"init_delay_ms={milliseconds}"}


def test_ctrl_c_stops_a_load_and_leaves_nothing(large, fake_driver):
    code = f"""
    import os, signal, threading, time, weightlift
    model = weightlift.open({str(large)!r})
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    started = time.perf_counter()
    try:
        model.load("cuda")
    except KeyboardInterrupt:
        print(time.perf_counter() - started)
    # The next one waits for the driver, and works.
    print(len(model.load("cuda")), weightlift.default_loader().quarantined())
    """
    status, out, err = python(code, **slow_driver(fake_driver, 2_000))
    assert status == 0, err
    took, left, *_ = out.split()
    assert 0.25 < float(took) < 0.8, out
    assert out.split("\n")[1] == "16 (0, 0)"


def test_a_signal_handler_that_raises_ends_the_load_with_its_exception(large, fake_driver):
    code = f"""
    import signal, weightlift
    class Mine(Exception): pass
    def handler(*_): raise Mine
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        weightlift.open({str(large)!r}).load("cuda")
    except Mine:
        print("mine")
    """
    status, out, err = python(code, **slow_driver(fake_driver, 1_500))
    assert (status, out) == (0, "mine\n"), err


@pytest.mark.parametrize(
    "environment",
    [
        # GP-02: a rank among all processes is no number of a device.
        {"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16"},
        # GP-03: what the variable may hold is the driver's to read.
        *({"CUDA_VISIBLE_DEVICES": value} for value in (
            "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "MIG-1b3a7b3c-0d2c-5e5e-9f3a-6f1a6b6f2a5c", "", "-1", "3,1", "0,0", "no"
        )),
    ],
    ids=str,
)  # fmt: skip
def test_no_device_is_derived_from_the_environment(small, fake_driver, environment):
    code = f"""
    import weightlift
    model = weightlift.open({str(small)!r})
    for device in ("cuda", "auto", 1, "1", "cuda:1"):
        print(*{{tensor.device for tensor in model.load(device).values()}}, end=" ")
    """
    fake = {**slow_driver(fake_driver, 0), "FAKE_CUDA": "devices=2"}
    assert python(code, **fake, **environment) == (0, "cuda:0 cuda:0 cuda:1 cuda:1 cuda:1 ", "")


# GP-06
def test_an_exception_that_is_kept_holds_no_memory_and_the_next_load_works(large, tmp_path):
    code = f"""
    import os, shutil, weightlift
    from pathlib import Path
    def resident():
        return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    folder = Path(shutil.copytree({str(large)!r}, {str(tmp_path / "copy")!r}))
    kept = []
    one = weightlift.Loader(reading_threads=1)
    weightlift.numpy.load_file(folder)
    before = resident()
    for framework in (None, "numpy", None):
        model = weightlift.open(folder)
        last = sorted(folder.iterdir())[-1]
        size = last.stat().st_size
        try:
            # Most of it is read by then.
            def cut(done, total):
                os.truncate(last, size - 4096)
            model.load("host", framework=framework, progress=cut, loader=one)
        except OSError as error:
            kept.append(error)
        os.truncate(last, size)
        del model
    print(len(kept), resident() - before < 30_000_000, len(weightlift.numpy.load_file({str(large)!r})))
    """
    assert python(code) == (0, "3 True 16\n", "")


# GP-05
def test_a_forked_child_loads_to_the_host_and_is_told_to_spawn(large, fake_driver):
    code = f"""
    import os, sys, weightlift
    model = weightlift.open({str(large)!r})
    before = {{}}
    if os.fork() == 0:
        # Nothing of CUDA was used yet: the child may.
        os._exit(0 if len(model.load("cuda")) == 16 and len(model.load("host")) == 16 else 1)
    assert os.wait()[1] == 0
    kept = model.load("cuda")
    host = model.load("host")
    if os.fork() == 0:
        try:
            model.load("cuda")
        except weightlift.errors.Forked as error:
            good = "spawn" in error.hint
        good = good and len(model.load("host")) == 16
        # What was the parent's is let go of without a call of the driver.
        kept.clear()
        host.clear()
        weightlift.default_loader().release()
        os._exit(0 if good and weightlift.default_loader().quarantined() == (0, 0) else 2)
    assert os.wait()[1] == 0
    assert kept["1.0"].digest() == host["1.0"].digest()
    print("well")
    """
    status, out, err = python(code, **slow_driver(fake_driver, 0))
    assert (status, out) == (0, "well\n"), err


def test_the_interpreter_ends_silently_with_tensors_alive(large, fake_driver):
    code = f"""
    import weightlift, numpy, sys
    kept = weightlift.open({str(large)!r}).load("cuda")
    host = weightlift.open({str(large)!r}).load("host")
    view = memoryview(host["1.0"])
    arrays = weightlift.numpy.load_file({str(large)!r})
    sys.modules["kept"] = (kept, host, view, arrays)
    print("end")
    """
    violations = fake_driver.parent / "violations-at-exit"
    violations.unlink(missing_ok=True)
    environment = {**slow_driver(fake_driver, 0), "FAKE_CUDA_VIOLATIONS": str(violations)}
    assert python(code, **environment) == (0, "end\n", "")
    assert not violations.exists(), violations.read_text()


def test_the_command_comes_with_the_package(small):
    run = [sys.executable, "-m", "weightlift._command"]
    done = subprocess.run([*run, "inspect", str(small), "--json"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["tensors"]) == len(weightlift.open(small))
    assert subprocess.run([*run, "load"], capture_output=True, timeout=60).returncode == 2
    # Its samples are processes of the interpreter, whose start is shown as what it is.
    words = ["bench", str(small), "--json", "--states=warm", "--samples=1", "--device=host", "--no-ceilings"]
    done = subprocess.run([*run, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (series,) = json.loads(done.stdout)["series"]
    assert series["samples"] == 1 and series["figures"]["phases"]["start"] > 0
    assert subprocess.run([*run, "load", "/nope"], capture_output=True, timeout=60).returncode == 1


def test_the_command_ends_by_a_signal_as_it_should(large, fake_driver):
    environment = {**os.environ, **slow_driver(fake_driver, 5_000)}
    run = [sys.executable, "-m", "weightlift._command", "load", str(large), "--device", "cuda"]
    process = subprocess.Popen(run, stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 130


def test_the_stubs_name_what_is_there():
    from weightlift import _native

    stub = weightlift.__file__.replace("__init__.py", "_native.pyi")
    text = open(stub).read()
    for name in dir(_native):
        if not name.startswith("_"):
            assert f"class {name}" in text or f"def {name}" in text, name
            for member in vars(getattr(_native, name)) if isinstance(getattr(_native, name), type) else ():
                if not member.startswith("_"):
                    assert f"def {member}" in text, f"{name}.{member}"
    assert os.path.exists(os.path.join(os.path.dirname(weightlift.__file__), "py.typed"))

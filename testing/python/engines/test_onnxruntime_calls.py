"""What session() takes, what it refuses, and that what it was given stays the caller's."""

import onnxruntime_models as models  # first: it skips where there is no package

import subprocess
import sys
import weakref

import numpy as np
import onnxruntime
import pytest
import weightlift
import weightlift.onnxruntime
from weightlift import _onnxruntime


def session(path, made=None, providers=models.CPU, **more):
    return weightlift.onnxruntime.session(path, made, providers=providers, **more)


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    return models.spread(models.MODELS["chain"](), tmp_path_factory.mktemp("chain"))


def test_without_the_package_and_with_an_old_one(chain, monkeypatch):
    text = (
        "import sys; sys.modules['onnxruntime'] = None; import weightlift.onnxruntime as ours\n"
        "try:\n    ours.session(sys.argv[1])\nexcept ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", text, str(chain)], capture_output=True, text=True, check=True)
    assert "needs the package onnxruntime, 1.31 or newer: pip install" in done.stdout
    done = subprocess.run(
        [sys.executable, "-c", "import weightlift.onnxruntime, sys; sys.exit('onnxruntime' in sys.modules)"], check=True
    )
    for version in ("1.30.0", "1.9.2", "strange"):
        monkeypatch.setattr(onnxruntime, "__version__", version)
        with pytest.raises(ImportError, match=f"1.31 or newer, and {version} is installed"):
            session(chain)
    monkeypatch.setattr(onnxruntime, "__version__", "2.0.0rc1")
    session(chain)


def test_options_stay_the_callers(chain, tmp_path):
    made = models.options("ORT_ENABLE_BASIC", prepacking=False)
    made.add_session_config_entry("session.intra_op.allow_spinning", "0")
    made.intra_op_num_threads = 1
    made.log_severity_level = 3
    first = session(chain, made)
    # Other weights under the same names.
    model = models.MODELS["chain"]()
    for tensor in model.graph.initializer:
        tensor.raw_data = bytes(len(tensor.raw_data))
    second = session(models.spread(model, tmp_path), made)
    inputs, expected = models.own_answer(models.MODELS["chain"](), made)
    models.same(first.run(None, inputs), expected)
    assert not second.run(None, inputs)[0].any()
    for options in (made, first.get_session_options(), second.get_session_options()):
        assert options.get_session_config_entry("session.disable_prepacking") == "1"
        assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
        assert options.intra_op_num_threads == 1
        assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        with pytest.raises(RuntimeError):
            options.get_session_config_entry("session.use_external_initializer_file_buffers_directly")
        # They know nothing of our memory.
        other = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=models.CPU)
        assert not other.run(None, inputs)[0].any()


def test_options_by_a_function_and_profiles(chain, tmp_path):
    calls = []

    def make():
        calls.append(models.options())
        return calls[-1]

    ours = session(chain, make)
    assert calls and isinstance(ours, onnxruntime.InferenceSession)
    made = models.options()
    made.enable_profiling = True
    made.profile_file_prefix = str(tmp_path / "profile")
    ours = session(chain, made)
    assert made.enable_profiling
    profile = ours.end_profiling()
    assert [str(path) for path in tmp_path.iterdir()] == [profile]


def test_other_providers_later(chain, monkeypatch):
    inputs, expected = models.own_answer(models.MODELS["chain"](), models.options())
    ours = session(chain, models.options())
    before = ours.weightlift_report
    gone = weakref.ref(ours._sess)
    making = _onnxruntime._Making.__init__

    def looked(*arguments):
        assert gone() is None, "two sessions at once"
        making(*arguments)

    monkeypatch.setattr(_onnxruntime._Making, "__init__", looked)
    ours.set_providers(models.CPU)
    models.same(ours.run(None, inputs), expected)
    assert ours.weightlift_report is not before
    assert ours.weightlift_report["in_place"] == before["in_place"]
    # Without any said: what there is.
    ours = weightlift.onnxruntime.session(chain, models.options())
    models.same(ours.run(None, inputs), expected)
    assert ours.weightlift_report["device"] == "host"


def test_a_provider_that_is_not_there(chain):
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"):
        ours = session(chain, providers=[("CUDAExecutionProvider", {"device_id": 0}), "CPUExecutionProvider"])
    assert ours.weightlift_report["device"] == "host"


def test_which_device():
    cuda = "CUDAExecutionProvider"
    if cuda not in onnxruntime.get_available_providers():
        assert _onnxruntime._device([cuda], None) == "host"
    available = [cuda, "CPUExecutionProvider"]
    real = onnxruntime.get_available_providers
    try:
        onnxruntime.get_available_providers = lambda: available
        assert _onnxruntime._device([cuda, *models.CPU], None) == "cuda:0"
        assert _onnxruntime._device([(cuda, {"device_id": "1"})], None) == "cuda:1"
        assert _onnxruntime._device(["X", cuda], [{}, {"device_id": 2}]) == "cuda:2"
        assert _onnxruntime._device(models.CPU, None) == "host"
    finally:
        onnxruntime.get_available_providers = real


def test_refusals(chain, tmp_path):
    with pytest.raises(weightlift.errors.FileNotFound):
        session(tmp_path / "none.onnx")
    with pytest.raises(TypeError, match="no option 'device'"):
        session(chain, device="cuda")
    import safetensors.numpy

    safetensors.numpy.save_file({"a": np.zeros(3)}, tmp_path / "a.safetensors")
    with pytest.raises(weightlift.errors.FormatError, match="safetensors"):
        session(tmp_path / "a.safetensors")
    made = models.options()
    made.add_provider("CPUExecutionProvider", {}) if hasattr(made, "add_provider") else None
    if made.has_providers():
        with pytest.raises(weightlift.errors.InvalidOption, match="providers are given to session"):
            session(chain, made)
    path = models.spread(models.MODELS["chain"](), tmp_path / "missing")
    (path.parent / "weights.bin").unlink()
    with pytest.raises(weightlift.WeightliftError, match="weights.bin") as raised:
        session(path)
    assert raised.value.kind == "MissingWeights"


def test_files_that_change_meanwhile(tmp_path):
    model = models.MODELS["chain"]()
    path = models.spread(model, tmp_path)
    opened = weightlift.open(path)
    (tmp_path / "weights.bin").write_bytes((tmp_path / "weights.bin").read_bytes()[::-1])
    with pytest.raises(weightlift.errors.Changed):
        session(opened)
    # While it is loaded: each file is looked at again when the session is there.
    path = models.spread(model, tmp_path / "later")

    def meanwhile(done, total):
        if done == total:
            with open(tmp_path / "later" / "weights.bin", "ab") as file:
                file.write(b"more")

    with pytest.raises(weightlift.errors.Changed):
        session(path, progress=meanwhile)
    # The model is another, with the same weights' names.
    path = models.spread(model, tmp_path / "model")
    opened = weightlift.open(path)
    path.write_bytes(path.read_bytes() + b"")
    with pytest.raises(weightlift.errors.Changed):
        session(opened)


def test_the_report(chain):
    ours = session(chain, models.options(prepacking=False))
    report = ours.weightlift_report
    assert report["onnxruntime"] == onnxruntime.__version__
    assert report["providers"] == ours.get_providers() and report["device"] == "host"
    assert report["host"]["B"] == "it is smaller than 64 KiB"
    assert report["load"]["bytes"]["delivered"] == report["bytes"] + report["given_back"]
    assert report["seconds"]["total"] >= report["seconds"]["load"] > 0

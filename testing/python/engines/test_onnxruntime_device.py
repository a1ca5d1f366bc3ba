"""Weights on a device, where there is no GPU: the fake driver has them, and an ONNX Runtime without CUDA wants
none of them. What it did not want is given back, and comes from the host."""

import onnxruntime_models as models  # first: it skips where there is no package

import ctypes
import os
from pathlib import Path

import onnxruntime
import pytest
import weightlift
import weightlift.onnxruntime

CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]


@pytest.fixture
def fake(monkeypatch):
    """A loader with the fake driver, the driver, and an ONNX Runtime that says that it knows CUDA."""
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA, and would look for a real device")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: CUDA)
    library = Path(os.environ["WEIGHTLIFT_FAKE_CUDA"]) / "libcuda.so.1"
    loader = weightlift.Loader(driver=library)
    yield loader, ctypes.CDLL(str(library))
    loader.release()


def live(driver):
    """What the driver has given out: allocations, streams, events, registrations, contexts."""
    numbers = (ctypes.c_uint64 * 5)()
    driver.fake_cuda_live(numbers)
    return list(numbers)


@pytest.mark.filterwarnings("ignore:Specified provider")
@pytest.mark.parametrize("name", models.MODELS)
def test_what_a_session_does_not_want(name, fake, tmp_path):
    loader, driver = fake
    before = live(driver)
    model = models.MODELS[name]()
    for level in models.LEVELS:
        path = models.spread(model, tmp_path / level)
        made = models.options(level)
        inputs, expected = models.own_answer(model, made)
        ours = weightlift.onnxruntime.session(path, made, providers=CUDA, loader=loader)
        report = ours.weightlift_report
        assert report["device"] == "cuda:0" and report["in_place"] == {} and report["bytes"] == 0
        assert report["load"] is None or report["load"]["devices"] == ["cuda:0"]
        assert report["given_back"] == (report["load"]["bytes"]["delivered"] if report["load"] else 0)
        (path.parent / "weights.bin").write_bytes(b"")
        models.same(ours.run(None, inputs), expected)
    loader.release()
    assert loader.quarantined() == (0, 0)
    assert live(driver) == before


def test_a_device_that_is_not_there(fake, tmp_path):
    path = models.spread(models.MODELS["chain"](), tmp_path)
    nothing = weightlift.Loader(driver=tmp_path / "no-driver.so")
    with pytest.raises(weightlift.errors.NoDriver):
        weightlift.onnxruntime.session(path, providers=CUDA, loader=nothing)
    # Nobody asked for CUDA.
    ours = weightlift.onnxruntime.session(path, models.options(), loader=nothing)
    assert ours.weightlift_report["device"] == "host"
    with pytest.raises(weightlift.errors.InvalidDevice):
        providers = [(CUDA[0], {"device_id": 7}), CUDA[1]]
        weightlift.onnxruntime.session(path, providers=providers, loader=fake[0])

"""What the tests of the Python package share."""

import os
import sys
from pathlib import Path

import pytest

if sys.version_info < (3, 11):
    collect_ignore_glob = ["test_*.py"]


def pytest_collect_file(file_path, parent):
    if file_path.name == "test_open.py" and sys.version_info < (3, 11):
        pytest.skip("the package is for Python 3.11 and later", allow_module_level=True)


@pytest.fixture(scope="session")
def fake_driver():
    """The CUDA driver for tests, as a library that a loader can be given."""
    return Path(os.environ["WEIGHTLIFT_FAKE_CUDA"]) / "libcuda.so.1"


@pytest.fixture
def on_fake(fake_driver):
    """A loader whose GPU is the fake one."""
    import weightlift

    loader = weightlift.Loader(driver=fake_driver)
    yield loader
    loader.release()


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """A safetensors file of every type that numpy has, with a scalar and an empty tensor."""
    return write_small(tmp_path_factory.mktemp("small") / "small.safetensors")


def write_small(path):
    import ml_dtypes
    import numpy as np
    from safetensors.numpy import save_file

    random = np.random.default_rng(7)
    names = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"]
    tensors = {name: random.integers(0, 2, (3, 5)).astype(name) for name in names}
    tensors["complex64"] = (random.random(4) + 1j).astype(np.complex64)
    tensors["bfloat16"] = random.random((2, 3)).astype(ml_dtypes.bfloat16)
    tensors["scalar"] = np.array(3.25, np.float32)
    tensors["empty"] = np.zeros((0, 4), np.float32)
    tensors["odd*[name]{a,b}?\\"] = np.arange(3, dtype=np.int16)
    save_file(tensors, path, metadata={"format": "np", "word": "ä"})
    return path


@pytest.fixture(scope="session")
def large(tmp_path_factory):
    """A folder of two shards, 64 MB."""
    import numpy as np
    from safetensors.numpy import save_file

    folder = tmp_path_factory.mktemp("large")
    random = np.random.default_rng(8)
    for shard in (1, 2):
        tensors = {f"{shard}.{number}": random.random((1000, 1000), np.float32) for number in range(8)}
        save_file(tensors, folder / f"model-{shard:05}-of-00002.safetensors")
    return folder

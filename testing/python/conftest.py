"""What the tests share: the command under test and files to load."""

import os
from pathlib import Path

import pytest

import files
from command import Command

NEEDED = {
    "WEIGHTLIFT_BIN": "the command weightlift",
    "WEIGHTLIFT_FAKE_CUDA": "the folder of the fake libcuda.so.1",
}


def pytest_configure(config):
    """Without the command nothing would be tested: that is a failure, not a skip."""
    for variable, what in NEEDED.items():
        value = os.environ.get(variable)
        if not value or not Path(value).exists():
            raise pytest.UsageError(
                f"{variable} must name {what} and is {value!r}; "
                "`cargo xtask test` builds both and sets the variables"
            )
    library = Path(os.environ["WEIGHTLIFT_FAKE_CUDA"]) / "libcuda.so.1"
    if not library.is_file():
        raise pytest.UsageError(f"{library} is missing; `cargo xtask fake-cuda` builds it")


@pytest.fixture(scope="session")
def weightlift():
    return Command(Path(os.environ["WEIGHTLIFT_BIN"]), Path(os.environ["WEIGHTLIFT_FAKE_CUDA"]))


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """The generated models by name, each a file or a folder."""
    return files.write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def minilm():
    return files.minilm()

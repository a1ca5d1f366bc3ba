"""The safetensors project's own tests of reading, with weightlift in its place."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest


def test_safetensors_own_tests_of_reading_pass():
    for needed in ("torch", "jax", "flax"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is installed by cargo xtask test --torch")
    script = Path(__file__).with_name("safetensors_own_tests.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=600)
    print(done.stdout[-6000:], done.stderr[-2000:])
    assert done.returncode == 0
    assert " 0 failed" in done.stdout.splitlines()[-1]

"""Runs the safetensors project's own tests with weightlift in its place.

    python safetensors_own_tests.py [--source FOLDER]

They come from the source distribution of the safetensors that is installed, fetched by pip unless
FOLDER holds it. Everything that reads is weightlift's then: ``safetensors.safe_open``,
``SafetensorError``, and ``load_file`` and ``load`` of its modules for numpy, torch and flax. Writing
stays theirs. Prints what ran, what passed and what was left out, with the reason for each; the exit
status is 1 if one failed or a reason was not needed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

import pytest

WRITES = "writes only"
PRIVATE = "private to safetensors"
# Tests by their node ids, from the folder of tests on; whole files and classes too.
LEFT_OUT = {
    "test_simple.py::TestCase::test_serialization": WRITES,
    "test_simple.py::TestCase::test_serialization_order_invariant": WRITES,
    "test_simple.py::TestCase::test_serialization_forces_alignment": WRITES,
    "test_simple.py::TestCase::test_serialization_metadata": WRITES,
    "test_simple.py::TestCase::test_serialization_no_big_endian": WRITES,
    "test_simple.py::TestCase::test_pt_sf_save_model_overlapping_storage": PRIVATE,
    "test_simple.py::ReadmeTestCase::test_exception": WRITES,
    "test_handle.py": PRIVATE,
    "test_pt_comparison.py::TorchTestCase::test_disjoint_tensors_shared_storage": WRITES,
    "test_pt_comparison.py::TorchTestCase::test_meta_tensor": WRITES,
    "test_pt_comparison.py::TorchTestCase::test_sparse": WRITES,
    "test_pt_comparison.py::TorchTestCase::test_bogus": WRITES,
    "test_pt_comparison.py::SliceTestCase::test_cannot_serialize_a_non_contiguous_tensor": WRITES,
    "test_pt_comparison.py::SliceTestCase::test_cannot_serialize_shared": WRITES,
}
# Files for frameworks that weightlift has no module for.
OTHER_FRAMEWORKS = {"test_tf_comparison.py": "tensorflow", "test_paddle_comparison.py": "paddle", "test_mlx_comparison.py": "mlx"}


def put_in_place() -> None:
    """From here on safetensors reads by weightlift."""
    import safetensors

    import weightlift

    safetensors.safe_open = weightlift.safe_open
    safetensors.SafetensorError = weightlift.SafetensorError
    for theirs, ours in (("numpy", "numpy"), ("torch", "torch"), ("flax", "jax")):
        try:
            their_module = __import__(f"safetensors.{theirs}", fromlist=["_"])
            our_module = __import__(f"weightlift.{ours}", fromlist=["_"])
        except ImportError as error:
            print(f"safetensors.{theirs} stays: {error}")
            continue
        their_module.safe_open = weightlift.safe_open
        their_module.load = our_module.load
        their_module.load_file = our_module.load_file


class Plugin:
    """Leaves tests out, counts the others."""

    def __init__(self) -> None:
        self.left_out: dict[str, str] = {}
        self.results: dict[str, str] = {}
        self.used: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        kept = []
        for item in items:
            parts = item.nodeid.removeprefix("tests/").split("::")
            prefixes = ["::".join(parts[:count]) for count in range(1, len(parts) + 1)]
            found = next((prefix for prefix in prefixes if prefix in LEFT_OUT), None)
            if found is None:
                kept.append(item)
            else:
                self.used.add(found)
                self.left_out[item.nodeid] = LEFT_OUT[found]
        items[:] = kept

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            outcome = report.outcome
            if outcome == "skipped" and isinstance(report.longrepr, tuple):
                outcome = f"skipped by itself: {report.longrepr[2]}"
            self.results.setdefault(report.nodeid, outcome)


def source(folder: str) -> pathlib.Path:
    version = importlib.metadata.version("safetensors")
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*fetch, "--no-binary", "safetensors", "--dest", folder, f"safetensors=={version}"], check=True)
    (archive,) = pathlib.Path(folder).glob("safetensors-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return pathlib.Path(folder) / f"safetensors-{version}"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", type=pathlib.Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = arguments.source or source(folder)
        python = root / "bindings" / "python"
        put_in_place()
        files = sorted(path.name for path in python.glob("tests/test_*.py") if path.name not in OTHER_FRAMEWORKS)
        plugin = Plugin()
        # Where their tests expect to be started.
        os.chdir(python)
        arguments = ["-q", "-p", "no:cacheprovider", "--rootdir", ".", *(f"tests/{file}" for file in files)]
        ended = pytest.main(arguments, plugins=[plugin])
    print()
    for name, framework in OTHER_FRAMEWORKS.items():
        print(f"left out: {name} ({framework}, for which weightlift has no module)")
    for name, reason in plugin.left_out.items():
        print(f"left out: {name} ({reason})")
    for name, outcome in plugin.results.items():
        if outcome.startswith("skipped"):
            print(f"{outcome}: {name}")
    unused = sorted(set(LEFT_OUT) - plugin.used)
    if unused:
        print(f"to be left out, but not there: {', '.join(unused)}")
    passed = sum(outcome == "passed" for outcome in plugin.results.values())
    failed = sum(outcome == "failed" for outcome in plugin.results.values())
    skipped = len(plugin.results) - passed - failed
    print(
        f"safetensors' own tests: {len(plugin.results) + len(plugin.left_out)} there, {passed} passed, {failed} failed, "
        f"{skipped} skipped by themselves, {len(plugin.left_out)} left out and {len(OTHER_FRAMEWORKS)} files"
    )
    return 1 if failed or unused or not passed or ended not in (0, 1) else 0


if __name__ == "__main__":
    sys.exit(main())

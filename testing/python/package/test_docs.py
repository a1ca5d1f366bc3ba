"""The examples of docs/python.md and of the README, as they stand there."""

import re
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    random = np.random.default_rng(5)
    tensors = {f"layers.{n}.weight": random.random((64, 32)).astype(np.float32) for n in range(4)}
    tensors["embed"] = random.random((100, 16)).astype(np.float32)
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "llama").mkdir()
    names = sorted(tensors)
    for number, part in enumerate((names[:2], names[2:]), 1):
        path = tmp_path / "llama" / f"model-{number:05}-of-00002.safetensors"
        safetensors.numpy.save_file({name: tensors[name] for name in part}, path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", ["docs/python.md", "README.md"])
def test_examples_run(page, folder, capsys):
    torch = pytest.importorskip("torch", reason="torch is installed by cargo xtask test --torch")
    torch.save({"weight": torch.randn(4, 8), "bias": torch.randn(4)}, folder / "checkpoint.pt")
    examples = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert examples
    names = {}
    for example in examples:
        exec(compile(example, page, "exec"), names)

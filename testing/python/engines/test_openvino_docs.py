"""The examples of docs/openvino.md, as they stand there."""

import openvino_runs as runs  # first: it skips where there is no package

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/openvino.md"


def test_examples_run(tmp_path, monkeypatch):
    runs.write(runs.matrices([300, 200]), tmp_path / "model.xml")
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == 3
    names = {}
    for example in examples:
        exec(compile(example, PAGE.name, "exec"), names)
    assert names["results"][0].shape == (1, 200)

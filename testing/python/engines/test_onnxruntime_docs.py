"""The examples of docs/onnxruntime.md, as they stand there."""

import onnxruntime_models as models  # first: it skips where there is no package

import re
from pathlib import Path

import onnx

ROOT = Path(__file__).parents[3]


def test_examples_run(tmp_path, monkeypatch, capsys):
    weights = {f"W{n}": models.weight(n, 256, 256) for n in range(3)} | {"B": models.weight(4, 256)}
    nodes = [
        models.node("MatMul", "x W0", "a"),
        models.node("Add", "a B", "b"),
        models.node("MatMul", "b W1", "c"),
        models.node("MatMul", "c W2", "y"),
    ]
    model = models.build(nodes, weights, [models.value("x", 1, 256)], [models.value("y", 1, 256)])
    monkeypatch.chdir(tmp_path)
    onnx.save(model, "model.onnx", save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "docs/onnxruntime.md").read_text(), re.DOTALL)
    assert len(examples) == 2
    names = {}
    for example in examples:
        exec(compile(example, "docs/onnxruntime.md", "exec"), names)
    printed = capsys.readouterr().out
    assert f"{3 * 256 * 256 * 4} bytes are used in place, those of ['W0', 'W1', 'W2']" in printed
    assert "B came from the host: it is smaller than 64 KiB" in printed
    assert names["outputs"][0].shape == (1, 256)

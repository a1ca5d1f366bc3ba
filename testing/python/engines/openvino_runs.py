"""Runs OpenVINO's models on the same noise each time, and models to run."""

import sys
from pathlib import Path

import numpy as np
import pytest

if sys.version_info < (3, 11):
    pytest.skip("the package is for Python 3.11 and later", allow_module_level=True)

import openvino as ov
from openvino import opset13 as op

import onnx_models
import openvino_models

# Dimensions that a model leaves open, in their order, and numbers that must mean something.
OPEN = {
    "magika/models/standard_v3_3/model.onnx": {"bytes": (1,)},
    "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx": {"x": (1, 48, 192)},
    "rapidocr/models/PP-OCRv6_det_small.onnx": {"x": (1, 64, 64)},
    "rapidocr/models/PP-OCRv6_rec_small.onnx": {"x": (1, 160)},
    "silero_vad/data/silero_vad_16k_sequence.onnx": {"input": (1,)},
    "silero_vad/data/silero_vad_op18_ifless.onnx": {"input": (1, 512), "state": (1,), "sr": 16000},
    "silero_vad/data/silero_vad_openvino_16k.onnx": {},
}


def convert(name: str) -> ov.Model:
    """A real model out of a package, with no dimension left open."""
    model = ov.convert_model(onnx_models.real_models()[name])
    shapes = {}
    for port in model.inputs:
        given = OPEN[name].get(port.get_any_name(), ())
        left = iter(given if isinstance(given, tuple) else ())
        shape = port.get_partial_shape()
        shapes[port] = [next(left) if d.is_dynamic else d.get_length() for d in shape]
    model.reshape(shapes)
    return model


def feed(compiled, name=None):
    """Noise for every input; what `OPEN` has numbers for is these."""
    random = np.random.default_rng(11)
    values = {}
    for port in compiled.inputs:
        given = OPEN.get(name, {}).get(port.get_any_name()) if port.get_names() else None
        kind = port.get_element_type().to_dtype()
        if isinstance(given, int):
            values[port] = np.array(given, kind)
        elif np.issubdtype(kind, np.floating):
            values[port] = random.standard_normal(list(port.get_shape())).astype(kind)
        else:
            values[port] = random.integers(0, 100, list(port.get_shape())).astype(kind)
    return values


def run(compiled, name=None):
    """The bytes of all outputs."""
    results = compiled(feed(compiled, name))
    return [np.array(results[port]).tobytes() for port in compiled.outputs]


def constants(model):
    """What `openvino_models.read` says of the constants of a model that is read."""
    return list(openvino_models._constants(model))


def matrices(sizes, seed=1, batch=1) -> ov.Model:
    """Linear layers, one after the other, as PyTorch has them: `sizes` are how many numbers go in, go
    on, and come out. With a `batch` of -1 it is open, and the CPU plugin does not make its own form
    of the weights before the first inference."""
    random = np.random.default_rng(seed)
    x = op.parameter([batch, sizes[0]], np.float32, name="x")
    y = x
    for inputs, outputs in zip(sizes, sizes[1:]):
        weights = random.standard_normal((outputs, inputs), np.float32) / np.float32(inputs) ** 0.5
        y = op.tanh(op.matmul(y, op.constant(weights), False, True))
    return ov.Model([op.result(y)], [x], "matrices")


def write(model, path: Path) -> Path:
    ov.save_model(model, path, compress_to_fp16=False)
    return path


def exported(compiled) -> bytes:
    blob = compiled.export_model()
    return blob if isinstance(blob, bytes) else blob.getvalue()

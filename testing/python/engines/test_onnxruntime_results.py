"""Sessions on weights that weightlift loaded answer what ONNX Runtime's own do, to the bit."""

import onnxruntime_models as models  # first: it skips where there is no package

import shutil

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest
import weightlift
import weightlift.onnxruntime
from onnx import TensorProto
from weightlift import _onnx, _onnxruntime

LAYOUTS = {
    "dense": {},
    "one file each": {"files": tuple(f"{n}.bin" for n in range(12))},
    "odd": {"gap": 3},
    "pages": {"gap": 4096, "length": False},
    "folders": {"files": ("./a/w.bin", "b.bin")},
    "small inside": {"least": 1000},
}


def session(path, made=None, **more):
    return weightlift.onnxruntime.session(path, made, providers=models.CPU, **more)


@pytest.mark.parametrize("name", models.MODELS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_generated_models_at_every_level(name, layout, tmp_path):
    model = models.MODELS[name]()
    path = models.spread(model, tmp_path, **LAYOUTS[layout])
    for level in models.LEVELS:
        for prepacking in (False, True):
            made = models.options(level, prepacking)
            inputs, expected = models.own_answer(model, made)
            ours = session(path, made)
            models.same(ours.run(None, inputs), expected)
            report = ours.weightlift_report
            known = {each.name for each in model.graph.initializer}
            assert set(report["in_place"]) | set(report["host"]) == known
            assert not set(report["in_place"]) & set(report["host"])
            assert report["bytes"] == sum(report["in_place"].values())
            if name == "chain" and not prepacking:
                # Of W3 an optimizer takes constant rows.
                large = {"W0", "W1", "W2", *(["W3"] if level == "ORT_DISABLE_ALL" else [])}
                assert set(report["in_place"]) == large, (level, report["host"])


@pytest.mark.parametrize("name", models.real())
@pytest.mark.parametrize("writer", ["onnx", "onnx-ir"])
def test_real_models(name, writer, tmp_path):
    path = tmp_path / "model.onnx"
    model = onnx.load(models.real()[name])
    if writer == "onnx":
        onnx.save(model, path, save_as_external_data=True, location="w.data", size_threshold=0, convert_attribute=True)
    else:
        onnx_ir.save(onnx_ir.from_proto(model), path, external_data="w.data", size_threshold_bytes=0)
    model = onnx.load(models.real()[name])
    for level in models.LEVELS:
        made = models.options(level)
        inputs, expected = models.own_answer(model, made)
        models.same(session(path, made).run(None, inputs), expected)


def test_a_weight_that_an_optimizer_changes_under_its_name_is_noticed(tmp_path, monkeypatch):
    """Even where nobody knows of the operator: the bytes that it was made from were read."""
    model = models.moved()
    path = models.spread(model, tmp_path, gap=70_000)
    made = models.options("ORT_ENABLE_ALL", prepacking=False)
    inputs, expected = models.own_answer(model, made)
    known = {b"Add", b"Mul", b"Where"}
    monkeypatch.setattr(_onnx, "_CARRIES", _onnx._CARRIES | known)
    ours = session(path, made)
    models.same(ours.run(None, inputs), expected)
    report = ours.weightlift_report
    assert set(report["in_place"]) == {"M"}
    assert "it was read while the session was made" in report["host"]["W"]
    assert "it was read while the session was made" in report["host"]["Q"]
    assert report["given_back"] >= 2 * models.SIZE**2 * 4
    # At the level at which nothing is moved it is in place.
    ours = session(path, models.options("ORT_DISABLE_ALL", prepacking=False))
    assert set(ours.weightlift_report["in_place"]) == {"M", "W", "Q"}
    # And this is what would come out without the second look.
    monkeypatch.setattr(_onnxruntime._Making, "_changed", lambda *_: [])
    with pytest.raises(AssertionError):
        models.same(session(path, made).run(None, inputs), expected)


def test_the_second_look_alone(tmp_path, monkeypatch):
    """Whatever its users are, every weight is handed over: what optimizers did to it is noticed by what they read."""
    monkeypatch.setattr(_onnx.Graph, "changers", lambda self, name: set())
    noticed = 0
    graphs = {name: make() for name, make in models.MODELS.items()} | {str(n): models.random_squares(n) for n in range(16)}
    for name, model in graphs.items():
        path = models.spread(model, tmp_path / name, gap=len(name) % 3 * 4)
        for level in models.LEVELS:
            made = models.options(level, prepacking=False)
            inputs, expected = models.own_answer(model, made)
            ours = session(path, made)
            models.same(ours.run(None, inputs), expected)
            noticed += any("it was read" in why for why in ours.weightlift_report["host"].values())
    assert noticed > 5


def test_shared_and_overlapping_ranges(tmp_path):
    square = models.SIZE**2 * 4
    data = models.weight(3, models.SIZE * 2 + 1, models.SIZE).tobytes()
    names = {"A": 0, "B": 0, "C": 4 * 96, "D": square, "E": square + 4}
    weights = {
        name: np.frombuffer(data[at : at + square], np.float32).reshape(models.SIZE, models.SIZE)
        for name, at in names.items()
    }
    nodes = [models.node("MatMul", f"{'x' if n == 0 else n} {name}", "y" if n == 4 else f"{n + 1}") for n, name in enumerate(names)]
    model = models.build(nodes, weights)
    inputs, alone = models.own_answer(model, models.options(prepacking=False))
    packed = models.own_answer(model, models.options())[1]
    for each in model.graph.initializer:
        each.ClearField("raw_data")
        each.data_location = TensorProto.EXTERNAL
        for key, entry in {"location": "w.bin", "offset": names[each.name], "length": square}.items():
            each.external_data.add(key=key, value=str(entry))
    (tmp_path / "w.bin").write_bytes(data)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    for prepacking, expected in ((True, packed), (False, alone)):
        ours = session(tmp_path / "model.onnx", models.options(prepacking=prepacking))
        models.same(ours.run(None, inputs), expected)
    assert {"A", "B"} <= set(ours.weightlift_report["in_place"])
    assert "begins at no multiple" in ours.weightlift_report["host"]["E"]
    # All of them overlap: it is one range, which is loaded once.
    assert ours.weightlift_report["bytes"] == 2 * square + 4 == ours.weightlift_report["load"]["bytes"]["delivered"]
    assert ours.weightlift_report["given_back"] == 0


def test_names_of_branches_that_are_also_the_main_graphs(tmp_path):
    """ONNX Runtime takes a tensor that it is given for every initializer of that name."""
    f32 = TensorProto.FLOAT

    def branch(name, seed):
        return onnx.helper.make_graph(
            [models.node("MatMul", "a W", name)], name, [], [onnx.helper.make_tensor_value_info(name, f32, None)],
            models.initializers({"W": models.weight(seed, models.SIZE, models.SIZE)}),
        )  # fmt: skip

    model = models.build(
        [
            models.node("MatMul", "x W", "a"),
            models.node("ReduceSum", "x", "sum", keepdims=0),
            models.node("Cast", "sum", "is", to=TensorProto.BOOL),
            models.node("If", "is", "y", then_branch=branch("then", 2), else_branch=branch("else", 3)),
        ],
        {"W": models.weight(1, models.SIZE, models.SIZE)},
    )
    path = models.spread(model, tmp_path)
    for level in models.LEVELS:
        made = models.options(level, prepacking=False)
        inputs, expected = models.own_answer(model, made)
        ours = session(path, made)
        models.same(ours.run(None, inputs), expected)
        assert "a subgraph" in ours.weightlift_report["host"]["W"]


def test_the_hubs_cache(tmp_path):
    """Links into a folder of blobs, which ONNX Runtime itself takes only for tensors of the main graph."""
    for name in ("chain", "branches"):
        model = models.MODELS[name]()
        plain = models.spread(model, tmp_path / name / "plain")
        repository = tmp_path / name / "models--some--model"
        blobs, snapshot = repository / "blobs", repository / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
        blobs.mkdir(parents=True)
        snapshot.mkdir(parents=True)
        for number, file in enumerate(("model.onnx", "weights.bin")):
            blob = blobs / f"{number:064x}"
            shutil.move(plain.parent / file, blob)
            (snapshot / file).symlink_to(f"../../blobs/{blob.name}")
        inputs, expected = models.own_answer(model, models.options())
        models.same(session(snapshot / "model.onnx", models.options()).run(None, inputs), expected)


def test_files_elsewhere_and_models_that_are_open(tmp_path):
    model = models.MODELS["chain"]()
    path = models.spread(model, tmp_path / "here")
    (tmp_path / "there").mkdir()
    shutil.move(path.parent / "weights.bin", tmp_path / "there" / "weights.bin")
    opened = weightlift.open(path, search_dirs=[tmp_path / "there"])
    inputs, expected = models.own_answer(model, models.options())
    seen = []
    ours = session(opened, models.options(), progress=lambda done, total: seen.append((done, total)), reading_threads=2)
    models.same(ours.run(None, inputs), expected)
    assert seen[-1][0] == seen[-1][1] == opened.report["bytes"]["planned"]


def test_weights_that_are_in_the_model(tmp_path):
    model = models.MODELS["chain"]()
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    for prepacking in (True, False):
        made = models.options(prepacking=prepacking)
        inputs, expected = models.own_answer(model, made)
        ours = session(tmp_path / "model.onnx", made)
        models.same(ours.run(None, inputs), expected)
    assert {"W0", "W1", "W2"} <= set(ours.weightlift_report["in_place"])
    (tmp_path / "model.onnx").write_bytes(b"")
    models.same(ours.run(None, inputs), expected)


def test_moving_data_into_a_model_is_what_onnx_does(tmp_path):
    model = models.branches()
    path = models.spread(model, tmp_path)
    data = path.read_bytes()

    def fetch(location, offset, length):
        return (tmp_path / location).read_bytes()[offset : offset + length]

    ours, count = _onnx.with_inner_data(data, fetch)
    expected = onnx.ModelProto.FromString(data)
    inner = list(models.tensors(expected))[len(expected.graph.initializer) :]
    assert count == len(inner) > 5  # without small ones of the main graph
    for tensor in inner:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        tensor.raw_data = fetch(entries["location"], int(entries["offset"]), int(entries["length"]))
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
    assert onnx.ModelProto.FromString(ours) == expected
    # What has none stays as it is.
    assert _onnx.with_inner_data(ours, None) == (ours, 0)


def test_a_large_weight_that_is_not_handed_over(tmp_path):
    """It is read by several threads, page by page in its place."""
    side = 4500  # 81 MB: several reads for several threads, none of which ends with a page
    weights = {"A": models.weight(1, side, side), "B": models.weight(2, 3)}
    nodes = [models.node("Add", "x A", "a"), models.node("ReduceSum", "a", "b", keepdims=0), models.node("Add", "b B", "y")]
    model = models.build(nodes, weights, [models.value("x", 1, side)], [models.value("y", 3)])
    for gap in (0, 4097):
        path = models.spread(model, tmp_path / str(gap), gap=gap)
        inputs, expected = models.own_answer(model, models.options())
        ours = session(path, models.options())
        (path.parent / "weights.bin").write_bytes(b"")
        models.same(ours.run(None, inputs), expected)
        assert not ours.weightlift_report["in_place"]


@pytest.mark.parametrize("name", [*_onnxruntime.BYTES, "BOOL", "F8_E4M3", "U4"])
def test_types(name, tmp_path):
    """Those that are handed over are taken for what they are; the others come from the host."""
    number, _ = next((n, each) for n, each in enumerate(_onnx._TYPES, 1) if each[0] == name)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(number)
    array = (np.arange(400 * 600) % 7).reshape(400, 600).astype(dtype)
    gather = onnx.helper.make_node("Gather", ["W", "rows"], ["g"])
    nodes = [gather, onnx.helper.make_node("Cast", ["g"], ["y"], to=TensorProto.FLOAT)]
    if name == "U4":
        nodes = [models.node("DequantizeLinear", "W s", "w"), models.node("Gather", "w rows", "y")]
    if name == "F8_E4M3":
        nodes = [models.node("Cast", "W", "w", to=TensorProto.FLOAT), models.node("Gather", "w rows", "y")]
    weights = {"W": array} | ({"s": np.float32(1)} if name == "U4" else {})
    model = models.build(nodes, weights, [models.value("rows", 3, number=7)], [models.value("y", 3, 600)])
    path = models.spread(model, tmp_path)
    made = models.options(prepacking=False)
    inputs, expected = models.own_answer(model, made)
    ours = session(path, made)
    models.same(ours.run(None, inputs), expected)
    assert (set(ours.weightlift_report["in_place"]) == {"W"}) == (name in _onnxruntime.BYTES)

"""torch: the same tensors as safetensors', on the CPU; tied weights; devices."""

import gc
import json

import pytest

torch = pytest.importorskip("torch", reason="torch is installed by cargo xtask test --torch")

import safetensors.torch  # noqa: E402
import weightlift  # noqa: E402
import weightlift.torch  # noqa: E402

TYPES = [
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
    "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu",
]  # fmt: skip


@pytest.fixture(scope="module")
def every_type(tmp_path_factory):
    path = tmp_path_factory.mktemp("torch") / "m.safetensors"
    tensors = {}
    for name in TYPES:
        dtype = getattr(torch, name)
        tensors[name] = torch.randint(0, 2, (3, 4)).to(dtype)
        tensors[f"{name} scalar"] = torch.ones((), dtype=torch.float32).to(dtype)
        tensors[f"{name} empty"] = torch.zeros((2, 0, 3), dtype=torch.float32).to(dtype)
    tensors["fp4"] = torch.arange(8, dtype=torch.uint8).reshape(2, 4).view(torch.float4_e2m1fn_x2)
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    return path


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else tensor.new_empty(0, dtype=torch.uint8)


def same(ours, theirs):
    assert set(ours) == set(theirs)
    for name, tensor in theirs.items():
        mine = ours[name]
        assert (mine.dtype, mine.shape, mine.device) == (tensor.dtype, tensor.shape, tensor.device), name
        assert torch.equal(bits(mine), bits(tensor)), name


def test_all_types_scalars_and_empty_ones(every_type, large):
    theirs = safetensors.torch.load_file(every_type)
    same(weightlift.torch.load_file(every_type), theirs)
    same(weightlift.load_file(every_type), theirs)
    same(weightlift.torch.load(every_type.read_bytes()), theirs)
    same(weightlift.open(every_type).load("cpu", framework="pt"), theirs)
    with weightlift.safe_open(every_type, "pt") as opened:
        same({name: opened.get_tensor(name) for name in opened.keys()}, theirs)
        same(opened.get_tensors(), theirs)
    same(dict(weightlift.stream(every_type, "cpu", framework="torch")), theirs)
    shards = {}
    for file in large.glob("*.safetensors"):
        shards |= safetensors.torch.load_file(file)
    same(weightlift.torch.load_file(large), shards)


def test_slices(every_type):
    theirs = safetensors.torch.load_file(every_type)
    with weightlift.safe_open(every_type, "pt") as opened:
        for index in [slice(None), (slice(1, None), 2), -1, (Ellipsis, 0), (0, slice(1, 3)), slice(0, 100), slice(None, None, 2)]:
            assert torch.equal(opened.get_slice("float32")[index], theirs["float32"][index]), index
        with pytest.raises(IndexError):
            opened.get_slice("float32")[7]
        with pytest.raises(IndexError):
            opened.get_slice("float32")[0, 0, 0]
        assert opened.get_slice("fp4")[:1].shape == theirs["fp4"][:1].shape


def test_safe_open_refuses_what_safetensors_refuses(tmp_path):
    path = tmp_path / "m.safetensors"
    safetensors.torch.save_file({"a": torch.arange(6).reshape(2, 3)}, path)
    (tmp_path / "cut.safetensors").write_bytes(path.read_bytes()[:-1])
    (tmp_path / "empty.safetensors").write_bytes(b"")

    def after_the_end(opens):
        with opens(path, "pt") as opened:
            part = opened.get_slice("a")
        return part[1:]

    def again(opens):
        with opens(path, "pt") as opened:
            pass
        with opened:
            return opened.keys()

    calls = {
        **{f"file {name}": lambda opens, name=name: opens(tmp_path / name, "pt") for name in ("nope", "cut.safetensors", "empty.safetensors", "m.safetensors/x")},
        **{f"path {bad}": lambda opens, bad=bad: opens(bad, "pt") for bad in (None, 3, b"m.safetensors")},
        **{f"framework {bad}": lambda opens, bad=bad: opens(path, bad) for bad in ("PT", "", "cupy", None, 3)},
        **{f"device {bad}": lambda opens, bad=bad: opens(path, "pt", device=bad) for bad in ("gpu", "", -1, 1.5, "cuda:x")},
        "device of numpy": lambda opens: opens(path, "np", device="cuda:0").get_tensor("a"),
        **{f"name {bad}": lambda opens, bad=bad: opens(path, "pt").get_tensor(bad) for bad in ("x", None, 3, b"a")},
        **{f"slice {bad}": lambda opens, bad=bad: opens(path, "pt").get_slice(bad) for bad in ("x", None, 3)},
        "after the end": after_the_end,
        "again": again,
        "backend": lambda opens: opens(path, "pt", backend="x"),
    }  # fmt: skip
    for what, call in calls.items():
        try:
            theirs = call(safetensors.safe_open)
        except Exception as error:
            expected = weightlift.SafetensorError if isinstance(error, safetensors.SafetensorError) else type(error)
            with pytest.raises(expected):
                call(weightlift.safe_open)
                pytest.fail(f"{what}: theirs is {error!r}")
        else:
            ours = call(weightlift.safe_open)
            assert torch.equal(ours, theirs) if what == "after the end" else ours == theirs, what


def test_types_are_told_before_the_first_byte_where_some_are_asked_for(tmp_path):
    tensors = {"bad": torch.zeros(6, dtype=torch.uint8), "good": torch.zeros(4)}
    path = tmp_path / "m.safetensors"
    safetensors.torch.save_file(tensors, path)
    # A type that torch lacks, and one that it packs, with half of one of its elements.
    for dtype, shape in (("F6_E2M3", [8]), ("F4", [4, 3])):
        raw = path.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + length])
        header["bad"] |= {"dtype": dtype, "shape": shape}
        text = json.dumps(header).encode()
        (tmp_path / dtype).write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])
        model = weightlift.open(tmp_path / dtype, format="safetensors")
        for device in ("cpu", "meta"):
            for asked in (None, ["bad"], ["good", "ba*"], iter(["bad"])):
                with pytest.raises(TypeError, match=dtype):
                    model.load(device, framework="torch", tensors=asked)
            assert list(model.load(device, framework="torch", tensors=["good"])) == ["good"]
        model = weightlift.open(tmp_path / dtype, format="safetensors")
        with pytest.raises(TypeError, match=dtype):
            model.load("cpu", framework="torch", tensors=["bad"])
        assert model.report is None, "nothing was read"
        with pytest.raises(TypeError, match=dtype):
            weightlift.stream(model, framework="torch")
        assert [name for name, _ in weightlift.stream(model, "cpu", framework="torch", tensors=["good"])] == ["good"]
        with weightlift.safe_open(tmp_path / dtype, "pt", format="safetensors") as opened:
            assert opened.get_tensor("good").shape == (4,)
            with pytest.raises(TypeError, match=dtype):
                opened.get_tensor("bad")


def test_tied_weights_and_views_stay_shared(tmp_path):
    base = torch.randn(4, 6)
    state = {"a": base, "tied": base, "transposed": base.t(), "row": base[2], "alone": torch.randn(3)}
    torch.save(state, tmp_path / "m.pt")
    loaded = weightlift.torch.load_file(tmp_path / "m.pt")
    same(loaded, state)
    storages = {name: tensor.untyped_storage().data_ptr() for name, tensor in loaded.items()}
    assert len({storages[name] for name in ("a", "tied", "transposed", "row")}) == 1
    assert storages["alone"] != storages["a"]
    assert loaded["transposed"].stride() == (1, 6)
    loaded["a"][2, 0] = 9
    assert loaded["row"][0] == 9 == loaded["transposed"][0, 2]
    same(dict(weightlift.stream(tmp_path / "m.pt", "cpu", framework="torch", window=10)), state)


def test_devices(every_type):
    assert all(tensor.device.type == "meta" for tensor in weightlift.torch.load_file(every_type, device="meta").values())
    for device in ("cpu", torch.device("cpu"), "host", "cpu:0", None, "auto"):
        assert weightlift.torch.load_file(every_type, device=device)["float32"].device.type == "cpu"
    if not torch.cuda.is_available():
        with pytest.raises((AssertionError, RuntimeError)):
            weightlift.torch.load_file(every_type, device="cuda")


def test_memory_goes_with_the_last_tensor(large):
    def resident():
        return int(open("/proc/self/statm").read().split()[1]) * 4096

    weightlift.torch.load_file(large)
    gc.collect()
    before = resident()
    loaded = weightlift.torch.load_file(large)
    total = sum(tensor.nbytes for tensor in loaded.values())
    assert resident() - before > total / 2
    last = loaded.popitem()[1]
    loaded.clear()
    assert float(last.sum()) > 0
    del last
    gc.collect()
    assert resident() - before < total / 4


def test_dlpack_both_ways(every_type):
    plain = weightlift.open(every_type).load("cpu")
    theirs = safetensors.torch.load_file(every_type)
    for name in ("float32", "bfloat16", "int8", "bool", "float32 empty", "float32 scalar", "complex64"):
        assert torch.equal(bits(torch.from_dlpack(plain[name])), bits(theirs[name])), name
    # An unconsumed capsule frees what it holds; a consumed one is its consumer's.
    for _ in range(3):
        plain["float32"].__dlpack__()
        plain["float32"].__dlpack__(max_version=(1, 1))
    kept = torch.from_dlpack(plain["float32"])
    del plain
    gc.collect()
    assert torch.equal(kept, theirs["float32"])
    with pytest.raises(BufferError, match="F4"):
        weightlift.open(every_type).load("cpu", tensors=["fp4"])["fp4"].__dlpack__()




def test_a_type_of_a_quantized_model_is_said(models):
    for path in models.values():
        model = weightlift.open(path)
        if any(info.dtype not in weightlift.torch._DTYPES for info in model.tensors):
            with pytest.raises(TypeError, match="has no type for"):
                model.load("cpu", framework="torch")
            return
    pytest.fail("no model has a type that torch lacks")


def test_views_at_odd_places_of_shared_bytes_hold_what_was_read(tmp_path):
    """ONNX's tensors may lie anywhere in a file, over one another: torch's views may not."""
    import onnx

    data = bytes(range(64))
    (tmp_path / "w.bin").write_bytes(data)
    graph = onnx.GraphProto(name="g")
    for name, dtype, shape, offset, length in (("a", onnx.TensorProto.UINT8, [64], 0, 64), ("b", onnx.TensorProto.FLOAT, [4], 3, 16)):
        tensor = graph.initializer.add(name=name, data_type=dtype, dims=shape, data_location=onnx.TensorProto.EXTERNAL)
        for key, value in (("location", "w.bin"), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
    onnx.save(onnx.ModelProto(ir_version=8, graph=graph), tmp_path / "m.onnx")
    model = weightlift.open(tmp_path / "m.onnx")
    assert len({info.storage for info in model.tensors}) == 1
    for loaded in (
        model.load("cpu", framework="torch"),
        dict(weightlift.stream(model, "cpu", framework="torch")),
        {name: model.load("cpu", framework="torch", tensors=[name])[name] for name in "ab"},
    ):
        assert bits(loaded["a"]).numpy().tobytes() == data
        assert bits(loaded["b"]).numpy().tobytes() == data[3:19]

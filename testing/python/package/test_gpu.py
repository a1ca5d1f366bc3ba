"""torch, CuPy and JAX on a real GPU. Runs where WEIGHTLIFT_TEST_GPU=1 says that there is one."""

import gc
import os

import numpy as np
import pytest

if os.environ.get("WEIGHTLIFT_TEST_GPU") != "1":
    pytest.skip("WEIGHTLIFT_TEST_GPU=1 says that there is a GPU", allow_module_level=True)
# Or JAX takes most of the GPU's memory for itself.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
torch = pytest.importorskip("torch")
import safetensors.torch  # noqa: E402
import weightlift  # noqa: E402
import weightlift.torch  # noqa: E402

TYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
         "float8_e4m3fn", "float8_e5m2"]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("gpu") / "m.safetensors"
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for name in TYPES:
        dtype = getattr(torch, name)
        tensors[name] = torch.randint(0, 100, (37, 41), generator=generator).to(dtype)
        tensors[f"{name} empty"] = torch.zeros((0, 3)).to(dtype)
        tensors[f"{name} scalar"] = torch.ones(()).to(dtype)
    for number in range(20):
        tensors[f"large {number}"] = torch.randn((1000, 1000 + number), generator=generator)
    safetensors.torch.save_file(tensors, path)
    return path


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).cpu() if tensor.numel() else torch.empty(0, dtype=torch.uint8)


def same(ours, theirs, device="cuda"):
    assert set(ours) == set(theirs)
    for name, tensor in theirs.items():
        assert (ours[name].dtype, ours[name].shape, ours[name].device.type) == (tensor.dtype, tensor.shape, device), name
        assert torch.equal(bits(ours[name]), bits(tensor)), name


def test_all_types_and_devices(model):
    theirs = safetensors.torch.load_file(model)
    for device in ("cuda", "cuda:0", 0, torch.device("cuda"), "auto"):
        same(weightlift.torch.load_file(model, device=device), theirs)
    with weightlift.safe_open(model, "pt", device="cuda:0") as opened:
        same({name: opened.get_tensor(name) for name in opened.keys()}, theirs)
        assert torch.equal(opened.get_slice("large 3")[10:20, 5].cpu(), theirs["large 3"][10:20, 5])
    same(dict(weightlift.stream(model, "cuda:0", framework="torch", window=9_000_000)), theirs)
    with pytest.raises(Exception, match="device|CUDA|ordinal"):
        weightlift.torch.load_file(model, device="cuda:99")


def test_a_stream_takes_its_window_and_waits_for_work_that_is_pending(model):
    theirs = safetensors.torch.load_file(model)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    window, right = 24_000_000, []
    for name, tensor in weightlift.stream(model, "cuda:0", framework="torch", window=window):
        # Work on the tensor is pending when it is let go of, and torch may give its memory to the next.
        right.append((name, torch.equal(bits(tensor), bits(theirs[name]))))
        # Of its bytes: not every type can be multiplied.
        work = tensor.contiguous().reshape(-1).view(torch.uint8).float() if tensor.numel() else tensor.clone()
        for _ in range(20 if tensor.numel() else 0):
            work = work * 1.0001
        del tensor, work
    assert [name for name, good in right if not good] == [] and len(right) == len(theirs)
    # Its window, the last one that was given out, and what the work took.
    assert torch.cuda.max_memory_allocated() - before <= window + 4 * 4_200_000 + (20 << 20)
    gc.collect()
    assert torch.cuda.memory_allocated() == before


def test_the_memory_is_torchs_and_each_tensor_goes_alone(model):
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    loaded = weightlift.torch.load_file(model, device="cuda")
    sizes = {name: tensor.nbytes for name, tensor in loaded.items()}
    taken = torch.cuda.memory_allocated() - before
    # torch rounds up to 512 bytes, and gives out what is left of a block if that is less than 1 MiB.
    assert sum(sizes.values()) <= taken <= sum(-(-size // 512) * 512 for size in sizes.values()) + (20 << 20)
    large = loaded.pop("large 0")
    now = torch.cuda.memory_allocated()
    del large
    assert sizes["large 0"] <= now - torch.cuda.memory_allocated() <= sizes["large 0"] + (1 << 20)
    loaded.clear()
    assert torch.cuda.memory_allocated() == before
    for _ in range(100):
        weightlift.torch.load_file(model, device="cuda", tensors=["large 1*", "int8"])
    assert torch.cuda.memory_allocated() == before


def test_work_that_is_pending_on_a_reused_block_comes_first(model):
    """Invariant 6: torch gives out memory again while earlier work of the stream still writes to it."""
    theirs = safetensors.torch.load_file(model)
    weightlift.torch.load_file(model, device="cuda")
    # The first call of a kernel takes its time.
    torch.empty((1000, 1000), device="cuda").fill_(7)
    torch.cuda._sleep(1000)
    torch.cuda.synchronize()
    for _ in range(3):
        gc.collect()
        torch.cuda.empty_cache()
        blocks = [torch.empty((1000, 1000 + number), device="cuda") for number in range(20)]
        torch.cuda._sleep(1_000_000_000)  # about half a second
        for block in blocks:
            block.fill_(7)
        del block
        blocks.clear()
        # What is loaded now takes their places, and the fills are not over.
        assert not torch.cuda.current_stream().query()
        same(weightlift.torch.load_file(model, device="cuda"), theirs)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        same(weightlift.torch.load_file(model, device="cuda"), theirs)


def test_load_into_parameters_and_cupy(model):
    theirs = safetensors.torch.load_file(model)
    targets = {name: torch.full_like(tensor, 1, device="cuda") for name, tensor in theirs.items() if "float8" not in name}
    torch.cuda._sleep(100_000_000)
    for target in targets.values():
        target.zero_()
    report = weightlift.load_into(model, targets)
    assert report["devices"] == ["cuda:0"]
    same(targets, {name: theirs[name] for name in targets})
    cupy = pytest.importorskip("cupy")
    mine = {"large 2": cupy.zeros((1000, 1002), cupy.float32), "int32": np.zeros((37, 41), np.int32)}
    weightlift.load_into(model, mine)
    assert (cupy.asnumpy(mine["large 2"]) == theirs["large 2"].numpy()).all()
    assert (mine["int32"] == theirs["int32"].numpy()).all()


def test_dlpack_to_cupy_and_torch_outlives_all(model):
    theirs = safetensors.torch.load_file(model)
    plain = weightlift.open(model).load("cuda:0")
    assert plain["large 4"].__dlpack_device__() == (2, 0)
    kept = torch.from_dlpack(plain["large 4"])
    cupy = pytest.importorskip("cupy")
    other = cupy.from_dlpack(plain["large 5"])
    plain.clear()
    weightlift.default_loader().release()
    gc.collect()
    assert torch.equal(kept.cpu(), theirs["large 4"])
    assert (cupy.asnumpy(other) == theirs["large 5"].numpy()).all()


def test_jax(model):
    jax = pytest.importorskip("jax")
    if jax.default_backend() not in ("gpu", "cuda"):
        pytest.skip("JAX sees no GPU")
    import weightlift.jax

    theirs = safetensors.torch.load_file(model)
    names = [f"large {number}" for number in range(20)] + ["int32", "bfloat16", "float16 empty", "float32 scalar"]
    loaded = weightlift.jax.load_file(model, "cuda:0", tensors=names)
    gc.collect()
    for name in names:
        assert loaded[name].devices() == {jax.devices()[0]}
        assert np.asarray(loaded[name]).tobytes() == bits(theirs[name]).numpy().tobytes(), name
    total = sum(float(loaded[f"large {number}"].sum()) for number in range(20))
    assert np.isfinite(total)


def test_no_leak_of_device_memory(model):
    def free():
        torch.cuda.empty_cache()
        gc.collect()
        return torch.cuda.mem_get_info()[0]

    weightlift.open(model).load("cuda:0")
    before = free()
    for _ in range(100):
        weightlift.open(model).load("cuda:0", tensors=["large 1*"])
    assert before - free() < 20_000_000

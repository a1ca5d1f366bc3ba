"""open_reader: a file object for whatever takes one."""

import io
import os
import pickle
import random
import subprocess
import sys
import textwrap
import zipfile

import numpy as np
import pytest
import weightlift


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("reader") / "f"
    path.write_bytes(random.Random(1).randbytes(9_000_001))
    return path


def test_reads_like_a_file(file):
    chance = random.Random(2)
    with weightlift.open_reader(file, threads=3, window=1 << 20) as ours, open(file, "rb") as theirs:
        assert ours.readable() and ours.seekable() and not ours.writable() and ours.name == str(file) and ours.mode == "rb"
        for _ in range(300):
            if chance.random() < 0.3:
                at = chance.randrange(9_200_000)
                assert ours.seek(at) == theirs.seek(at)
            size = chance.choice([0, 1, 7, 4096, 100_000, 5_000_000])
            assert ours.read(size) == theirs.read(size) and ours.tell() == theirs.tell()
        assert ours.seek(-10, os.SEEK_END) == theirs.seek(-10, os.SEEK_END)
        assert ours.read() == theirs.read() and ours.read(5) == b""
        ours.seek(0), theirs.seek(0)
        buffer, other = bytearray(5_000_000), bytearray(5_000_000)
        assert ours.readinto(buffer) == theirs.readinto(other) and buffer == other
        assert ours.readinto(np.zeros((10, 10), np.int32)) == 400
    with pytest.raises(ValueError):
        ours.read(1)
    ours.close()


def test_lines_and_buffering(tmp_path):
    (tmp_path / "t").write_bytes(b"one\ntwo\n\nlast")
    with weightlift.open_reader(tmp_path / "t") as f:
        assert list(f) == [b"one\n", b"two\n", b"\n", b"last"]
    assert io.TextIOWrapper(io.BufferedReader(weightlift.open_reader(tmp_path / "t"))).read() == "one\ntwo\n\nlast"


def test_errors(file, tmp_path):
    with pytest.raises(FileNotFoundError):
        weightlift.open_reader(tmp_path / "nope")
    with pytest.raises(ValueError):
        weightlift.open_reader(file, threads=65)
    with weightlift.open_reader(file) as f:
        with pytest.raises(ValueError):
            f.seek(-1)
        with pytest.raises((ValueError, OSError)):
            f.seek(-1, os.SEEK_CUR)
        with pytest.raises((BufferError, TypeError)):
            f.readinto(b"read only")
        with pytest.raises(io.UnsupportedOperation):
            f.write(b"x")
    path = tmp_path / "cut"
    path.write_bytes(bytes(100_000))
    with weightlift.open_reader(path) as f:
        f.read(10)
        os.truncate(path, 50)
        f.seek(90_000)
        with pytest.raises(weightlift.errors.Changed):
            f.read(100)


# GP-05
def test_a_forked_child_reads_on_by_itself(file):
    code = """
    import os, sys, weightlift
    expected = open(sys.argv[1], "rb").read()
    f = weightlift.open_reader(sys.argv[1], threads=3)
    at = sum(len(f.read(1000)) for _ in range(3000))
    assert len(os.listdir("/proc/self/task")) > 1, "its threads read ahead"
    for work in (
        lambda: f.read() == expected[at:],
        lambda: b"".join(f.read(1000) for _ in range(5000)) == expected[at : at + 5_000_000],
        lambda: f.tell() == at and f.seek(5) == 5 and f.read(10) == expected[5:15],
        lambda: f.close() is None and f.closed,
        lambda: globals().pop("f") is not None,
    ):
        child = os.fork()
        if child == 0:
            os._exit(0 if work() else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert f.tell() == at and f.read() == expected[at:]
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), file], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_pickle_numpy_zip(tmp_path):
    with open(tmp_path / "p", "wb") as f:
        pickle.dump({"a": list(range(100_000))}, f)
    with weightlift.open_reader(tmp_path / "p") as f:
        assert pickle.load(f)["a"][-1] == 99_999
    np.savez(tmp_path / "z.npz", a=np.arange(1_000_000), b=np.eye(3))
    np.save(tmp_path / "n.npy", np.arange(1_000_000))
    with weightlift.open_reader(tmp_path / "z.npz") as f:
        loaded = np.load(f)
        assert loaded["a"].sum() == np.arange(1_000_000).sum() and (loaded["b"] == np.eye(3)).all()
    with weightlift.open_reader(tmp_path / "n.npy") as f:
        assert (np.load(f) == np.arange(1_000_000)).all()
    with weightlift.open_reader(tmp_path / "z.npz") as f, zipfile.ZipFile(f) as z:
        assert z.testzip() is None


def test_torch_load(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is installed by cargo xtask test --torch")
    state = {"a": torch.randn(700, 700), "b": torch.arange(9)}
    torch.save(state, tmp_path / "m.pt")
    with weightlift.open_reader(tmp_path / "m.pt") as f:
        loaded = torch.load(f, weights_only=True)
    assert torch.equal(loaded["a"], state["a"]) and torch.equal(loaded["b"], state["b"])


def test_a_models_blob_for_openvino(tmp_path):
    import openvino
    import openvino.opset13 as ops

    parameter = ops.parameter([2, 1000], np.float32)
    weights = np.random.default_rng(1).random((1000, 500), np.float32)
    model = openvino.Model([ops.matmul(parameter, ops.constant(weights), False, False)], [parameter])
    core = openvino.Core()
    blob = core.compile_model(model, "CPU").export_model()
    (tmp_path / "blob").write_bytes(blob if isinstance(blob, bytes) else blob.getvalue())
    with weightlift.open_reader(tmp_path / "blob") as f:
        imported = core.import_model(io.BytesIO(f.read()), "CPU")
    given = np.ones((2, 1000), np.float32)
    assert np.allclose(imported(given)[0], given @ weights, rtol=1e-3)

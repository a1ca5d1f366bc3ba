"""`weightlift verify` and `load --verify`: digests are those of others' implementations, what is
right passes, and one bit that is not is found and named."""

import hashlib
import json
import os
import struct

import pytest
import xxhash
from onnx import TensorProto, helper

import schemas
from files import build

LEAF = 64 << 10
SHAPES = {
    "empty": ("F32", (0,)),
    "one": ("U8", (1,)),
    "leaf": ("U8", (LEAF,)),
    "a[b]*": ("F16", (300, 301)),
    "many": ("F32", (5, LEAF // 4)),
}


def tree(data: bytes) -> str:
    """The rule of docs/verify.md, by the package xxhash."""
    leaves = [xxhash.xxh3_64_intdigest(data[at : at + LEAF]) for at in range(0, len(data), LEAF)]
    return xxhash.xxh3_64_hexdigest(b"".join(struct.pack("<Q", leaf) for leaf in leaves))


def tensors_of(file: bytes) -> dict[str, bytes]:
    length = struct.unpack_from("<Q", file)[0]
    header, data = json.loads(file[8 : 8 + length]), file[8 + length :]
    header.pop("__metadata__", None)
    return {name: data[slice(*info["data_offsets"])] for name, info in header.items()}


def flip(path, at: int, bit: int = 0):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(build(SHAPES))
    return path


def write(weightlift, path, *arguments):
    done = weightlift.run("verify", path, "--write", "--json", *arguments).expect(0).json()
    schemas.check("verify", done)
    assert done["written"] is True
    return done["manifest"]


def test_the_manifest_has_the_digests_of_other_implementations(weightlift, model):
    place = write(weightlift, model)
    assert place == str(model) + ".weightlift-manifest.json"
    manifest = schemas.check("manifest", json.loads(open(place).read()))
    wanted = tensors_of(model.read_bytes())
    assert {tensor["name"] for tensor in manifest["tensors"]} == set(wanted)
    for tensor in manifest["tensors"]:
        data = wanted[tensor["name"]]
        assert tensor["length"] == len(data)
        assert tensor["xxh3"] == xxhash.xxh3_64_hexdigest(data)
        assert tensor["tree"] == tree(data)
    loaded = weightlift.load(model, "--device", "host").expect(0).json()
    digests = {tensor["name"]: tensor["digest"] for tensor in loaded["tensors"]}
    assert digests == {tensor["name"]: tensor["xxh3"] for tensor in manifest["tensors"]}
    assert manifest["files"] == []


def test_what_is_right_passes(weightlift, model):
    place = write(weightlift, model)
    done = schemas.check("verify", weightlift.run("verify", model, "--json").expect(0).json())
    wanted = tensors_of(model.read_bytes())
    assert (done["manifest"], done["written"]) == (place, False)
    assert (done["tensors"], done["bytes"]) == (len(wanted), sum(map(len, wanted.values())))
    text = weightlift.run("verify", model).expect(0).stdout
    assert f"{len(wanted)} tensors" in text and place in text


@pytest.mark.parametrize("device", ["host", "cuda:0"])
@pytest.mark.parametrize("threads", [1, 2, 12])
def test_loading_compares_and_tells_what_it_took(weightlift, model, device, threads):
    place = write(weightlift, model)
    arguments = ["--device", device, "--reading-threads", str(threads), "--verify", place]
    gpu = {"gpu": True} if device != "host" else {}
    report = schemas.check("load", weightlift.load(model, *arguments, **gpu).expect(0).json())
    assert report["verified_tensors"] == len(SHAPES)
    assert report["seconds"]["verify"] > 0
    flip(model, model.stat().st_size - 1, 7)
    result = weightlift.load(model, *arguments, **gpu).expect(1)
    error = schemas.check("error", result.json())["error"]
    assert error["kind"] == "Mismatch"
    wanted = tensors_of(model.read_bytes())
    assert error["context"]["actual"] == tree(wanted[error["context"]["tensor"]])
    without = weightlift.load(model, *arguments[:-2], **gpu).expect(0).json()
    assert without["verified_tensors"] == 0 and without["seconds"]["verify"] == 0


def test_every_difference_is_named(weightlift, model):
    write(weightlift, model)
    before = tensors_of(model.read_bytes())
    header = 8 + struct.unpack_from("<Q", model.read_bytes())[0]
    size = model.stat().st_size
    for at in [header, (header + size) // 2, size - 1]:
        flip(model, at)
    after = tensors_of(model.read_bytes())
    wrong = sorted(name for name in before if before[name] != after[name])
    assert len(wrong) > 1
    result = weightlift.run("verify", model, "--json").expect(1)
    context = schemas.check("error", result.json())["error"]["context"]
    others = context.get("others", "").split(", ")
    assert sorted([context["tensor"], *others]) == wrong
    assert context["expected"] == xxhash.xxh3_64_hexdigest(before[context["tensor"]])
    assert context["actual"] == xxhash.xxh3_64_hexdigest(after[context["tensor"]])
    text = weightlift.run("verify", model).expect(1)
    for name in wrong:
        assert f"tensor {name}:" in text.stdout
    assert "Mismatch" not in text.error_line() and context["tensor"] in text.error_line()


def test_a_manifest_is_written_whole_and_where_it_is_asked_for(weightlift, model, tmp_path):
    place = tmp_path / "elsewhere.json"
    place.write_text("not a manifest")
    error = weightlift.run("verify", model, "--manifest", place, "--json").expect(1).json()
    assert error["error"]["kind"] == "InvalidManifest"
    assert write(weightlift, model, "--manifest", place) == str(place)
    assert os.stat(place).st_mode & 0o777 == 0o666 & ~current_umask()
    weightlift.run("verify", model, "--manifest", place).expect(0)
    assert sorted(os.listdir(tmp_path)) == ["elsewhere.json", "model.safetensors"]
    missing = tmp_path / "no" / "such.json"
    weightlift.run("verify", model, "--write", "--manifest", missing).expect(1)
    weightlift.run("verify", model, "--manifest", missing).expect(1)


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_nothing_to_compare_with_is_an_error(weightlift, model):
    assert "--write" in weightlift.run("verify", model).expect(1).error_line()


def test_a_folder_has_its_manifest_in_it(weightlift, model):
    place = write(weightlift, model.parent)
    assert place == str(model.parent / "weightlift-manifest.json")
    weightlift.run("verify", model.parent).expect(0)
    weightlift.load(model.parent, "--device", "host", "--verify", place).expect(0)


def hub(folder, data: bytes, lfs: bool):
    """A file as the Hub's cache keeps it."""
    git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    name = hashlib.sha256(data).hexdigest() if lfs else git
    blobs, snapshot = folder / "models--o--n" / "blobs", folder / "models--o--n/snapshots/abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (blobs / name).write_bytes(data)
    (snapshot / "model.safetensors").symlink_to(f"../../blobs/{name}")
    return snapshot, blobs / name


@pytest.mark.parametrize("lfs", [True, False])
def test_the_hubs_name_of_a_file_is_compared(weightlift, tmp_path, lfs):
    snapshot, blob = hub(tmp_path, build(SHAPES), lfs)
    done = schemas.check("verify", weightlift.run("verify", snapshot, "--json").expect(0).json())
    assert done["manifest"] is None and done["tensors"] == 0
    [said] = done["files"]
    assert (said["said_by"], said["digest"]) == ("hub", blob.name)
    assert said["algorithm"] == ("sha256" if lfs else "git-sha1")
    assert "were not compared" in weightlift.run("verify", snapshot).expect(0).stdout
    place = write(weightlift, snapshot)
    assert json.loads(open(place).read())["files"] == [said]
    # What lies in the header's spaces is no tensor's, and found all the same.
    flip(blob, blob.stat().st_size - 1)
    for arguments in [[], ["--write"]]:
        error = weightlift.run("verify", snapshot, "--json", *arguments).expect(1).json()["error"]
        assert error["kind"] == "Mismatch" and error["context"]["file"] == "model.safetensors"
        assert error["context"]["expected"] == blob.name
    # The manifest knows it still where the file lies elsewhere.
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "model.safetensors").write_bytes(blob.read_bytes())
    error = weightlift.run("verify", copy, "--manifest", place, "--json").expect(1).json()["error"]
    assert error["context"]["file"] == "model.safetensors"


def onnx_model(folder, checksum):
    """A model with two tensors in one file, of which it says a SHA-1."""
    data = bytes(range(256)) * 8
    (folder / "weights.bin").write_bytes(data)
    tensors = []
    for number, said in enumerate(checksum):
        tensor = TensorProto(name=f"w{number}", data_type=TensorProto.UINT8, dims=[1024])
        location = {"location": "weights.bin", "offset": 1024 * number, "length": 1024}
        if said is not None:
            location["checksum"] = said
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in location.items():
            tensor.external_data.add(key=key, value=str(value))
        tensors.append(tensor)
    output = helper.make_tensor_value_info("w0", TensorProto.UINT8, [1024])
    graph = helper.make_graph([], "g", [], [output], initializer=tensors)
    path = folder / "model.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path, hashlib.sha1(data).hexdigest()


def test_onnx_checksums_are_compared(weightlift, tmp_path):
    right = hashlib.sha1(bytes(range(256)) * 8).hexdigest()
    path, sha1 = onnx_model(tmp_path, [right.upper(), None])
    assert sha1 == right
    [said] = weightlift.run("verify", path, "--json").expect(0).json()["files"]
    assert (said["name"], said["algorithm"], said["digest"], said["said_by"]) == (
        "weights.bin",
        "sha1",
        sha1,
        "onnx",
    )
    write(weightlift, path)
    weightlift.run("verify", path).expect(0)


@pytest.mark.parametrize("checksum", [["wrong", None], ["0" * 40, None], [None, "f" * 40]])
def test_an_onnx_checksum_that_is_not_so_is_found_and_stops_no_load(
    weightlift, tmp_path, checksum
):
    path, sha1 = onnx_model(tmp_path, checksum)
    error = weightlift.run("verify", path, "--json").expect(1).json()["error"]
    assert error["kind"] == "Mismatch"
    assert (error["context"]["file"], error["context"]["actual"]) == ("weights.bin", sha1)
    # What a load promises is the tensors; their readers compare no checksum.
    weightlift.load(path, "--device", "host").expect(0)


def test_onnx_checksums_that_contradict_each_other_are_found(weightlift, tmp_path):
    right = hashlib.sha1(bytes(range(256)) * 8).hexdigest()
    path, _ = onnx_model(tmp_path, [right, "0" * 40])
    error = weightlift.run("verify", path, "--json").expect(1).json()["error"]
    assert error["context"]["expected"] == "0" * 40

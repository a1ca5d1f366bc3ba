"""ON-09: files that a model names and that its folder lacks, found in other folders, by the rules of
the model's own. Without --search-dir there is nowhere to look; with it the model's folder is first."""

import json
import os

import numpy as np
import onnx
import pytest
import safetensors.numpy

import openvino_hostile
import reference
import schemas
from onnx_models import external, model, tensor

DATA = bytes(range(64))
OTHER = bytes(range(64, 128))


def write_onnx(home):
    onnx.save(external(model([tensor("w", 1, (4,))]), "sub/w.bin", length=16), home / "m.onnx")
    return home / "m.onnx", "sub/w.bin", 16


def write_openvino(home):
    (home / "m.xml").write_bytes(openvino_hostile.GOOD)
    return home / "m.xml", "m.bin", 16


MODELS = [write_onnx, write_openvino]


def put(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.fixture
def folders(tmp_path):
    for name in ["home", "one", "two"]:
        (tmp_path / name).mkdir()
    return tmp_path / "home", tmp_path / "one", tmp_path / "two"


def digest(weightlift, path, *searched):
    options = [part for folder in searched for part in ("--search-dir", folder)]
    report = weightlift.load(path, "--device", "host", *options).expect(0).json()
    (found,) = schemas.check("load", report)["tensors"]
    return found["digest"]


def error(weightlift, command, path, *options, code=1):
    result = weightlift.run(command, path, *options, "--json").expect(code)
    result.error_line()
    return schemas.check("error", result.json())["error"]


@pytest.mark.parametrize("write", MODELS)
def test_the_first_folder_that_has_a_file_wins(weightlift, folders, write):
    home, one, two = folders
    path, name, length = write(home)
    for command in ["inspect", "plan", "load"]:
        options = [] if command == "inspect" else ["--device", "host"]
        found = error(weightlift, command, path, *options)
        assert found["kind"] == "MissingWeights"
        context = found["context"]
        assert (context["file"], context["named_by"], context["files"]) == (name, path.name, name)
        assert str(context["count"]) == "1"
        assert "--search-dir" in found["hint"]
    put(two, name, OTHER)
    assert digest(weightlift, path, one, two) == reference.digest(OTHER[:length])
    put(one, name, DATA)
    assert digest(weightlift, path, one, two) == reference.digest(DATA[:length])
    assert digest(weightlift, path, two, one) == reference.digest(OTHER[:length])
    # The model's own folder, even where what is there is wrong.
    put(home, name, DATA[::-1])
    assert digest(weightlift, path, one, two) == reference.digest(DATA[::-1][:length])
    put(home, name, b"short")
    assert error(weightlift, "inspect", path, "--search-dir", one)["kind"] == "OutOfRange"


@pytest.mark.parametrize("write", MODELS)
def test_links_lead_out_of_no_folder(weightlift, folders, write):
    home, one, two = folders
    path, name, length = write(home)
    put(two, "elsewhere.bin", DATA)
    (one / name).parent.mkdir(exist_ok=True)
    (one / name).symlink_to(two / "elsewhere.bin")
    # Though `two` is searched as well: the folder that has the name decides.
    searched = ["--search-dir", one, "--search-dir", two]
    found = error(weightlift, "inspect", path, *searched)
    assert found["kind"] == "UnsafePath"
    assert found["context"]["folder"] == str(one)
    weightlift.run("inspect", path, *searched, "--follow-links").expect(0)
    put(one, "real.bin", DATA)
    (one / name).unlink()
    (one / name).symlink_to(one / "real.bin")
    assert digest(weightlift, path, one) == reference.digest(DATA[:length])


def test_unsafe_names_are_looked_for_nowhere(weightlift, folders):
    home, one, two = folders
    put(two, "w.bin", DATA)
    path = home / "m.onnx"
    for name in ["../two/w.bin", str(two / "w.bin")]:
        onnx.save(external(model([tensor("w", 1, (4,))]), name, length=16), path)
        assert error(weightlift, "inspect", path, "--search-dir", one)["kind"] == "UnsafePath"


def test_all_missing_files_are_named(weightlift, folders):
    home, one, _ = folders
    names = [f"w{number}.bin" for number in range(5)]
    result = model([tensor(name, 1, (4,)) for name in names])
    for number, name in enumerate(names):
        external(result, name, number, length=16)
    onnx.save(result, home / "m.onnx")
    put(home, "w1.bin", DATA)
    put(one, "w3.bin", DATA)
    # Nothing is opened before: this one could not be.
    (home / "w1.bin").unlink()
    os.mkfifo(home / "w1.bin")
    found = error(weightlift, "inspect", home / "m.onnx", "--search-dir", one)
    assert found["kind"] == "MissingWeights"
    assert found["context"]["files"] == "w0.bin, w2.bin, w4.bin"
    assert (str(found["context"]["count"]), str(found["context"]["of"])) == ("3", "5")


def test_shards_of_an_index(weightlift, folders):
    home, one, two = folders
    for folder, name in [(home, "a"), (one, "b"), (two, "c")]:
        content = {name: np.frombuffer(DATA, np.int8)}
        safetensors.numpy.save_file(content, folder / f"{name}.safetensors")
    index = {"weight_map": {name: f"{name}.safetensors" for name in "abc"}}
    (home / "model.safetensors.index.json").write_text(json.dumps(index))
    found = error(weightlift, "inspect", home, "--search-dir", one)
    assert (found["kind"], found["context"]["shards"]) == ("MissingShards", "c.safetensors")
    searched = ["--search-dir", one, "--search-dir", two]
    report = weightlift.load(home, "--device", "host", *searched).expect(0).json()
    assert [t["name"] for t in report["tensors"]] == ["a", "b", "c"]
    assert {t["digest"] for t in report["tensors"]} == {reference.digest(DATA)}


def test_what_is_no_folder_is_an_error(weightlift, folders):
    home, one, _ = folders
    path, *_ = write_onnx(home)
    put(one, "file", DATA)
    found = error(weightlift, "inspect", path, "--search-dir", one / "file", code=2)
    assert (found["kind"], found["context"]["option"]) == ("InvalidOption", "search_dirs")
    found = error(weightlift, "inspect", path, "--search-dir", one / "gone")
    assert (found["kind"], found["context"]["path"]) == ("FileNotFound", str(one / "gone"))

"""ONNX models: the tensors that the package onnx finds, with the bytes it reads; wrong models are
refused as there or more strictly, and where the verdict differs the case says why."""

import os
import warnings
from collections import Counter
from dataclasses import dataclass

import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import _get_all_tensors

import onnx_models as models
import schemas
from onnx_models import external, model, tensor


@pytest.fixture(scope="session")
def generated(tmp_path_factory):
    return models.write_models(tmp_path_factory.mktemp("onnx"))


def loaded(weightlift, path):
    report = schemas.check("load", weightlift.load(path, "--device", "host").expect(0).json())
    tensors = [
        models.Found(t["name"], t["dtype"], tuple(t["shape"]), t["digest"])
        for t in report["tensors"]
    ]
    assert len({t.name for t in tensors}) == len(tensors), "a name stands twice"
    return tensors


def assert_as_reference(weightlift, path):
    initializers, everything = models.read(path)
    ours = loaded(weightlift, path)
    by_name = {t.name: t for t in ours}
    # Names of the graph's values are kept.
    assert {name: by_name.get(name) for name in initializers} == initializers
    # Whatever the names, each tensor is there as often as the reference has it.
    content = lambda t: (t.dtype, t.shape, t.digest)
    assert Counter(map(content, ours)) == Counter(map(content, everything))
    # And where a tensor has a name that no other has, it is that.
    names = Counter(t.name for t in everything if t.name)
    for wanted in everything:
        if names[wanted.name] == 1:
            assert by_name.get(wanted.name) == wanted
    return ours


GENERATED = [
    "types-raw",
    "types-typed",
    "types-external",
    "everywhere",
    "everywhere-external",
    "file-per-tensor",
    "no-tensors",
    "tied",
]


@pytest.mark.parametrize("name", GENERATED)
def test_generated_models(weightlift, generated, name):
    assert_as_reference(weightlift, generated[name])


def test_raw_and_typed_and_external_data_are_the_same_bytes(weightlift, generated):
    raw, typed, outside = (
        {t.name: t for t in loaded(weightlift, generated[name])}
        for name in ["types-raw", "types-typed", "types-external"]
    )
    assert raw == typed == outside
    assert {t.dtype for t in raw.values()} == set(models.DTYPES)


def test_names_of_tensors_that_have_none_of_their_own(weightlift, generated):
    for name in ["everywhere", "everywhere-external"]:
        assert {t.name for t in loaded(weightlift, generated[name])} == {
            *["W", "big", "Z", "Z.indices", "V", "T", "P", "P.indices", "U"],
            # The value of a Constant is named after its output, and that of another by its path.
            *["c", "e", "e.indices", "node::value", "own.F::o::value"],
            "If_0::then_branch::l::body::c::value",
            *["If_0::then_branch::l::body::W", "If_0::then_branch::W", "If_0::else_branch::W"],
            *["v::tensors[0]", "v::graphs[0]::W", "v::graphs[1]::initializer[0]"],
            *["v::sparse_tensors[1]", "v::sparse_tensors[1].indices", "own.F::s::body::U"],
        }


def test_tied_weights_share_a_storage(weightlift, generated):
    report = schemas.check("inspect", weightlift.inspect(generated["tied"]).expect(0).json())
    assert report["format"] == "onnx"
    assert len({t["storage"] for t in report["tensors"]}) == 1
    assert [(t["file"], t["offset"]) for t in report["tensors"]] == [
        ("tied.bin", 3),
        ("tied.bin", 3),
        ("tied.bin", 35),
    ]


def test_inspect_says_where_the_bytes_lie(weightlift, generated):
    for name in ["types-raw", "types-typed", "types-external"]:
        path = generated[name]
        tensors = {t.name: t for t in loaded(weightlift, path)}
        report = schemas.check("inspect", weightlift.inspect(path).expect(0).json())
        for found in report["tensors"]:
            if found["offset"] is None:
                # Numbers of variable length, strings.
                assert name == "types-typed" or found["dtype"] == "STRING"
                continue
            content = (path.parent / found["file"]).read_bytes()
            data = content[found["offset"] : found["offset"] + found["length"]]
            assert models.reference.digest(data) == tensors[found["name"]].digest


def test_metadata(weightlift, tmp_path):
    result = model(producer="somebody", stride="32")
    path = tmp_path / "model.onnx"
    onnx.save(result, path)
    metadata = weightlift.run("inspect", path, "--json", "--metadata").expect(0).json()["metadata"]
    assert metadata["onnx.ir_version"] == result.ir_version
    assert metadata["onnx.producer_name"] == "somebody"
    assert metadata["onnx.opset_import"] == ["ai.onnx:22", "own:1"]
    assert metadata["stride"] == "32"


@pytest.mark.parametrize("name", models.real_models())
def test_real_models(weightlift, name):
    assert_as_reference(weightlift, models.real_models()[name])


# Wrong models.

DATA = bytes(range(64))


def reference_accepts(path) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = onnx.load(path)
            for found in _get_all_tensors(result):
                numpy_helper.to_array(found, str(path.parent))
    # What is not a message, not in the file, or not an array each have an exception of their own.
    except Exception:  # noqa: BLE001
        return False
    return True


@dataclass(frozen=True)
class Case:
    """A model with a tensor `w` of type and shape, and entries of its external data."""

    name: str
    entries: tuple
    # The error's kind; none if the model is right.
    kind: str = ""
    # Why weightlift refuses what the reference accepts, or the other way round.
    stricter: str = ""
    laxer: str = ""
    number: int = TensorProto.FLOAT
    shape: tuple = (4,)
    data: bytes = DATA


def at(location="w.bin", **entries):
    return tuple({"location": location, **entries}.items())


ORT = "ONNX Runtime does so too"
LENGTH = f"the length of the shape is meant, and {ORT}"
LEXICAL = "no name of a file has `..`, wherever it leads"
TWICE = f"which of the two is meant cannot be told; {ORT} for the location"
DECIMAL = "a decimal number has digits and nothing else"

CASES = [
    Case("right", at(offset=0, length=16)),
    Case("unaligned", at(offset=3, length=16)),
    Case("in a folder", at("sub/w.bin", length=16)),
    Case("dot slash", at("./w.bin", length=16)),
    Case("at the end", at(offset=48, length=16)),
    # ON-01
    Case("parent", at("../w.bin", length=16), "UnsafePath"),
    Case("absolute", at("/etc/hostname", length=16), "UnsafePath"),
    Case("down and up", at("sub/../../w.bin", length=16), "UnsafePath"),
    Case("down and up inside", at("sub/../w.bin", length=16), "UnsafePath", LEXICAL),
    Case("empty", at("", length=16), "UnsafePath"),
    Case("no location", (("length", 16),), "InvalidHeader"),
    Case("the folder", at(".", length=16), "UnsafePath"),
    Case(
        "NUL", at("w.bin\0", length=16), "UnsafePath", "the reference opens another name, `w.bin`"
    ),
    Case("address", at("*/_ORT_MEM_ADDR_/*", offset=4096, length=16), "UnsafePath"),
    Case("missing file", at("gone.bin", length=16), "MissingWeights"),
    # ON-02
    Case("no length", at(offset=0), data=DATA[:16]),
    Case("no length, more data", at(offset=0), laxer=LENGTH),
    Case("length 0", at(length=0), laxer=LENGTH),
    Case("length 8", at(length=8), "SizeMismatch"),
    Case("length 20", at(length=20), "SizeMismatch"),
    # ON-03
    Case("past the end", at(offset=100, length=16), "OutOfRange", data=DATA[:16]),
    Case("partly past the end", at(offset=49, length=16), "OutOfRange"),
    Case("offset -16", at(offset=-16, length=16), "OutOfRange"),
    Case("length -16", at(length=-16), "OutOfRange"),
    Case("offset 2^64-16", at(offset=2**64 - 16, length=16), "OutOfRange"),
    Case("offset 2^64", at(offset=2**64, length=16), "Overflow"),
    Case("offset abc", at(offset="abc", length=16), "InvalidHeader"),
    Case("offset 0x0", at(offset="0x0", length=16), "InvalidHeader"),
    Case("offset with a space", at(offset=" 0", length=16), "InvalidHeader", DECIMAL),
    Case("offset with a plus", at(offset="+0", length=16), "InvalidHeader", DECIMAL),
    Case("pointer", at(length=16, offset=128), "OutOfRange", data=b"version https://git-lfs" * 5),
    # ON-06
    Case("5 of 4 bits", at(length=3), number=TensorProto.INT4, shape=(5,)),
    Case(
        "5 of 4 bits in 5",
        at(length=5),
        "SizeMismatch",
        "bytes were taken for elements when it was written; the reference drops what is too much",
        number=TensorProto.INT4,
        shape=(5,),
    ),
    Case("1 of 4 bits", at(length=1), number=TensorProto.UINT4, shape=(1,)),
    Case("1 of 6 bits", at(length=1), number=TensorProto.FLOAT6E2M3, shape=(1,)),
    Case("no elements", at(offset=64), shape=(0,)),
    Case("no elements, no file", at(offset=65), "OutOfRange", shape=(0,)),
    # Entries
    Case("location twice", (*at("x.bin"), *at(length=16)), "DuplicateMetadata", TWICE),
    Case("offset twice", (*at(offset=0, length=16), ("offset", 1)), "DuplicateMetadata", TWICE),
    Case("length twice", (*at(length=16), ("length", 16)), "DuplicateMetadata", TWICE),
    Case("unknown key", at(length=16, other="x")),
    Case("basepath", at(length=16, basepath="/etc")),
    Case("checksum", at(length=16, checksum="wrong")),
    # Tensors
    Case(
        "dimension -1",
        at(length=16),
        "InvalidHeader",
        "it would be whatever fits, which arrays have and files do not",
        shape=(-1,),
    ),
    Case("strings", at(length=16), "InvalidHeader", number=TensorProto.STRING),
    Case("untyped", at(length=16), "InvalidHeader", number=0),
    Case("too large", at(length=16), "Overflow", shape=(2**62, 2**62)),
]


def write_case(folder, case):
    result = model([TensorProto(name="w", data_type=case.number, dims=case.shape)])
    target = result.graph.initializer[0]
    target.data_location = TensorProto.EXTERNAL
    for key, value in case.entries:
        target.external_data.add(key=key, value=str(value))
    home = folder / "home"
    (home / "sub").mkdir(parents=True)
    for path in [folder, home, home / "sub"]:
        (path / "w.bin").write_bytes(case.data)
    path = home / "model.onnx"
    path.write_bytes(result.SerializeToString())
    return path


def assert_refused(result, kind):
    result.expect(1).error_line()
    error = schemas.check("error", result.json())["error"]
    assert error["kind"] == kind, f"expected {kind}\n{result}"
    return error


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_verdicts_on_external_data(weightlift, tmp_path, case):
    path = write_case(tmp_path, case)
    # A difference that is no more, because the reference changed, is to be taken off the list.
    accepts = reference_accepts(path)
    assert accepts == (not case.laxer and (not case.kind or bool(case.stricter)))
    if case.kind:
        assert_refused(weightlift.load(path, "--device", "host"), case.kind)
        assert_refused(weightlift.inspect(path), case.kind)
        return
    (ours,) = loaded(weightlift, path)
    entries = dict(case.entries)
    offset = int(entries.get("offset", 0))
    bits = {"I4": 4, "U4": 4, "F6_E2M3": 6, "F32": 32}[ours.dtype]
    count = 1
    for dim in case.shape:
        count *= dim
    length = -(-count * bits // 8)
    assert ours.digest == models.reference.digest(case.data[offset : offset + length])


def test_a_pointer_of_git_lfs_is_suspected(weightlift, tmp_path):
    case = next(case for case in CASES if case.name == "pointer")
    error = assert_refused(weightlift.inspect(write_case(tmp_path, case)), "OutOfRange")
    assert error["context"]["tensor"] == "w"
    assert "git lfs" in error["hint"]


# Links (ON-01). The reference refuses every link to a file, and files with two names; ONNX Runtime
# takes what stays inside, and the cache of the Hub. weightlift does as ONNX Runtime.


@pytest.fixture
def linked(tmp_path):
    """A model in a folder of its own, whose data are still to be put there."""
    home = tmp_path / "home"
    home.mkdir()
    path = home / "model.onnx"
    onnx.save(external(model([tensor("w", 1, (4,))]), "w.bin", length=16), path)
    return path


def assert_right(weightlift, path):
    (ours,) = loaded(weightlift, path)
    assert ours.digest == models.reference.digest(DATA[:16])


def test_a_link_inside_the_folder(weightlift, linked):
    (linked.parent / "real.bin").write_bytes(DATA)
    (linked.parent / "w.bin").symlink_to("real.bin")
    assert not reference_accepts(linked)
    assert_right(weightlift, linked)


def test_a_hard_link(weightlift, linked, tmp_path):
    (tmp_path / "other.bin").write_bytes(DATA)
    os.link(tmp_path / "other.bin", linked.parent / "w.bin")
    assert not reference_accepts(linked)
    assert_right(weightlift, linked)


def test_a_link_out_of_the_folder(weightlift, linked, tmp_path):
    (tmp_path / "other.bin").write_bytes(DATA)
    (linked.parent / "w.bin").symlink_to("../other.bin")
    assert not reference_accepts(linked)
    assert_refused(weightlift.inspect(linked), "UnsafePath")


def test_a_linked_folder_out_of_the_folder(weightlift, linked, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "w.bin").write_bytes(DATA)
    (linked.parent / "sub").symlink_to("../other")
    onnx.save(external(model([tensor("w", 1, (4,))]), "sub/w.bin", length=16), linked)
    assert not reference_accepts(linked)
    assert_refused(weightlift.inspect(linked), "UnsafePath")


def test_the_cache_of_the_hub(weightlift, linked, tmp_path):
    blobs = tmp_path / "models--a--b" / "blobs"
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (blobs / "1111").write_bytes(linked.read_bytes())
    (blobs / "2222").write_bytes(DATA)
    (snapshot / "model.onnx").symlink_to("../../blobs/1111")
    (snapshot / "w.bin").symlink_to("../../blobs/2222")
    assert not reference_accepts(snapshot / "model.onnx")
    assert_right(weightlift, snapshot / "model.onnx")


# Wrong bytes of the model itself.


def write(folder, content):
    path = folder / "model.onnx"
    path.write_bytes(content)
    return path


def test_two_initializers_of_one_name(weightlift, tmp_path):
    content = model([tensor("w", 1, (1,)), tensor("w", 1, (1,))]).SerializeToString()
    path = write(tmp_path, content)
    # The reference looks at names only when it checks a model.
    assert reference_accepts(path)
    error = assert_refused(weightlift.load(path, "--device", "host"), "DuplicateTensor")
    assert error["context"]["tensor"] == "w"


def length_delimited(field, content):
    length, head = len(content), bytearray([field << 3 | 2])
    while length >= 0x80:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*head, length]) + content


def test_deep_nesting(weightlift, tmp_path):
    # Graphs in attributes in nodes in graphs; written by hand, since the package would not.
    graph = b""
    for _ in range(10_000):
        graph = length_delimited(1, length_delimited(5, length_delimited(6, graph)))
    path = write(tmp_path, b"\x08\x08" + length_delimited(7, graph))
    assert not reference_accepts(path)
    error = assert_refused(weightlift.load(path, "--device", "host"), "LimitExceeded")
    assert error["context"]["option"] == "depth"


def test_a_model_cut_anywhere(weightlift, tmp_path):
    content = model([tensor("w", 1, (3,)), tensor("x", 7, (2,), raw=False)]).SerializeToString()
    whole = loaded(weightlift, write(tmp_path, content))
    for length in range(len(content)):
        path = write(tmp_path, content[:length])
        result = weightlift.run("load", path, "--device", "host", "--digest", "--json")
        if result.code == 0:
            # Cut between the fields of the model, after the graph.
            assert reference_accepts(path)
            assert loaded(weightlift, path) == whole
        else:
            result.expect(1).error_line()


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda w: w.int32_data.append(1), "InvalidHeader"),
        (lambda w: w.float_data.append(1), "InvalidHeader"),
        (lambda w: setattr(w, "raw_data", w.raw_data[:-1]), "SizeMismatch"),
        (lambda w: w.ClearField("raw_data"), "SizeMismatch"),
        (lambda w: w.segment.SetInParent(), "Unsupported"),
        (lambda w: w.dims.append(2**63 - 1), "Overflow"),
    ],
)
def test_a_tensor_that_contradicts_itself(weightlift, tmp_path, change, kind):
    result = model([tensor("w", 1, (3,))])
    change(result.graph.initializer[0])
    path = write(tmp_path, result.SerializeToString())
    error = assert_refused(weightlift.load(path, "--device", "host"), kind)
    assert error["context"]["tensor"] == "w"


def test_weights_of_more_than_two_gib_are_found(weightlift, tmp_path):
    """A file with a hole of 2.5 GiB, which no protobuf library reads."""
    size = 5 << 29

    def varint(value):
        out = bytearray()
        while value >= 0x80:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes([*out, value])

    head = TensorProto(name="w", data_type=2, dims=[size]).SerializeToString()
    head += b"\x4a" + varint(size)
    graph = b"\x2a" + varint(len(head) + size)
    start = b"\x08\x08\x3a" + varint(len(graph) + len(head) + size) + graph + head
    path = write(tmp_path, start)
    with path.open("r+b") as file:
        file.truncate(len(start) + size)
    (found,) = weightlift.inspect(path).expect(0).json()["tensors"]
    assert (found["offset"], found["length"]) == (len(start), size)

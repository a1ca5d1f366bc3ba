"""bench/compare: that it calls a sample what it is. Nothing here is about how fast anything is."""

import copy
import json
import os
import subprocess
import sys
import time
import types
import xml.etree.ElementTree
from pathlib import Path

import numpy
import pytest

import files

ROOT = Path(__file__).parents[2]
COMPARE = ROOT / "bench" / "compare"
sys.path[:0] = [str(COMPARE), str(ROOT / "bench")]

import checksum  # noqa: E402
import figures  # noqa: E402
import loaders  # noqa: E402
import measure  # noqa: E402
import models as forms  # noqa: E402
import page  # noqa: E402
import plots  # noqa: E402
import run  # noqa: E402
from verdict import judge  # noqa: E402


def total(data):
    return checksum.label("U8", [len(data)], checksum.of_bytes(data))


@pytest.mark.parametrize("length", [1, 7, 8, 9, 4096, 100_003])
def test_a_checksum_changes_with_every_fault(length):
    data = numpy.random.default_rng(length).integers(0, 256, length, dtype=numpy.uint8)
    right = total(data)
    assert total(data.copy()) == right
    for at in {0, length // 2, length - 1}:
        for bit in (1, 0x80):
            wrong = data.copy()
            wrong[at] ^= bit
            assert total(wrong) != right, (at, bit)
    if length >= 16:
        swapped = data.copy()
        swapped[:8], swapped[8:16] = data[8:16], data[:8]
        assert total(swapped) != right
        # One that the top bit alone tells from another: what a plain weighted sum does not see.
        twins = data.copy()
        twins[8:16] = twins[:8]
        twins[7] &= 0x7F
        twins[15] |= 0x80
        there = total(twins)
        twins[7] |= 0x80
        twins[15] &= 0x7F
        assert total(twins) != there
        shifted = numpy.roll(data, 8)
        assert total(shifted) != right
    assert total(data[:-1]) != right and total(numpy.append(data, numpy.uint8(0))) != right


def test_type_and_shape_are_compared_too():
    data = numpy.arange(12, dtype=numpy.int32)
    labels = checksum.of_tensors({"a": data, "b": data.reshape(3, 4), "c": data.view(numpy.uint32), "d": data.copy()})
    assert labels["a"] == labels["d"] and len(set(labels.values())) == 3


def test_torch_and_numpy_come_to_the_same_sums(monkeypatch):
    """Whole, in pieces, many small ones at once, at odd places, and empty ones."""
    torch = pytest.importorskip("torch")
    source = numpy.random.default_rng(1).integers(0, 256, 300_000, dtype=numpy.uint8)
    arrays = {f"n{n}": source[n : n + n] for n in (0, 1, 7, 8, 63, 1000, 1001, 65_536, 100_003)}
    arrays |= {f"many{n}": source[n * 12 : n * 12 + 12] for n in range(500)}
    arrays["matrix"] = source[:4096].reshape(64, 64)
    arrays["turned"] = source[:4096].reshape(64, 64).T
    arrays["scalar"] = source[:1].reshape(())
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    whole = checksum.of_tensors(arrays)
    assert checksum.of_tensors(tensors) == whole
    monkeypatch.setattr(checksum, "SMALL", 64)
    monkeypatch.setattr(checksum, "CHUNK", 4096)
    assert checksum.of_tensors(tensors) == whole == checksum.of_tensors(arrays)
    assert checksum.of_tensors({"w": torch.ones(3, dtype=torch.bfloat16)})["w"].startswith("BF16[3]:")


WAY = loaders.Way("x", "default", "numpy", "", "", None)
REFERENCE = {"a": "U8[1]:01", "b": "U8[1]:02"}


def sample(state="warm", digests=REFERENCE, **call):
    call = {"cached": {"warm": 1, "cold": 0}[state], "took": "", "disk_bytes": {"warm": 0, "cold": 10**9}[state]} | call
    return {"state": state, "bytes": 10**9, "calls": [call], "digests": [digests], "digests_of": [0]}


@pytest.mark.parametrize(
    "status, why, way, taken",
    [
        ("measured", "", {}, sample()),
        ("measured", "", {"asks": "pinned"}, sample(took="pinned")),
        ("measured", "", {"reads": "cache"}, sample(state="cold")),
        ("failed", "no such module", {}, {"error": "no such module"}),
        ("failed", "to be cold, and 0.10%", {}, sample(state="cold", cached=0.001)),
        ("failed", "to be warm, and 99.90%", {}, sample(cached=0.999)),
        ("unverified", "does not say", {"asks": "pinned"}, sample(took=None)),
        ("unverified", "does not say", {}, sample(took=None)),
        ("fallback", "asked for pinned, took pageable", {"asks": "pinned"}, sample(took="pageable")),
        ("fallback", "no memory to pin", {"asks": "pinned"}, sample(took="pinned; pinned became pageable: no memory to pin")),
        ("fallback", "100% of the bytes came from the disk", {"reads": "cache"}, sample(disk_bytes=10**9)),
        ("fallback", "0% of the bytes came from the disk", {"reads": "direct"}, sample()),
        # Its own program, read while it loads, is no weight.
        ("measured", "", {"reads": "cache"}, sample(disk_bytes=30 << 20)),
        ("unverified", "the kernel counts 0%", {}, sample(state="cold", disk_bytes=0)),
        ("wrong", "1 tensors are missing, such as b", {}, sample(digests={"a": REFERENCE["a"]})),
        ("wrong", "1 tensors are not in the files, such as c", {}, sample(digests=REFERENCE | {"c": "U8[1]:03"})),
        ("wrong", "1 tensors differ from the files, such as b", {}, sample(digests=REFERENCE | {"b": "U8[1]:03"})),
        # Wrong bytes are wrong, whichever way they came.
        ("wrong", "missing", {"asks": "pinned"}, sample(digests={}, took="pageable")),
    ],
)
def test_what_a_sample_is_good_for(status, why, way, taken):
    judged = judge(taken, WAY._replace(**way), "cuda:0", REFERENCE)
    assert judged[0] == status and why in judged[1], judged


def test_a_later_call_that_went_another_way_counts():
    taken = sample(took="pinned")
    taken["calls"].append(taken["calls"][0] | {"took": "pageable"})
    assert judge(taken, WAY._replace(asks="pinned"), "cuda:0", REFERENCE)[0] == "fallback"
    assert judge(sample(took="host"), WAY._replace(asks="pinned"), "cpu", REFERENCE)[0] == "measured"


def test_what_onnx_runtime_says_is_read_from_its_log():
    assert loaders.logged_path("[I:onnxruntime] loaded 3 tensors path=pinned in 0.1 s\n[I] path=pinned\n") == "pinned"
    assert loaders.logged_path("path=pinned\npath=classic\n") == "classic+pinned"
    assert loaders.logged_path("Session successfully initialized. mypath=x") is None


def test_fallbacks_of_weightlift_are_told():
    report = {"routes": {"pinned": 0, "pageable": 9}, "fallbacks": [{"from": "pinned", "to": "pageable", "reason": "memlock"}]}
    assert loaders.told(report) == "pageable; pinned became pageable: memlock"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare") / "little"
    folder.mkdir()
    for shard in range(2):
        tensors = {f"s{shard}.w": ("F32", [300, 70]), f"s{shard}.b": ("F32", [3]), f"s{shard}.u": ("U8", [77])}
        (folder / f"model-0000{shard + 1}-of-00002.safetensors").write_bytes(files.build(tensors))
    return forms.Model(folder)


def one(model, prepare, state="warm", later=1, timeout=20, **way):
    way = WAY._replace(prepare=prepare, devices=("cpu",), **way)
    taken = run.one(way, model, model.facts()["bytes"], "cpu", state, later, None, timeout)
    return judge({"state": state, **taken}, way, "cpu", model.reference()), taken


def test_planted_faults_are_found(model):
    """A loader that is right, and the same with one fault in what it returns."""

    def faulty(fault, on=0):
        def prepare(model, device):
            right, calls = loaders.numpy_fromfile(model, device), []

            def load():
                calls.append(right())
                return fault(calls[-1]) if len(calls) - 1 == on else calls[-1]

            return load

        return prepare

    def flip(loaded):
        loaded["s1.w"].view(numpy.uint8)[299, -1] ^= 0x40
        return loaded

    def swap(loaded):
        return loaded | {"s0.w": loaded["s1.w"], "s1.w": loaded["s0.w"]}

    (status, _), taken = one(model, loaders.numpy_fromfile)
    assert status == "measured" and len(taken["calls"]) == 2 and taken["version"] == numpy.__version__
    assert taken["memory_taken"] >= 0
    for fault, why in [
        (flip, "1 tensors differ from the files, such as s1.w"),
        (swap, "2 tensors differ"),
        (lambda loaded: {name: loaded[name] for name in list(loaded)[1:]}, "1 tensors are missing"),
        (lambda loaded: loaded | {"s0.b": loaded["s0.b"].view(numpy.int32)}, "1 tensors differ"),
        (lambda loaded: loaded | {"s0.w": loaded["s0.w"].reshape(70, 300)}, "1 tensors differ"),
    ]:
        (status, told), _ = one(model, faulty(fault))
        assert status == "wrong" and why in told, told
    # The last call is looked at as well as the first.
    (status, told), _ = one(model, faulty(flip, on=1))
    assert status == "wrong" and "(call 2)" in told


def test_loaders_that_fail_hang_or_die_are_told(model):
    def fails(model, device):
        raise ModuleNotFoundError("No module named 'another'")

    (status, why), _ = one(model, fails)
    assert (status, why) == ("failed", "ModuleNotFoundError: No module named 'another'")
    (status, why), _ = one(model, lambda model, device: lambda: time.sleep(60), timeout=1)
    assert (status, why) == ("failed", "no answer in 1 s")
    (status, why), _ = one(model, lambda model, device: lambda: os._exit(3))
    assert (status, why) == ("failed", "the process died")


def test_a_file_that_stays_in_the_page_cache_is_no_cold_sample(model):
    try:
        for shard in model.shards:
            measure.evict(shard)
    except (RuntimeError, OSError) as error:
        pytest.skip(f"files here cannot be dropped from the page cache: {error}")
    (status, _), taken = one(model, loaders.numpy_fromfile, state="cold")
    assert taken["calls"][0]["cached"] == 0 and len(taken["calls"]) == 1
    # Where the kernel counts what a process has read from the disk, it was.
    assert status in ("measured", "unverified")
    held = numpy.memmap(model.shards[0], dtype=numpy.uint8, mode="r")
    assert held.sum() > 0  # its pages are mapped now, and cannot be dropped
    (status, why), _ = one(model, loaders.numpy_fromfile, state="cold")
    assert status == "failed" and "does not leave the page cache" in why


def test_the_reference_follows_its_files(model, tmp_path):
    copied = tmp_path / "copy"
    copied.mkdir()
    for shard in model.shards:
        (copied / Path(shard).name).write_bytes(Path(shard).read_bytes())
    other = forms.Model(copied)
    assert other.reference() == model.reference()
    with open(other.shards[0], "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    assert len([name for name, label in other.reference().items() if label != model.reference()[name]]) == 1


def command(*arguments, code=0):
    done = subprocess.run([sys.executable, COMPARE, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_two_runs_become_one(tmp_path):
    """Made, measured and merged by the commands that the README has."""
    folder = tmp_path / "small"
    command("make", folder, "--small", 200, "--size", 1000)
    wanted = ["--model", folder, "--device", "cpu", "--state", "warm", "--rounds", 2, "--later", 1]
    command("run", *wanted, "--loaders", "numpy/fromfile,safetensors/numpy", "--out", tmp_path / "a.json")
    command("run", *wanted, "--loaders", "weightlift/numpy", "--out", tmp_path / "b.json")
    output = command("merge", tmp_path / "all.json", tmp_path / "a.json", tmp_path / "b.json", tmp_path / "a.json").stdout
    merged = json.loads((tmp_path / "all.json").read_text())
    assert [len(part["samples"]) for part in merged["parts"]] == [4, 2]
    for part in merged["parts"]:
        assert {s["status"] for s in part["samples"]} == {"measured"}, [s["why"] for s in part["samples"]]
        assert part["model"]["tensors"] == 200 and len(part["ceilings"]) == 2 and figures.ceiling(part)[0] == "page cache"
        assert part["machine"]["kernel"] == os.uname().release
    assert "| numpy, fromfile |" in output and "| weightlift, numpy |" in output
    command("run", *wanted, "--loaders", "nobody", code=1)
    # Both versions have one name: without its own folder it is left out, not the other's figure.
    done = command("run", *wanted, "--loaders", "safetensors 0.9", code=1)
    assert "left out: safetensors 0.9" in done.stdout


def part(name="p", loaders=("weightlift", "other"), status="measured", seconds=(1.0, 2.0), **more):
    """Results as `run` writes them; samples of round n take n tenths more."""
    samples = []
    for number in (1, 2, 3):
        for loader, first in zip(loaders, seconds):
            call = {"seconds": first + number / 10, "processor_seconds": 1, "cached": 1, "disk_bytes": 0, "device_bytes": 5, "took": ""}
            samples.append({
                "loader": loader, "setting": "default", "round": number, "status": "measured" if loader == "weightlift" else status,
                "why": "" if status == "measured" or loader == "weightlift" else "because", "version": "1", "memory_taken": 1,
                "calls": [call, call | {"seconds": first / 2}],
            })  # fmt: skip
    machine = {"kernel": "6", "processors": 2, "gpu": "G", "driver": "5", "torch": "2", "file_system": "ext4", "boot": name}
    facts = {"name": "m", "files": 1, "tensors": 3, "bytes": 10**9, "digest": "d"}
    return {
        "schema": 1, "id": name, "command": "c", "seed": 1, "machine": machine, "model": facts, "device": "cuda:0", "state": "warm",
        "loaders": {f"{loader}, default": {"call": "call", "gives": "memory"} for loader in loaders},
        "ceilings": [{"round": n, "bus": 5e9, "page cache": 9e9} for n in (1, 2, 3)], "samples": samples, "dropped": {},
    } | more  # fmt: skip


def test_figures_are_of_measured_samples_and_by_pairs():
    rows = {row["loader"]: row for row in figures.series(part())}
    assert rows["weightlift"]["first"].median == pytest.approx(1e9 / 1.2)
    assert rows["weightlift"]["later"].median == 2e9
    assert rows["weightlift"]["share"] == pytest.approx(1 / 1.2 / 5)
    assert rows["other"]["pairs"].median == pytest.approx(2.2 / 1.2)
    # One of three went another way: it is a row of its own, and changes no figure of the others.
    results = part()
    results["samples"][3] |= {"status": "fallback", "why": "took pageable"}
    results["samples"][3]["calls"][0]["seconds"] = 1e-3
    by = {(row["loader"], row["status"]): row for row in figures.series(results)}
    assert by["other", "measured"]["samples"] == 2 and by["other", "measured"]["first"].high == pytest.approx(1e9 / 2.1)
    assert by["other", "fallback"]["samples"] == 1
    lines, notes = figures.table(results)
    assert "| other, default (**fallback**) |" in lines and "other, default: fallback, 1 samples: took pageable" in notes


def test_wrong_and_failed_samples_have_no_figure():
    for status in ("wrong", "failed"):
        lines, notes = figures.table(part(status=status))
        assert "| other" not in lines and f"other, default: {status}, 3 samples: because" in notes


def test_parts_that_do_not_belong_together_are_refused():
    merged = figures.merge([part("a"), part("b"), part("a"), {"schema": 1, "parts": [part("c"), part("b")]}])
    assert [each["id"] for each in merged["parts"]] == ["a", "b", "c"]
    other = part("b")
    other["model"] = other["model"] | {"digest": "e"}
    with pytest.raises(figures.Mismatch, match="two models are called m"):
        figures.merge([part("a"), other])
    other = part("b")
    other["machine"] = other["machine"] | {"driver": "6"}
    with pytest.raises(figures.Mismatch, match="driver is 5 and 6"):
        figures.merge([part("a"), other])
    other = copy.deepcopy(part("b"))
    other["samples"][1]["version"] = "2"
    with pytest.raises(figures.Mismatch, match="other is of version 1 and 2"):
        figures.merge([part("a"), other])
    with pytest.raises(figures.Mismatch, match="schema 2"):
        figures.merge([part("a") | {"schema": 2}])


def test_the_ceiling_is_the_slowest_that_bytes_go_through():
    assert figures.ceiling(part())[0] == "bus"
    cold = part(ceilings=[{"round": 1, "bus": 5e9, "disk, direct": 2e9, "disk, buffered": 1e9}])
    # The faster way to the disk: a load may take either.
    assert figures.ceiling(cold) == ("disk, direct", 2e9)
    assert figures.ceiling(part(ceilings=[{"round": 1, "error": "no"}])) is None


def test_the_page_is_what_its_files_make():
    command("page", "--check")


def test_blocks_are_filled_and_other_text_is_left(tmp_path):
    (tmp_path / "r.json").write_text(json.dumps(figures.merge([part("a"), part("b", status="unverified")])))
    (tmp_path / "t.txt").write_text("x\n| a |\n|---|\n| 1 |\n\n| b |\n|---|\n")
    begin, end = page.OPENING, page.CLOSING
    text = f"# By hand\n\n{begin} compare r.json -->\nold\n{end}\n\nmore\n\n{begin} quote t.txt 2 -->\n{end}\n"
    made = page.made_of(text, tmp_path)
    new = made.pop(page.PAGE)
    assert new.startswith("# By hand\n\n") and "\n\nmore\n\n" in new and "old" not in new
    assert f"quote t.txt 2 -->\n| b |\n|---|\n{end}\n" in new
    assert "| weightlift, default | 1 |" in new and "| other, default (**unverified**) |" in new
    # Two parts of one model and state are two plots.
    assert sorted(made) == ["docs/plots/r-m-warm-2.svg", "docs/plots/r-m-warm.svg"]
    assert all(f"({path.removeprefix('docs/')})" in new for path in made)
    # Made of itself it is the same.
    assert page.made_of(new, tmp_path) == {page.PAGE: new, **made}
    for broken in (f"{begin} quote t.txt -->\n", f"{end}\n", f"{begin} nothing t.txt -->\n{end}\n", f"{begin} quote t.txt 3 -->\n{end}\n"):
        with pytest.raises(page.Bad):
            page.made_of(broken, tmp_path)


def test_results_of_weightlift_bench_make_a_table(weightlift, model, tmp_path):
    options = ["--device=host", "--states=warm", "--samples=1", "--reading-threads=1,2", "--json"]
    (tmp_path / "b.json").write_text(weightlift.run("bench", model.folder, *options).expect(0).stdout)
    table = page.bench(tmp_path, {}, "b.json")
    assert table.count("| host | warm |") == 2 and "no GPU" in table and "% of page cache" in table


@pytest.mark.parametrize("count", [0, 1, 50])
def test_a_plot_is_well_formed(count):
    rows = [(f"<loader {n}> & co", n + 0.5, [n, n + 1], ["own", "other", "doubt"][n % 3]) for n in range(count)]
    drawn = xml.etree.ElementTree.fromstring(plots.bars("<title>", rows, ("bus", 55.3) if count else None))
    names = {"{http://www.w3.org/2000/svg}" + name for name in ("rect", "circle")}
    kinds = [each for each in drawn.iter() if each.tag in names]
    assert len(kinds) == 1 + count * 3
    width = float(drawn.get("width"))
    assert all(float(each.get("x", 0)) + float(each.get("width", 0)) <= width for each in kinds)
    assert "prefers-color-scheme: dark" in "".join(drawn.itertext())


def test_the_ways_are_told_apart():
    names = [way.name for way in loaders.WAYS]
    assert len(set(names)) == len(names)
    for way in loaders.WAYS:
        assert way.reads in ("cache", "direct", "any") and way.form in ("safetensors", *forms.FORMS)
        assert isinstance(way.prepare, types.FunctionType)
    assert {way.setting for way in loaders.chosen(["best"], "cuda:0")} == {"best"}
    assert [way.name for way in loaders.chosen(["KvikIO/best"], "cuda:0")] == ["KvikIO, best"]

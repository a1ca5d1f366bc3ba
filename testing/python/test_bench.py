"""`weightlift bench`: its JSON, and that it says what it measured, or that it did not.

Nothing here is about how fast anything is."""

import json
import mmap
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

import files
import schemas
from mounts import Mounts

MIB = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Two files on whatever the tests' folder lies on."""
    folder = tmp_path_factory.mktemp("bench")
    for number in range(2):
        name = f"model-{number + 1:05}-of-00002.safetensors"
        tensors = {f"tensor.{number}": ("U8", [3 * MIB + 77]), f"small.{number}": ("F32", [3])}
        (folder / name).write_bytes(files.build(tensors))
    return folder


@pytest.fixture
def on_disk(weightlift, model):
    """A model that can be cold."""
    paths = sorted(model.glob("*.safetensors"))
    state = weightlift.run("bench-part", "cache", "--state=cold", "--json", *paths)
    if state.code != 0:
        pytest.skip(f"files here cannot be dropped from the page cache: {state.stdout.strip()}")
    return model


def bench(weightlift, model, *options, gpu=False, code=0):
    result = weightlift.run("bench", model, "--json", *options, gpu=gpu).expect(code)
    return schemas.check("bench", result.json()), result


def by_cell(results):
    return {
        (series["route"], series["state"], series["reading_threads"], series["fallback"]): series
        for series in results["series"]
    }


def test_host_states_and_threads(weightlift, on_disk, tmp_path):
    """Every combination has its samples, each of a process of its own; ceilings are in the run."""
    page = tmp_path / "page.html"
    options = ["--device=host", "--states=cold,warm,half", "--reading-threads=0-2,auto"]
    results, result = bench(weightlift, on_disk, *options, "--samples=2", f"--html={page}")
    assert result.stderr == ""
    series = by_cell(results)
    assert len(series) == 12 and not results["left_out"] and results["machine"]["cuda"] is None
    for (route, state, _, fallback), one in series.items():
        assert (route, fallback, one["samples"], one["failed"]) == ("host", False, 2, 0), one
        assert one["kernel"] == results["machine"]["kernel"].strip() == os_kernel()
        figures = one["figures"]
        assert figures["ceiling"]["what"] in ("disk", "page cache")
        total = sum(figures["phases"].values())
        # Medians of parts are not the parts of the median.
        assert total == pytest.approx(figures["process_seconds"]["median"], rel=0.5), one
        if state == "warm":
            assert figures["direct_share"] == 0
    lengths = sum(path.stat().st_size for path in on_disk.glob("*.safetensors"))
    for sample in results["samples"]:
        cached = {"cold": 0, "warm": lengths, "half": lengths / 2}[sample["state"]]
        assert sample["cached_bytes"] == pytest.approx(cached, abs=2 * 4096), sample
        assert sample["report"]["bytes"]["delivered"] == results["model"]["bytes"]
    kinds = {ceiling["kind"]: ceiling for ceiling in results["ceilings"]}
    assert set(kinds) == {"disk_direct", "disk_buffered", "page_cache", "page_cache_new_memory"}
    for ceiling in kinds.values():
        assert len(ceiling["samples"]) == 2 or "unavailable" in ceiling
    # One warm-up of the route, which no statistics count.
    assert [sample["round"] for sample in results["samples"]].count(0) == 1
    text = page.read_text()
    assert "<svg" in text and os_kernel() in text and "http" not in text


def os_kernel():
    system = os.uname()
    return f"{system.sysname} {system.release}"


def test_routes_on_a_device(weightlift, model):
    """With the fake driver: the routes to a device, and the bus among the ceilings."""
    options = ["--states=warm", "--reading-threads=0,2", "--samples=1", "--routes=pinned,pageable,auto"]
    results, _ = bench(weightlift, model, *options, gpu=True)
    assert results["machine"]["cuda"]["cuda"] == "CUDA 13.0"
    assert [ceiling["kind"] for ceiling in results["ceilings"]][-1] == "bus"
    series = by_cell(results)
    actual = {cell: one["actual_route"] for cell, one in series.items()}
    assert actual == {
        ("pinned", "warm", "2", False): "pinned",
        ("pageable", "warm", "0", False): "pageable",
        ("pageable", "warm", "2", False): "pageable",
        # As asked for: 0 pins nothing.
        ("auto", "warm", "0", False): "pageable",
        ("auto", "warm", "2", False): "pinned",
    }
    assert [(left["route"], left["reading_threads"]) for left in results["left_out"]] == [
        ("pinned", "0")
    ]
    assert "CUDA 13.0" in series["pinned", "warm", "2", False]["driver"]
    assert series["pinned", "warm", "2", False]["figures"]["phases"]["pin"] > 0


def test_a_fallback_is_labelled_and_kept_apart(weightlift, model):
    """A driver that pins nothing: `auto` is there as what it became, `pinned` has no figure."""
    nothing = weightlift.with_environment(FAKE_CUDA="register_limit=0")
    options = ["--states=warm", "--samples=2", "--routes=auto,pageable,pinned", "--no-ceilings"]
    results, result = bench(nothing, model, *options, gpu=True, code=1)
    series = by_cell(results)
    assert set(series) == {
        ("auto", "warm", "auto", True),
        ("pageable", "warm", "auto", False),
        ("pinned", "warm", "auto", False),
    }
    fell = series["auto", "warm", "auto", True]
    assert (fell["actual_route"], fell["samples"], fell["failed"]) == ("pageable", 2, 0)
    assert any(note.startswith("pinned to pageable") for note in fell["notes"])
    # Asked for, so that it counts, and nothing of the fallback is in it.
    assert series["pageable", "warm", "auto", False]["samples"] == 2
    failed = series["pinned", "warm", "auto", False]
    assert (failed["samples"], failed["failed"], "figures" in failed) == (0, 2, False)
    assert "2 samples failed" in result.error_line()
    # For people too.
    text = nothing.run("bench", model, *options, gpu=True).expect(1).stdout
    assert "fell back: pageable" in text and "fell back from pinned to pageable" in text


def until(process, kept, reached):
    """The results that a run keeps, when there is something in them."""
    deadline = time.monotonic() + 60
    while True:
        results = json.loads(kept.read_text()) if kept.exists() else None
        if results and reached(results):
            return results
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)


def test_bytes_that_are_wrong_are_a_failure(weightlift, tmp_path):
    """Somebody rewrites the model while it is measured. Each load is one of a model that is whole,
    and is refused: it is not the one that was read to compare with."""
    path, kept = tmp_path / "model.safetensors", tmp_path / "results.json"
    path.write_bytes(files.build({"tensor": ("U8", [MIB])}))
    options = ["--device=host", "--states=warm", "--samples=10000", "--no-ceilings"]
    process = weightlift.start("bench", path, *options, f"--resume={kept}")
    until(process, kept, lambda results: len(results["samples"]) > 2)
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    until(process, kept, lambda results: results["samples"][-1]["outcome"] == "failed")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    results = schemas.check("bench", json.loads(kept.read_text()))
    failed = [sample for sample in results["samples"] if sample["outcome"] == "failed"]
    # One that was just being read says that the file changed.
    assert {sample["kind"] for sample in failed[1:]} <= {"WrongBytes"}
    assert "tensor tensor came as" in failed[-1]["error"] or len(failed) == 1
    (right,) = [series for series in results["series"] if "figures" in series]
    assert right["samples"] == len(results["samples"]) - len(failed) - 1


def test_a_sample_whose_files_left_the_cache_is_none(weightlift, on_disk, tmp_path):
    """Somebody drops them while `warm` is measured: either they are brought back before a sample, or
    the sample has no figure. None that read from the disk is called warm."""
    path, kept = min(on_disk.glob("*.safetensors")), tmp_path / "results.json"
    options = ["--device=host", "--states=warm", "--samples=10000", "--no-ceilings"]
    process = weightlift.start("bench", on_disk, *options, f"--resume={kept}")

    def drop(results):
        with path.open("rb") as file:
            for _ in range(200):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                time.sleep(0.001)
        return any(sample["outcome"] == "failed" for sample in results["samples"])

    until(process, kept, drop)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    results = json.loads(kept.read_text())
    failed = [sample for sample in results["samples"] if sample["outcome"] == "failed"]
    assert {sample["kind"] for sample in failed} <= {"Changed", "Io"}
    for sample in results["samples"]:
        if sample["outcome"] != "failed":
            assert sample["report"]["reads"].get("direct", 0) == 0


def test_files_in_memory_cannot_be_cold(weightlift, model, tmp_path):
    """tmpfs: there is nothing to evict to. Loudly, and before anything is measured."""
    mounts = Mounts(tmp_path)
    try:
        inside = mounts.tmpfs()
        for path in model.glob("*.safetensors"):
            (mounts.inside(inside) / path.name).write_bytes(path.read_bytes())
        command = weightlift.started_by(*mounts.enter)
        result = command.run("bench", inside, "--states=warm,cold", "--json").expect(1)
        assert "cannot be brought into the state cold" in result.error_line()
        schemas.check("error", result.json())
        results, _ = bench(command, inside, "--states=warm", "--samples=1")
        assert results["machine"]["residency"] == "memory"
    finally:
        mounts.close()


def test_a_file_that_somebody_holds_cannot_be_cold(weightlift, on_disk):
    """Mapped and locked pages stay, whoever asks for them to go."""
    path = min(on_disk.glob("*.safetensors"))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        sum(mapped[::4096])
        result = weightlift.run("bench", on_disk, "--states=cold", "--samples=1", "--json")
        error = result.expect(1).error_line()
        assert "cannot be brought into the state cold" in error and path.name in error
    bench(weightlift, on_disk, "--states=cold", "--samples=1", "--no-ceilings")


def test_what_nobody_tells_is_no_state(weightlift):
    """A file of somebody else's, which we may not write to: the kernel does not tell what of it is in
    the cache, so that nothing measured there could be called cold, nor warm."""
    if os.geteuid() != 0:
        pytest.skip("not root: cannot become somebody else")
    with tempfile.TemporaryDirectory(prefix="weightlift-") as folder:
        os.chmod(folder, 0o755)
        path = Path(folder) / "model.safetensors"
        path.write_bytes(files.build({"tensor": ("U8", [MIB])}))
        os.chmod(path, 0o644)

        def nobody():
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)

        try:
            subprocess.run([weightlift.binary, "--version"], preexec_fn=nobody, check=True)
        except (OSError, subprocess.SubprocessError):
            pytest.skip("somebody else may not run the command here")
        for state in ["cold", "warm"]:
            arguments = ["bench", path, f"--states={state}", "--device=host"]
            result = weightlift.run(*arguments, prepare=nobody).expect(1)
            assert "nobody tells what the page cache holds" in result.error_line()


def test_samples_that_are_there_are_not_taken_again(weightlift, model, tmp_path):
    kept = tmp_path / "results.json"
    options = ["--device=host", "--states=warm", "--no-ceilings", f"--resume={kept}"]
    first, _ = bench(weightlift, model, *options, "--samples=2")
    assert schemas.check("bench", json.loads(kept.read_text())) == first
    more, _ = bench(weightlift, model, *options, "--samples=3", "--reading-threads=auto,1")
    old = [sample for sample in first["samples"] if sample["round"]]
    assert [sample for sample in more["samples"] if sample in old] == old
    assert [series["samples"] for series in more["series"]] == [3, 3]
    # Nothing to do: nothing is done, not even a warm-up.
    again, _ = bench(weightlift, model, *options, "--samples=3", "--reading-threads=auto,1")
    assert again == more
    # Those that failed are.
    broken = json.loads(kept.read_text())
    last = broken["samples"][-1]
    cell = {key: last[key] for key in ["state", "route", "reading_threads", "round"]}
    broken["samples"][-1] = cell | {"outcome": "failed", "kind": "Io", "error": "no luck"}
    kept.write_text(json.dumps(broken))
    mended, _ = bench(weightlift, model, *options, "--samples=3", "--reading-threads=auto,1")
    assert all(series["failed"] == 0 for series in mended["series"])


@pytest.mark.parametrize("what", ["model", "machine", "settings", "nonsense"])
def test_results_of_something_else_are_refused(weightlift, model, tmp_path, what):
    kept = tmp_path / "results.json"
    options = ["--device=host", "--states=warm", "--no-ceilings", "--samples=1", f"--resume={kept}"]
    bench(weightlift, model, *options)
    if what == "settings":
        options.append("--block-size=8MiB")
    else:
        results = json.loads(kept.read_text())
        if what == "model":
            results["model"]["digest"] = "0" * 16
        elif what == "machine":
            results["machine"]["kernel"] = "Linux 2.6"
        else:
            results = {"schema": 1}
        kept.write_text(json.dumps(results))
    before = kept.read_text()
    result = weightlift.run("bench", model, *options).expect(2)
    assert what == "nonsense" or what in result.error_line()
    assert kept.read_text() == before


@pytest.mark.parametrize("group", [False, True])
def test_ctrl_c_keeps_what_was_measured(weightlift, model, tmp_path, group):
    """As a terminal sends it, to the samples too, and as `kill` does."""
    kept = tmp_path / "results.json"
    options = ["--device=host", "--states=warm", "--samples=10000", "--no-ceilings"]
    process = weightlift.start(
        "bench", model, *options, f"--resume={kept}", "--json", prepare=os.setsid
    )
    until(process, kept, lambda results: len(results["samples"]) > 2)
    if group:
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    assert stderr.decode().startswith("error: the run was stopped; ")
    results = schemas.check("bench", json.loads(stdout))
    assert results["interrupted"]
    assert results == json.loads(kept.read_text())
    (series,) = results["series"]
    assert series["samples"] > 1 and series["failed"] == 0


REFUSED = [
    "--routes=gds",
    "--states=hot",
    "--states=1:2:1000",
    "--reading-threads=0-65",
    "--samples=0",
    "--device=tpu",
]


@pytest.mark.parametrize("option", REFUSED)
def test_wrong_command_lines(weightlift, model, option):
    weightlift.run("bench", model, option).expect(2).error_line()


def test_a_device_that_is_not_there(weightlift, model):
    """Asked for, it is an error; `auto` measures the host."""
    weightlift.run("bench", model, "--states=warm", "--device=cuda:7", gpu=True).expect(1)
    result = weightlift.run("bench", model, "--states=warm", "--routes=pinned", "--samples=1")
    assert "NoDriver" in result.expect(1).error_line() or "driver" in result.error_line()
    results, _ = bench(weightlift, model, "--states=warm", "--samples=1", "--no-ceilings")
    assert [series["route"] for series in results["series"]] == ["host"]

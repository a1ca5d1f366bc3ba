"""The schemas say no where they should: a schema that takes everything tests nothing."""

import copy

import pytest

import schemas

PHASES = [
    "open",
    "plan",
    "driver",
    "driver_wait",
    "pin",
    "allocate",
    "first_byte",
    "read",
    "copy",
    "waiting_for_disk",
    "waiting_for_bus",
    "total",
]
LOAD = {
    "schema": 1,
    "tensors": [
        {"name": "a", "dtype": "F32", "shape": [2], "length": 8, "digest": "0123456789abcdef"}
    ],
    "bytes": {"planned": 8, "read": 8, "delivered": 8},
    "routes": {"pinned": 8},
    "reads": {"cached": 8},
    "fallbacks": [{"from": "pinned", "to": "pageable", "reason": "no memory", "bytes": 8}],
    "seconds": dict.fromkeys(PHASES, 0.5),
    "bytes_per_second": 16.0,
    "staging_bytes_peak": 4096,
    "devices": ["cuda:0"],
}
INSPECT = {
    "format": "safetensors",
    "tensors": [
        {
            "name": "",
            "dtype": "F32",
            "shape": [],
            "file": "a",
            "offset": 10,
            "length": 4,
            "storage": 0,
        }
    ],
}
ERROR = {"error": {"kind": "Overlap", "message": "two tensors overlap", "context": {"tensor": "a"}}}
CELL = {"state": "cold", "route": "pinned", "reading_threads": "4"}
REPORT = {
    key: LOAD[key]
    for key in ["schema", "bytes", "routes", "reads", "fallbacks", "seconds", "staging_bytes_peak"]
} | {"decisions": []}
TAKEN = {
    "actual_route": "pinned",
    "process_seconds": 1.5,
    "start_seconds": 0.01,
    "verify_seconds": 0.1,
    "processor_seconds": 0.5,
    "peak_memory_bytes": 4096,
    "cached_bytes": 0,
    "tries": 1,
    "disk_bytes": None,
    "report": REPORT,
}
FELL = {"outcome": "fallback", "actual_route": "pageable", "reasons": ["pinned to pageable: no"]}
SPREAD = {"median": 1.0, "min": 0.5, "max": 2.0}
FIGURES = {
    "bytes_per_second": SPREAD,
    "load_seconds": SPREAD,
    "process_seconds": SPREAD,
    "processor_seconds": SPREAD,
    "peak_memory_bytes": 4096,
    "staging_bytes_peak": 4096,
    "direct_share": 1.0,
    "phases": dict.fromkeys(
        ["start", "open", "plan", "driver_wait", "pin", "allocate", "read_and_copy", "end"], 0.1
    ),
    "beside": dict.fromkeys(["driver", "read", "copy"], 0.1),
    "values": [1.0],
}
BENCH = {
    "schema": 1,
    "weightlift": "0.1.0",
    "started": 1,
    "interrupted": False,
    "model": {
        "path": "/m",
        "format": "safetensors",
        "tensors": 1,
        "bytes": 8,
        "files": [{"path": "/m/a", "length": 100}],
        "digest": "0123456789abcdef",
    },
    "machine": {
        "kernel": "Linux 6.12",
        "architecture": "x86_64",
        "processor": "one",
        "processors": 1,
        "memory_bytes": 4096,
        "storage": {"file_system": "ext4", "kind": "disk", "rotational": None, "direct": {}},
        "residency": "cachestat",
        "cuda": None,
    },
    "settings": {
        "routes": ["pinned"],
        "states": ["cold", "1:2:4096"],
        "reading_threads": ["4", "auto"],
        "samples": 1,
        "options": "device=auto",
        "command": "weightlift bench m",
    },
    "ceilings": [{"kind": "bus", "samples": [1.0]}],
    "left_out": [CELL | {"reason": "there is none"}],
    "samples": [
        CELL | TAKEN | {"round": 1, "outcome": "measured"},
        CELL | TAKEN | {"round": 2} | FELL,
        CELL | {"round": 3, "outcome": "failed", "kind": "Io", "error": "no"},
    ],
    "series": [
        CELL
        | {"actual_route": "pinned", "fallback": False, "notes": [], "samples": 1, "failed": 0}
        | {"kernel": "Linux 6.12", "driver": None, "figures": FIGURES}
    ],
}
DOCTOR_STORAGE = {
    "file_system": "ext4",
    "kind": "disk",
    "rotational": None,
    "direct": {"state": "told", "memory": 4, "offset": 512},
}
DOCTOR = {
    "schema": 1,
    "weightlift": "0.1.0",
    "system": {
        "kernel": "Linux 6.1",
        "huge_pages": "madvise",
        "locked_memory": None,
        "nvidia_module": None,
        "nvidia_fs": False,
    },
    "machine": {
        "processors": 2,
        "available_memory": 1,
        "memory_limit": {"bytes": 1, "group": "/sys/fs/cgroup/a"},
        "io_uring": {"yes": 64},
        "cufile": {"no": "it is not there"},
    },
    "devices": [
        {
            "ordinal": 0,
            "name": "GPU",
            "cuda": "CUDA 13.0",
            "library": "libcuda.so.1",
            "pci": "0000:01:00.0",
            "memory_free": 1,
            "memory_total": 2,
            "batched_copies": True,
            "link": {"speed": 32.0, "width": 16, "most_speed": 32.0, "most_width": 16},
        }
    ],
    "no_device": None,
    "path": {
        "path": "/a",
        "storage": DOCTOR_STORAGE,
        "format": "gguf",
        "no_model": None,
        "files": [
            {
                "path": "/a/b",
                "bytes": 1,
                "storage": DOCTOR_STORAGE,
                "residency": "cachestat",
                "cached_bytes": 0,
                "buffered": None,
            }
        ],
    },
    "auto": {
        "device": "cuda:0",
        "device_reason": "a",
        "route": "pinned",
        "reason": "b",
        "readers": 2,
        "few_readers": None,
        "pinned_bytes": 1,
        "bus_bytes_per_second": 6.3e10,
    },
    "findings": [{"what": "a", "means": "b", "todo": "c"}],
}
SAID = {"name": "a", "length": 8, "algorithm": "sha256", "digest": "0" * 64, "said_by": "hub"}
MANIFEST = {
    "schema": 1,
    "kind": "weightlift-manifest",
    "tensors": [
        {"name": "a", "dtype": "F32", "shape": [2], "length": 8}
        | {"xxh3": "0123456789abcdef", "tree": "0123456789abcdef"}
    ],
    "files": [SAID],
}
VERIFY = {
    "schema": 1,
    "manifest": "/m/weightlift-manifest.json",
    "written": False,
    "tensors": 1,
    "bytes": 8,
    "files": [SAID],
    "seconds": 0.5,
}
RIGHT = {
    "load": LOAD,
    "inspect": INSPECT,
    "bench": BENCH,
    "doctor": DOCTOR,
    "manifest": MANIFEST,
    "verify": VERIFY,
    "error": ERROR,
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_values_pass_also_with_additions(name):
    schemas.check(name, RIGHT[name])
    schemas.check(name, RIGHT[name] | {"later": 1})


WRONG = [
    ("load", ("schema",), 2),
    ("load", ("tensors", 0, "digest"), "0123456789ABCDEF"),
    ("load", ("tensors", 0, "digest"), "123"),
    ("load", ("tensors", 0, "length"), -1),
    ("load", ("tensors", 0, "shape"), [2.5]),
    ("load", ("bytes", "read"), "8"),
    ("load", ("routes", "pinned"), -8),
    ("load", ("reads",), []),
    ("load", ("fallbacks", 0, "reason"), ""),
    ("load", ("seconds", "total"), -1),
    ("load", ("seconds", "total"), None),
    ("load", ("bytes_per_second",), "fast"),
    ("load", ("devices",), "cuda:0"),
    ("inspect", ("tensors", 0, "offset"), -1),
    ("inspect", ("tensors", 0, "shape"), None),
    ("inspect", ("tensors", 0, "strides"), [-1]),
    ("inspect", ("format",), "gif"),
    ("bench", ("model", "digest"), "abc"),
    ("bench", ("machine", "kernel"), ""),
    ("bench", ("settings", "states", 0), "hot"),
    ("bench", ("settings", "reading_threads", 0), "65"),
    ("bench", ("ceilings", 0, "kind"), "warp"),
    ("bench", ("ceilings", 0, "samples", 0), 0),
    ("bench", ("samples", 0, "route"), "gds"),
    # A fallback says why, a failure has no figures, and what was measured has no reasons.
    ("bench", ("samples", 0, "outcome"), "fallback"),
    ("bench", ("samples", 0, "outcome"), "failed"),
    ("bench", ("samples", 1, "outcome"), "measured"),
    ("bench", ("samples", 1, "reasons"), []),
    ("bench", ("samples", 2, "report"), REPORT),
    ("bench", ("samples", 2, "outcome"), "measured"),
    ("bench", ("series", 0, "actual_route"), "auto"),
    ("bench", ("series", 0, "figures", "values"), []),
    ("bench", ("series", 0, "figures", "direct_share"), 1.5),
    ("doctor", ("machine", "io_uring"), {"yes": 1, "no": "both"}),
    ("doctor", ("machine", "processors"), 0),
    ("doctor", ("devices", 0, "link", "width"), 0),
    ("doctor", ("path", "files", 0, "residency"), "perhaps"),
    ("doctor", ("path", "storage", "direct"), {"state": "told"}),
    ("doctor", ("auto", "device"), "gpu"),
    ("doctor", ("auto", "route"), "auto"),
    ("doctor", ("findings", 0, "todo"), ""),
    ("manifest", ("schema",), 2),
    ("manifest", ("kind",), "another"),
    ("manifest", ("tensors", 0, "xxh3"), 5),
    ("manifest", ("tensors", 0, "tree"), "0123456789ABCDEF"),
    ("manifest", ("files", 0, "algorithm"), "md5"),
    ("verify", ("manifest",), 1),
    ("verify", ("tensors",), -1),
    ("verify", ("files", 0, "digest"), "0"),
    ("error", ("error", "kind"), "two words"),
    ("error", ("error", "message"), "two\nlines"),
    ("error", ("error", "context"), []),
]


@pytest.mark.parametrize(("name", "path", "value"), WRONG)
def test_wrong_values_fail(name, path, value):
    wrong = copy.deepcopy(RIGHT[name])
    at = wrong
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    with pytest.raises(AssertionError):
        schemas.check(name, wrong)


REQUIRED = [
    *[("load", (key,)) for key in LOAD],
    *[("load", ("tensors", 0, key)) for key in ["name", "dtype", "shape", "length"]],
    *[("load", ("bytes", key)) for key in LOAD["bytes"]],
    *[("load", ("fallbacks", 0, key)) for key in LOAD["fallbacks"][0]],
    *[("load", ("seconds", key)) for key in PHASES],
    *[("inspect", (key,)) for key in INSPECT],
    *[("inspect", ("tensors", 0, key)) for key in INSPECT["tensors"][0]],
    *[("manifest", (key,)) for key in MANIFEST],
    *[("manifest", ("tensors", 0, key)) for key in MANIFEST["tensors"][0]],
    *[("manifest", ("files", 0, key)) for key in SAID],
    *[("verify", (key,)) for key in VERIFY],
    *[("bench", (key,)) for key in BENCH],
    *[("bench", ("samples", 0, key)) for key in BENCH["samples"][0]],
    *[("bench", ("samples", 1, key)) for key in BENCH["samples"][1]],
    *[("bench", ("samples", 2, key)) for key in BENCH["samples"][2]],
    *[("bench", ("series", 0, key)) for key in BENCH["series"][0] if key != "figures"],
    *[("bench", ("series", 0, "figures", key)) for key in FIGURES],
    *[("doctor", (key,)) for key in DOCTOR],
    *[("doctor", ("auto", key)) for key in DOCTOR["auto"]],
    *[("doctor", ("devices", 0, key)) for key in DOCTOR["devices"][0]],
    *[("doctor", ("path", "files", 0, key)) for key in DOCTOR["path"]["files"][0]],
    *[("error", ("error", key)) for key in ERROR["error"]],
]


@pytest.mark.parametrize(("name", "path"), REQUIRED)
def test_missing_values_fail(name, path):
    wrong = copy.deepcopy(RIGHT[name])
    at = wrong
    for step in path[:-1]:
        at = at[step]
    del at[path[-1]]
    with pytest.raises(AssertionError):
        schemas.check(name, wrong)

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
RIGHT = {"load": LOAD, "inspect": INSPECT, "error": ERROR}


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

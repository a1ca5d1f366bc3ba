"""Where io_uring is forbidden or has too little memory, loads bring the same bytes by other calls,
and the report says why (UR-01, UR-02, UR-03)."""

import ctypes
import errno
import os
import resource
from pathlib import Path

import pytest

import reference
from files import build

# The same on every architecture.
CALLS = {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427}

PR_GET_SECCOMP, PR_SET_SECCOMP = 21, 22
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2
SECCOMP_RET_ERRNO, SECCOMP_RET_ALLOW = 0x00050000, 0x7FFF0000
BPF_LD_W_ABS, BPF_JEQ_K, BPF_RET_K = 0x20, 0x15, 0x06
CAP_IPC_LOCK = 14

LIBC = ctypes.CDLL(None, use_errno=True)


class Instruction(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("k", ctypes.c_uint32),
    ]


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(Instruction))]


def prctl(option, *arguments):
    arguments = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    arguments += [ctypes.c_ulong(0)] * (4 - len(arguments))
    if LIBC.prctl(option, *arguments) < 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def forbid(call: int, error: int):
    """What makes `call` fail with `error` in a process and in whatever it becomes."""
    instructions = (Instruction * 4)(
        # The call's number is the first word of what a filter sees.
        Instruction(BPF_LD_W_ABS, 0, 0, 0),
        Instruction(BPF_JEQ_K, 0, 1, call),
        Instruction(BPF_RET_K, 0, 0, SECCOMP_RET_ERRNO | error),
        Instruction(BPF_RET_K, 0, 0, SECCOMP_RET_ALLOW),
    )
    program = Program(len(instructions), instructions)

    def prepare():
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program))

    return prepare


def lock_at_most(length: int):
    """What limits a process's locked memory, also root's."""

    def prepare():
        if os.geteuid() == 0:
            # Gone when the command is started; whoever has it is not limited.
            prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (length, length))

    return prepare


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("uring") / "model.safetensors"
    path.write_bytes(build({"a": ("U8", (3_000_001,)), "b": ("F32", (1000,)), "c": ("U8", (77,))}))
    return path


@pytest.fixture(scope="module")
def load(weightlift, model):
    """Loads the model past the page cache and sees to its bytes; what carried the direct reads."""
    wanted = {name: tensor.digest for name, tensor in reference.read(model).items()}

    def load(prepare=None):
        options = ["--device", "host", "--direct-io", "on", "--reading-threads", "3"]
        options += ["--piece-size", "64KiB"]
        result = weightlift.load(model, *options, prepare=prepare)
        if result.code == 1 and result.json()["error"]["kind"] == "DirectIoUnavailable":
            pytest.skip("files in the temporary folder have no direct reads")
        report = result.expect(0).json()
        assert {tensor["name"]: tensor["digest"] for tensor in report["tensors"]} == wanted
        assert report["reads"] == {"buffered": 0, "direct": report["bytes"]["planned"]}
        assert report["fallbacks"] == []
        (decision,) = (d for d in report["decisions"] if d["what"] == "direct_reads")
        return decision["chosen"], decision["reason"]

    return load


@pytest.fixture(scope="module")
def has_io_uring(load):
    chosen, reason = load()
    if chosen != "io_uring":
        pytest.skip(f"no io_uring here: {reason}")


@pytest.mark.parametrize("error", ["EPERM", "ENOSYS", "EACCES"])
@pytest.mark.parametrize("call", CALLS)
def test_a_filter_of_system_calls(load, has_io_uring, call, error):
    """Containers forbid the first call, most of them all three; some say that it is unknown."""
    if LIBC.prctl(PR_GET_SECCOMP, 0, 0, 0, 0) < 0:
        pytest.skip("this kernel filters no system calls")
    number = getattr(errno, error)
    chosen, reason = load(forbid(CALLS[call], number))
    assert chosen == "one at a time"
    assert "io_uring" in reason and f"(os error {number})" in reason, reason


def test_the_sysctl(load):
    """Never set here: it is the whole machine's."""
    setting = Path("/proc/sys/kernel/io_uring_disabled")
    value = setting.read_text().strip() if setting.exists() else "0"
    if value == "0" or (value == "1" and os.geteuid() == 0):
        pytest.skip(f"kernel.io_uring_disabled is {value}, which allows it")
    chosen, reason = load()
    assert chosen == "one at a time"
    assert f"(os error {errno.EPERM})" in reason, reason


def test_no_locked_memory_at_all(load, has_io_uring):
    chosen, reason = load(lock_at_most(0))
    if chosen == "io_uring":
        pytest.skip("this kernel counts no queue as locked memory")
    # Halved as far as it makes sense, and then given up.
    assert chosen == "one at a time"
    assert reason.startswith("io_uring with 8 entries: "), reason
    assert f"(os error {errno.ENOMEM})" in reason, reason


@pytest.mark.parametrize("kib", [4, 16, 64])
def test_little_locked_memory(load, has_io_uring, kib):
    """Some readers may have a queue and others not: the bytes come, and what is said is one of
    both."""
    chosen, reason = load(lock_at_most(kib << 10))
    if chosen == "io_uring":
        assert reason.startswith("a queue of "), reason
    else:
        assert chosen == "one at a time"
        assert f"(os error {errno.ENOMEM})" in reason, reason


@pytest.fixture(scope="module")
def staged(weightlift, tmp_path_factory):
    """Loads 20 times what its staging memory holds; what carried the direct reads."""
    path = tmp_path_factory.mktemp("uring") / "model.safetensors"
    path.write_bytes(build({"a": ("U8", (20 << 20,)), "b": ("U8", (77,))}))
    wanted = {name: tensor.digest for name, tensor in reference.read(path).items()}

    def load(prepare=None):
        options = ["--device", "cuda", "--direct-io", "on", "--reading-threads", "2"]
        options += ["--staging-budget", "1MiB", "--block-size", "256KiB", "--piece-size", "64KiB"]
        result = weightlift.load(path, *options, gpu=True, prepare=prepare)
        if result.code == 1 and result.json()["error"]["kind"] == "DirectIoUnavailable":
            pytest.skip("files in the temporary folder have no direct reads")
        report = result.expect(0).json()
        assert {tensor["name"]: tensor["digest"] for tensor in report["tensors"]} == wanted
        (decision,) = (d for d in report["decisions"] if d["what"] == "direct_reads")
        return decision["chosen"], decision["reason"]

    return load


def test_staging_memory_is_registered_where_it_may_be_locked(staged, has_io_uring):
    chosen, reason = staged()
    assert chosen == "io_uring"
    assert reason.startswith("a queue of ")
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if os.geteuid() != 0 and limit != resource.RLIM_INFINITY and limit < 4 << 20:
        pytest.skip(f"{limit} bytes may be locked here")
    assert reason.endswith(" entries, buffers registered"), reason


def test_where_it_may_not_it_is_read_into_as_before(staged, has_io_uring):
    chosen, reason = staged(lock_at_most(256 << 10))
    assert chosen == "io_uring"
    assert ", buffers not registered: " in reason
    assert reason.endswith(f"(os error {errno.ENOMEM})"), reason

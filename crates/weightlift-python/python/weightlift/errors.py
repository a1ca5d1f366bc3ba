"""What goes wrong: one exception class for each kind of error.

All derive from :class:`WeightliftError`, and each from the built-in exception that one would
expect for it too, so that ``except FileNotFoundError`` and ``except MemoryError`` work.
"""

from __future__ import annotations

import errno as _errno
from typing import Any, Mapping


class WeightliftError(Exception):
    """Any error of weightlift.

    ``kind`` is its name as the command's ``--json`` prints it, ``context`` a dict of named values
    (file, tensor, offset, expected, actual and so on, all as text), ``hint`` what to do about it,
    or ``None``.
    """

    kind: str = "WeightliftError"
    context: dict[str, str]
    hint: str | None

    def __init__(
        self, *args: Any, kind: str | None = None, context: Mapping[str, str] | None = None, hint: str | None = None
    ):
        super().__init__(*args)
        self.kind = kind or type(self).kind
        self.context = dict(context or {})
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")


class FormatError(WeightliftError, ValueError):
    """A file is not what it should be; ``kind`` says in what."""

    kind = "FormatError"


class SafetensorError(FormatError):
    """A file or folder is no valid model, or has no such tensor.

    Named like the exception of the safetensors package, in whose place it is raised.
    """

    kind = "SafetensorError"


class NotFound(SafetensorError, KeyError):
    """The model has no tensor of this name."""

    kind = "NotFound"

    def __str__(self) -> str:
        # KeyError would show it in quotes.
        return str(self.args[0]) if self.args else ""


class InvalidOption(WeightliftError, ValueError):
    """An option's value is refused; the earlier value stays."""

    kind = "InvalidOption"


class InvalidArgument(SafetensorError, InvalidOption):
    """A framework or a device that there is not; safetensors' functions raise their own error then."""

    kind = "InvalidOption"


class InvalidRoute(InvalidOption):
    """A combination of device, route and reading threads that does not exist."""

    kind = "InvalidRoute"


class _OSError(WeightliftError, OSError):
    def __init__(
        self, message: str = "", *args: Any, number: int | None = None, path: str | None = None, **fields: Any
    ):
        WeightliftError.__init__(self, message, *args, **fields)
        self.errno = number
        self.strerror = message
        self.filename = path

    def __str__(self) -> str:
        # OSError would show errno and file name, which the message has already.
        return str(self.args[0]) if self.args else ""


class FileNotFound(_OSError, FileNotFoundError):
    """There is no such file or folder."""

    kind = "FileNotFound"


class PermissionDenied(_OSError, PermissionError):
    """The operating system does not let us read it."""

    kind = "PermissionDenied"


class NotRegular(_OSError):
    """A folder, pipe or device where a regular file is needed."""

    kind = "NotRegular"


class IoError(_OSError):
    """Reading failed."""

    kind = "Io"


class Changed(_OSError):
    """A file was truncated, rewritten or replaced while it was read."""

    kind = "Changed"


class DirectIoUnavailable(_OSError):
    """A file cannot be read past the page cache, and that was asked for."""

    kind = "DirectIoUnavailable"


class DeviceError(WeightliftError, RuntimeError):
    """The device, its driver, or what was asked of it."""

    kind = "DeviceError"


class NoDriver(DeviceError):
    """There is no CUDA driver on this machine."""

    kind = "NoDriver"


class DriverTooOld(DeviceError):
    """The CUDA driver is older than what is needed."""

    kind = "DriverTooOld"


class NoDevice(DeviceError):
    """The driver shows no device."""

    kind = "NoDevice"


class InvalidDevice(DeviceError, ValueError):
    """There is no device of that number."""

    kind = "InvalidDevice"


class Forked(DeviceError):
    """CUDA was used before this process was forked: start it with ``spawn``."""

    kind = "Forked"


class CudaError(DeviceError):
    """The CUDA driver answered with an error."""

    kind = "Cuda"


class Poisoned(DeviceError):
    """An earlier error made the CUDA context unusable for the rest of the process."""

    kind = "Poisoned"


class PinFailed(DeviceError):
    """Host memory could not be pinned, and that was asked for."""

    kind = "PinFailed"


class OutOfDeviceMemory(DeviceError, MemoryError):
    """The device has not enough free memory."""

    kind = "OutOfDeviceMemory"


class OutOfHostMemory(WeightliftError, MemoryError):
    """The host has not enough memory."""

    kind = "OutOfHostMemory"


class InvalidDestination(WeightliftError, ValueError):
    """Memory that was given does not fit its tensor."""

    kind = "InvalidDestination"


class Mismatch(WeightliftError, ValueError):
    """A tensor or a file is not what a manifest, or whoever published it, says."""

    kind = "Mismatch"


class InvalidManifest(WeightliftError, ValueError):
    """A manifest is none, or one that this version does not read."""

    kind = "InvalidManifest"


class Cancelled(WeightliftError):
    """The load was cancelled."""

    kind = "Cancelled"


class InternalError(WeightliftError, RuntimeError):
    """A defect of weightlift. Please report it."""

    kind = "Internal"


_BY_KIND: dict[str, type[WeightliftError]] = {
    each.kind: each
    for each in (
        NotFound, InvalidOption, InvalidRoute, FileNotFound, PermissionDenied, NotRegular, IoError,
        Changed, DirectIoUnavailable, NoDriver, DriverTooOld, NoDevice, InvalidDevice, Forked,
        CudaError, Poisoned, PinFailed, OutOfDeviceMemory, OutOfHostMemory, InvalidDestination,
        Mismatch, InvalidManifest, Cancelled, InternalError,
    )
}  # fmt: skip


def _make(
    kind: str, text: str, message: str, context: dict[str, str], hint: str | None, number: int | None, is_format: bool
) -> WeightliftError:
    """The exception for an error of the library. Called by the native half."""
    cls = _BY_KIND.get(kind) or (SafetensorError if is_format else WeightliftError)
    fields: dict[str, Any] = {"kind": kind, "context": context, "hint": hint}
    if issubclass(cls, _OSError):
        if number is None:
            number = {FileNotFound: _errno.ENOENT, PermissionDenied: _errno.EACCES}.get(cls)
        path = context.get("path") or context.get("file")
        return cls(text, number=number, path=path, **fields)
    return cls(text, **fields)

"""OpenVINO's models and compiled blobs, on weights that weightlift loaded.

>>> import openvino, weightlift.openvino
>>> core = openvino.Core()
>>> compiled = weightlift.openvino.compile_model(core, "model.xml", "CPU")
>>> compiled = weightlift.openvino.import_model(core, "cache/1234567890.blob", "CPU")

Weights are read in parallel, past the page cache where they are not in it, straight into memory that
OpenVINO owns and uses as it is: one copy of them, which lives as long as whatever uses it and has
nothing to do with the file any more. The package openvino is imported when a function is called.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _openvino_cache
from ._model import Model
from ._reader import Reader
from .errors import OutOfHostMemory

if TYPE_CHECKING:
    import openvino

__all__ = ["compile_model", "import_model", "open_reader", "read_model"]

# The oldest releases that take a tensor for weights, and one for a blob (2025.3 refuses it).
_OLDEST = (2025, 1)
_OLDEST_IMPORT = (2025, 4)

_PAGE = 4096
_HUGE_PAGE = 2 << 20
# glibc takes an allocation from its heap, which it shares with others, up to at most this much
# (DEFAULT_MMAP_THRESHOLD_MAX); beyond, an allocation's pages are its own.
_OWN_PAGES = 32 << 20


def read_model(
    core: openvino.Core,
    xml: str | os.PathLike[str],
    weights: str | os.PathLike[str] | None = None,
    *,
    reading_threads: int | None = None,
    progress: Any = False,
    loader: Any = None,
) -> openvino.Model:
    """Reads an OpenVINO model in place of ``core.read_model(xml)``.

    ``weights`` is the file of its constants: beside ``xml``, with the ending ``.bin``, unless given.
    ``reading_threads``, ``progress`` and ``loader`` are those of :meth:`weightlift.Model.load`.

    The constants are views of one tensor of OpenVINO's that holds the whole file. The model keeps it,
    and so does what is compiled of the model; the file may be deleted or written to afterwards. What
    happened stands in ``model.weightlift_report``, a dict.

    A model beside its weights is checked before they are read: missing and truncated ones are
    :class:`~weightlift.errors.FormatError`\\ s that name the constant. OpenVINO's own complaints are
    its ``RuntimeError``. ``ImportError`` without openvino 2025.1 or newer.
    """
    openvino = _import_openvino(_OLDEST)
    options = {"reading_threads": reading_threads, "progress": progress, "loader": loader}
    return _read(openvino, core, xml, weights, None, options)


def compile_model(
    core: openvino.Core,
    xml: str | os.PathLike[str],
    device: str = "AUTO",
    config: dict[str, Any] | None = None,
    *,
    weights: str | os.PathLike[str] | None = None,
    reading_threads: int | None = None,
    progress: Any = False,
    loader: Any = None,
) -> openvino.CompiledModel:
    """Reads and compiles an OpenVINO model in place of ``core.compile_model(xml, device, config)``.

    As :func:`read_model`, but for a GPU or NPU the weights lie in memory that its plugin gives (USM
    host memory), where it gives such. The compiled model has ``weightlift_report``.
    """
    openvino = _import_openvino(_OLDEST)
    options = {"reading_threads": reading_threads, "progress": progress, "loader": loader}
    model = _read(openvino, core, xml, weights, device, options)
    compiled = core.compile_model(model, device, config or {})
    compiled.weightlift_report = model.weightlift_report
    return compiled


def import_model(
    core: openvino.Core,
    blob: str | os.PathLike[str],
    device: str,
    config: dict[str, Any] | None = None,
    *,
    reading_threads: int | None = None,
    progress: Any = False,
    loader: Any = None,
) -> openvino.CompiledModel:
    """Imports a compiled model in place of ``core.import_model(bytes, device, config)``.

    ``blob`` is a file of what ``export_model`` wrote, or of OpenVINO's cache (``CACHE_DIR``), whose
    header is found and left out. A file that another build of OpenVINO cached is a
    :class:`~weightlift.errors.FormatError`: it is to be compiled anew, as OpenVINO would do.

    The blob lies at a page of its own in one tensor of OpenVINO's, for a GPU or NPU in its plugin's
    memory where that gives some. The compiled model keeps it, and the file is not needed any more. It
    has ``weightlift_report``. ``ImportError`` without openvino 2025.4 or newer.
    """
    openvino = _import_openvino(_OLDEST_IMPORT)
    file = Model(blob, format="raw")
    start = _openvino_cache.blob_start(file, openvino.get_version())
    options = {"reading_threads": reading_threads, "progress": progress, "loader": loader}
    tensor, report = _load(openvino, core, file, start, device, options)
    compiled = core.import_model(tensor, device, config or {})
    compiled.weightlift_report = report
    return compiled


def open_reader(blob: str | os.PathLike[str], *, threads: int | None = None, window: int | None = None) -> Reader:
    """Opens a file of OpenVINO's cache as :func:`weightlift.open_reader` does, positioned behind
    OpenVINO's own header, or at the start of any other file: for those who want a stream.

    >>> with weightlift.openvino.open_reader("cache/1234567890.blob") as f:
    ...     compiled = core.import_model(f.read(), "CPU")

    That makes two more copies of the blob for a while; :func:`import_model` makes none.
    """
    start = _openvino_cache.blob_start(Model(blob, format="raw"), None)
    reader = Reader(blob, threads, window)
    reader.seek(start)
    return reader


def _read(openvino: Any, core: Any, xml: Any, weights: Any, device: str | None, options: dict[str, Any]) -> Any:
    text = _text(xml)
    # What is wrong with constants is told by name, before anything is read. Weights of another name
    # are left to OpenVINO.
    if weights is None and not len(Model(xml, format="openvino")):
        tensor, report = openvino.Tensor(openvino.Type.u8, [0]), _report(openvino, {}, None, 0, 0, {"memory": "none"})
    else:
        path = Path(weights) if weights is not None else Path(xml).with_suffix(".bin")
        tensor, report = _load(openvino, core, Model(path, format="raw"), 0, device, options)
    model = core.read_model(text, tensor)
    model.weightlift_report = report
    return model


def _text(xml: Any) -> bytes:
    Model(xml, format="raw")  # what is no file is said in our words
    return Path(xml).read_bytes()


def _load(
    openvino: Any, core: Any, file: Model, start: int, device: str | None, options: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """A file from ``start`` to its end, in a tensor of OpenVINO's, and the report."""
    (info,) = file.tensors
    length = info.nbytes - start
    tensor, array, memory = _place(openvino, core, device, length)
    if length:

        def provide(*_: Any) -> tuple[int, int, Any, None]:
            # The array keeps the tensor's memory, whatever becomes of the load.
            return array.ctypes.data, array.nbytes, array, None

        rows = file._native.rows(info.name, start, info.nbytes)
        file._run("host", provide=provide, native=rows, **options)
    return tensor, _report(openvino, file.report or {}, file.path, start, length, memory)


def _report(
    openvino: Any, load: dict[str, Any], file: str | None, start: int, length: int, memory: dict[str, Any]
) -> dict[str, Any]:
    """The load's report, and what was handed to OpenVINO: which bytes, in what memory and why."""
    handed = {"version": openvino.get_version(), "file": file, "offset": start, "bytes": length, **memory}
    return {**load, "openvino": handed}


def _place(openvino: Any, core: Any, device: str | None, length: int) -> tuple[Any, Any, dict[str, Any]]:
    """A tensor of ``length`` bytes at a page, its array, and what it is made of.

    The memory is OpenVINO's own. A tensor over memory of ours would not do: neither a model nor what
    is compiled of it keeps such memory alive (2026.4), and the CPU plugin reads weights as late as
    in the first inference.
    """
    plugin = (device or "").partition(".")[0].upper()
    if plugin in ("GPU", "NPU"):
        tensor, reason = _plugin_memory(openvino, core, device, length)
        if tensor is not None:
            return tensor, tensor.data, {"memory": "usm_host", "reason": reason, "huge_pages_advised": False}
    else:
        reason = "no device is known yet" if device is None else f"{device} takes the host's memory"
    align = _HUGE_PAGE if length > _OWN_PAGES else _PAGE
    try:
        # Whole pages, and room to begin at one: OpenVINO's memory begins 16 bytes behind one. What is
        # not touched takes no memory.
        whole = openvino.Tensor(openvino.Type.u8, [-(-length // _PAGE) * _PAGE + align])
    except (RuntimeError, MemoryError) as error:
        raise OutOfHostMemory(
            f"OpenVINO has no memory for the weights (wanted: {length} bytes): {error}",
            context={"wanted": str(length)},
        ) from error
    begin = -whole.data.ctypes.data % align
    array = whole.data[begin : begin + length]
    huge = align == _HUGE_PAGE and _make_huge(array.ctypes.data, length)
    # A part of a tensor keeps the whole.
    tensor = openvino.Tensor(whole, [begin], [begin + length])
    return tensor, array, {"memory": "openvino", "reason": reason, "huge_pages_advised": huge}


def _plugin_memory(openvino: Any, core: Any, device: Any, length: int) -> tuple[Any, str]:
    """A tensor in memory that the plugin of ``device`` gives, or ``None``; and why."""
    try:
        context = core.get_default_context(device)
        tensor = context.create_host_tensor(openvino.Type.u8, openvino.Shape([length]))
        address = tensor.data.ctypes.data
    except (RuntimeError, AttributeError, TypeError) as error:
        # A device that is not there is an error now, in OpenVINO's words, not when all is read.
        core.get_property(device, "FULL_DEVICE_NAME")
        return None, f"the plugin of {device} gives no memory: {' '.join(str(error).split())}"
    if address % _PAGE:
        return None, f"the memory that the plugin of {device} gives does not begin at a page"
    return tensor, f"given by the plugin of {device}"


def _make_huge(address: int, length: int) -> bool:
    """Asks for huge pages. A read into new memory has the kernel make each page under one lock: 1 GiB
    out of the page cache takes 0.24 s in pages of 4 KiB and 0.07 s in pages of 2 MiB (2 processors)."""
    length -= length % _PAGE
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    return madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), mmap.MADV_HUGEPAGE) == 0


def _import_openvino(oldest: tuple[int, int]) -> Any:
    needed = ".".join(map(str, oldest))
    try:
        import openvino
    except ImportError as error:
        raise ImportError(
            f"weightlift.openvino needs the package openvino, {needed} or newer: pip install openvino ({error})"
        ) from error
    version = str(getattr(openvino, "__version__", "unknown"))
    parts = version.split(".")
    if not (len(parts) > 1 and parts[0].isdecimal() and parts[1].isdecimal()):
        raise ImportError(f"the package openvino does not say its version; {needed} or newer is needed (found: {version})")
    if (int(parts[0]), int(parts[1])) < oldest:
        raise ImportError(
            f"openvino {version} is too old for this: {needed} or newer is needed: pip install --upgrade openvino"
        )
    return openvino

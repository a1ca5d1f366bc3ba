"""Where the blob begins in a file of OpenVINO's cache."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from ._model import Model
from .errors import FormatError

# Of OpenVINO's the header has some 200 bytes; a device may say more of itself there.
_LONGEST = 64 << 10
_XML = b"<?xml"


def blob_start(file: Model, version: str | None) -> int:
    """How many bytes of a raw file lie before what ``import_model`` wants: 0 unless it is a file of
    OpenVINO's cache, which begins with a line of XML, padded where it says so.

    ``version`` is that of the OpenVINO that is to take it: blobs are for the build that made them.
    """
    size = file.nbytes
    with open(file.path, "rb") as f:
        head = f.read(_LONGEST)
    if not head:
        raise _refuse(file, "the file is empty", "nothing")
    if head.startswith(b"version https://git-lfs"):
        raise _refuse(file, "this is no blob", "a Git LFS pointer", "fetch the file itself: git lfs pull")
    if _is_single_file_cache(head):
        raise _refuse(
            file, "a cache of OpenVINO's that keeps all blobs in one file cannot be imported",
            "a cache in a single file", "set CACHE_DIR to a folder, which gets a file for each blob",
        )  # fmt: skip
    if not head.startswith(_XML):
        return 0
    if b"<compiled_blob" not in head:
        raise _refuse(file, "this is no blob", "XML", "to load a model take read_model or compile_model")
    line, newline, _ = head.partition(b"\n")
    try:
        # Nothing but plain elements and attributes: no entities to expand.
        header = ElementTree.fromstring(line) if newline and b"<!" not in line else None
    except ElementTree.ParseError:
        header = None
    alignment = header.get("header_size_alignment", "0") if header is not None else ""
    if header is None or header.tag != "compiled_blob" or not re.fullmatch(r"\d{1,9}", alignment):
        raise _refuse(file, "the header of OpenVINO's cache cannot be read", line[:100].decode("utf-8", "replace"))
    cached_by = header.get("ie_version")
    if version is not None and cached_by != version:
        raise _refuse(
            file, f"the blob was cached by another OpenVINO than this one, {version}", cached_by or "no version",
            "compile the model anew: blobs are for the build that made them",
        )  # fmt: skip
    start = len(line) + 1
    if int(alignment):
        start += -start % int(alignment)
    if start >= size:
        raise _refuse(file, "the file ends before the blob begins", f"{size} bytes", "compile the model anew")
    return start


def _is_single_file_cache(head: bytes) -> bool:
    """The form that OpenVINO 2026.4 writes where ``CACHE_DIR`` ends in ``.bin``: three numbers of 16
    bits, its version 0.1.0, then records, of which the first has the tag 3, 4 bytes long, for a
    blob. (That release itself refuses such a file when a second model has been added.)"""
    return head[:6] == b"\0\0\1\0\0\0" and head[6:10] == b"\3\0\0\0"


def _refuse(file: Model, why: str, found: str, hint: str | None = None) -> FormatError:
    message = f"{why} (file: {file.path}, found: {found})"
    return FormatError(message, kind="UnknownFormat", context={"file": file.path, "found": found}, hint=hint)

"""One number for the bytes of a tensor, the same wherever they lie: on a GPU, in torch's, in numpy's memory.

The bytes are taken as words of eight, the last one filled up with zeros; each is mixed with its place,
and the results are added up, modulo 2^64. A changed bit, words that changed places and bytes that are
missing give another sum; the GPU needs some ten milliseconds for 8 GB, which a hash that goes
through the bytes one after the other does not allow. Not against somebody who wants to deceive.
"""

import numpy

PLACE, MIX = -7046029254386353131, -4658895280553007687  # odd, with about half of the bits set
CHUNK = 32 << 20
# Up to here tensors of one length are summed up many at a time: 100,000 of 4 KiB would need a
# million kernels one by one.
SMALL = 1 << 20

# The format's names for data types, by torch's and by numpy's.
TORCH = {
    "bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64", "bool": "BOOL",
    "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip


def label(dtype, shape, total):
    """What is compared: the type, the shape and the bytes."""
    return f"{dtype}{list(map(int, shape))}:{int(total) & (1 << 64) - 1:016x}"


def of_tensors(tensors):
    """The label of each tensor, by name. All are torch's or all are numpy's."""
    first = next(iter(tensors.values()), None)
    totals = (_torch if hasattr(first, "data_ptr") else _numpy)(tensors)
    return {
        name: label(TORCH.get(str(tensor.dtype).removeprefix("torch."), str(tensor.dtype)), tensor.shape, totals[name])
        for name, tensor in tensors.items()
    }


def of_bytes(data, start=0):
    """The sum of bytes (numpy, uint8, one dimension) that begin at word `start` of their tensor."""
    total = 0
    for at in range(0, len(data), CHUNK):
        part = data[at : at + CHUNK]
        if len(part) % 8:
            part = numpy.concatenate([part, numpy.zeros(-len(part) % 8, numpy.uint8)])
        words = part.view(numpy.int64)
        places = numpy.arange(start + at // 8, start + at // 8 + len(words), dtype=numpy.int64)
        total += int(_mixed(words, places).sum(dtype=numpy.int64))
    return total


def _mixed(words, places):
    """For arrays of int64 of numpy or torch: both wrap around, and both shift the sign in."""
    with numpy.errstate(over="ignore"):
        mixed = places * PLACE + words
        mixed ^= mixed >> 29
        mixed *= MIX
        mixed ^= mixed >> 32
        mixed *= MIX
        mixed ^= mixed >> 31
    return mixed


def _numpy(tensors):
    return {
        name: of_bytes(numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8)) for name, array in tensors.items()
    }


def _torch(tensors):
    import torch

    names, sums, small = [], [], {}
    for name, tensor in tensors.items():
        data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        if data.numel() <= SMALL:
            small.setdefault((data.numel(), data.device), []).append((name, data))
            continue
        total = torch.zeros((), dtype=torch.int64, device=data.device)
        for at in range(0, data.numel(), CHUNK):
            words = _words(torch, data[at : at + CHUNK].unsqueeze(0))
            total += _sum(torch, words, at // 8)[0]
        names.append(name)
        sums.append(total)
    for (length, device), alike in small.items():
        if length == 0:
            names += [name for name, _ in alike]
            sums += [torch.zeros((), dtype=torch.int64, device=device)] * len(alike)
            continue
        many = max(1, CHUNK // length)
        for at in range(0, len(alike), many):
            part = alike[at : at + many]
            names += [name for name, _ in part]
            sums += _sum(torch, _words(torch, torch.stack([data for _, data in part])), 0).unbind()
    answers = torch.stack(sums).tolist() if sums else []
    return dict(zip(names, answers))


def _words(torch, rows):
    """Rows of bytes as rows of words."""
    if rows.shape[1] % 8:
        rows = torch.nn.functional.pad(rows, (0, -rows.shape[1] % 8))
    # The address too: a tensor over another library's memory begins where that library says.
    if rows.storage_offset() % 8 or rows.data_ptr() % 8 or not rows.is_contiguous():
        rows = rows.clone(memory_format=torch.contiguous_format)
    return rows.view(torch.int64)


def _sum(torch, words, start):
    places = torch.arange(start, start + words.shape[1], dtype=torch.int64, device=words.device)
    return _mixed(words, places).sum(dim=1, dtype=torch.int64)

"""What a load cannot be faster than, measured in the same run: the bus, the page cache, the disk."""

import mmap
import os
import statistics
import threading
import time

MIB = 1 << 20


def pinned_copies(device):
    """Bytes a second of copies of 64 MiB from pinned memory, the median of twenty, by torch's events."""
    import torch

    here = torch.ones(64 * MIB, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(64 * MIB, dtype=torch.uint8, device=device)
    took = []
    for _ in range(21):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        there.copy_(here, non_blocking=True)
        end.record()
        torch.cuda.synchronize()
        took.append(begin.elapsed_time(end) / 1000)
    # The first one wakes the bus up.
    return 64 * MIB / statistics.median(took[1:])


def reads(files, direct=False, threads=None, size=4 * MIB):
    """Bytes a second of plain reads by several threads, each into the same memory of its own again and
    again: in the page cache nothing but copying, past it (`direct`) what the disk gives."""
    threads = threads or min(16, len(os.sched_getaffinity(0)) if not direct else 16)
    flags = os.O_RDONLY | (os.O_DIRECT if direct else 0)
    opened = [os.open(file, flags) for file in files]
    pieces = [(number, at) for number, file in enumerate(files) for at in range(0, os.path.getsize(file), size)]
    take, failed, total = iter(pieces), [], [0] * threads
    lock = threading.Lock()

    def read(number):
        buffer = mmap.mmap(-1, size)
        try:
            while True:
                with lock:
                    piece = next(take, None)
                if piece is None:
                    return
                total[number] += os.preadv(opened[piece[0]], [buffer], piece[1])
        except OSError as error:
            failed.append(error)

    started = time.perf_counter()
    workers = [threading.Thread(target=read, args=[number]) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - started
    for file in opened:
        os.close(file)
    if failed:
        raise failed[0]
    if sum(total) != sum(map(os.path.getsize, files)):
        raise RuntimeError("a short read")
    return sum(total) / seconds

"""A file system served by a program: a folder's files, to be read, through /dev/fuse itself.

Neither a library nor a tool is needed, and the server misbehaves as it is told. It says `mounted` on
standard output, and `waits` when it has got a read that it will not answer.
"""

import argparse
import ctypes
import errno
import os
import struct
import sys
import threading
import time
from pathlib import Path

# From the kernel's `linux/fuse.h`, version 7.31; what is not here is answered with ENOSYS.
FORGET, INTERRUPT, DESTROY, BATCH_FORGET = 2, 36, 38, 42
DIRECT_IO = 1  # FOPEN_DIRECT_IO: past the page cache, whatever the program asked for
READ_ONLY = 1  # MS_RDONLY
FOREVER = 1 << 30  # seconds for which the kernel may keep names and attributes
LARGEST_READ = 1 << 17


class Server:
    def __init__(self, device, folder: Path, asked):
        self.device, self.asked = device, asked
        # Node 1 is the folder itself.
        self.paths = [None, folder, *sorted(path for path in folder.iterdir() if path.is_file())]
        self.handles = {}

    def serve(self):
        while True:
            try:
                request = os.read(self.device, LARGEST_READ + 4096)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return  # unmounted
                if error.errno in (errno.EINTR, errno.ENOENT):
                    continue
                raise
            _, operation, unique, node = struct.unpack_from("<IIQQ", request)
            if operation == DESTROY:
                return
            try:
                answer, code = self.answer(operation, node, request[40:]), 0
            except OSError as error:
                answer, code = b"", -error.errno
            if operation not in (FORGET, INTERRUPT, BATCH_FORGET):
                os.write(self.device, struct.pack("<IiQ", 16 + len(answer), code, unique) + answer)

    def answer(self, operation, node, body) -> bytes:
        match operation:
            case 26:  # INIT
                ahead, = struct.unpack_from("<8xI", body)
                return struct.pack("<IIIIHHIIHH32x", 7, 31, ahead, 0, 16, 12, LARGEST_READ, 1, 32, 0)
            case 1:  # LOOKUP
                name = body.rstrip(b"\0").decode()
                found = [n for n in range(2, len(self.paths)) if self.paths[n].name == name]
                if not found:
                    raise OSError(errno.ENOENT, name)
                entry = struct.pack("<QQQQII", found[0], 0, FOREVER, FOREVER, 0, 0)
                return entry + self.attributes(found[0])
            case 3:  # GETATTR
                return struct.pack("<QII", FOREVER, 0, 0) + self.attributes(node)
            case 14:  # OPEN
                flags, = struct.unpack_from("<I", body)
                direct = bool(flags & os.O_DIRECT)
                if direct and self.asked.refuse == "open":
                    raise OSError(errno.EINVAL, "O_DIRECT")
                handle = os.open(self.paths[node], os.O_RDONLY)
                self.handles[handle] = direct
                return struct.pack("<QII", handle, DIRECT_IO if self.asked.direct_io else 0, 0)
            case 15:  # READ
                handle, offset, size = struct.unpack_from("<QQI", body)
                return self.read(handle, offset, size)
            case 17:  # STATFS
                return struct.pack("<QQQQQIIII24x", 0, 0, 0, 0, 0, 4096, 255, 4096, 0)
            case 18:  # RELEASE
                handle, = struct.unpack_from("<Q", body)
                del self.handles[handle]
                os.close(handle)
                return b""
            case 25:  # FLUSH
                return b""
            case _:
                raise OSError(errno.ENOSYS, str(operation))

    def read(self, handle, offset, size) -> bytes:
        end = offset + size
        if self.handles[handle] and self.asked.refuse == "read":
            raise OSError(errno.EINVAL, "O_DIRECT")
        if self.asked.fail_from is not None and end > self.asked.fail_from:
            raise OSError(errno.EIO, "as asked for")
        if self.asked.wait_from is not None and end > self.asked.wait_from:
            say("waits")
            threading.Event().wait()
        time.sleep(self.asked.delay_ms / 1000)
        return os.pread(handle, size, offset)

    def attributes(self, node) -> bytes:
        status = self.paths[node].stat()
        seconds = [int(t) for t in (status.st_atime, status.st_mtime, status.st_ctime)]
        nanoseconds = [t % 10**9 for t in (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)]
        return struct.pack(
            "<6Q3I7I",
            *(node, status.st_size, status.st_blocks, *seconds, *nanoseconds),
            *(status.st_mode, 1, status.st_uid, status.st_gid, 0, 4096, 0),
        )


def say(word):
    print(word, flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("mount_point")
    parser.add_argument("--direct-io", action="store_true")
    parser.add_argument("--refuse", choices=["open", "read"], help="where O_DIRECT is an error")
    parser.add_argument("--fail-from", type=int, help="reads beyond this offset are EIO")
    parser.add_argument("--wait-from", type=int, help="reads beyond this offset have no answer")
    parser.add_argument("--delay-ms", type=float, default=0, help="how long every read takes")
    asked = parser.parse_args()
    device = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    strings = (b"weightlift-test", os.fsencode(asked.mount_point), b"fuse")
    if libc.mount(*strings, READ_ONLY, options.encode()) != 0:
        sys.exit(f"cannot mount: {os.strerror(ctypes.get_errno())}")
    say("mounted")
    Server(device, asked.folder, asked).serve()


if __name__ == "__main__":
    main()

"""File systems for tests, in a mount namespace of their own that ends with the tests, however."""

import contextlib
import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


class Mounts:
    """A namespace kept by a process that ends when we do: then everything in it is unmounted, and
    loop devices are free again."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.keeper = subprocess.Popen(
            # Says a line when it is in its namespace, and ends with our end of the pipe.
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        if not self.keeper.stdout.readline():
            pytest.skip(f"no mounts of our own: {self.keeper.communicate()[1].decode().strip()}")

    @property
    def enter(self) -> tuple[str, ...]:
        """What a command begins with to run where the mounts are."""
        return ("nsenter", f"--target={self.keeper.pid}", "--mount", "--")

    def inside(self, path: Path) -> Path:
        """Where a path of the namespace is for us."""
        return Path(f"/proc/{self.keeper.pid}/root{path}")

    def close(self):
        self.keeper.stdin.close()
        self.keeper.wait()

    def run(self, *command):
        """A command that may not be possible here: then the test is skipped."""
        arguments = [*self.enter, *map(str, command)]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            what = " ".join(map(str, command))
            pytest.skip(f"`{what}` is not possible here: {done.stderr.strip()[:300]}")
        return done.stdout

    def mount(self, name: str, *arguments) -> Path:
        point = self.folder / name
        point.mkdir()
        self.run("mount", *arguments, point)
        return point

    def tmpfs(self, name="tmpfs") -> Path:
        return self.mount(name, "-t", "tmpfs", "weightlift-test")

    def ext4(self, name="ext4") -> Path:
        image = self.folder / f"{name}.img"
        with image.open("wb") as file:
            file.truncate(64 << 20)
        self.run("mkfs.ext4", "-q", "-F", image)
        return self.mount(name, "-o", "loop", image)

    def btrfs(self, name="btrfs") -> Path:
        """Of an image that is there, so that no tools are needed: `mkfs.btrfs -M` on 24 MiB."""
        image = self.folder / f"{name}.img"
        image.write_bytes(lzma.decompress((HERE / "empty.btrfs.xz").read_bytes()))
        return self.mount(name, "-o", "loop,compress-force=zstd", "-t", "btrfs", image)

    def overlay(self, lower: Path, name="overlay") -> Path:
        """Over a folder of the namespace, with nothing above it."""
        above = self.tmpfs(f"{name}-above")
        upper, work = above / "upper", above / "work"
        for path in (upper, work):
            self.inside(path).mkdir()
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        return self.mount(name, "-t", "overlay", "weightlift-test", "-o", options)

    @contextlib.contextmanager
    def fuse(self, files: Path, *options, name="fuse"):
        """A folder's files through a server, whose process is given with the mount point."""
        point = self.folder / name
        point.mkdir(exist_ok=True)
        server = subprocess.Popen(
            [*self.enter, sys.executable, HERE / "fuse_server.py", files, point, *map(str, options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            if server.stdout.readline() != "mounted\n":
                reason = server.communicate()[1].strip()
                if "/dev/fuse" in reason or "cannot mount" in reason:
                    pytest.skip(f"no FUSE here: {reason.splitlines()[-1]}")
                raise AssertionError(reason)
            yield point, server
        finally:
            server.kill()
            server.wait()
            unmount = [*self.enter, "umount", "--lazy", point]
            subprocess.run(unmount, capture_output=True, check=False)


def loop_device(mounts: Mounts, point: Path) -> Path:
    """The folder in `/sys` of the loop device that is mounted there."""
    device = os.stat(mounts.inside(point)).st_dev
    return Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")

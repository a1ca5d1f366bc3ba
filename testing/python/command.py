"""Runs the command weightlift and reads what it says."""

import json
import os
import resource
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

# Nothing here is larger than a few hundred megabytes. A length from a hostile header that became
# an allocation runs into this limit and aborts, which no test takes for an error message.
ADDRESS_SPACE = 8 << 30
SECONDS = 120


@dataclass(frozen=True)
class Result:
    arguments: tuple
    code: int
    stdout: str
    stderr: str

    def __str__(self):
        return (
            f"weightlift {' '.join(self.arguments)}\nexit code {self.code}\n"
            f"stdout: {self.stdout[:4000]}\nstderr: {self.stderr[:4000]}"
        )

    def json(self):
        """Standard output, all of it one JSON value."""

        def refuse(word):
            raise AssertionError(f"{word} is not JSON\n{self}")

        try:
            return json.loads(self.stdout, parse_constant=refuse)
        except json.JSONDecodeError as error:
            raise AssertionError(f"not JSON: {error}\n{self}") from None

    def expect(self, code):
        assert self.code == code, f"expected exit code {code}\n{self}"
        return self

    def error_line(self):
        """The one line that tells the user what went wrong."""
        assert "panicked" not in self.stderr, str(self)
        lines = [line for line in self.stderr.splitlines() if line.startswith("error:")]
        assert len(lines) == 1, f"expected one line `error: ...`\n{self}"
        assert lines[0].removeprefix("error:").strip(), str(self)
        return lines[0]


@dataclass(frozen=True)
class Command:
    binary: Path
    fake_cuda: Path
    # A command and its arguments, by which it is started.
    before: tuple = ()
    address_space: int = ADDRESS_SPACE
    # Added to the environment.
    variables: tuple = ()

    def started_by(self, *before):
        """The same by way of a command that runs what follows it."""
        return replace(self, before=before)

    def within(self, address_space: int):
        """The same with so many bytes of address space."""
        return replace(self, address_space=address_space)

    def with_environment(self, **variables):
        return replace(self, variables=tuple(variables.items()))

    def environment(self, gpu: bool):
        """Without a GPU whatever this machine has, or with the fake driver's."""
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("WEIGHTLIFT_", "CUDA_", "RUST_", "LD_"))
        }
        kept |= dict(self.variables)
        if gpu:
            kept["LD_LIBRARY_PATH"] = str(self.fake_cuda)
        return kept

    def start(self, *arguments, gpu=False, prepare=None):
        """`prepare` is called in the new process before the command is."""
        arguments = [str(argument) for argument in arguments]

        def before():
            self._limit_address_space()
            if prepare:
                prepare()

        # Paths in reports must not depend on where the command was started.
        return subprocess.Popen(
            [*self.before, str(self.binary), *arguments],
            cwd=tempfile.gettempdir(),
            env=self.environment(gpu),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=before,
        )

    def run(self, *arguments, gpu=False, prepare=None) -> Result:
        process = self.start(*arguments, gpu=gpu, prepare=prepare)
        try:
            stdout, stderr = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            stdout, stderr = process.communicate()
            raise AssertionError(
                f"weightlift {arguments} hung for {SECONDS} s\n{stdout}\n{stderr}"
            ) from None
        return Result(tuple(map(str, arguments)), process.returncode, _text(stdout), _text(stderr))

    def load(self, path, *options, gpu=False, prepare=None) -> Result:
        arguments = ["load", path, *options, "--digest", "--json"]
        return self.run(*arguments, gpu=gpu, prepare=prepare)

    def inspect(self, path) -> Result:
        return self.run("inspect", path, "--json")

    def _limit_address_space(self):
        resource.setrlimit(resource.RLIMIT_AS, (self.address_space, self.address_space))


def _text(output: bytes) -> str:
    return output.decode("utf-8")

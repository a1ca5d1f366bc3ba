"""The command ``weightlift``, as the wheel installs it."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Runs the command line and returns its exit status: 0 done, 1 failed, 2 misused, 130 stopped."""
    from . import _native

    # Python's own handler could only run when the command is over.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # `bench` measures processes that it starts.
    program = [sys.executable, "-m", "weightlift._command"]
    return _native.run_command(["weightlift", *sys.argv[1:]], program)


if __name__ == "__main__":
    sys.exit(main())

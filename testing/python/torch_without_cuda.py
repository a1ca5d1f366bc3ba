"""Makes PyTorch's wheel from PyPI importable without CUDA's packages.

PyPI has wheels for Linux that are built for CUDA only. They ask for some 2.5 GB of libraries, none
of which is used on a CPU, but the loader wants to find them by name. So this puts libraries of
those names beside PyTorch's own, with every function that PyTorch would take from them; each
returns 100, which is CUDA's "no device". Needs readelf and a C compiler. Wheels that ask for
nothing are left as they are.

    python torch_without_cuda.py
"""

import importlib.util
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

# Those of the system, which are there.
SYSTEM = re.compile(r"(lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|gomp)|ld-linux.*)\.so")
# Names without a version do not say which library they are of.
OF_CUDA = re.compile(r"_*(cu|nv|nccl|Nv)")
NO_DEVICE = 100


def readelf(*arguments) -> list[str]:
    command = ["readelf", "--wide", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def look(libraries):
    """The libraries that are needed and missing, and for each the functions by version."""
    needed, defined, plain = set(), set(), set()
    versioned = defaultdict(set)
    for library in libraries:
        for line in readelf("--dynamic", library):
            if match := re.search(r"\(NEEDED\).*\[(.*)\]", line):
                needed.add(match[1])
        file, file_of = None, {}
        for line in readelf("--version-info", library):
            if match := re.search(r"File: (\S+)", line):
                file = match[1]
            elif file and (match := re.search(r"Name: (\S+) .*Version: \d+", line)):
                file_of[match[1]] = file
        for line in readelf("--dyn-syms", library):
            fields = line.split()
            if len(fields) < 8 or not fields[0].endswith(":"):
                continue
            name, _, version = fields[7].partition("@")
            version = version.lstrip("@")
            if fields[6] != "UND":
                defined.add(name)
            elif version:
                versioned[file_of.get(version), version].add(name)
            elif fields[4] == "GLOBAL":
                plain.add(name)
    there = {library.name for library in libraries}
    missing = sorted(name for name in needed - there if not SYSTEM.match(name))
    plain = {name for name in plain - defined if OF_CUDA.match(name)}
    return missing, versioned, plain


def write(folder: Path, name: str, versions: dict[str, set[str]], plain: set[str]):
    functions = sorted(plain.union(*versions.values()))
    with tempfile.TemporaryDirectory() as scratch:
        source, script = Path(scratch, "stub.c"), Path(scratch, "stub.map")
        source.write_text("".join(f"long {f}(void) {{ return {NO_DEVICE}; }}\n" for f in functions))
        nodes = (f"{v} {{ global: {'; '.join(sorted(f))}; }};\n" for v, f in versions.items())
        script.write_text("".join(nodes))
        options = [f"-Wl,--version-script,{script}"] if versions else []
        # -w: some of the names are the compiler's own, with other types.
        command = ["cc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{name}", *options]
        subprocess.run([*command, "-o", str(folder / name), str(source)], check=True)


def main():
    package = importlib.util.find_spec("torch")
    if package is None:
        sys.exit("torch is not installed here")
    folder = Path(package.submodule_search_locations[0], "lib")
    missing, versioned, plain = look(sorted(folder.glob("*.so*")))
    for name in missing:
        versions = {v: functions for (file, v), functions in versioned.items() if file == name}
        write(folder, name, versions, plain)
        plain = set()
    subprocess.run([sys.executable, "-c", "import torch; torch.ones(3).sum().item()"], check=True)


if __name__ == "__main__":
    main()

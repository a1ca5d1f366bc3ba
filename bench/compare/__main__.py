"""weightlift beside other loaders of the same files. README.md beside this file says how.

    python3 bench/compare make FOLDER [--gib 8] [--shards 4] [--small COUNT] [--size BYTES] [--forms torch,flashpack,onnx]
    python3 bench/compare run --model FOLDER --state warm|cold [--device cuda:0|cpu] [--loaders LIST] --out FILE
    python3 bench/compare merge OUT FILE...
    python3 bench/compare table FILE...
    python3 bench/compare page [--check]
"""

import argparse
import json
import os
import shlex
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))


def main():
    parser = argparse.ArgumentParser(prog="bench/compare", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    make = commands.add_parser("make", help="write a model, and the forms of it that some loaders read")
    make.add_argument("folder")
    make.add_argument("--gib", type=float, default=8)
    make.add_argument("--shards", type=int, default=4)
    make.add_argument("--small", type=int, help="so many tensors of --size bytes in one file instead")
    make.add_argument("--size", type=int, default=4096)
    make.add_argument("--forms", default="")
    run = commands.add_parser("run", help="measure a part")
    run.add_argument("--model", required=True)
    run.add_argument("--state", choices=["warm", "cold"], required=True)
    run.add_argument("--device", default="cuda:0")
    run.add_argument("--loaders", default="", help="loaders, settings (`best`) or both (`KvikIO/best`), with commas")
    run.add_argument("--rounds", type=int, default=7)
    run.add_argument("--seconds", type=float, default=420, help="no round begins that would end after so many")
    run.add_argument("--later", type=int, default=2, help="calls after the first in the same process, warm")
    run.add_argument("--timeout", type=float, default=60, help="seconds for a sample")
    run.add_argument("--path", action="append", default=[], metavar="LOADER=FOLDER", help="before the others for its imports")
    run.add_argument("--seed", type=int)
    run.add_argument("--out")
    merge = commands.add_parser("merge", help="put the parts of several results into one file")
    merge.add_argument("out")
    merge.add_argument("results", nargs="+")
    table = commands.add_parser("table", help="print results")
    table.add_argument("results", nargs="+")
    page = commands.add_parser("page", help="write the tables and plots of docs/benchmarks.md")
    page.add_argument("--check", action="store_true", help="write nothing, and fail if something would change")
    options = parser.parse_args()
    options.command = shlex.join(["python3", "bench/compare", *sys.argv[1:]])

    if options.what == "make":
        import models

        forms = [form for form in options.forms.split(",") if form]
        if unknown := set(forms) - set(models.FORMS):
            parser.error(f"no such form: {', '.join(unknown)}; there are {', '.join(models.FORMS)}")
        return models.make(options.folder, options.gib, options.shards, options.small, options.size, forms)
    if options.what == "page":
        import page

        return page.main(options.check)
    import figures

    if options.what == "run":
        # Needs numpy, as whatever it measures; the others need nothing.
        import run

        result = run.run(options)
        show(figures, [result])
        # Wrong bytes are no result, and neither is nothing.
        return int(any(s["status"] == "wrong" for s in result["samples"]) or not any(s["status"] == "measured" for s in result["samples"]))
    read = []
    for path in options.results:
        with open(path) as file:
            read.append(json.load(file))
    try:
        merged = figures.merge(read)
    except figures.Mismatch as error:
        raise SystemExit(f"error: {error}")
    if options.what == "merge":
        figures.write(options.out, merged)
    show(figures, merged["parts"])


def show(figures, parts):
    for part in parts:
        lines, notes = figures.table(part)
        print(f"\n{figures.describe(part)}\n\n{lines}\n")
        for note in notes:
            print(note)


if __name__ == "__main__":
    sys.exit(main())

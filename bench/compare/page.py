"""Writes the tables and plots of docs/benchmarks.md that are made of files under bench/results/.

The page is text by hand and blocks between two comments:

    <!-- made by bench/compare page: compare bench/results/FILE.json -->
    ...
    <!-- end -->

What stands between them is replaced by what the files say; text outside is left alone. Kinds of blocks:

- `compare FILE`: tables and plots of results of `bench/compare run` or `merge`
- `bench FILE`: the table of results of `weightlift bench --json`, or of its `--resume FILE`
- `loaders FILE`: table and plot of results of before bench/compare, by the script python_loaders.py
- `quote FILE [N]`: the N-th table (the first unless told) of a script's output, as it printed it
"""

import json
import os
import re
import statistics
import sys

import figures
import plots
from figures import describe

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGE = "docs/benchmarks.md"
BLOCK = re.compile(r"^<!-- made by bench/compare page: (?P<what>[^\n]*?) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)
OPENING, CLOSING = "<!-- made by bench/compare page:", "<!-- end -->"


class Bad(Exception):
    pass


def main(check):
    try:
        with open(os.path.join(ROOT, PAGE)) as file:
            made = made_of(file.read(), ROOT)
    except (Bad, OSError) as error:
        raise SystemExit(f"error: {PAGE}: {error}")
    stale = [path for path, text in made.items() if read(path) != text]
    for path in stale:
        if check:
            print(f"{path} is not what `python3 bench/compare page` makes of bench/results/", file=sys.stderr)
        else:
            os.makedirs(os.path.dirname(os.path.join(ROOT, path)), exist_ok=True)
            with open(os.path.join(ROOT, path), "w") as file:
                file.write(made[path])
            print(f"wrote {path}")
    return int(check and bool(stale))


def read(path):
    try:
        with open(os.path.join(ROOT, path)) as file:
            return file.read()
    except FileNotFoundError:
        return None


def made_of(text, root):
    """Every file that is made, by its path: the page with its blocks filled, and the plots in it."""
    plots_made = {}
    if text.count(OPENING) != len(BLOCK.findall(text)) or text.count(CLOSING) != text.count(OPENING):
        raise Bad("a block without an end, or an end without a block")

    def fill(match):
        kind, *arguments = match["what"].split()
        if kind not in KINDS or not arguments:
            raise Bad(f"unknown block: {match['what']}")
        content = KINDS[kind](root, plots_made, *arguments)
        return f"{OPENING} {match['what']} -->\n{content.rstrip()}\n{CLOSING}"

    return {PAGE: BLOCK.sub(fill, text), **plots_made}


def load(root, path):
    with open(os.path.join(root, path)) as file:
        return json.load(file)


def compare(root, made, path):
    """Each part: the machine, the command, the ways, a plot and a table, and what is no figure."""
    out, calls = [], {}
    parts = figures.merge([load(root, path)])["parts"]
    for part in parts:
        calls.update(part["loaders"])
        limit = figures.ceiling(part)
        stem = f"{os.path.splitext(os.path.basename(path))[0]}-{part['model']['name']}-{part['state']}"
        # Two parts may have one model and one state.
        name = next(n for n in (f"docs/plots/{stem}{x}.svg" for x in ("", *(f"-{i}" for i in range(2, 99)))) if n not in made)
        rows = [
            (f"{row['loader']}, {row['setting']}", row["first"].median / 1e9, [rate / 1e9 for rate in row["rates"]], kind_of(row))
            for row in figures.series(part)
            if "first" in row and row["status"] != "wrong"
        ]
        title = f"First load of a process, {part['state']}: {part['model']['bytes'] / 1e9:.2f} GB, {part['model']['tensors']:,} tensors"
        made[name] = plots.bars(title, rows, limit and (limit[0], limit[1] / 1e9))
        lines, notes = figures.table(part)
        rounds = max((sample["round"] for sample in part["samples"]), default=0)
        out.append(f"{describe(part)}, {rounds} rounds:\n\n```text\n{part['command']}\n```\n")
        out.append(f"![{title}]({os.path.relpath(name, 'docs')})\n\n{lines}\n\n" + "\n".join(f"- {note}" for note in notes) + "\n")
    out.append("How each was called:\n\n| loader | call | its tensors have |\n|---|---|---|")
    out += [f"| {name} | {way['call']} | {way['gives']} |" for name, way in calls.items()]
    return "\n".join(out) + f"\n\n(`{path}`.)"


def kind_of(row):
    if row["status"] != "measured":
        return "doubt"
    return "own" if row["loader"] == "weightlift" else "other"


def bench(root, made, path):
    """`weightlift bench --json`: each series, its share of the ceiling and what it cost."""
    results = load(root, path)
    machine, model = results["machine"], results["model"]
    cuda = machine.get("cuda")
    gpu = f"{cuda['device']}, driver {cuda['driver']}" if cuda else "no GPU"
    out = [
        f"{gpu}, {machine['processors']} processors, {machine['kernel'].strip()}, {machine['storage']['file_system']}; "
        f"{model['bytes'] / 1e9:.2f} GB, {model['tensors']} tensors in {len(model['files'])} files:\n",
        "| route | page cache | reading threads | GB/s, median (range), samples | of the ceiling | processor s | peak memory, MB | staging, MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in results["series"]:
        found = one.get("figures")
        route = one["route"] + (f" (**fallback**: {one['actual_route']})" if one["fallback"] else "")
        start = f"| {route} | {one['state']} | {one['reading_threads']} |"
        if not found:
            out.append(f"{start} {one['failed']} failed | | | | |")
            continue
        rate, ceiling = found["bytes_per_second"], found.get("ceiling")
        share = f"{ceiling['share']:.0%} of {ceiling['what']}" if ceiling else ""
        out.append(
            f"{start} {rate['median'] / 1e9:.1f} ({rate['min'] / 1e9:.1f} to {rate['max'] / 1e9:.1f}), {one['samples']} | {share} "
            f"| {found['processor_seconds']['median']:.2f} | {found['peak_memory_bytes'] / 1e6:.0f} | {found['staging_bytes_peak'] / 1e6:.0f} |"
        )
    return "\n".join(out) + f"\n\n(`{path}`.)"


def loaders(root, made, path):
    """The last line of the file has the samples."""
    with open(os.path.join(root, path)) as file:
        samples = json.loads(file.read().strip().splitlines()[-1])["samples"]
    rate = lambda sample: sample["bytes"] / sample["seconds"] / 1e9  # noqa: E731
    good = {name: [each for each in taken if "error" not in each] for name, taken in samples.items()}
    limit = statistics.median(map(rate, good.pop("ceiling")))
    rows = sorted(((name, taken) for name, taken in good.items() if taken), key=lambda row: -statistics.median(map(rate, row[1])))
    name = f"docs/plots/{os.path.splitext(os.path.basename(path))[0]}.svg"
    title = "First load of a process from Python, warm, 8.60 GB, each in its fastest way"
    bars = [
        (each, statistics.median(map(rate, taken)), sorted(map(rate, taken)), "own" if each.startswith("weightlift") else "other")
        for each, taken in rows
    ]
    made[name] = plots.bars(title, bars, ("pinned copies", limit))
    out = [f"![{title}]({os.path.relpath(name, 'docs')})\n"]
    out.append("| loader | version | GB/s, median (range) | of the copies | processor s | resident, MB |\n|---|---|---|---|---|---|")
    for each, taken in rows:
        rates = figures.spread(map(rate, taken))
        middle = lambda key: statistics.median(sample[key] for sample in taken)  # noqa: B023, E731
        out.append(
            f"| {each} | {taken[0]['version']} | {rates.text()}, {rates.count} | {rates.median / limit:.0%} "
            f"| {middle('processor'):.2f} | {middle('resident') / 1e6:.0f} |"
        )
    return "\n".join(out) + f"\n\nCopies of 64 MiB from pinned memory in the same run: {limit:.1f} GB/s. (`{path}`.)"


def quote(root, made, path, number="1"):
    """A table as the script printed it."""
    found, current = [], []
    with open(os.path.join(root, path)) as file:
        for line in [*file, ""]:
            if line.startswith("|"):
                current.append(line.rstrip())
            elif current:
                found.append("\n".join(current))
                current = []
    if not 0 < int(number) <= len(found):
        raise Bad(f"{path} has {len(found)} tables, and not number {number}")
    return found[int(number) - 1]


KINDS = {"compare": compare, "bench": bench, "loaders": loaders, "quote": quote}

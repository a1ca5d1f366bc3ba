"""A plot of a part: a bar for each way as long as its median, and a dot for each sample. Plain SVG.

The colours of dark pages come by a media query, and the plot brings its own background: whoever shows it on
a page of the other kind still can read it.
"""

from html import escape

BAR, GAP, LEFT, RIGHT, TOP, BOTTOM, WIDTH = 16, 8, 190, 70, 44, 40, 760

STYLE = """
svg { background: #ffffff; font: 12px system-ui, sans-serif; }
text { fill: #1f2328; } .quiet { fill: #59636e; } .title { font-weight: 600; font-size: 13px; }
.paper { fill: #ffffff; } .grid { stroke: #d1d9e0; } .own { fill: #0969da; } .other { fill: #8c959f; }
.doubt { fill: none; stroke: #8c959f; stroke-dasharray: 3 2; } .dot { fill: #1f2328; fill-opacity: 0.55; }
.limit { stroke: #cf222e; stroke-dasharray: 5 3; } .limit-text { fill: #cf222e; }
@media (prefers-color-scheme: dark) {
  svg { background: #0d1117; } text { fill: #e6edf3; } .quiet { fill: #9198a1; } .paper { fill: #0d1117; }
  .grid { stroke: #3d444d; } .own { fill: #4493f8; } .other { fill: #656c76; } .doubt { stroke: #9198a1; }
  .dot { fill: #e6edf3; } .limit { stroke: #f85149; } .limit-text { fill: #f85149; }
}
"""


def bars(title, rows, limit=None, unit="GB/s"):
    """`rows`: (name, median, samples, kind) with kind `own`, `other` or `doubt`, in the order of the plot;
    `limit`: (name, value), a line across."""
    most = max([value for _, median, samples, _ in rows for value in (median, *samples)] + [limit[1] if limit else 0], default=0) or 1
    step = _step(most)
    end = step * -(-most // step)
    scale = (WIDTH - LEFT - RIGHT) / end
    height = TOP + len(rows) * (BAR + GAP) + BOTTOM
    bottom = height - BOTTOM
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        f'<text class="title" x="12" y="20">{escape(title)}</text>',
    ]
    for number in range(int(round(end / step)) + 1):
        x = LEFT + number * step * scale
        out.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{bottom}"/>')
        out.append(f'<text class="quiet" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{number * step:g}</text>')
    out.append(f'<text class="quiet" x="{WIDTH - RIGHT + 34}" y="{bottom + 16}" text-anchor="middle">{escape(unit)}</text>')
    for number, (name, median, samples, kind) in enumerate(rows):
        y = TOP + number * (BAR + GAP)
        out.append(f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>')
        out.append(f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{median * scale:.1f}" height="{BAR}"/>')
        out += [f'<circle class="dot" cx="{LEFT + value * scale:.1f}" cy="{y + BAR / 2:g}" r="2.2"/>' for value in samples]
        right = LEFT + max([median, *samples]) * scale + 7
        out.append(f'<text x="{right:.1f}" y="{y + 12}">{median:.1f}</text>')
    if limit:
        x = LEFT + limit[1] * scale
        out.append(f'<line class="limit" x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{bottom}"/>')
        out.append(f'<text class="limit-text" x="{x:.1f}" y="{TOP - 10}" text-anchor="middle">{escape(limit[0])} {limit[1]:.1f}</text>')
    dots = "bars: medians; dots: samples" + ("; dashed: not verified, or not what was asked for" if any(row[3] == "doubt" for row in rows) else "")
    out.append(f'<text class="quiet" x="12" y="{height - 8}">{dots}</text>')
    return "\n".join([*out, "</svg>", ""])


def _step(most):
    """1, 2 or 5 times a power of ten, so that there are four to ten of them."""
    step = 10.0 ** -3
    while True:
        for factor in (1, 2, 5):
            if most / (step * factor) <= 8:
                return step * factor
        step *= 10

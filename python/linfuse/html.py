# SPDX-License-Identifier: Apache-2.0
"""An account as HTML: what it is worth, the way from input to output, and folded away the ops and the roofline.

A fragment for notebooks, and the same as a page. Neither fetches or runs anything. In the fragment text takes the
notebook's own colour (currentColor) and fills are half transparent, so that it reads on light and on dark ground alike.
Boxes are blocks of text that the browser lays out, which fit a phone as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from . import amounts, native
from .amounts import counted

if TYPE_CHECKING:
    from .account import Account, Fallback
    from .counters import Stats
    from .timing import Bench

# Middle tones, told apart by those who see no red or green too (Okabe and Ito): readable over white and over black.
_INSIDE, _STORED, _PLAIN, _FUSED = "#56b4e9", "#e69f00", "#999999", "#009e73"

_STYLE = """
.lf-account{font:14px/1.45 system-ui,sans-serif;max-width:820px;overflow-wrap:anywhere}
.lf-account h4{margin:1.2em 0 .4em;font-size:15px}
.lf-account p{margin:.3em 0}
.lf-account .head{font-size:18px}
.lf-account table{border-collapse:collapse;font-size:12px;color:inherit;margin:0}
.lf-account th,.lf-account td{padding:2px 9px;text-align:right;border-bottom:1px solid rgba(128,128,128,.3);
 white-space:nowrap;background:none;color:inherit}
.lf-account th{font-weight:600}
.lf-account .t{text-align:left}
.lf-account .wrap{white-space:normal;text-align:left;min-width:16em}
.lf-account .bar{display:inline-block;height:.7em;border-radius:2px;background:#56b4e9;vertical-align:middle}
.lf-account .dim{opacity:.75}
.lf-account .scroll{overflow-x:auto}
.lf-account svg{max-width:100%;height:auto;color:inherit}
.lf-account details{margin:.8em 0}
.lf-account summary{cursor:pointer;font-weight:600}
.lf-account .box{border:1px solid rgba(128,128,128,.5);border-radius:8px;padding:.6em .8em}
.lf-account .end{text-align:center;border-radius:1.5em;width:fit-content;margin:0 auto;padding:.2em 1.2em}
.lf-account .kernel{border-color:#009e73;border-left-width:5px;background:rgba(0,158,115,.08)}
.lf-account .torch{border-style:dashed;background:rgba(128,128,128,.15)}
.lf-account .arrow{text-align:center;line-height:1.5}
.lf-account .top{display:flex;flex-wrap:wrap;justify-content:space-between;gap:0 1em}
.lf-account .chips{display:flex;flex-wrap:wrap;gap:6px;margin:.5em 0}
.lf-account .chip{border:1px solid #56b4e9;background:rgba(86,180,233,.22);border-radius:5px;padding:.15em .6em;
 font-size:12px}
.lf-account .stored{border-color:#e69f00;background:rgba(230,159,0,.25)}
.lf-account .apart{border-color:#999;background:none;border-style:dashed}
""".replace("\n", "")

_PAGE_STYLE = (
    ":root{color-scheme:light dark}body{margin:1.2em auto;max-width:820px;padding:0 1em;background:#fff;color:#1b1f24}"
    "@media(prefers-color-scheme:dark){body{background:#14171a;color:#e4e7ea}}"
)


def page(account: Account) -> str:
    """The fragment as a page of its own."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(account.title or 'linfuse')}</title><style>{_PAGE_STYLE}</style></head>"
        f"<body>{render(account)}</body></html>\n"
    )


def render(account: Account) -> str:
    """The whole fragment."""
    parts = [part.facts for part in account.parts]
    pieces = [_headline(account), _flow(account), _not_rewritten(parts), *(_paragraph(note) for note in account.notes)]
    for number, (first, facts) in enumerate(zip(_firsts(account), parts), 1):
        of = f", part {number} of {len(parts)}" if len(parts) > 1 else ""
        launches = counted(facts["plain"]["launches"], "launch", "launches")
        pieces.append(_folded(f"As written, op by op{of}: {launches}", _op_table(facts, first)))
    if parts:
        pieces.append(_folded("Roofline", _roofline(parts)))
    return _fragment(pieces)


def _firsts(account: Account) -> list[int]:
    """The number of each part's first kernel: they are counted through all parts."""
    counts = [len(part.facts["kernels"]) for part in account.parts]
    return [1 + sum(counts[:i]) for i in range(len(counts))]


def _fragment(pieces: Iterable[str]) -> str:
    return f'<div class="lf-account"><style>{_STYLE}</style>{"".join(pieces)}</div>'


def _folded(summary: str, inner: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{inner}</details>"


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def bench(made: Bench) -> str:
    """What was measured, as a fragment."""
    rows = [_row("th" if i == 0 else "td", list(map(escape, row)), {0}) for i, row in enumerate(made.table())]
    left = [_paragraph(f"{name} is left out: {why}") for name, why in made.left_out.items()]
    head = f"<p>{escape(made.title)} on {escape(made.where)}: <b>{escape(made.headline)}</b>, in turns</p>"
    table = f'<div class="scroll"><table>{"".join(rows)}</table></div>'
    return _fragment([head, table, *left])


def stats(made: Stats) -> str:
    """What ran fused and what did not, as a fragment."""
    pieces = [_paragraph(fact) for fact in made.facts()]
    for heading, several in made.left():
        rows = [[amounts.listed(one.ops), one.reason] for one in several]
        pieces += [_heading(heading), _text_table(["ops", "why"], rows)]
    return _fragment(pieces)


# ---- words ----



def _fields(section: str, kind: str) -> list[native.Field]:
    """A section's fields that have a column, or a phrase: figures alone."""
    return [f for f in native.fields() if f.section == section and f.unit != "text" and getattr(f, kind)]


def _figures(section: str, values: dict[str, Any]) -> list[str]:
    """Those with a column, as they are read; none where there is nothing of it."""
    return [amounts.FORMS[f.unit](values[f.name]) if values[f.name] else "–" for f in _fields(section, "column")]


def _heading(text: str) -> str:
    return f"<h4>{escape(text)}</h4>"


def _shape(extents: Sequence[int]) -> str:
    return " × ".join(map(str, extents)) or "scalar"


# ---- the head ----


def _headline(account: Account) -> str:
    joined = account.json()
    title = f"{escape(account.title)}: " if account.title else ""
    if not account.parts:
        return f'<p class="head">{title}nothing of it runs in linfuse.</p>'
    plain, fused = joined["plain"], joined["fused"]
    gain = amounts.times(plain["us"] / fused["us"]) if fused["us"] > 0 else "1.0x"
    kernels = counted(len(joined["kernels"]), "kernel")
    predicted = f"linfuse without fusion {amounts.time(plain['us'])}, fused {amounts.time(fused['us'])}: {gain}"
    head, more = f"<b>{predicted}</b> (predicted)", ""
    if account.measured is not None:
        head, more = f"<b>{escape(account.measured.headline)}</b>", f"Predicted: {predicted}. "
    dims = ", ".join(f"{name} = {extent}" for name, extent in joined["dims"].items())
    peak = [f"{f.phrase} {amounts.FORMS[f.unit](joined['peak'][f.name])}" for f in _fields("peak", "phrase")]
    memory = [f"{amounts.FORMS[f.unit](fused[f.name])} {f.phrase}" for f in _fields("fused", "phrase")]
    return (
        f'<p class="head">{title}{head}</p>'
        f'<p class="dim">{more}{counted(len(joined["ops"]), "op")} in {kernels}, '
        f"{counted(fused['launches'], 'launch', 'launches')}. "
        f"{escape(dims)}{' on ' if dims else ''}{escape(joined['title'])}: {escape(', '.join(peak))}. "
        f"Memory: {escape(', '.join(memory))}.</p>"
    )


# ---- from input to output ----


def _flow(account: Account) -> str:
    """A box for each kernel and for each run of PyTorch's ops, in the order in which they run."""
    boxes = []
    for number, (first, part) in enumerate(zip(_firsts(account), account.parts), 1):
        boxes += _of_pytorch(account, number)
        boxes += [_kernel(part.facts, i, kernel) for i, kernel in enumerate(part.facts["kernels"], first)]
    boxes += _of_pytorch(account, len(account.parts) + 1)
    ends = ['<div class="box end">input</div>', *boxes, '<div class="box end">output</div>']
    legend = "".join(
        f'<span class="chip{mark}">{words}</span>' for mark, words in (("", "never stored"), (" stored", "stored"))
    )
    apart = "".join(_outside(part.facts) for part in account.parts)
    return f'<div class="chips">{legend}</div>' + '<div class="arrow">↓</div>'.join(ends) + apart


def _of_pytorch(account: Account, number: int) -> list[str]:
    """PyTorch's ops that run before a part, by reason; one box, or none."""
    here = [fallback for fallback in account.fallbacks if fallback.part == number]
    reasons = dict.fromkeys(fallback.why for fallback in here)
    lines = []
    for why in reasons:
        chips = "".join(_torch_chip(fallback) for fallback in here if fallback.why == why)
        lines.append(f'<div class="chips">{chips}</div><p class="dim">{escape(why)}</p>')
    return [f'<div class="box torch"><b>PyTorch</b>{"".join(lines)}</div>'] if here else []


def _torch_chip(fallback: Fallback) -> str:
    where = f" in {fallback.module}" if fallback.module else ""
    return f'<span class="chip apart"><b>{escape(fallback.node)}</b> {escape(fallback.op + where)}</span>'


def _kernel(facts: dict[str, Any], number: int, kernel: dict[str, Any]) -> str:
    """What a kernel does, what it replaces, and by which rules."""
    ops = {op["name"]: op for op in facts["ops"]}
    chips = "".join(_chip(ops[name]) for name in kernel["covers"])
    figures = ", ".join(_figures("kernels", kernel))
    told = [
        f"<p>{escape(f.phrase)} {escape(kernel[f.name])}</p>"
        for f in native.fields() if f.section == "kernels" and f.unit == "text" and f.phrase and kernel[f.name]
    ]
    rules = [
        f'<p class="dim"><b>{escape(_op_of(ops, note["at"]))}</b>: {escape(note["why"])} '
        f"({escape(note['rule'])}, {escape(note['class'])})</p>"
        for note in facts["rewrites"] if note["at"] in kernel["covers"]
    ]
    replaced = counted(len(kernel["covers"]), "op")
    return (
        f'<div class="box kernel">'
        f'<div class="top"><b>{number}. {escape(kernel["name"])}</b><span>{figures}</span></div>'
        f'{"".join(told)}<p>replaces {replaced}</p><div class="chips">{chips}</div>{"".join(rules)}</div>'
    )


def _op_of(ops: dict[str, dict[str, Any]], name: str) -> str:
    """A value and the op that gives it, c = mean."""
    return f"{name} = {ops[name]['op']} {_shape(ops[name]['shape'])}"


def _chip(op: dict[str, Any], words: str = "") -> str:
    mark = " stored" if op["now"] == "stored" else ""
    below = words or f"{op['op']} {_shape(op['shape'])}"
    return f'<span class="chip{" apart" if words else mark}"><b>{escape(op["name"])}</b> {escape(below)}</span>'


def _outside(facts: dict[str, Any]) -> str:
    """What no kernel computes."""
    covered = {name for kernel in facts["kernels"] for name in kernel["covers"]}
    outside = [op for op in facts["ops"] if op["name"] not in covered and op["now"] != "inside"]
    chips = "".join(_chip(op, f"{op['op']}, {_FATES.get(op['now'], op['now'])}") for op in outside)
    return f'<p>In no kernel</p><div class="chips">{chips}</div>' if outside else ""


def _not_rewritten(parts: Sequence[dict[str, Any]]) -> str:
    """Rules that were refused, and those that hold for no kernel's ops."""
    rows = []
    for facts in parts:
        covered = {name for kernel in facts["kernels"] for name in kernel["covers"]}
        others = [note for note in facts["rewrites"] if note["at"] not in covered]
        rows += [[note["at"], note["rule"], note["class"], note["why"]] for note in others]
        rows += [[note["at"], note["rule"], "refused", note["why"]] for note in facts["refused"]]
    return _heading("Refused, and other rewrites") + _text_table(["value", "rule", "", "why"], rows) if rows else ""


# ---- the op table ----

_FATES = {
    "inside": "never stored",
    "stored": "stored",
    "prepared": "with the weights",
    "passed": "same as input",
    "gone": "not needed",
}


def _op_table(facts: dict[str, Any], first: int) -> str:
    plain = facts["plain"]
    kernel = {name: str(i) for i, k in enumerate(facts["kernels"], first) for name in k["covers"]}
    figures = [f.column for f in _fields("ops", "column")]
    head = ["value", "op", "shape", *figures, "share", "now", "kernel"]
    text_columns = {0, 1, 2, 3 + len(figures), 4 + len(figures)}
    rows = [_row("th", head, text_columns)]
    for op in facts["ops"]:
        share = op["us"] / plain["us"] if plain["us"] else 0
        bar = (
            f'{100 * share:.1f}% <span class="bar" style="width:{max(1, 90 * share):.0f}px"></span>' if op["us"] else ""
        )
        cells = [escape(op["name"]), escape(op["op"]), _shape(op["shape"]), *_figures("ops", op), bar]
        rows.append(
            _row("td", [*cells, _FATES.get(op["now"], escape(op["now"])), kernel.get(op["name"], "")], text_columns)
        )
    rows.append(_row("th", ["all", "", "", *_figures("plain", plain), "", "", ""], text_columns))
    return f'<div class="scroll"><table>{"".join(rows)}</table></div>'


def _row(tag: str, cells: Sequence[str], text_columns: set[int]) -> str:
    marks = [' class="t"' if i in text_columns else "" for i in range(len(cells))]
    made = [f"<{tag}{mark}>{cell}</{tag}>" for mark, cell in zip(marks, cells)]
    return f"<tr>{''.join(made)}</tr>"


# ---- tables of text ----


def _text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(tag: str, cells: Sequence[str]) -> str:
        marks = ["t"] * (len(cells) - 1) + ["wrap"]
        made = [f'<{tag} class="{mark}">{escape(cell)}</{tag}>' for mark, cell in zip(marks, cells)]
        return f"<tr>{''.join(made)}</tr>"

    return f'<div class="scroll"><table>{line("th", head)}{"".join(line("td", row) for row in rows)}</table></div>'


# ---- the roofline ----

_WIDTH = 760
_LEFT, _RIGHT, _TOP, _FOOT, _TALL = 84, 20, 16, 46, 340
_MARK = 22  # px: marks nearer than this share a label


def _svg(height: float, label: str, body: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(label)}" width="{_WIDTH}" '
        f'height="{height:.0f}" viewBox="0 0 {_WIDTH} {height:.0f}" font-family="system-ui,sans-serif" font-size="12">'
        f"{''.join(body)}</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12, more: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="currentColor"{more}>'
        f"{escape(text)}</text>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, more: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="currentColor"{more}/>'


class _Axis:
    """A logarithmic axis of whole decades that hold `low` and `high`, over pixels `start` to `end`."""

    def __init__(self, low: float, high: float, start: float, end: float):
        self.first = math.floor(math.log10(low))
        self.last = max(math.ceil(math.log10(high)), self.first + 1)
        self.start, self.scale = start, (end - start) / (self.last - self.first)

    def __call__(self, value: float) -> float:
        return self.start + (math.log10(value) - self.first) * self.scale

    def decades(self) -> list[float]:
        return [10.0**e for e in range(self.first, self.last + 1)]


def _roofline(parts: Sequence[dict[str, Any]]) -> str:
    """Work per byte against work per second: ops as written hollow, kernels filled, under the machine's roof. Marks
    have numbers; a table says what they are, and why one lies above the roof."""
    peak = parts[0]["peak"]
    top, slope = max(peak["flops"], peak["product_flops"]), peak["bytes"]
    kernels = [_point(kernel["name"], kernel) for one in parts for kernel in one["kernels"] if _has_costs(kernel)]
    ops = [_point(op["name"], op) for one in parts for op in one["ops"] if _has_costs(op)]
    dots, ridge = kernels + ops, top / slope
    x = _Axis(min([d[1] for d in dots] + [ridge]) / 2, max([d[1] for d in dots] + [ridge]) * 3, _LEFT, _WIDTH - _RIGHT)
    y = _Axis(min([d[2] for d in dots] + [top]) / 2, max([d[2] for d in dots] + [top]) * 1.5, _TALL - _FOOT, _TOP)
    roof, words = _roof(x, y, peak)
    body = _grid(x, y) + roof
    body += [_ring(x(work), y(rate)) for _, work, rate in ops]
    body += [_disc(x(work), y(rate)) for _, work, rate in kernels]
    body += _numbers([(x(work), y(rate)) for _, work, rate in dots], words)
    legend = '<p class="dim">filled: fused kernels; hollow: ops as written</p>'
    rows = []
    for number, (name, work, rate) in enumerate(dots, 1):
        kind = "kernel" if number <= len(kernels) else "op"
        said = name + _above(work, rate, top, slope)
        rows.append([str(number), kind, f"{work:.3g} FLOP/B", amounts.rate(rate), said])
    table = _text_table(["", "", "work per byte", "rate", "name"], rows)
    return f"{_svg(_TALL, 'roofline', body)}{legend}{table}"


def _above(work: float, rate: float, top: float, slope: float) -> str:
    """Why a point lies above the roof, where it does."""
    if rate > 1.02 * top:
        return " (above the roof: functions such as exp count as many operations and take fewer)"
    if rate > 1.02 * slope * work:
        return " (above the roof: what it reads is still in a cache)"
    return ""


def _has_costs(row: dict[str, Any]) -> bool:
    return bool(row["us"] > 0 and row["flops"] > 0 and row["bytes"] > 0)


def _point(name: str, row: dict[str, Any]) -> tuple[str, float, float]:
    """Name, work per byte, work per second."""
    return name, row["flops"] / row["bytes"], row["flops"] / (row["us"] * 1e-6)


def _ring(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="none" stroke="{_STORED}" stroke-width="2"/>'


def _disc(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7" fill="{_FUSED}"/>'


def _numbers(points: Sequence[tuple[float, float]], words: Sequence[tuple[float, float, float]]) -> list[str]:
    """The points' numbers below them; marks close to each other share one, and who finds no room has none. words: what
    stands there already, as (middle, middle, half the width)."""
    clusters: list[tuple[float, float, list[int]]] = []
    for number, (x, y) in enumerate(points, 1):
        near = next((c for c in clusters if abs(c[0] - x) < _MARK and abs(c[1] - y) < _MARK), None)
        if near:
            near[2].append(number)
        else:
            clusters.append((x, y, [number]))
    taken = [*words, *((x, y, 8.0) for x, y in points)]  # the words, the marks, then the labels
    body = []
    for x, y, numbers in clusters:
        label = ", ".join(map(str, numbers[:4])) + (" …" if len(numbers) > 4 else "")
        half = 4.0 * len(label) + 2
        for dx, dy in ((0, 18), (half + 12, 1), (-half - 12, 1), (0, -18), (0, 32), (half + 12, 16)):
            at_x, at_y = min(max(x + dx, _LEFT + half), _WIDTH - _RIGHT - half), y + dy
            free = all(abs(at_x - tx) >= half + other or abs(at_y - ty) >= 14 for tx, ty, other in taken)
            if free and _TOP < at_y < _TALL - _FOOT - 8:
                taken.append((at_x, at_y, half))
                body.append(_text(at_x, at_y + 4, label, "middle", 11))
                break
    return body


def _decade(rate: float) -> str:
    return amounts.rate(rate).replace(".00 ", " ").replace(".0 ", " ")


def _grid(x: _Axis, y: _Axis) -> list[str]:
    faint, body = ' stroke-opacity=".15"', []
    foot = _TALL - _FOOT
    for value in x.decades():
        body += [_line(x(value), _TOP, x(value), foot, faint), _text(x(value), foot + 16, f"{value:g}", "middle", 11)]
    for value in y.decades():
        body += [
            _line(_LEFT, y(value), _WIDTH - _RIGHT, y(value), faint),
            _text(_LEFT - 6, y(value) + 4, _decade(value), "end", 11),
        ]
    body.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _TALL - 8, "FLOP per byte moved", "middle", 11))
    return body


def _roof(x: _Axis, y: _Axis, peak: dict[str, float]) -> tuple[list[str], list[tuple[float, float, float]]]:
    """The lines with their words, and where these stand."""
    body, right, foot = [], _WIDTH - _RIGHT, 10.0**y.first
    highest = max(peak["flops"], peak["product_flops"])
    start = max(10.0**x.first, foot / peak["bytes"])
    ridge = min(highest / peak["bytes"], 10.0**x.last)
    body.append(_line(x(start), y(start * peak["bytes"]), x(ridge), y(ridge * peak["bytes"]), ' stroke-width="2"'))
    roofs = {peak["flops"]: "fp32 peak"}
    if peak["product_flops"] > 1.02 * peak["flops"]:
        roofs[peak["product_flops"]] = "fp32 products on tensor cores"
    words: list[tuple[float, float, str]] = []  # end, base line
    for rate, name in roofs.items():
        begin = min(rate / peak["bytes"], 10.0**x.last)
        body.append(_line(x(begin), y(rate), right, y(rate), ' stroke-width="2"'))
        words.append((right - 4, y(rate) - 6, f"{name} {amounts.rate(rate)}"))
    middle = math.sqrt(start * ridge)
    memory = amounts.FORMS["B/s"](peak["bytes"])
    words.append((max(x(middle) - 8, _LEFT + 120), y(middle * peak["bytes"]) - 8, f"memory {memory}"))
    body += [_text(end, base, text, "end", 11) for end, base, text in words]
    return body, [(end - 3.2 * len(text), base - 4, 3.2 * len(text)) for end, base, text in words]

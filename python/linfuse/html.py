# SPDX-License-Identifier: Apache-2.0
"""An account as HTML for notebooks: the op table, the fusion groups as a picture, the roofline.

One fragment without anything from outside: no scripts, no fonts, no files. Text takes the notebook's own colour
(currentColor) and fills are half transparent, so that it reads on light and on dark ground alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
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
.lf-account{font:13px/1.45 system-ui,sans-serif;max-width:980px}
.lf-account h4{margin:1.1em 0 .4em;font-size:14px}
.lf-account p{margin:.3em 0}
.lf-account table{border-collapse:collapse;font-size:12px;color:inherit;margin:0}
.lf-account th,.lf-account td{padding:2px 9px;text-align:right;border-bottom:1px solid rgba(128,128,128,.3);
 white-space:nowrap;background:none;color:inherit}
.lf-account th{font-weight:600}
.lf-account .t{text-align:left}
.lf-account .wrap{white-space:normal;text-align:left}
.lf-account .bar{display:inline-block;height:.7em;border-radius:2px;background:#56b4e9;vertical-align:middle}
.lf-account .dim{opacity:.7}
.lf-account .scroll{overflow-x:auto}
.lf-account svg{max-width:100%;height:auto;color:inherit}
""".replace("\n", "")


def render(account: Account) -> str:
    """The whole fragment."""
    parts = [part.facts for part in account.parts]
    pieces = [f"<style>{_STYLE}</style>", _headline(account)]
    for number, facts in enumerate(parts, 1):
        if len(parts) > 1:
            pieces.append(f"<h4>Part {number} of {len(parts)}</h4>")
        pieces += [_op_table(facts), _heading(f"Fused: {counted(facts['fused']['launches'], 'launch', 'launches')}")]
        pieces += [f'<div class="scroll">{_groups(facts)}</div>', _notes(facts)]
    if account.fallbacks:
        pieces += [_heading("Left to PyTorch"), _fallbacks(account.fallbacks)]
    if parts:
        pieces += [_heading("Roofline"), f'<div class="scroll">{_roofline(parts)}</div>']
    pieces += [f"<p>{escape(note)}</p>" for note in account.notes]
    return f'<div class="lf-account">{"".join(pieces)}</div>'


def bench(made: Bench) -> str:
    """What was measured, as a fragment."""
    rows = [_row("th" if i == 0 else "td", list(map(escape, row)), {0}) for i, row in enumerate(made.table())]
    left = [f"<p>{escape(name)} is left out: {escape(why)}</p>" for name, why in made.left_out.items()]
    head = f"<p>{escape(made.title)} on {escape(made.where)}: <b>{escape(made.headline)}</b>, in turns</p>"
    table = f'<div class="scroll"><table>{"".join(rows)}</table></div>'
    return f'<style>{_STYLE}</style><div class="lf-account">{head}{table}{"".join(left)}</div>'


def stats(made: Stats) -> str:
    """What ran fused and what did not, as a fragment."""
    pieces = [f"<p>{escape(fact)}</p>" for fact in made.facts()]
    for heading, several in made.left():
        rows = [[amounts.listed(one.ops), one.reason] for one in several]
        pieces += [_heading(heading), _text_table(["ops", "why"], rows)]
    return f'<style>{_STYLE}</style><div class="lf-account">{"".join(pieces)}</div>'


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
    title = f"<b>{escape(account.title)}</b>: " if account.title else ""
    if not account.parts:
        return f"<p>{title}nothing of it runs in linfuse.</p>"
    plain, fused = joined["plain"], joined["fused"]
    gain = plain["us"] / fused["us"] if fused["us"] > 0 else 1
    faster = (
        f"{gain:.0f} times faster" if gain >= 99.5 else f"{gain:.1f} times faster" if gain >= 1.05 else "about as fast"
    )
    dims = ", ".join(f"{name} = {extent}" for name, extent in joined["dims"].items())
    peak = [f"{f.phrase} {amounts.FORMS[f.unit](joined['peak'][f.name])}" for f in _fields("peak", "phrase")]
    memory = [f"{amounts.FORMS[f.unit](fused[f.name])} {f.phrase}" for f in _fields("fused", "phrase")]
    said = (
        f"<p>{title}{counted(plain['launches'], 'launch', 'launches')} become {fused['launches']}, "
        f"{amounts.time(plain['us'])} become {amounts.time(fused['us'])}: <b>{faster}</b> "
        "(predicted, linfuse without fusion)</p>"
    )
    if account.measured is not None:
        said = f"<p>{title}<b>{escape(account.measured.headline)}</b></p>" + said.replace(title, "", 1)
    return (
        f"{said}"
        f'<p class="dim">{escape(dims)}{" on " if dims else ""}{escape(joined["title"])}: {escape(", ".join(peak))}. '
        f"Memory: {escape(', '.join(memory))}</p>"
    )


# ---- the op table ----

_FATES = {
    "inside": "never stored",
    "stored": "stored",
    "prepared": "with the weights",
    "passed": "same as input",
    "gone": "not needed",
}


def _op_table(facts: dict[str, Any]) -> str:
    plain = facts["plain"]
    kernel = {name: str(i) for i, k in enumerate(facts["kernels"], 1) for name in k["covers"]}
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
    launches = counted(plain["launches"], "launch", "launches")
    return _heading(f"As written, op by op: {launches}") + f'<div class="scroll"><table>{"".join(rows)}</table></div>'


def _row(tag: str, cells: Sequence[str], text_columns: set[int]) -> str:
    marks = [' class="t"' if i in text_columns else "" for i in range(len(cells))]
    made = [f"<{tag}{mark}>{cell}</{tag}>" for mark, cell in zip(marks, cells)]
    return f"<tr>{''.join(made)}</tr>"


# ---- rewrites and fallbacks ----


def _notes(facts: dict[str, Any]) -> str:
    rows = [[n["at"], n["rule"], n["class"], n["why"]] for n in facts["rewrites"]]
    rows += [[n["at"], n["rule"], "refused", n["why"]] for n in facts["refused"]]
    if not rows:
        return ""
    return _heading("Rewritten, and refused") + _text_table(["value", "rule", "class", "why"], rows)


def _fallbacks(fallbacks: Sequence[Fallback]) -> str:
    return _text_table(["node", "calls", "module", "why"], [[f.node, f.op, f.module, f.why] for f in fallbacks])


def _text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(tag: str, cells: Sequence[str]) -> str:
        marks = ["t"] * (len(cells) - 1) + ["wrap"]
        made = [f'<{tag} class="{mark}">{escape(cell)}</{tag}>' for mark, cell in zip(marks, cells)]
        return f"<tr>{''.join(made)}</tr>"

    return f'<div class="scroll"><table>{line("th", head)}{"".join(line("td", row) for row in rows)}</table></div>'


# ---- pictures ----

_WIDTH = 760


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


def _box(x: float, y: float, width: float, height: float, colour: str, opacity: float, more: str = "") -> str:
    corner = min(6.0, height / 4)
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{corner:.1f}" fill="{colour}" '
        f'fill-opacity="{opacity}" stroke="{colour}"{more}/>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, more: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="currentColor"{more}/>'


_CHIP, _GAP, _PAD = 40, 18, 12  # px: a value's height, from one to the next, inside a kernel's box


class _Flow:
    """Chips of values set one after another inside a frame, on as many lines as they take."""

    def __init__(self, top: float):
        self.x, self.y, self.body = float(2 * _PAD), top, list[str]()

    def chip(self, op: dict[str, Any], colour: str, dashed: bool = False) -> None:
        name, below = _short(op["name"], 26), f"{op['op']}  {_shape(op['shape'])}"
        width = max(7.2 * len(name), 6.3 * len(below)) + 18
        first = self.x == 2 * _PAD
        if not first and self.x + _GAP + width > _WIDTH - 2 * _PAD:
            self.x, self.y, first = float(2 * _PAD), self.y + _CHIP + _GAP / 2, True
        if not first:
            self.body.append(
                _line(self.x, self.y + _CHIP / 2, self.x + _GAP, self.y + _CHIP / 2, ' stroke-opacity=".6"')
            )
            self.x += _GAP
        more = ' stroke-dasharray="4 3"' if dashed else ""
        self.body.append(_box(self.x, self.y, width, _CHIP, colour, 0.08 if dashed else 0.3, more))
        self.body.append(_text(self.x + 9, self.y + 17, name, more=' font-weight="600"'))
        self.body.append(_text(self.x + 9, self.y + 32, below, size=11, more=' fill-opacity=".8"'))
        self.x += width

    @property
    def bottom(self) -> float:
        return self.y + _CHIP


def _short(name: str, most: int) -> str:
    """The end of a module's path says more than its beginning."""
    return name if len(name) <= most else "…" + name[1 - most :]


def _groups(facts: dict[str, Any]) -> str:
    """Each kernel a frame around the values it computes; those that reach memory in another colour."""
    ops = {op["name"]: op for op in facts["ops"]}
    body, y, seen = [*_legend()], 34.0, set[str]()
    for number, kernel in enumerate(facts["kernels"], 1):
        seen.update(kernel["covers"])
        flow = _Flow(y + 30)
        for name in kernel["covers"]:
            flow.chip(ops[name], _STORED if ops[name]["now"] == "stored" else _INSIDE)
        why = f"apart because {kernel['why_apart']}" if kernel["why_apart"] else ""
        height = flow.bottom + _PAD - y + (18 if why else 0)
        head = f"{number}. {kernel['name']}"
        body.append(_box(_PAD, y, _WIDTH - 2 * _PAD, height, _PLAIN, 0.06))
        body.append(_text(2 * _PAD, y + 19, _short(head, 60), more=' font-weight="600"'))
        body.append(_text(_WIDTH - 2 * _PAD, y + 19, ", ".join(_figures("kernels", kernel)), "end"))
        body += flow.body
        if why:
            body.append(_text(2 * _PAD, y + height - 9, _short(why, 115), size=11, more=' fill-opacity=".8"'))
        y += height
        if number < len(facts["kernels"]):
            body += _arrow(_WIDTH / 2, y, y + 22)
            y += 22
    outside = [op for op in facts["ops"] if op["name"] not in seen and op["now"] != "inside"]
    if outside:
        flow = _Flow(y + 34)
        for op in outside:
            flow.chip({**op, "op": _FATES[op["now"]]}, _PLAIN, dashed=True)
        body += [_text(2 * _PAD, y + 24, "In no kernel"), *flow.body]
        y = flow.bottom
    return _svg(y + 8, "fusion groups", body)


def _legend() -> list[str]:
    body = []
    for x, colour, words in ((_PAD, _INSIDE, "never stored"), (_PAD + 130, _STORED, "written to memory")):
        body += [_box(x, 8, 14, 14, colour, 0.3), _text(x + 20, 19, words, size=11)]
    return body


def _arrow(x: float, top: float, bottom: float) -> list[str]:
    tip = f"M{x - 4:.1f} {bottom - 6:.1f} L{x:.1f} {bottom:.1f} L{x + 4:.1f} {bottom - 6:.1f}"
    return [_line(x, top, x, bottom), f'<path d="{tip}" fill="none" stroke="currentColor"/>']


# ---- the roofline ----

_LEFT, _RIGHT, _TOP, _FOOT, _TALL = 84, 20, 16, 46, 340


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
    """Work per byte against work per second: ops as written hollow, kernels filled, under the machine's roof."""
    peak = parts[0]["peak"]
    top, slope = max(peak["flops"], peak["product_flops"]), peak["bytes"]
    ops = [_point(op["name"], op) for one in parts for op in one["ops"] if _has_costs(op)]
    kernels = []
    for part, one in enumerate(parts, 1):
        of = f" of part {part}" if len(parts) > 1 else ""
        kernels += [_point(f"kernel {i}{of}", k) for i, k in enumerate(one["kernels"], 1) if _has_costs(k)]
    dots = ops + kernels
    ridge = top / slope
    x = _Axis(min([d[1] for d in dots] + [ridge]) / 2, max([d[1] for d in dots] + [ridge]) * 3, _LEFT, _WIDTH - _RIGHT)
    y = _Axis(min([d[2] for d in dots] + [top]) / 2, top * 1.5, _TALL - _FOOT, _TOP)
    body = _grid(x, y) + _roof(x, y, peak)
    rings = [_ring(x(work), y(rate)) for _, work, rate in ops]
    discs = [_disc(x(work), y(rate)) for _, work, rate in kernels]
    body += [*rings, *discs, *_labels([(name, x(work), y(rate)) for name, work, rate in kernels + ops])]
    body += [_ring(_LEFT + 14, _TOP + 10), _text(_LEFT + 26, _TOP + 14, "op as written", size=11)]
    body += [_disc(_LEFT + 14, _TOP + 29), _text(_LEFT + 26, _TOP + 33, "fused kernel", size=11)]
    return _svg(_TALL, "roofline", body)


def _has_costs(row: dict[str, Any]) -> bool:
    return bool(row["us"] > 0 and row["flops"] > 0 and row["bytes"] > 0)


def _point(name: str, row: dict[str, Any]) -> tuple[str, float, float]:
    """Name, work per byte, work per second."""
    return name, row["flops"] / row["bytes"], row["flops"] / (row["us"] * 1e-6)


def _ring(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="none" stroke="{_STORED}" stroke-width="2"/>'


def _disc(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7" fill="{_FUSED}"/>'


def _labels(points: Sequence[tuple[str, float, float]]) -> list[str]:
    """The points' names below them, where the roof does not run; one label for points that lie on each other, elsewhere
    around them where another is, none where there is no room."""
    clusters: list[tuple[float, float, list[str]]] = []
    for name, x, y in points:
        near = next((c for c in clusters if abs(c[0] - x) < 14 and abs(c[1] - y) < 10), None)
        if near:
            near[2].append(name)
        else:
            clusters.append((x, y, [name]))
    taken = [(x, y, 8.0) for _, x, y in points]  # middle, middle, half the width: the marks, then the labels
    body = []
    for x, y, names in clusters:
        words = _listed(names)
        half = 3.2 * len(words)
        for dx, dy in ((0, 16), (half + 12, 1), (-half - 12, 1), (0, 29), (half + 12, 14), (0, 42), (0, -14)):
            at_x, at_y = min(max(x + dx, _LEFT + half), _WIDTH - _RIGHT - half), y + dy
            free = all(abs(at_x - tx) >= half + other or abs(at_y - ty) >= 12 for tx, ty, other in taken)
            if free and at_y < _TALL - _FOOT:
                taken.append((at_x, at_y, half))
                body.append(_text(at_x, at_y + 4, words, "middle", 11))
                break
    return body


def _listed(names: Sequence[str]) -> str:
    """Names in few words: the ends of their paths, the same one counted."""
    ends = Counter(_short(name.rsplit(".", 1)[-1] or name, 22) for name in names)
    words = [end if count == 1 else f"{end} ×{count}" for end, count in ends.items()]
    return ", ".join(words[:3]) + (" …" if len(words) > 3 else "")


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


def _roof(x: _Axis, y: _Axis, peak: dict[str, float]) -> list[str]:
    body, right, foot = [], _WIDTH - _RIGHT, 10.0**y.first
    highest = max(peak["flops"], peak["product_flops"])
    start = max(10.0**x.first, foot / peak["bytes"])
    ridge = min(highest / peak["bytes"], 10.0**x.last)
    body.append(_line(x(start), y(start * peak["bytes"]), x(ridge), y(ridge * peak["bytes"]), ' stroke-width="2"'))
    roofs = {peak["flops"]: "fp32 peak"}
    if peak["product_flops"] > 1.02 * peak["flops"]:
        roofs[peak["product_flops"]] = "fp32 products on tensor cores"
    for rate, words in roofs.items():
        begin = min(rate / peak["bytes"], 10.0**x.last)
        body.append(_line(x(begin), y(rate), right, y(rate), ' stroke-width="2"'))
        body.append(_text(right - 4, y(rate) - 6, f"{words} {amounts.rate(rate)}", "end", 11))
    middle = math.sqrt(start * ridge)
    memory = amounts.FORMS["B/s"](peak["bytes"])
    body.append(_text(x(middle) - 8, y(middle * peak["bytes"]) - 8, f"memory {memory}", "end", 11))
    return body

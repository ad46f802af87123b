# SPDX-License-Identifier: Apache-2.0
"""Tables for notebooks, in the notebook's own style. The account's page is the library's: native.page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from . import amounts

if TYPE_CHECKING:
    from .counters import Stats
    from .timing import Bench


def bench(made: Bench) -> str:
    """What was measured."""
    head = f"<p>{escape(made.title)} on {escape(made.where)}: <b>{escape(made.headline)}</b>, in turns</p>"
    left = [_paragraph(f"{name} is left out: {why}") for name, why in made.left_out.items()]
    return "".join([head, _table(made.table(), text={0}), *left])


def stats(made: Stats) -> str:
    """What ran fused and what did not."""
    pieces = [_paragraph(fact) for fact in made.facts()]
    for heading, several in made.left():
        rows = [["ops", "why"], *([amounts.listed(one.ops), one.reason] for one in several)]
        pieces += [f"<h4>{escape(heading)}</h4>", _table(rows, text={0, 1})]
    return "".join(pieces)


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _table(rows: Sequence[Sequence[str]], text: set[int]) -> str:
    """The first row is the head. text: the columns that are no figures."""
    made = []
    for row, tag in zip(rows, ["th", *["td"] * len(rows)]):
        sides = ["left" if i in text else "right" for i in range(len(row))]
        cells = [f'<{tag} style="text-align:{side}">{escape(cell)}</{tag}>' for side, cell in zip(sides, row)]
        made.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{''.join(made)}</table>"

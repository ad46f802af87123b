# SPDX-License-Identifier: Apache-2.0
"""The account: what a model costs as written, what was rewritten and fused and what not, and why, what it costs now.

It only carries what the C library decided (`linfuse explain`) and what was left to PyTorch; it decides nothing.
"""

from __future__ import annotations

import json
import os
import pathlib
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from . import amounts, native

if TYPE_CHECKING:
    from .loss_found import LossHead
    from .timing import Bench


class Figures(dict[str, Any]):
    """A section of the account, its fields as attributes: `account.fused.us`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the account has no field {name} here; it has {', '.join(self)}") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self]


def _names(section: str) -> list[str]:
    return [field.name for field in native.fields() if field.section == section]


def _sections(each: bool) -> list[str]:
    """The sections that are lists, or the others; but not the object they all stand in."""
    return list(dict.fromkeys(f.section for f in native.fields() if f.each == each and f.section != "report"))


@dataclass(frozen=True)
class Part:
    """One program's account: the command's text and its JSON object."""

    text: str
    facts: dict[str, Any]


@dataclass(frozen=True)
class Fallback:
    """Something that PyTorch runs: which node, what it calls, in which module, why linfuse does not, and when."""

    node: str
    op: str
    module: str
    why: str
    part: int = 1  # before which part it runs, counted from 1; one more than there are: after the last

    @property
    def what(self) -> str:
        where = f" in {self.module}" if self.module else ""
        return f"{self.node}: {self.op}{where}"

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


@dataclass(frozen=True)
class Account:
    """What linfuse makes of a model. Print it, look at it in a notebook, take `.json()`, or a section of that as an
    attribute: `account.fused.us`, `account.kernels[0].phases`, `account.report.device`.

    A model has one part where all of it runs fused; more where PyTorch runs something between (`fallbacks`), or where
    Dynamo broke the graph.
    """

    parts: Sequence[Part]
    fallbacks: Sequence[Fallback] = ()
    title: str = ""
    notes: Sequence[str] = field(default=())
    heads: Sequence[LossHead] = ()  # losses without logits, with a note each
    measured: Bench | None = None
    views: Sequence[str] = ()  # nodes that PyTorch runs too, which only look at memory in another way

    def __str__(self) -> str:
        pieces = [part.text.rstrip("\n") for part in self.parts]
        if len(pieces) > 1:
            pieces = [f"Part {i} of {len(pieces)}\n{text}" for i, text in enumerate(pieces, 1)]
        if not pieces and not self.heads:
            pieces = ["Nothing of it runs in linfuse."]
        if self.fallbacks or self.views:
            pieces.append("\n".join(["Left to PyTorch", *_by_reason(self.fallbacks), *_views(self.views)]))
        if self.notes:
            pieces.append("\n".join(textwrap.fill(note, 120, break_on_hyphens=False) for note in self.notes))
        if self.parts and (len(self.parts) > 1 or self.fallbacks):
            pieces.insert(0, self._summary())
        if self.measured is not None:
            head = f"Measured on {self.measured.where}: {self.measured.headline}"
            pieces.insert(0, "\n".join([head, *self.measured.doubts]))
        return "\n\n".join(pieces) + "\n"

    def _summary(self) -> str:
        """What all parts take together, and what is not counted in that."""
        facts = _joined([part.facts for part in self.parts])
        plain, fused = facts["plain"]["us"], facts["fused"]["us"]
        gain = f": {amounts.times(plain / fused)}" if fused > 0 and not launches_decide(facts) else ""
        left = f"; {amounts.counted(len(self.fallbacks), 'op')} in PyTorch, not predicted" if self.fallbacks else ""
        return (f"{amounts.counted(len(self.parts), 'part')} in linfuse, {amounts.counted(len(facts['ops']), 'op')}: "
                f"predicted op by op {amounts.time(plain)}, fused {amounts.time(fused)}{gain}{left}")  # fmt: skip

    __repr__ = __str__  # a dump of all fields is no use to a person at a prompt

    def json(self) -> dict[str, Any]:
        """The object that `linfuse explain --json` prints. Of several parts the lists are joined and the costs summed;
        each op and kernel then says in `part` which it is of. `fallbacks` lists what is left to PyTorch,
        `views` what of it costs nothing; `measured` is there where it was measured."""
        joined = _joined([part.facts for part in self.parts])
        joined["fallbacks"] = [asdict(fallback) for fallback in self.fallbacks]
        joined["views"] = list(self.views)
        joined["notes"] = list(self.notes)
        if self.heads:
            joined["loss_heads"] = [head.json() for head in self.heads]
        if self.measured is not None:
            joined["measured"] = self.measured.json()
        return joined

    def save(self, path: str | os.PathLike[str]) -> pathlib.Path:
        """Writes it as its name says: x.html a page that needs no network, x.json the object, x.txt the text."""
        place = pathlib.Path(path)
        forms: dict[str, Callable[[Account], str]] = {
            ".html": lambda account: native.page(account.title, account.json(), whole=True),
            ".json": lambda account: json.dumps(account.json(), indent=1) + "\n",
            ".txt": str,
        }
        if place.suffix not in forms:
            raise native.Error(f"an account is saved as {', '.join(forms)}, not as {place.suffix or place.name}")
        place.write_text(forms[place.suffix](self), encoding="utf-8")
        return place

    def __getattr__(self, name: str) -> Any:
        if name in _sections(each=False):
            return Figures(self.json()[name])
        if name in _sections(each=True):
            return [Figures(row) for row in self.json()[name]]
        if name == "report":
            facts = self.json()
            return Figures({key: facts[key] for key in _names("report") if key in facts})
        raise AttributeError(f"{type(self).__name__} has no attribute {name}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), "report", *_sections(each=False), *_sections(each=True)]

    def _repr_html_(self) -> str:
        return native.page(self.title, self.json(), whole=False)


def launches_decide(facts: Mapping[str, Any]) -> bool:
    """Whether fusion is predicted to be slower, but PyTorch's launches take longer still: as the text and the page have
    it (src/run/account_words.c)."""
    return bool(facts["plain"]["us"] < facts["fused"]["us"] <= facts["plain"]["host_us"])


_NAMED = 6  # of several things with one reason, each is named up to here


def _by_reason(fallbacks: Sequence[Fallback]) -> list[str]:
    """A line each; where several have one reason, that once, and below it what it holds for."""
    found: dict[str, list[Fallback]] = {}
    for fallback in fallbacks:
        found.setdefault(fallback.why, []).append(fallback)
    lines: list[str] = []
    for why, several in found.items():
        whats = "; ".join(one.what for one in several)
        if len(several) > _NAMED:
            ops = amounts.listed(one.op.rpartition(".")[2] for one in several)
            whats = f"{ops}; the first is {several[0].what}"
        texts = [str(several[0])] if len(several) == 1 else [why, "  " + whats]
        lines += map(_wrapped, texts)
    return lines


def _views(names: Sequence[str]) -> list[str]:
    return [_wrapped(f"views and slices, which cost nothing: {amounts.listed(names)}")] if names else []


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 110, initial_indent="  ", subsequent_indent="    ")


def _joined(facts: list[dict[str, Any]]) -> dict[str, Any]:
    totals = ("plain", "fused")
    if not facts:
        empty = {side: dict.fromkeys(_names(side), 0) for side in totals}
        return {"device": "cpu", "dims": {}, **empty, **{key: [] for key in _sections(each=True)}}
    if len(facts) == 1:
        return dict(facts[0])
    first = facts[0]
    joined = {key: first[key] for key in (*_names("report"), *_sections(each=False))}
    joined["dims"] = {name: extent for one in facts for name, extent in one["dims"].items()}
    for side in totals:
        joined[side] = {key: sum(one[side][key] for one in facts) for key in _names(side)}
    for key in _sections(each=True):
        joined[key] = [{**row, "part": i} for i, one in enumerate(facts, 1) for row in one[key]]
    return joined

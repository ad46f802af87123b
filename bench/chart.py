# SPDX-License-Identifier: Apache-2.0
"""The ratios as bars, and how times shrink with threads."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

import report
from contenders import PEERS

MET, SHORT, INK = "#2a78b5", "#d1782f", "#333333"


def draw(records, heading, path):
    rows = [r for r in records if r["ratio"]][::-1]  # the first case on top
    if not rows:
        return
    figure, axes = plt.subplots(figsize=(10, 1.6 + 0.3 * len(rows)))
    places = range(len(rows))
    colours = [MET if r["met"] else SHORT for r in rows]
    axes.barh(places, [r["ratio"] - 1 for r in rows], left=1, height=0.62, color=colours)
    for place, r in zip(places, rows):
        axes.plot([r["target"]] * 2, [place - 0.4, place + 0.4], color=INK, linewidth=2)
        right = max(1, r["ratio"], r["target"]) * 1.06
        axes.text(right, place, report.times(r["ratio"]), va="center", fontsize=9, color=INK)
    axes.axvline(1, color=INK, linewidth=0.8)
    axes.set_yticks(list(places), [f"{r['case']}  {report.size(r['sizes'])}" for r in rows], fontsize=9)
    finish(axes, rows, heading)
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)


def finish(axes, rows, heading):
    ends = [r["ratio"] for r in rows] + [r["target"] for r in rows]
    axes.set_xscale("log")
    axes.set_xlim(min(0.5, min(ends) / 1.5), max(2, max(ends) * 2.2))
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}x")
    axes.xaxis.set_minor_formatter("")
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("times as fast as the best of torch eager, torch.compile and ONNX Runtime, log scale")
    doubt = ", DISTURBED by other processes" if any(r["disturbed"] for r in rows) else ""
    threads = f"{rows[0]['threads']} {'thread' if rows[0]['threads'] == 1 else 'threads'}"
    title = f"linfuse against the best peer, {threads}\n{heading['cpu']}, {heading['date']}{doubt}"
    axes.set_title(title, fontsize=11, loc="left", pad=26)  # over the legend
    marks = [Patch(color=MET, label="target met"), Patch(color=SHORT, label="short of target"),
             Line2D([], [], color=INK, linewidth=2, label="target")]
    axes.legend(handles=marks, loc="lower left", bbox_to_anchor=(-0.01, 1), ncols=3, frameon=False, fontsize=9)


def draw_scaling(records, heading, path):
    """A small drawing a case: how many times as fast as linfuse on one thread (the fewest) each contender is."""
    cases = {r["case"]: [] for r in records if r["linfuse_ms"]}
    for r in records:
        if r["case"] in cases:
            cases[r["case"]].append(r)
    columns = min(6, len(cases))
    if not columns:
        return
    lines = -(-len(cases) // columns)
    figure, grid = plt.subplots(lines, columns, figsize=(2.6 * columns, 2.2 * lines + 0.6), squeeze=False, sharex=True)
    for axes in grid.flat:
        axes.set_visible(False)
    for axes, (name, rows) in zip(grid.flat, cases.items()):
        axes.set_visible(True)
        threads, base = [r["threads"] for r in rows], rows[0]["linfuse_ms"]
        for index, peer in enumerate(PEERS):
            axes.plot(threads, [base / r["ms"].get(peer, float("nan")) for r in rows], marker="o", markersize=3,
                      linewidth=1, color=SHORT, alpha=1 - 0.3 * index, label=peer)
        axes.plot(threads, [base / r["linfuse_ms"] for r in rows], marker="o", markersize=3, color=MET, label="linfuse")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks(threads, [str(count) for count in threads])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}x")
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.25)
        axes.set_title(f"{name} {report.size(rows[0]['sizes'])}", fontsize=8, loc="left")
    figure.suptitle(f"speed over linfuse on {min(r['threads'] for r in records)} thread(s), by threads\n"
                    f"{heading['cpu']}, {heading['date']}", fontsize=10, x=0.01, ha="left")
    figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="upper right", ncols=len(PEERS) + 1, frameon=False,
                  fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)

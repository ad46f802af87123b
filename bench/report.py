# SPDX-License-Identifier: Apache-2.0
"""The measurements as tables: aligned on stdout, Markdown and JSON in files."""

import json
import math

from contenders import PEERS

DASH = "-"
WITHIN = 0.25  # how near a prediction is to come
MOST_COMPILE_MS, MOST_PREPARE_MS = 10, 100


# ---- numbers as words ----


def sig(number, digits=3):
    """Three digits that count, without exponents."""
    if number is None:
        return DASH
    if number == 0 or not math.isfinite(number):
        return str(number)
    return f"{number:.{max(0, digits - 1 - math.floor(math.log10(abs(number))))}f}"


def percent(share):
    return DASH if share is None else f"{100 * share:.0f}%"


def size(sizes):
    return "x".join(str(s) for s in sizes if s)


def times(ratio):
    return DASH if ratio is None else f"{sig(ratio)}x"


def megabytes(count):
    return DASH if count is None else f"{count / 2**20:.1f}"


# ---- tables ----


def add_shares(record, peak):
    """What linfuse makes of the machine, and how near the prediction came; into the record."""
    facts, ms = record["facts"].get("linfuse", {}), record["linfuse_ms"]
    if ms and "flops" in facts:
        seconds = ms / 1e3
        record["fma_share"] = facts["flops"] / seconds / peak["flops"]
        record["memory_share"] = facts["bytes"] / seconds / peak["bytes"]
        record["prediction"] = facts["predicted_ms"] / ms
        record["predicted_well"] = abs(facts["predicted_ms"] / ms - 1) <= WITHIN


def of_most_threads(records):
    """What does not depend on threads is told once."""
    most = max(r["threads"] for r in records)
    return [r for r in records if r["threads"] == most]


def speed_row(r):
    facts = r["facts"].get("linfuse", {})
    notes = [word for word, holds in [("disturbed", r["disturbed"]), ("RESULTS DIFFER", not r["agree"])] if holds]
    return [
        r["case"],
        size(r["sizes"]),
        str(r["threads"]),
        *[sig(r["ms"].get(p)) for p in PEERS],
        sig(r["linfuse_ms"]),
        times(r["ratio"]),
        times(r["target"]),
        "yes" if r["met"] else "NO",
        percent(r.get("fma_share")),
        percent(r.get("memory_share")),
        sig(facts.get("predicted_ms")),
        ("" if r.get("predicted_well", True) else "!") + times(r.get("prediction")),
        f"{max(r['errors'].values(), default=0):.0e}",
        ", ".join(notes),
    ]


SPEED_HEAD = ["case", "MxNxK", "threads", *PEERS, "linfuse", "ratio", "target", "met", "of FMA", "of mem", "predicted",
              "pred/meas", "max err", ""]


def memory_row(r):
    def both(name):
        facts = r["facts"][name]
        return f"{megabytes(facts.get('held_bytes'))} + {megabytes(facts.get('call_bytes'))}"
    ours = r["facts"]["linfuse"]
    return [r["case"], size(r["sizes"]), *map(both, [*PEERS, "linfuse"]),
            sig(ours.get("compile_ms")), sig(ours.get("prepare_ms"))]


MEMORY_HEAD = ["case", "MxNxK", *PEERS, "linfuse", "compile ms", "prepare ms"]


def aligned(head, rows):
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    def line(row):
        words = [word.ljust(w) if i < 2 else word.rjust(w) for i, (word, w) in enumerate(zip(row, widths))]
        return "  ".join(words).rstrip()
    return "\n".join([line(head), "  ".join("-" * w for w in widths), *map(line, rows)])


def markdown(head, rows):
    marks = ["---"] * 2 + ["---:"] * (len(head) - 2)
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, marks, *rows])


# ---- the whole ----


def geometric_mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def among(word, names):
    return f"; {word}: {', '.join(names)}" if names else ""


def summary(records):
    """Lines in words: the means, what fell short, compile and prepare times, how well the cost model does."""
    lines = []
    for threads in sorted({r["threads"] for r in records}):
        lines += [f"{threads} {'thread' if threads == 1 else 'threads'}: {line}"
                  for line in speeds([r for r in records if r["threads"] == threads])]
    most = of_most_threads(records)
    lines += preparing(most)
    for r in most:
        lines += [f"{r['case']}: {name} left out: {why}" for name, why in r["failures"].items()]
        if "linfuse from C" in r["ms"]:
            lines.append(f"{r['case']}: {sig(1e3 * r['ms']['linfuse from C'])} us a call from C (the table's), "
                         f"{sig(1e3 * r['ms'].get('linfuse', math.nan))} us from Python through ctypes")
    disturbed = [r["case"] for r in records if r["disturbed"]]
    if disturbed:
        which = "all cases" if len(disturbed) == len(records) else ", ".join(disturbed)
        worst = max(r["others"] for r in records)
        lines.append(f"DISTURBED, others used up to {percent(worst)} of the cores while these were timed: {which}")
    return lines


def speeds(records):
    """The same of one number of threads."""
    ratios = [r["ratio"] for r in records if r["ratio"]]
    lines = [f"geometric mean of {len(ratios)} ratios: {times(geometric_mean(ratios))}, "
             f"lowest {times(min(ratios, default=None))}"]
    behind = [f"{r['case']} ({times(r['ratio'])}, {r['best_peer']})" for r in records if r["ratio"] and r["ratio"] < 1]
    lines.append(f"{len(behind)} behind the best peer" + among("these", behind))
    short = [f"{r['case']} ({times(r['ratio'])} of {times(r['target'])})" for r in records if not r["met"]]
    lines.append(f"{len(records) - len(short)} of {len(records)} targets met" + among("short of it", short))
    costed = [r for r in records if "prediction" in r]
    far = [f"{r['case']} ({times(r['prediction'])})" for r in costed if not r["predicted_well"]]
    lines.append(f"predicted within {percent(WITHIN)}: {len(costed) - len(far)} of {len(costed)}" + among("not", far))
    return lines


def preparing(records):
    facts = [(r, r["facts"].get("linfuse", {})) for r in records]
    compiled = [f["compile_ms"] for _, f in facts if "compile_ms" in f]
    lines = []
    if compiled:
        lines.append(f"compile without parameters: {sig(max(compiled))} ms at most (to be under {MOST_COMPILE_MS})")
    big = [f["prepare_ms"] for r, f in facts
           if "prepare_ms" in f and r["sizes"][1:] == (8192, 8192) and r["case"] == "lse_chain"]
    if big:
        lines.append(f"prepare 8192x8192: {sig(big[0])} ms (to be under {MOST_PREPARE_MS})")
    return lines


HOW = """Milliseconds are medians over interleaved rounds: in each, every contender has one turn (a burst of calls where
they are short), in a process of its own, on the same cores, with as many threads. ratio: the best peer's median over
linfuse's. of FMA, of mem: linfuse's flops and bytes as planned (`linfuse explain`), over the machine's peak rate of
multiply-adds and of reading memory (bench/peak.c); past 100% of mem means that caches helped. max err: the largest
difference of any contender from torch eager, against the larger of the value and the rms of all values."""

HOW_MEMORY = """MB, held + call. held: anonymous memory once loaded (a copy of parameters and inputs, prepared weights;
torch.compile's has its compiler in it). call: the peak of resident memory during the calls over that before the first,
output included. Each contender is a process forked from the same parent, so what all have in common counts for none.
compile: from text to a program without parameters; prepare: folding and packing them. Both for linfuse, both medians
of five."""


def heading_lines(heading, peaks):
    """peaks: by number of threads."""
    load = ", ".join(f"{x:.2f}" for x in heading["load_before"])
    return [
        f"{heading['date']}, commit {heading['commit']}, `{heading['command']}`",
        f"{heading['cpu']}, cores: {heading['cores']}, load average before: {load}, "
        f"huge pages: {heading['huge_pages']}",
        *[f"measured peaks, threads {threads}: {peak['flops'] / 1e9:.0f} GFLOP/s of f32 multiply-adds, "
          f"{peak['bytes'] / 1e9:.1f} GB/s read" for threads, peak in peaks.items()],
    ]


def as_markdown(title, heading, peaks, records, charts):
    versions = ", ".join(f"{k} {v}" for k, v in heading["versions"].items())
    parts = [f"# {title}", "\n".join(f"- {line}" for line in [*heading_lines(heading, peaks), versions]),
             markdown(SPEED_HEAD, [speed_row(r) for r in records]), HOW,
             "\n".join(f"- {line}" for line in summary(records)),
             *[f"![ratio of each case]({chart})" for chart in charts], "## Memory, compiling, preparing",
             markdown(MEMORY_HEAD, [memory_row(r) for r in of_most_threads(records)]), HOW_MEMORY]
    return "\n\n".join(parts) + "\n"


def as_json(heading, peaks, records):
    mean = geometric_mean([r["ratio"] for r in of_most_threads(records) if r["ratio"]])
    whole = {"heading": heading, "peaks": peaks, "geometric_mean": mean, "cases": records}
    return json.dumps(whole, indent=1) + "\n"

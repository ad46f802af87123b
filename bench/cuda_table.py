# SPDX-License-Identifier: Apache-2.0
"""What bench/cuda.py measured, as a table: of one run or several, the newest record of each row and contender."""

import json
import math
import re

import machine
from cuda_rows import ROWS

# torch's ways, and linfuse's: precisions of f32 tensors, and x, parameters and results of another type
PEERS = {"eager": "eager", "compiled": "compiled", "tf32": "tf32", "bf16": "bf16", "bf16_tuned": "bf16, max-autotune"}
MODES = {"fp32": "fp32", "tf32": "tf32", "bf16": "bf16", "bf16_tensors": "bf16 tensors"}
DASH, EARLIER = "–", "†"


def read(files):
    """Records of files: lines RECORD {...} of what a run printed, or the .json of a saved table. Of several
    measurements the last in order of date counts; a failure counts only where nothing was measured."""
    newest = {}
    for file in files:
        text = file.read_text()
        if file.suffix == ".json":
            found = json.loads(text)["records"]
        else:
            found = [
                json.loads(line.removeprefix("RECORD ")) for line in text.splitlines() if line.startswith("RECORD ")
            ]
        for record in found:
            if record.get("clean"):  # measured otherwise
                continue
            key = record["row"], record["contender"]
            old = newest.get(key)
            if not old or ("failed" in old, record["date"]) >= ("failed" in record, old["date"]):
                newest[key] = record
    return list(newest.values())


def number(value):
    """Three digits."""
    if value is None or not math.isfinite(value):
        return DASH if value is None else str(value)
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}" if value > 0 else "0"


def _of(records, row, contender):
    for record in records:
        if record["row"] == row.name and record["contender"] == contender:
            return record
    return {}


def _mark(records, record):
    """Is it a time of linfuse at another commit than the last?"""
    ours = [r for r in records if r["contender"].startswith("linfuse") and "failed" not in r]
    return EARLIER if record in ours and record["commit"] != max(ours, key=lambda r: r["date"])["commit"] else ""


def _sign(lines):
    """What the mark says, where it is in these."""
    return (f" {EARLIER}: linfuse at an earlier commit than the last that was measured."
            if any(EARLIER in line for line in lines) else "")


def _times(record):
    return ("failed" if "failed" in record
            else f"{number(record['burst_ms'])} / {number(record['steady_ms'])}" if record else DASH)


def table(records):
    """Markdown: times, then errors, memory and the rest."""
    titles = ["model", *(f"torch {title}" for title in PEERS.values()),
              *(f"linfuse {title} (goal)" for title in MODES.values()), "fp32: times the best of torch's"]
    times = ["| " + " | ".join(titles) + " |", "| --- " * len(titles) + "|"]
    facts = [
        "| model | error fp32 / torch's | error tf32, bf16, bf16 tensors | torch's tf32, bf16 | "
        "beside x, W, y: fp32 / torch eager, MB | W prepared, MB | launches | host, us (from Python) | "
        f"program made, and again, ms | {', '.join(MODES.values())} at commit |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in ROWS:
        peers = {way: _of(records, row, f"torch {way}") for way in PEERS}
        ours = {mode: _of(records, row, f"linfuse {mode}") for mode in MODES}
        if not any([*peers.values(), *ours.values()]):
            continue
        best = min((peers[way]["burst_ms"] for way in ("eager", "compiled") if "burst_ms" in peers[way]), default=None)
        mine = ours["fp32"].get("burst_ms")
        words = [row.title, *map(_times, peers.values())]
        words += [f"{_times(ours[mode])}{_mark(records, ours[mode])} ({number(row.goal.get(mode))})" for mode in ours]
        times.append("| " + " | ".join([*words, f"{best / mine:.1f}x" if best and mine else DASH]) + " |")
        fp32 = ours["fp32"]
        megabytes = [number(r["beside_bytes"] / 2**20) if "beside_bytes" in r else DASH for r in (fp32, peers["eager"])]
        error = {
            name: f"{r['error']:.1e}" if "error" in r else DASH
            for name, r in [*peers.items(), *(("lf " + m, r) for m, r in ours.items())]
        }
        held = number(fp32["prepared_bytes"] / 2**20) if "prepared_bytes" in fp32 else DASH
        compile_ms = ", ".join(number(ms) for ms in fp32.get("compile_ms", [])) or DASH
        facts.append(
            f"| {row.title} | {error['lf fp32']} / {error['eager']} | "
            f"{error['lf tf32']}, {error['lf bf16']}, {error['lf bf16_tensors']} | "
            f"{error['tf32']}, {error['bf16']} | {' / '.join(megabytes)} | {held} | {fp32.get('launches', DASH)} | "
            f"{number(fp32.get('host_us'))} | {compile_ms} | "
            f"{', '.join(r['commit'][:7] if r else DASH for r in ours.values())} |"
        )
    return f"Times are burst / steady, in ms.{_sign(times)}\n\n" + "\n".join(times) + "\n\n" + "\n".join(facts) + "\n"


def short(records):
    """The docs' table: burst times alone."""
    lines = [
        "| ms, burst | torch fp32: eager / compiled | torch tf32, bf16: compiled | linfuse fp32 | tf32 | bf16 "
        "| bf16 tensors |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in ROWS:
        ways = [*map("torch {}".format, PEERS), *map("linfuse {}".format, MODES)]
        found = {way: _of(records, row, way) for way in ways}
        ms = {way: number(record.get("burst_ms")) + _mark(records, record) for way, record in found.items()}
        lines.append(
            "| {} | {torch eager} / {torch compiled} | {torch tf32}, {torch bf16} | "
            "**{linfuse fp32}** | {linfuse tf32} | {linfuse bf16} | {linfuse bf16_tensors} |".format(row.title, **ms)
        )
    return "\n".join(lines)


def into_docs(file, records, saved):
    """Puts the short table between its marks."""
    begin, end = "<!-- bench/cuda.py --docs -->\n", "<!-- end of it -->"
    before, _, rest = file.read_text().partition(begin)
    _, _, after = rest.partition(end)
    newest, table = max(records, key=lambda r: r["date"]), short(records)
    where = (f"{newest['device']}, torch {newest['torch']}, {newest['date'][:10]}.{_sign([table])}\n"
             f"Steady times, errors, memory, commits: [{saved.name}](../bench/results/{saved.name}).")
    file.write_text(f"{before}{begin}\n{table}\n\n{where}\n\n{end}{after}")


def _runs(records):
    """One line for each run that records come from."""
    lines = {}
    for r in records:
        key = tuple(r[word] for word in ("date", "device", "driver", "torch", "commit", "command"))
        lines.setdefault(key, []).append(r)
    return [
        f"- {key[0]}: {key[1]}, driver {key[2]}, torch {key[3]}, linfuse {key[4]}: `{key[5]}` "
        f"({len(found)} measurement{'' if len(found) == 1 else 's'})"
        for key, found in sorted(lines.items())
    ]


def save(folder, records, how):
    """Writes cuda-DATE-DEVICE.json and .md, of the newest record's date. how: what is to be said of the measuring."""
    newest = max(records, key=lambda r: r["date"])
    device = re.sub(r"[^a-z0-9]+", "-", newest["device"].lower().removeprefix("nvidia ")).strip("-")
    stem = folder / f"cuda-{newest['date'][:10]}-{device}"
    folder.mkdir(parents=True, exist_ok=True)
    failures = [f"- {r['row']}, {r['contender']}: {r['failed']}" for r in records if "failed" in r]
    parts = [
        "# linfuse on a GPU, beside torch",
        "Measured in these runs, a process each:",
        "\n".join(_runs(records)),
        how,
        table(records),
    ]
    notes = machine.ROOT / "docs" / "log" / f"cuda-{newest['date'][:10]}-notes.md"
    parts += [f"What is short, and what these records do not show: `docs/log/{notes.name}`."] if notes.exists() else []
    parts += ["Failed:\n\n" + "\n".join(failures)] if failures else []
    stem.with_suffix(".json").write_text(json.dumps({"records": records}, indent=1) + "\n")
    stem.with_suffix(".md").write_text("\n\n".join(p.strip() for p in parts) + "\n")
    return stem.with_suffix(".json"), stem.with_suffix(".md")

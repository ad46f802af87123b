# SPDX-License-Identifier: Apache-2.0
"""The machine and the moment: what stands beside every number, and whether somebody else was using the cores."""

import datetime
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TICK = os.sysconf("SC_CLK_TCK")
DISTURBED = 0.05  # of the cores used by others: more, and a time may be theirs as well as ours


# ---- memory ----


def memory(key, file="/proc/self/status"):
    """A line of this process's status, in bytes."""
    found = re.search(rf"^{key}:\s+(\d+) kB", Path(file).read_text(), re.MULTILINE)
    return int(found[1]) * 1024


def available_bytes():
    return memory("MemAvailable", "/proc/meminfo")


def reset_peak():
    """Lets VmHWM start anew from here; False where the kernel does not."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return True
    except OSError:
        return False


# ---- who uses the cores ----


class Watch:
    """Tells what share of our cores others used (and the hypervisor withheld) since it was made."""

    def __init__(self, cores, pids):
        self.cores, self.pids = cores, [os.getpid(), *pids]
        self.start = self.taken(), self.ours()

    def taken(self):
        """Ticks in which our cores were not idle, as seen from here."""
        ticks = 0
        for line in Path("/proc/stat").read_text().splitlines():
            name, *numbers = line.split()
            if name in {f"cpu{c}" for c in self.cores}:
                user, nice, system, _idle, _wait, irq, softirq, steal = map(int, numbers[:8])
                ticks += user + nice + system + irq + softirq + steal
        return ticks

    def ours(self):
        """Ticks of these processes and of the ended children they waited for."""
        ticks = 0
        for pid in self.pids:
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15]))
            except OSError:
                pass
        return ticks

    def others(self, seconds):
        """Share of the cores' time, 0 to 1."""
        taken, ours = self.taken() - self.start[0], self.ours() - self.start[1]
        return max(0.0, (taken - ours) / (TICK * seconds * len(self.cores))) if seconds > 0 else 0.0


# ---- the heading of a report ----


def cores():
    """Those that this process may use."""
    return sorted(os.sched_getaffinity(0))


def pin(count, of=None):
    """Keeps this process and all it starts on the first `count` of these cores, or of those it may use."""
    first = (of or cores())[:count]
    os.sched_setaffinity(0, first)
    return first


def cpu_model():
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1].strip() if found else os.uname().machine


def cpu_slug():
    plain = re.sub(r"\((r|tm)\)|@.*", "", cpu_model().lower())
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")


def commit(built=None):
    """What is measured. built: the folder of the library, which knows it where tools/pack-gpu made it: a copy's git may
    be behind that."""
    packed = built / "commit" if built else None
    if packed and packed.exists():
        return packed.read_text().strip()

    def git(*words):
        return subprocess.run(["git", "-C", ROOT, *words], check=False, capture_output=True, text=True).stdout.strip()
    changed = " with changes" if git("status", "--porcelain", "--", "src", "include", "CMakeLists.txt", "cmake") else ""
    named = git("rev-parse", "--short=12", "HEAD") or os.environ.get("LINFUSE_COMMIT", "unknown")  # a copy without git
    return named + changed


def heading(cores, built=None):
    def read(path):
        return Path(path).read_text().strip() if Path(path).exists() else "unknown"
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": cpu_model(),
        "cores": f"{len(cores)} used ({', '.join(map(str, cores))}) of {os.cpu_count()}",
        "load_before": list(os.getloadavg()),
        "huge_pages": read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "commit": commit(built),
        "command": " ".join(["bench/" + Path(sys.argv[0]).name, *sys.argv[1:]]),
    }

# SPDX-License-Identifier: Apache-2.0
"""python -m linfuse: the command that was installed with this package, where scripts may not be on PATH. It finds the
run-time compiler of CUDA that PyTorch brings along; its doctor tells of Python and PyTorch, too."""

from __future__ import annotations

import contextlib
import glob
import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from typing import Any

from . import native


def command() -> str | None:
    """Where it is: among the environment's scripts or the user's, else where LINFUSE_COMMAND says."""
    folders = (sysconfig.get_path("scripts", scheme) for scheme in (sysconfig.get_default_scheme(), "posix_user"))
    found = (shutil.which("linfuse", path=folder) for folder in folders)
    return next(filter(None, found), None) or os.environ.get("LINFUSE_COMMAND")


def environment() -> dict[str, str]:
    """The command's: as linfuse in PyTorch, it takes the run-time compiler from beside PyTorch, where that is."""
    torch = importlib.util.find_spec("torch")
    folders = sorted(glob.glob(native.beside_torch(torch.origin))) if torch and torch.origin else []
    if not folders or "LINFUSE_NVRTC" in os.environ:
        return dict(os.environ)
    more = filter(None, [os.environ.get("LD_LIBRARY_PATH")])
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join([*folders, *more])}


def version_of(package: str) -> tuple[str | None, str | None]:
    """A package's version, or why it has none; and the CUDA that it was built for."""
    try:
        module = importlib.import_module(package)
    except Exception as why:  # whatever its start may raise: a library that is missing, another NumPy
        missing = isinstance(why, ModuleNotFoundError) and why.name == package
        return None, "not installed" if missing else f"cannot be imported: {why}"
    return str(module.__version__), getattr(getattr(module, "version", None), "cuda", None)


def findings() -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """What Python knows and the command does not: as JSON has it, and as lines of the command's table."""
    torch, more = version_of("torch")
    numpy, why = version_of("numpy")
    python, library = sys.version.split()[0], str(native.library_path())
    fields = {
        "python": {"version": python, "executable": sys.executable},
        "package": {"library": library, "version": native.version()},
        "torch": {"version": torch, "cuda": more} if torch else {"version": None, "error": more},
        "numpy": {"version": numpy} if numpy else {"version": None, "error": why},
    }
    rows = [
        ("Python", f"{python}, {sys.executable}"),
        ("library", f"{native.version()}, {library}"),
        ("torch", f"{torch}, {f'for CUDA {more}' if more else 'without CUDA'}" if torch else str(more)),
        ("numpy", numpy or str(why)),
    ]
    return fields, rows


def doctor(told: str) -> str:
    """What the command told, with what Python knows: a table or a JSON object."""
    fields, rows = findings()
    if told.startswith("{"):
        return json.dumps({**json.loads(told), **fields}) + "\n"
    start = re.match(r" +\S+ +", told)  # where the second column begins
    return told + "".join(f"  {title}".ljust(start.end() if start else 0) + f"{text}\n" for title, text in rows)


def main() -> None:
    path = command()
    if not path:
        sys.exit("python -m linfuse: the linfuse command is not installed, and LINFUSE_COMMAND is not set")
    try:
        if sys.argv[1:2] != ["doctor"] or "--help" in sys.argv:
            os.execve(path, ["linfuse", *sys.argv[1:]], environment())
        done = subprocess.run([path, *sys.argv[1:]], stdout=subprocess.PIPE, text=True, env=environment())
    except OSError as why:
        sys.exit(f"python -m linfuse: {path} cannot be run: {why.strerror}")
    if done.returncode == 0:
        with contextlib.suppress(BrokenPipeError):  # as the command: that nobody reads on is no failure
            os.write(1, doctor(done.stdout).encode())
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""python -m linfuse: the command that was installed with this package, where scripts may not be on PATH."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig


def command() -> str | None:
    """Where it is: among the environment's scripts or the user's, else where LINFUSE_COMMAND says."""
    folders = (sysconfig.get_path("scripts", scheme) for scheme in (sysconfig.get_default_scheme(), "posix_user"))
    found = (shutil.which("linfuse", path=folder) for folder in folders)
    return next(filter(None, found), None) or os.environ.get("LINFUSE_COMMAND")


def main() -> None:
    path = command()
    if not path:
        sys.exit("python -m linfuse: the linfuse command is not installed, and LINFUSE_COMMAND is not set")
    try:
        os.execv(path, ["linfuse", *sys.argv[1:]])
    except OSError as why:
        sys.exit(f"python -m linfuse: {path} cannot be run: {why.strerror}")


if __name__ == "__main__":
    main()

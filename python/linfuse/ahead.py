# SPDX-License-Identifier: Apache-2.0
"""Programs that are compiled before they are called, side by side on all cores, while the host goes on."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from . import native

_cores = threading.Semaphore(len(os.sched_getaffinity(0)))


class Ahead:
    """A program that is compiled for calls at some extents, in a thread of its own. Python waits for it at its end:
    a compiler must not find the process gone."""

    def __init__(self, program: native.Compiled, extents: Sequence[int]):
        self._program, self._extents = program, tuple(extents)
        self._thread = threading.Thread(target=self._compile, name="linfuse-compile")
        self._thread.start()

    def _compile(self) -> None:
        with _cores:
            if not threading.main_thread().is_alive():  # nobody will call it
                return
            try:
                self._program.compile(self._extents)
            except native.Error:  # for the first call to tell, which tries again
                pass

    def program(self) -> native.Compiled:
        """The program, when the thread is done with it."""
        self._thread.join()
        return self._program

# SPDX-License-Identifier: Apache-2.0
"""What goes on, on a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 1.0  # seconds without a word


class Progress:
    """A line on a terminal that is written over, and gone at the end; nothing elsewhere."""

    def __init__(self) -> None:
        self.shown = sys.stderr is not None and sys.stderr.isatty()

    def say(self, text: str) -> None:
        if self.shown:
            sys.stderr.write(f"\r{text[:78]}\x1b[K")
            sys.stderr.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.say("")


@contextmanager
def said_if_long(text: str) -> Iterator[None]:
    """Says what goes on once it has gone on for longer than people wait without a word."""
    with Progress() as progress:
        if not progress.shown:
            yield
            return
        timer = threading.Timer(PATIENCE, progress.say, [text])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()

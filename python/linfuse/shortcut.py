# SPDX-License-Identifier: Apache-2.0
"""Calls like the last, without Python: python/shortcut.c, which says what they are for.

Where its library is not there, or this Python cannot have it, parts are called as they are.
"""

from __future__ import annotations

import ctypes
import operator
import platform
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from . import native

_LIBRARY_NAME = "liblinfuse_shortcut.so"
_NAMES = ("shape", "_version", "data_ptr", "stamps", "runs", "room_at")
# What a call must be answered where nothing is differentiated or transformed: functions, arguments, answers.
PLAIN: tuple[tuple[Any, ...], ...] = (
    (torch.is_grad_enabled, (), False),
    (torch._C._functorch.peek_interpreter_stack, (), None),
    (operator.attrgetter("_current_level"), (forward_ad,), -1),
)
# What every input is like: names of attributes or of methods, and answers.
DENSE: tuple[tuple[Any, ...], ...] = (("dtype", None, torch.float32), (None, "is_contiguous", True))


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _load() -> ctypes.PyDLL | None:
    """The library. Not for a Python without the GIL, on which it relies."""
    if platform.python_implementation() != "CPython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    try:
        library = ctypes.PyDLL(str(native.library_path().with_name(_LIBRARY_NAME)))
        library.linfuse_shortcut_begin.restype = ctypes.c_ssize_t
        library.linfuse_shortcut_begin.argtypes = [ctypes.py_object] + [ctypes.c_void_p] * 3
        library.linfuse_shortcut_new.restype = ctypes.py_object
        library.linfuse_shortcut_new.argtypes = [ctypes.py_object] * 3 + [ctypes.c_ssize_t] * 2
        library.linfuse_shortcut_set.restype = ctypes.py_object
        library.linfuse_shortcut_set.argtypes = [ctypes.py_object] * 2
    except (OSError, AttributeError):
        return None
    words = (None, 1, *map(sys.intern, _NAMES))
    functions = native.lib.lf_call_run_at, native.lib.lf_call_run_on, native.lib.lf_program_params_hold
    return library if library.linfuse_shortcut_begin(words, *map(_address, functions)) == len(words) else None


_library = _load()


def new(part: Callable[..., Any], inputs: Sequence[int], params: Sequence[int], args: int, outputs: int) -> Any:
    """A function that calls `part`, which has so many arguments and results, inputs and params among the former; from
    the first set_up on only where a call is not like the one that was set up. None: there can be none."""
    if _library is None:
        return None
    return _library.linfuse_shortcut_new(part, tuple(inputs), tuple(params), args, outputs)


def set_up(function: Any, how: tuple[Any, ...]) -> None:
    """For calls like one that was made; how: as linfuse_shortcut_set wants it."""
    assert _library is not None
    _library.linfuse_shortcut_set(function, how)

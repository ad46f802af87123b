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
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from . import native

_LIBRARY_NAME = "liblinfuse_shortcut.so"
_NAMES = ("_version", "data_ptr", "stride", "stamps", "runs", "room_at")
# What PyTorch raises where it refuses something. (Not their own sort: an interrupt's may be derived of these.)
_REFUSALS = (RuntimeError, NotImplementedError, AttributeError, TypeError, ValueError, torch.cuda.OutOfMemoryError)
# What a call must be answered where nothing is differentiated or transformed: functions, arguments, answers.
PLAIN: tuple[tuple[Any, ...], ...] = (
    (torch.is_grad_enabled, (), False),
    (torch._C._functorch.peek_interpreter_stack, (), None),
    (operator.attrgetter("_current_level"), (forward_ad,), -1),
)
# What every input is like: names of attributes or of methods, and answers.
DENSE: tuple[tuple[Any, ...], ...] = ((None, "is_contiguous", True),)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _load() -> ctypes.PyDLL | None:
    """The library. Not for a Python without the GIL, on which it relies."""
    if platform.python_implementation() != "CPython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    try:
        library = ctypes.PyDLL(str(native.library_path().with_name(_LIBRARY_NAME)))
        library.lf_shortcut_teach.restype = ctypes.c_ssize_t
        library.lf_shortcut_teach.argtypes = [ctypes.py_object] + [ctypes.c_void_p] * 2
        library.lf_shortcut_new.restype = ctypes.py_object
        library.lf_shortcut_new.argtypes = [ctypes.py_object] * 3 + [ctypes.c_ssize_t] * 2
        library.lf_shortcut_set.restype = ctypes.py_object
        library.lf_shortcut_set.argtypes = [ctypes.py_object] * 2
    except (OSError, AttributeError):
        return None
    words = (None, 1, _REFUSALS, *map(sys.intern, _NAMES))
    functions = native.lib.lf_call_run_at, native.lib.lf_program_params_hold
    return library if library.lf_shortcut_teach(words, *map(_address, functions)) == len(words) else None


_library = _load()


def new(part: Callable[..., Any], inputs: Sequence[int], params: Sequence[int], args: int, outputs: int) -> Any:
    """A function that calls `part`, which has so many arguments and results, inputs and params among the former; from
    the first set_up on only where a call is not like the one that was set up. None: there can be none."""
    if _library is None:
        return None
    return _library.lf_shortcut_new(part, tuple(inputs), tuple(params), args, outputs)


class Where(NamedTuple):
    """What a call runs on: threads of the CPU, or a GPU's stream."""

    place: int
    threads: int
    stream: int
    aligned: int  # what addresses of inputs are multiples of
    room_bytes: int  # of workspace
    room_maker: tuple[Callable[..., Any], tuple[Any, ...]] | None  # None: the slot has it


class How(NamedTuple):
    """What a call must be like, and what it then is; the C code has them in this order."""

    prepared: Any  # a weak reference
    stamps: list[Any]
    idle: list[Any]
    slot: Any
    questions: tuple[Any, ...]  # as PLAIN
    features: tuple[tuple[Any, ...], ...]  # of each input, as DENSE
    makers: tuple[Any, ...]  # of outputs: functions and arguments
    at: tuple[int, ...]  # addresses of the extents, the program (0: nobody looks), the call, the slot's two arrays
    where: Where
    kept: Any  # whatever else has to be there as long


def set_up(function: Any, how: How) -> None:
    """For calls like one that was made."""
    assert _library is not None
    _library.lf_shortcut_set(function, how)

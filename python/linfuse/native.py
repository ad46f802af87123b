# SPDX-License-Identifier: Apache-2.0
"""The C library, through its public header alone: one thin class a handle, one exception for every failure.

Addresses are plain integers (`tensor.data_ptr()`, `array.ctypes.data`), so that this module knows neither NumPy nor
PyTorch. What the header says of lifetimes and threads holds here: whatever is bound by address is borrowed.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import functools
import importlib
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

MAX_RANK, MAX_DIMS = 8, 8
_LIBRARY_NAME = "liblinfuse.so"


class Status(enum.IntEnum):
    """lf_status."""

    OK = 0
    ARG = 1
    MODEL = 2
    DATA = 3
    IO = 4
    NOMEM = 5
    DEVICE = 6
    UNSUPPORTED = 7


class Error(RuntimeError):
    """Something linfuse could not do. `status` says what sort of thing, the message which op, name or extents."""

    def __init__(self, message: str, status: Status | None = None):
        super().__init__(message)
        self.status = status


class Dtype(enum.IntEnum):
    """lf_dtype; the names are those of model text."""

    f32 = 0
    f16 = 1
    bf16 = 2
    i64 = 3

    @functools.cached_property
    def numpy(self) -> Any:
        """NumPy's type. bf16 is the package ml_dtypes'; an Error where that is not installed."""
        import numpy

        if self is Dtype.bf16:
            try:
                return numpy.dtype(importlib.import_module("ml_dtypes").bfloat16)
            except ModuleNotFoundError:
                raise Error("NumPy has no bfloat16: install ml_dtypes, or use torch tensors", Status.DATA) from None
        return numpy.dtype({"f32": "float32", "f16": "float16", "i64": "int64"}[self.name])


class Place(enum.IntEnum):
    """lf_memory: where a tensor is."""

    HOST = 0
    DEVICE = 1


class Port(enum.IntEnum):
    """lf_port: what a model asks for and gives."""

    INPUT = 0
    PARAM = 1
    OUTPUT = 2


class Value(int):
    """A value of a model being built: an input, a parameter or an op's result. Other numbers are numbers."""


class Memory(NamedTuple):
    """Bytes a program holds."""

    params: int
    prepared: int
    other: int


class OpRow(NamedTuple):
    """One row of the op table."""

    name: str
    kind: str
    signature: str


# ---- the header, in ctypes' words ----


class _Dim(ctypes.Structure):
    _fields_ = [("number", ctypes.c_int64), ("name", ctypes.c_char_p)]


class _Arg(ctypes.Structure):
    _fields_ = [
        ("key", ctypes.c_char_p),
        ("kind", ctypes.c_int),
        ("value", ctypes.c_int32),
        ("number", ctypes.c_double),
        ("string", ctypes.c_char_p),
        ("list", ctypes.POINTER(ctypes.c_double)),
        ("count", ctypes.c_size_t),
    ]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("extents", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("memory", ctypes.c_int),
    ]


class RunOptions(ctypes.Structure):
    """lf_run_options: how a call runs."""

    _fields_ = [
        ("threads", ctypes.c_int),
        ("memory", ctypes.c_int),
        ("stream", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_size_t),
    ]


class LossOptions(ctypes.Structure):
    """lf_loss_options: how logits become a loss. class_weight: the address of f32, or None."""

    _fields_ = [
        ("reduction", ctypes.c_int),
        ("ignore_index", ctypes.c_int64),
        ("label_smoothing", ctypes.c_double),
        ("softcap", ctypes.c_double),
        ("temperature", ctypes.c_double),
        ("z_loss", ctypes.c_double),
        ("class_weight", ctypes.c_void_p),
        ("first_word", ctypes.c_int64),
        ("words", ctypes.c_int64),
        ("threads", ctypes.c_int),
    ]


class _Loss(ctypes.Structure):
    _fields_ = [
        ("x", _Tensor),
        ("weight", _Tensor),
        ("bias", _Tensor),
        ("target", ctypes.c_void_p),
        ("options", LossOptions),
    ]


class _LossGradient(ctypes.Structure):
    _fields_ = [("x", _Tensor), ("weight", _Tensor), ("bias", _Tensor)]


_ARG_VALUE, _ARG_NUMBER, _ARG_BOOL, _ARG_STRING, _ARG_LIST, _ARG_NONE = range(6)

class _Field(ctypes.Structure):
    """lf_field."""

    _fields_ = [(name, ctypes.c_char_p) for name in ("section", "name", "unit", "column", "phrase")] + [
        ("each", ctypes.c_bool)
    ]


_handle, _out = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
_text, _address, _size, _int = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_int64s = ctypes.POINTER(ctypes.c_int64)
_status = ctypes.c_int
_tensor = ctypes.POINTER(_Tensor)
_loss, _loss_gradient = ctypes.POINTER(_Loss), ctypes.POINTER(_LossGradient)

# name -> result, arguments. A function that is not here is not used from Python.
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "lf_version": (_text, []),
    "lf_context_new": (_status, [_out]),
    "lf_context_free": (None, [_handle]),
    "lf_context_message": (_text, [_handle]),
    "lf_context_set_threads": (_status, [_handle, _int]),
    "lf_context_threads": (_int, [_handle]),
    "lf_context_use_openmp": (_status, [_handle]),
    "lf_tensor_bytes": (_size, [_tensor]),
    "lf_model_read": (_status, [_handle, _text, _text, _size, _out]),
    "lf_model_read_file": (_status, [_handle, _text, _out]),
    "lf_model_copy": (_status, [_handle, _handle, _out]),
    "lf_model_new": (_status, [_handle, _out]),
    "lf_model_free": (None, [_handle]),
    "lf_model_message": (_text, [_handle]),
    "lf_model_input": (_status, [_handle, _text, _int, _int, ctypes.POINTER(_Dim), ctypes.POINTER(ctypes.c_int32)]),
    "lf_model_param": (_status, [_handle, _text, _int, _int, ctypes.POINTER(_Dim), ctypes.POINTER(ctypes.c_int32)]),
    "lf_model_op": (_status, [_handle, _text, _text, ctypes.POINTER(_Arg), _size, ctypes.POINTER(ctypes.c_int32)]),
    "lf_model_value_shape": (_status, [_handle, ctypes.c_int32, _int64s, ctypes.POINTER(_int), _int64s]),
    "lf_model_value_dtype": (_int, [_handle, ctypes.c_int32]),
    "lf_model_return": (_status, [_handle, ctypes.POINTER(ctypes.c_int32), _size]),
    "lf_model_print": (_status, [_handle, _out]),
    "lf_string_free": (None, [_handle]),
    "lf_model_port_count": (_size, [_handle, _int]),
    "lf_model_port_name": (_text, [_handle, _int, _size]),
    "lf_model_port_dtype": (_int, [_handle, _int, _size]),
    "lf_model_port_rank": (_int, [_handle, _int, _size]),
    "lf_model_dim_count": (_size, [_handle]),
    "lf_model_dim_name": (_text, [_handle, _size]),
    "lf_model_port_extent": (ctypes.c_int64, [_handle, _int, _size, _int, _int64s]),
    "lf_model_port_factors": (ctypes.c_int64, [_handle, _int, _size, _int, ctypes.POINTER(_int)]),
    "lf_options_new": (_status, [_handle, _out]),
    "lf_options_free": (None, [_handle]),
    "lf_options_set": (_status, [_handle, _text, _text]),
    "lf_options_check": (_status, [_handle]),
    "lf_options_message": (_text, [_handle]),
    "lf_program_new": (_status, [_handle, _handle, _out]),
    "lf_program_free": (None, [_handle]),
    "lf_program_message": (_text, [_handle]),
    "lf_program_set_param": (_status, [_handle, _text, _tensor, _int, _address]),
    "lf_program_params_hold": (ctypes.c_bool, [_handle]),
    "lf_program_load_params": (_status, [_handle, _text]),
    "lf_program_draw_params": (_status, [_handle, ctypes.c_uint64]),
    "lf_program_compile": (_status, [_handle, _address]),
    "lf_program_prepare": (_status, [_handle]),
    "lf_program_param": (_Tensor, [_handle, _text]),
    "lf_program_memory": (None, [_handle] + [ctypes.POINTER(_size)] * 3),
    "lf_program_explain": (_status, [_handle, _int64s, ctypes.c_bool, _out]),
    "lf_program_emit": (_status, [_handle, _text, _out]),
    "lf_call_new": (_status, [_handle, _out]),
    "lf_call_free": (None, [_handle]),
    "lf_call_message": (_text, [_handle]),
    "lf_call_set_input": (_status, [_handle, _size, _tensor]),
    "lf_call_output": (_status, [_handle, _size, _tensor]),
    "lf_call_set_output": (_status, [_handle, _size, _tensor]),
    "lf_call_run": (_status, [_handle, _address]),
    "lf_call_run_at": (_status, [_handle, _address, _address, _address, _address]),
    "lf_call_workspace": (_status, [_handle, _address, ctypes.POINTER(_size)]),
    "lf_call_time": (_status, [_handle, _address, _size, ctypes.POINTER(ctypes.c_double)]),
    "lf_call_rows_redone": (ctypes.c_int64, [_handle]),
    "lf_call_memory": (_size, [_handle]),
    "lf_loss_step": (_status, [_handle, _loss, ctypes.c_double, ctypes.POINTER(ctypes.c_double), _loss_gradient]),
    "lf_loss_workspace": (_size, [_handle, _loss, _loss_gradient]),
    "lf_page_print": (_status, [_handle, _text, _text, ctypes.c_bool, _out]),
    "lf_account_field": (ctypes.POINTER(_Field), [_size]),
    "lf_option_word": (_text, [_text, _size]),
    "lf_machine_fact": (_status, [_handle, _text, _out]),
    "lf_word_near": (_text, [_text, ctypes.POINTER(_text), _size]),
    "lf_rule_name": (_text, [_size]),
    "lf_rule_law": (_text, [_size]),
    "lf_rule_class_of": (_text, [_size]),
    "lf_op_name": (_text, [_size]),
    "lf_op_kind": (_text, [_size]),
    "lf_op_signature": (_text, [_size]),
}


def library_path() -> pathlib.Path:
    """Where the C library is: in the package's folder, else where LINFUSE_LIBRARY says."""
    inside = pathlib.Path(__file__).resolve().parent / _LIBRARY_NAME
    if inside.exists():
        return inside
    named = os.environ.get("LINFUSE_LIBRARY")
    if named and pathlib.Path(named).exists():
        return pathlib.Path(named)
    where = f"LINFUSE_LIBRARY names {named}, which is not there" if named else "LINFUSE_LIBRARY is not set"
    raise Error(f"{_LIBRARY_NAME} is not in {inside.parent}, and {where}: install the package, or name a built library")


def beside_torch(torch_file: str) -> str:
    """A pattern of the folders in which packages that come with PyTorch, imported from there, keep CUDA's libraries."""
    return os.path.join(os.path.dirname(os.path.dirname(torch_file)), "nvidia", "*", "lib")


def _load() -> ctypes.CDLL:
    path = library_path()
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as why:
        raise Error(f"{path} cannot be used: {why}") from why
    return library


lib = _load()


def version() -> str:
    """The C library's version."""
    return str(lib.lf_version().decode())


def ops() -> list[OpRow]:
    """The op table of the library."""
    rows: list[OpRow] = []
    while name := lib.lf_op_name(len(rows)):
        at = len(rows)
        rows.append(OpRow(name.decode(), lib.lf_op_kind(at).decode(), lib.lf_op_signature(at).decode()))
    return rows


def rules() -> list[tuple[str, str, str]]:
    """Names, laws and classes of the rewrite rules."""
    rows: list[tuple[str, str, str]] = []
    while name := lib.lf_rule_name(len(rows)):
        at = len(rows)
        rows.append((name.decode(), lib.lf_rule_law(at).decode(), lib.lf_rule_class_of(at).decode()))
    return rows


class Field(NamedTuple):
    """A field of the account: its section and name in the JSON object, its unit, its words in tables and lines of
    figures ("" where it has none); each: the section is a list, and every row has one."""

    section: str
    name: str
    unit: str
    column: str
    phrase: str
    each: bool


@functools.cache
def fields() -> tuple[Field, ...]:
    """The fields of the account, section by section, as the library has them."""
    found: list[Field] = []
    while row := lib.lf_account_field(len(found)):
        words = [(getattr(row.contents, name) or b"").decode() for name, _ in _Field._fields_[:-1]]
        found.append(Field(*words, row.contents.each))
    return tuple(found)


def page(title: str, facts: Mapping[str, Any], whole: bool) -> str:
    """The page of an account, `facts` its object; or a fragment, for a page around it."""
    context, made = Context(), ctypes.c_void_p()
    words = json.dumps(facts, ensure_ascii=False).encode(errors="replace")
    status = lib.lf_page_print(context.address, title.encode(errors="replace"), words, whole, ctypes.byref(made))
    context._check(status)
    return _taken_text(made)


@functools.cache
def machine_fact(fact: str) -> str:
    """What this machine has, in words: `fact` is one of lf_machine_fact's."""
    context, made = Context(), ctypes.c_void_p()
    context._check(lib.lf_machine_fact(context.address, fact.encode(), ctypes.byref(made)))
    return _taken_text(made)


@functools.cache
def option_words(option: str) -> tuple[str, ...]:
    """The words that an option takes."""
    found: list[str] = []
    while word := lib.lf_option_word(option.encode(), len(found)):
        found.append(word.decode())
    return tuple(found)


def suggestion(word: str, known: Sequence[str]) -> str:
    """How to end what is said of an unknown word: "; did you mean X?" where one of the known words is near."""
    words = (_text * len(known))(*[one.encode() for one in known])
    near = lib.lf_word_near(word.encode(errors="replace"), words, len(known))
    return f"; did you mean {near.decode()}?" if near else ""


def _fail(status: int, message: bytes | None) -> Error:
    return Error((message or b"").decode(errors="replace") or Status(status).name.lower(), Status(status))


def _within(number: int, least: int, end: int, what: str) -> int:
    """A number that ctypes does not cut short."""
    if not least <= number < end:
        raise Error(f"{what} cannot be {number}", Status.ARG)
    return number


def _path(path: str | os.PathLike[str]) -> bytes:
    """As C takes it, where a NUL would end it."""
    name = os.fsencode(path)
    if b"\0" in name:
        raise Error(f"{os.fsdecode(name)!r} is no path: it has a null character in it", Status.IO)
    return name


def _int64_array(numbers: Sequence[int]) -> Any:
    extents = (_within(number, -(1 << 63), 1 << 63, "an extent") for number in numbers)
    return (ctypes.c_int64 * max(len(numbers), 1))(*extents)


def _tensor_at(extents: Sequence[int], address: int, dtype: Dtype, place: Place) -> tuple[Any, Any]:
    """A tensor, row-major, and what has to live as long."""
    tensor = _Tensor(address, dtype, len(extents), _int64_array(extents), None, place)
    return ctypes.byref(tensor), tensor


def _address_of(options: RunOptions | None) -> int | None:
    return None if options is None else ctypes.addressof(options)


def _taken_text(address: ctypes.c_void_p) -> str:
    """A string the caller owns, read and freed."""
    text = ctypes.string_at(address.value or 0).decode()
    lib.lf_string_free(address)
    return text


# Whether a GPU's memory must not be freed now (cuda.py knows); what was to be freed then, and is by free_postponed.
must_wait: Callable[[], bool] = bool
_postponed: list[tuple[_Handle, int]] = []


def free_postponed() -> None:
    """Frees what had to wait."""
    while _postponed:
        handle, address = _postponed.pop(0)
        handle._free_now(address)


class OfThisProcess:
    """What leads to handles of the C library. A copy of an address would be freed twice."""

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise TypeError(
            f"linfuse's {type(self).__name__} belongs to this process, and cannot be copied or pickled; "
            "what linfuse.load returns can"
        )


class _Handle(OfThisProcess):
    """What every handle has: its address, an end, and a message. It is freed after those made from it, in whatever
    order Python ends them."""

    _free: str
    _message: str
    on_gpu = False

    def __init__(self, address: int | None, parent: _Handle | None = None):
        self.address, self._parent = address, parent
        self._children: set[int] = set()  # by identity: an address may be another's before we hear that it is free
        self._ending: list[int] = []  # its address, while children remain
        if parent is not None and address:
            parent._children.add(id(self))

    def close(self) -> None:
        """Frees the handle; whatever is done with it afterwards is an error."""
        address, self.address = self.address, None
        if address:
            self._end(address)

    def _end(self, address: int, interpreter_ends: Callable[[], bool] = sys.is_finalizing) -> None:
        if interpreter_ends():  # whom we would ask may be gone; the process's end frees all
            return
        self._ending.append(address)
        self._end_if_alone()

    def _end_if_alone(self) -> None:
        """Whoever comes last frees: this one's end or its children's, in whatever threads."""
        while self._ending and not self._children:
            try:
                address = self._ending.pop()
            except IndexError:  # another thread was quicker
                return
            if self.on_gpu and must_wait():
                _postponed.append((self, address))
            else:
                self._free_now(address)

    def _free_now(self, address: int) -> None:
        getattr(lib, self._free)(address)
        parent = self._parent
        if parent is not None:
            parent._children.discard(id(self))
            parent._end_if_alone()

    def __del__(self) -> None:
        if getattr(self, "address", None):
            self.close()

    def _check(self, status: int) -> None:
        if status:
            raise _fail(status, getattr(lib, self._message)(self.address))


class Context(_Handle):
    """Threads, and the message of what has no handle yet. threads: the most a call uses; 0 means one per core."""

    _free, _message = "lf_context_free", "lf_context_message"

    def __init__(self, threads: int = 0):
        made = ctypes.c_void_p()
        status = lib.lf_context_new(ctypes.byref(made))
        if status:
            raise _fail(status, b"no context could be made")
        super().__init__(made.value)
        self._check(lib.lf_context_set_threads(self.address, threads))

    def use_openmp(self) -> bool:
        """Has everything run by the threads of the process's OpenMP runtime; False: it has none of as many threads, and
        linfuse's own do. Before the first program."""
        status = lib.lf_context_use_openmp(self.address)
        if status != Status.UNSUPPORTED:
            self._check(status)
        return not status

    @property
    def threads(self) -> int:
        """How many threads a call may use, the caller's included."""
        return int(lib.lf_context_threads(self.address))


class Model(_Handle):
    """What is to be computed. Built op by op, or read from text. Keeps its context alive."""

    _free, _message = "lf_model_free", "lf_model_message"

    def __init__(self, context: Context, address: int | None = None):
        self.context = context
        if address is None:
            made = ctypes.c_void_p()
            context._check(lib.lf_model_new(context.address, ctypes.byref(made)))
            address = made.value
        super().__init__(address, context)

    @classmethod
    def read(cls, context: Context, text: str, name: str = "model") -> Model:
        """Reads model text; name stands in messages."""
        made, data = ctypes.c_void_p(), text.encode()
        context._check(lib.lf_model_read(context.address, name.encode(), data, len(data), ctypes.byref(made)))
        return cls(context, made.value)

    @classmethod
    def read_file(cls, context: Context, path: str | os.PathLike[str]) -> Model:
        """Reads a .lf file."""
        made = ctypes.c_void_p()
        context._check(lib.lf_model_read_file(context.address, _path(path), ctypes.byref(made)))
        return cls(context, made.value)

    def copy(self, context: Context) -> Model:
        """The same model in another context."""
        made = ctypes.c_void_p()
        context._check(lib.lf_model_copy(self.address, context.address, ctypes.byref(made)))
        return Model(context, made.value)

    # ---- building ----

    def input(self, name: str, extents: Sequence[int | str], dtype: Dtype = Dtype.f32) -> Value:
        """Declares an input; an extent is a number or a name."""
        return self._declare(lib.lf_model_input, name, extents, dtype)

    def param(self, name: str, extents: Sequence[int | str], dtype: Dtype = Dtype.f32) -> Value:
        """Declares a parameter."""
        return self._declare(lib.lf_model_param, name, extents, dtype)

    def _declare(self, function: Any, name: str, extents: Sequence[int | str], dtype: Dtype) -> Value:
        dims = (_Dim * max(len(extents), 1))()
        for dim, extent in zip(dims, extents):
            if isinstance(extent, str):
                dim.name = extent.encode()
            else:
                dim.number = extent
        made = ctypes.c_int32()
        self._check(function(self.address, name.encode(), dtype, len(extents), dims, ctypes.byref(made)))
        return Value(made.value)

    def op(self, op: str, *args: Any, name: str | None = None, **keywords: Any) -> Value:
        """Appends `name = op(args...)`. An argument is a Value, a number, a bool, a string, a list or None."""
        filled = (_Arg * max(len(args) + len(keywords), 1))()
        for arg, value in zip(filled, args):
            _fill(arg, value)
        for arg, (key, value) in zip(filled[len(args) :], keywords.items()):
            arg.key = key.encode()
            _fill(arg, value)
        made, named = ctypes.c_int32(), name.encode() if name else None
        count = len(args) + len(keywords)
        self._check(lib.lf_model_op(self.address, named, op.encode(), filled, count, ctypes.byref(made)))
        return Value(made.value)

    def value_shape(self, value: Value, dims: Sequence[int]) -> tuple[int, ...]:
        """The extents of a value, where the named extents declared so far, in order, are dims."""
        rank, extents = ctypes.c_int(), (ctypes.c_int64 * MAX_RANK)()
        self._check(lib.lf_model_value_shape(self.address, value, _int64_array(dims), ctypes.byref(rank), extents))
        return tuple(extents[: rank.value])

    def value_dtype(self, value: Value) -> Dtype:
        """A value's element type."""
        return Dtype(lib.lf_model_value_dtype(self.address, value))

    def returns(self, *values: Value) -> None:
        """Says what the model returns; ends building."""
        self._check(lib.lf_model_return(self.address, (ctypes.c_int32 * max(len(values), 1))(*values), len(values)))

    # ---- asking ----

    def text(self) -> str:
        """The model as text that reads back as the same model."""
        made = ctypes.c_void_p()
        self._check(lib.lf_model_print(self.address, ctypes.byref(made)))
        return _taken_text(made)

    def names(self, port: Port) -> list[str]:
        """The names of the inputs, parameters or outputs, in order."""
        count = lib.lf_model_port_count(self.address, port)
        return [lib.lf_model_port_name(self.address, port, i).decode() for i in range(count)]

    def dim_names(self) -> list[str]:
        """The named extents."""
        return [lib.lf_model_dim_name(self.address, i).decode() for i in range(lib.lf_model_dim_count(self.address))]

    def dtype(self, port: Port, index: int) -> Dtype:
        """The dtype of one input, parameter or output."""
        return Dtype(lib.lf_model_port_dtype(self.address, port, index))

    def extents(self, port: Port, index: int) -> tuple[int | str, ...]:
        """The extents of one input, parameter or output as the model has them: 8, "B", "2*B" or "B*S"."""
        names, powers = self.dim_names(), (_int * MAX_DIMS)()
        extents: list[int | str] = []
        for axis in range(lib.lf_model_port_rank(self.address, port, index)):
            number = lib.lf_model_port_factors(self.address, port, index, axis, powers)
            named = [name for name, power in zip(names, powers) for _ in range(power)]
            extents.append("*".join([str(number)] * (number != 1) + named) if named else number)
        return tuple(extents)

    def shape(self, port: Port, index: int, dims: Sequence[int] = ()) -> tuple[int, ...]:
        """The extents of one input, parameter or output, where the named extents (`dim_names`) are dims."""
        rank = lib.lf_model_port_rank(self.address, port, index)
        named = _int64_array(dims)
        return tuple(lib.lf_model_port_extent(self.address, port, index, axis, named) for axis in range(rank))


def _fill(arg: _Arg, value: Any) -> None:
    if value is None:
        arg.kind = _ARG_NONE
    elif isinstance(value, Value):
        arg.kind, arg.value = _ARG_VALUE, value
    elif isinstance(value, bool):
        arg.kind, arg.number = _ARG_BOOL, value
    elif isinstance(value, str):
        arg.kind, arg.string = _ARG_STRING, value.encode()
    elif isinstance(value, (int, float)):
        arg.kind, arg.number = _ARG_NUMBER, value
    elif isinstance(value, (list, tuple)):
        arg.kind, arg.count = _ARG_LIST, len(value)
        arg.list = (ctypes.c_double * max(len(value), 1))(*value)
    else:
        raise Error(f"an argument of an op cannot be a {type(value).__name__}", Status.ARG)


@contextlib.contextmanager
def _options(context: Context, words: Mapping[str, str]) -> Iterator[Any]:
    """Options for a while."""
    made = ctypes.c_void_p()
    context._check(lib.lf_options_new(context.address, ctypes.byref(made)))
    try:
        for key, value in words.items():
            _check_options(made, lib.lf_options_set(made, key.encode(), value.encode()))
        yield made
    finally:
        lib.lf_options_free(made)


def _check_options(options: Any, status: int) -> None:
    if status:
        raise _fail(status, lib.lf_options_message(options))


def check_options(context: Context, words: Mapping[str, str]) -> None:
    """Whether programs can be compiled with these options on this machine; an Error where not."""
    with _options(context, words) as options:
        _check_options(options, lib.lf_options_check(options))


class Compiled(_Handle):
    """A model rewritten, fused and planned, with its parameters. options: the words of lf_options_set."""

    _free, _message = "lf_program_free", "lf_program_message"

    def __init__(self, model: Model, options: Mapping[str, str] | None = None):
        self.context = model.context
        made = ctypes.c_void_p()
        with _options(self.context, options or {}) as chosen:
            model._check(lib.lf_program_new(model.address, chosen, ctypes.byref(made)))
        super().__init__(made.value, self.context)
        self.on_gpu = (options or {}).get("device") == "cuda"

    def compile(self, extents: Sequence[int]) -> None:
        """Compiles what calls at these extents need, where that is still to be done: on a GPU it may take seconds."""
        self._check(lib.lf_program_compile(self.address, (ctypes.c_int64 * max(len(extents), 1))(*extents)))

    def set_param(self, name: str, extents: Sequence[int], address: int, *, dtype: Dtype = Dtype.f32,
                  borrow: bool = False, memory: Place = Place.HOST, stream: int = 0) -> None:
        """Gives a parameter its values, row-major. They count from the next prepare on. borrow: they are not
        copied, and stay as they are until the parameter is given anew. On a GPU, once the work on stream is done."""
        tensor, kept = _tensor_at(extents, address, dtype, memory)
        self._check(lib.lf_program_set_param(self.address, name.encode(), tensor, borrow, stream))
        del kept

    def load_params(self, path: str | os.PathLike[str]) -> None:
        """All parameters from a safetensors file."""
        self._check(lib.lf_program_load_params(self.address, _path(path)))

    def draw_params(self, seed: int) -> None:
        """Parameters drawn from a seed, as the command does without weights."""
        self._check(lib.lf_program_draw_params(self.address, _within(seed, 0, 1 << 64, "a seed")))

    def param(self, name: str) -> bytes:
        """A parameter's values as given, which the program has in host memory."""
        tensor = lib.lf_program_param(self.address, name.encode())
        if not tensor.data or tensor.memory != Place.HOST:
            raise Error(f"parameter {name} has no values in host memory", Status.DATA)
        return ctypes.string_at(tensor.data, lib.lf_tensor_bytes(ctypes.byref(tensor)))

    def prepare(self) -> None:
        """Folds and packs the parameters; needed before the first call and after parameters changed."""
        self._check(lib.lf_program_prepare(self.address))

    def memory(self) -> Memory:
        """Bytes held."""
        sizes = [ctypes.c_size_t() for _ in range(3)]
        lib.lf_program_memory(self.address, *map(ctypes.byref, sizes))
        return Memory(*(size.value for size in sizes))

    def explain(self, dims: Sequence[int] | None = None, json: bool = False) -> str:
        """The account of what was done, as text for people or as JSON."""
        made, named = ctypes.c_void_p(), None if dims is None else _int64_array(dims)
        self._check(lib.lf_program_explain(self.address, named, json, ctypes.byref(made)))
        return _taken_text(made)

    def emit(self, arch: str) -> str:
        """The program's kernels as CUDA C; needs no GPU."""
        made = ctypes.c_void_p()
        self._check(lib.lf_program_emit(self.address, arch.encode(), ctypes.byref(made)))
        return _taken_text(made)


class Call(_Handle):
    """One thread's use of a program. Keeps its program alive."""

    _free, _message = "lf_call_free", "lf_call_message"

    def __init__(self, program: Compiled):
        self.program = program
        made = ctypes.c_void_p()
        program._check(lib.lf_call_new(program.address, ctypes.byref(made)))
        super().__init__(made.value, program)
        self.on_gpu = program.on_gpu

    def set_input(self, index: int, extents: Sequence[int], address: int, memory: Place = Place.HOST) -> None:
        """Binds an input: f32, row-major, borrowed until it is bound anew."""
        tensor, kept = _tensor_at(extents, address, Dtype.f32, memory)
        self._check(lib.lf_call_set_input(self.address, index, tensor))
        del kept

    def output_shape(self, index: int) -> tuple[int, ...]:
        """The extents of an output for the inputs bound now."""
        tensor = _Tensor()
        self._check(lib.lf_call_output(self.address, index, ctypes.byref(tensor)))
        return tuple(tensor.extents[: tensor.rank])

    def set_output(self, index: int, extents: Sequence[int], address: int, memory: Place = Place.HOST) -> None:
        """Binds where an output goes, borrowed likewise."""
        tensor, kept = _tensor_at(extents, address, Dtype.f32, memory)
        self._check(lib.lf_call_set_output(self.address, index, tensor))
        del kept

    def run(self, options: RunOptions | None = None) -> None:
        """Runs. Other Python threads run meanwhile."""
        self._check(lib.lf_call_run(self.address, _address_of(options)))

    def run_at(self, dims: int, inputs: int, outputs: int, options: RunOptions | None = None) -> None:
        """Binds and runs in one call. dims, inputs, outputs: addresses of arrays, of int64s and addresses."""
        self._check(lib.lf_call_run_at(self.address, dims, inputs, outputs, _address_of(options)))

    def workspace(self, dims: int = 0) -> int:
        """Bytes of the GPU's memory a run needs at these extents, the address of an array of int64s; 0: at those of the
        inputs bound now."""
        size = ctypes.c_size_t()
        self._check(lib.lf_call_workspace(self.address, dims, ctypes.byref(size)))
        return size.value

    def time(self, runs: int, options: RunOptions | None = None) -> list[float]:
        """Seconds of so many runs by the GPU's clock, its cache flushed before each."""
        seconds = (ctypes.c_double * max(runs, 1))()
        self._check(lib.lf_call_time(self.address, _address_of(options), runs, seconds))
        return list(seconds[:runs])

    @property
    def rows_redone(self) -> int:
        """How many rows the last run redid as written."""
        return int(lib.lf_call_rows_redone(self.address))

    def memory(self) -> int:
        """Bytes of workspace."""
        return int(lib.lf_call_memory(self.address))


# ---- a loss with its gradient ----


class Array(NamedTuple):
    """Numbers in host memory, row-major."""

    address: int
    dtype: Dtype
    extents: Sequence[int]


class Loss:
    """The mean or sum of linear and cross-entropy, and where its gradients go. Whatever has an address is borrowed.

    x, weight, bias: [M, K], [N, K] and [N], bias may be None; target: the address of M words, i64; gradients: of x,
    weight and bias, None where one is not wanted.
    """

    def __init__(self, x: Array, weight: Array, bias: Array | None, target: int, options: LossOptions,
                 gradients: Sequence[Array | None]):
        def described(one: Array | None) -> _Tensor:
            return _Tensor() if one is None else _tensor_at(one.extents, one.address, one.dtype, Place.HOST)[1]

        self._loss = _Loss(*map(described, (x, weight, bias)), target, options)
        wanted = _LossGradient(*map(described, gradients)) if any(gradients) else None
        self._gradient = None if wanted is None else ctypes.pointer(wanted)

    def step(self, context: Context) -> float:
        """Computes the gradients and gives the loss. The context is the calling thread's meanwhile."""
        value = ctypes.c_double()
        context._check(lib.lf_loss_step(context.address, self._loss, 1.0, value, self._gradient))
        return value.value

    def workspace(self, context: Context) -> int:
        """Bytes that a step allocates and frees."""
        return int(lib.lf_loss_workspace(context.address, self._loss, self._gradient))

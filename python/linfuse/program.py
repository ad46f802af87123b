# SPDX-License-Identifier: Apache-2.0
"""linfuse.load: a model file as a function of NumPy arrays or torch tensors."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

from . import calling, native
from .calling import Home, Sized, Spec
from .native import Error, Place, Port, Status

if TYPE_CHECKING:
    import numpy
    import torch

    from .account import Account

    Array = Union[numpy.ndarray[Any, Any], torch.Tensor]
    Weights = Union[str, os.PathLike[str], Mapping[str, Array], None]

__all__ = ["Program", "Spec", "load"]


def load(
    model: str | os.PathLike[str],
    weights: Weights = None,
    *,
    seed: int | None = None,
    device: str = "cpu",
    precision: str = "fp32",
    rules: str = "",
    assume_finite: bool = False,
    tune: bool = False,
    dims: Mapping[str, int] | None = None,
    threads: int = 0,
) -> Program:
    """Reads a model file and compiles it.

    model:          a `.lf` file, or a folder with one, as linfuse.save writes it.
    weights:        a safetensors file, or a mapping from parameter names to arrays (a `state_dict()` will do). Left
                    out, they are the safetensors file beside the model, of the same name.
    seed:           in place of weights: parameters drawn from it, as the command draws them.
    device:         "cpu", "cuda" or "cuda:1". A program on a GPU takes torch tensors there, and runs on PyTorch's
                    current stream without waiting; arrays in host memory are copied there and back.
    precision:      "fp32", "tf32", "bf16" or "fp16": what a GPU's products may round to.
    rules:          rewrites to switch, "+NAME,-NAME"; "-all" switches all off.
    assume_finite:  leave out the guards for NaN and Inf.
    tune:           on a GPU, measure at the first call at some extents which kernels take least, and remember it on
                    disk.
    dims:           extents to weigh choices by, such as {"B": 1024}; the program serves every value all the same.
    threads:        the most a call uses; 0 means one per core.

    A mistake in the file, in an option or in the weights is a linfuse.Error that says where and what.
    """
    model, beside = saved_files(model)
    weights = beside if weights is None and seed is None else weights
    read = native.Model.read_file(native.Context(threads), model)
    options = {"precision": precision, "assume_finite": "true" if assume_finite else "false"}
    if rules:
        options["rules"] = rules
    if tune:
        options["tune"] = "true"
    options.update({f"dim.{name}": str(extent) for name, extent in (dims or {}).items()})
    program = Program(read, os.fspath(model), device, options, threads)
    program._set_weights(weights, seed)
    return program


def saved_files(model: str | os.PathLike[str]) -> tuple[str | os.PathLike[str], str | None]:
    """The model's file, itself or in a folder, and its weights where they are beside it."""
    file = _model_in(pathlib.Path(model)) if os.path.isdir(model) else model
    stem, ending = os.path.splitext(os.fsdecode(file))
    weights = stem + ".safetensors"
    return file, weights if ending == ".lf" and os.path.lexists(weights) else None


def _model_in(folder: pathlib.Path) -> pathlib.Path:
    models = sorted(folder.glob("*.lf"))
    if len(models) != 1:
        names = ", ".join(one.name for one in models[:5])
        found = f"has {len(models)} models, {names}: name one of them" if models else "has no .lf file"
        raise Error(f"the folder {folder} {found}", Status.IO)
    return models[0]


def _copy(name: str, text: str, device: str, options: dict[str, str], threads: int, weights: list[bytes]) -> Program:
    """A program as another was: what copying and pickling make."""
    program = Program(native.Model.read(native.Context(threads), text, name), name, device, options, threads)
    for spec, values in zip(program.params, weights):
        address = ctypes.cast(values, ctypes.c_void_p).value or 0
        program._program.set_param(spec.name, spec.extents, address, dtype=spec.dtype)
    program._program.prepare()
    return program


def _gpu(index: str) -> int:
    """Which GPU, by PyTorch's count: the one named, or PyTorch's current one."""
    torch = _module("torch")
    known = torch is not None and torch.cuda.is_available()
    if not index:
        return torch.cuda.current_device() if known else 0
    if not index.isdigit() or (not known and int(index) > 0):
        why = "PyTorch, which counts the GPUs, is not there or finds none" if index.isdigit() else "that is no number"
        raise Error(f"device cuda:{index}: {why}", Status.DEVICE)
    return int(index)


def _current(gpu: int | None) -> Any:
    """With this GPU's context the current one, which is what a program is made for."""
    torch = _module("torch")
    known = gpu is not None and torch is not None and torch.cuda.is_available()
    return torch.cuda.device(gpu) if known else contextlib.nullcontext()


class Program:
    """A compiled model: call it with its inputs, by position or by name, in NumPy arrays or torch tensors.

    What comes back is of the kind that went in (torch where any input is): one array, or a tuple where the model
    returns several. One program serves every value of the named extents and several threads at once.

    It can be copied, pickled and sent to another process: the copy is compiled anew, from the model's text, the options
    and the weights, and shares nothing with the original.
    """

    def __init__(self, model: native.Model, name: str, device: str, options: dict[str, str], threads: int):
        kind, _, index = device.partition(":")
        self.name, self._gpu = name, _gpu(index) if kind == "cuda" else None
        self._compiled_for = device, options, threads
        self.dim_names: tuple[str, ...] = tuple(model.dim_names())
        self.inputs: tuple[Spec, ...] = calling.specs(model, Port.INPUT)
        self.params: tuple[Spec, ...] = calling.specs(model, Port.PARAM)
        self.outputs: tuple[Spec, ...] = calling.specs(model, Port.OUTPUT)
        with _current(self._gpu):
            self._program = native.Compiled(model, {"device": kind, **options})
        self._slots: dict[Home, calling.Slots] = {}
        self._ports = len(self.inputs), len(self.outputs)
        self._model, self._text = model, model.text()
        self._position = {spec.name: i for i, spec in enumerate(self.inputs)}
        self._sized: dict[Any, Sized] = {}

    def __repr__(self) -> str:
        def listed(specs: tuple[Spec, ...]) -> str:
            return ", ".join(map(str, specs))

        return f"<linfuse.Program {self.name}: {listed(self.inputs)} -> {listed(self.outputs)}>"

    def __reduce__(self) -> Any:
        weights = [self._program.param(spec.name) for spec in self.params]
        return _copy, (self.name, self._text, *self._compiled_for, weights)

    @property
    def text(self) -> str:
        """The model as `.lf` text."""
        return self._text

    def memory(self) -> native.Memory:
        """Bytes held: parameters as given, parameters prepared, everything else."""
        return self._program.memory()

    def explain(self, *inputs: Array, dims: Mapping[str, int] | None = None) -> Account:
        """The account of what was done, at the extents of these inputs or at dims."""
        from .explanation import explain

        return explain(self, *inputs, dims=dims)

    # ---- weights ----

    def _set_weights(self, weights: Weights, seed: int | None) -> None:
        if weights is None and seed is None and self.params:
            names = ", ".join(spec.name for spec in self.params)
            raise Error(
                f"{self.name}: no weights for its parameters ({names}): give weights=FILE.safetensors or a mapping, "
                "or a seed to draw them from",
                Status.ARG,
            )
        if isinstance(weights, Mapping):
            self._set_params(weights)
        elif weights is not None:
            self._program.load_params(weights)
        elif self.params:
            self._program.draw_params(seed or 0)
        self._program.prepare()

    def _set_params(self, weights: Mapping[str, Array]) -> None:
        names = {spec.name: _name_in(weights, spec.name) for spec in self.params}
        missing = [name for name, found in names.items() if found not in weights]
        if missing:
            raise Error(f"{self.name}: the weights have no {', '.join(missing)}", Status.DATA)
        for spec in self.params:
            shape, address, kept = _bound(weights[names[spec.name]], spec, f"parameter {spec.name}")
            if shape != spec.extents:
                raise Error(f"{self.name}: parameter {spec} is given as {list(shape)}", Status.DATA)
            self._program.set_param(spec.name, shape, address, dtype=spec.dtype)
            del kept  # its values are copied

    # ---- calling ----

    def __call__(self, *inputs: Array, **named: Array) -> Any:
        given = self._in_order(inputs, named) if named or len(inputs) != len(self.inputs) else inputs
        results = self._run(given, self._home(given))
        return results[0] if len(results) == 1 else tuple(results)

    def _run(self, given: Sequence[Array], home: Home) -> list[Any]:
        """The steps of calling.py."""
        arrays = [_bound(value, spec, f"{self.name}: input {spec.name}", home)
                  for value, spec in zip(given, self.inputs)]
        shapes = tuple(shape for shape, _, _ in arrays)
        sized = self._sized.get((home, shapes)) or self._size(home, shapes)
        if home.is_elsewhere():  # what is made is made there
            with home.entered():
                return self._run(given, home)
        stream = home.stream()
        slots = self._slots.get(home)
        if slots is None:  # two threads may come here; setdefault is atomic
            slots = self._slots.setdefault(home, calling.Slots(self._program, self._ports, home))
        keep = bool(stream) and home.is_capturing()
        slot = None if keep else slots.take(stream)
        if slot is None:
            slot = slots.new_slot(stream)
            slot.kept = keep
        return slots.run(slot, sized, [address for _, address, _ in arrays], threads=0)

    def _size(self, home: Home, shapes: tuple[tuple[int, ...], ...]) -> Sized:
        """Step 2, for extents that are new."""
        dims = calling.learnt(self.inputs, shapes)
        values = [dims[name] for name in self.dim_names]
        made = [self._model.shape(Port.OUTPUT, at, values) for at in range(len(self.outputs))]
        makers = [home.maker(shape, calling.row_major(shape), spec.dtype) for shape, spec in zip(made, self.outputs)]
        if len(self._sized) >= calling.MOST_SIZES:
            self._sized.clear()
        sized = self._sized[home, shapes] = Sized(values, makers)
        return sized

    def _home(self, given: Sequence[Array]) -> Home:
        """Where a call's arrays are: torch's where any of them is."""
        torch = _module("torch")
        if torch is None or not any(isinstance(value, torch.Tensor) for value in given):
            return calling.HOST
        from .cuda import home_of

        on_gpu = self._gpu is not None and any(getattr(value, "is_cuda", False) for value in given)
        return home_of(torch.device("cuda", self._gpu) if on_gpu else torch.device("cpu"))

    def _in_order(self, inputs: Sequence[Array], named: Mapping[str, Array]) -> list[Array]:
        asked = ", ".join(spec.name for spec in self.inputs)
        wants = f"{self.name} takes {len(self.inputs)} input{'' if len(self.inputs) == 1 else 's'} ({asked})"
        if len(inputs) + len(named) > len(self.inputs):
            raise TypeError(f"{wants}, not {len(inputs) + len(named)}")
        given: dict[int, Array] = dict(enumerate(inputs))
        for name, value in named.items():
            if name not in self._position:
                raise TypeError(f"{wants}, and none is called {name}")
            if self._position[name] in given:
                raise TypeError(f"{wants}, and {name} is given twice")
            given[self._position[name]] = value
        missing = [spec.name for i, spec in enumerate(self.inputs) if i not in given]
        if missing:
            raise TypeError(f"{wants}; {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
        return [given[i] for i in range(len(self.inputs))]


def _name_in(weights: Mapping[str, Array], name: str) -> str:
    """What a mapping calls a parameter: in a `state_dict()` it may begin with a digit, and saving puts a _ before."""
    return name[1:] if name not in weights and name[:1] == "_" and name[1:2].isdigit() else name


# ---- arrays ----


def _module(name: str) -> Any:
    """NumPy or torch, if somebody has imported it: otherwise no argument can be of it."""
    return sys.modules.get(name)


def _bound(value: Any, spec: Spec, what: str, home: Home | None = None) -> tuple[tuple[int, ...], int, Any]:
    """Extents, address and owner of an array's values, row-major. The owner is a copy where the array is not.
    home: where the call's tensors are; without one it is a parameter, copied from wherever it is."""
    torch, numpy = _module("torch"), _module("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        value = _tensor(torch, value, spec, what, home)
        return tuple(value.shape), value.data_ptr(), value
    if home is not None and home.place is Place.DEVICE:
        raise TypeError(f"{what} is a {type(value).__name__}, while others are torch tensors on a GPU")
    if numpy is None or not isinstance(value, numpy.ndarray):
        raise TypeError(f"{what} is a {type(value).__name__}, and not a NumPy array or torch tensor")
    wanted = spec.dtype.numpy
    if value.dtype != wanted:
        raise TypeError(f"{what} is {value.dtype}, not {wanted}: pass it as .astype({_in_numpy(wanted)})")
    if isinstance(value, numpy.ma.MaskedArray):
        raise TypeError(f"{what} is a masked array: pass it as .filled(...), with what a masked element counts as")
    if not (value.flags.c_contiguous and value.flags.aligned):
        value = value.copy(order="C")
    return value.shape, value.ctypes.data, value


def _is_dual(forward_ad: Any, value: torch.Tensor) -> bool:
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(value).tangent is not None


def _in_numpy(dtype: Any) -> str:
    return f"ml_dtypes.{dtype}" if dtype.type.__module__.startswith("ml_dtypes") else f"numpy.{dtype}"


def _tensor(torch: Any, value: torch.Tensor, spec: Spec, what: str, home: Any) -> torch.Tensor:
    """A tensor as the C library reads it."""
    from .homes import DTYPES

    wanted = DTYPES[spec.dtype]
    if value.dtype != wanted:
        how = ".float()" if wanted is torch.float32 else f".to({wanted})"
        raise TypeError(f"{what} is {value.dtype}, not {wanted}: pass it as {how}")
    if value.layout != torch.strided:
        raise TypeError(f"{what} is {value.layout}: pass it as .to_dense()")
    if home is None:
        return value.detach().cpu().resolve_neg().contiguous()
    if value.device != home.device:
        raise TypeError(f"{what} is on {value.device}, {_how_to_bring(home)}")
    if value.requires_grad and torch.is_grad_enabled():
        raise TypeError(
            f"{what} requires grad, and a loaded program has no backward: call it under torch.no_grad(), "
            "or pass it as .detach()"
        )
    if _is_dual(torch.autograd.forward_ad, value):
        raise TypeError(f"{what} is a dual tensor, and a loaded program has no forward-mode gradient: pass its primal")
    return value if home.fits(value) and not value.is_neg() else home.fitting(value.resolve_neg())


def _how_to_bring(home: Any) -> str:
    if home.place is Place.DEVICE:
        return f"and the program runs on {home.device}: pass it as .to('{home.device}')"
    return ("and this program takes host memory: pass it as .cpu(), load it with "
            'device="cuda", or use torch.compile(..., backend="linfuse"), which runs where the tensors are')

# SPDX-License-Identifier: Apache-2.0
"""linfuse.load: a model file as a function of NumPy arrays or torch tensors."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from . import native
from .native import Error, Port, Status

if TYPE_CHECKING:
    import numpy
    import torch

    from .account import Account

    Array = Union[numpy.ndarray[Any, Any], torch.Tensor]
    Weights = Union[str, os.PathLike[str], Mapping[str, Array], None]

__all__ = ["Program", "Spec", "load"]

ALIGNED = 16  # bytes, of an address on a GPU: what wide loads want


class Spec(NamedTuple):
    """What a program takes or gives: a name and its extents, each a number or the name of one learnt at the call."""

    name: str
    extents: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name} f32[{', '.join(map(str, self.extents))}]"


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

    model:          a `.lf` file, or a folder with one, as linfuse.save writes it: then the weights are the
                    safetensors file beside it, of the same name, unless they are given.
    weights:        a safetensors file, or a mapping from parameter names to arrays (a `state_dict()` will do).
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
    if os.path.isdir(model):
        model, beside = _saved_in(pathlib.Path(model))
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


def _saved_in(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path | None]:
    """The model in a folder, and its weights where they are there."""
    models = sorted(folder.glob("*.lf"))
    if len(models) != 1:
        names = ", ".join(one.name for one in models[:5])
        found = f"has {len(models)} models, {names}: name one of them" if models else "has no .lf file"
        raise Error(f"the folder {folder} {found}", Status.IO)
    weights = models[0].with_suffix(".safetensors")
    return models[0], weights if weights.exists() else None


def _copy(name: str, text: str, device: str, options: dict[str, str], threads: int, weights: list[bytes]) -> Program:
    """A program as another was: what copying and pickling make."""
    program = Program(native.Model.read(native.Context(threads), text, name), name, device, options, threads)
    for spec, values in zip(program.params, weights):
        address = ctypes.cast(values, ctypes.c_void_p).value or 0
        program._program.set_param(spec.name, spec.extents, address)
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
        self.inputs: tuple[Spec, ...] = _specs(model, Port.INPUT)
        self.params: tuple[Spec, ...] = _specs(model, Port.PARAM)
        self.outputs: tuple[Spec, ...] = _specs(model, Port.OUTPUT)
        with _current(self._gpu):
            self._program = native.Program(model, {"device": kind, **options})
        self._text = model.text()
        self._position = {spec.name: i for i, spec in enumerate(self.inputs)}
        self._calls: list[native.Call] = []  # those not in use; append and pop are atomic
        # Likewise, by the GPU's stream that keeps their runs in order:
        self._on_stream: dict[int, list[native.Call]] = {}
        self._captured: list[native.Call] = []  # what graphs run again

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
            shape, address, kept = _bound(weights[names[spec.name]], f"parameter {spec.name}", parameter=True)
            if shape != spec.extents:
                raise Error(f"{self.name}: parameter {spec} is given as {list(shape)}", Status.DATA)
            self._program.set_param(spec.name, shape, address)
            del kept  # its values are copied

    # ---- calling ----

    def __call__(self, *inputs: Array, **named: Array) -> Any:
        given = self._in_order(inputs, named) if named or len(inputs) != len(self.inputs) else inputs
        if self._gpu is not None and any(getattr(value, "is_cuda", False) for value in given):
            return self._call_on_gpu(given)
        call = self._calls.pop() if self._calls else native.Call(self._program)
        kept = []  # copies of what was not contiguous; they live as long as the call borrows them
        for i, value in enumerate(given):
            shape, address, owner = _bound(value, f"{self.name}: input {self.inputs[i].name}")
            kept.append(owner)
            call.set_input(i, shape, address)
        results = self._bind_outputs(call, _maker(given))
        call.run()
        self._calls.append(call)  # one that failed is not used again
        return results[0] if len(results) == 1 else tuple(results)

    def _bind_outputs(self, call: native.Call, make: Any, memory: native.Place = native.Place.HOST) -> list[Any]:
        results = []
        for i in range(len(self.outputs)):
            shape = call.output_shape(i)
            result, address = make(shape)
            results.append(result)
            call.set_output(i, shape, address, memory)
        return results

    def _call_on_gpu(self, given: Sequence[Array]) -> Any:
        """On PyTorch's current stream, with its memory for outputs and workspace; a graph has a call of its own."""
        torch = _module("torch")
        device = torch.device("cuda", self._gpu)
        stream = torch.cuda.current_stream(device).cuda_stream
        idle = self._on_stream.setdefault(stream, [])
        capturing = torch.cuda.is_current_stream_capturing()
        call = idle.pop() if idle and not capturing else native.Call(self._program)
        kept = []
        for i, value in enumerate(given):
            shape, address, owner = _bound(value, f"{self.name}: input {self.inputs[i].name}", device=device)
            kept.append(owner)
            call.set_input(i, shape, address, native.Place.DEVICE)
        results = self._bind_outputs(call, _tensor_maker(torch, device), native.Place.DEVICE)
        room = torch.empty(call.workspace(), dtype=torch.uint8, device=device)
        options = native.RunOptions(stream=stream, workspace=room.data_ptr(), workspace_bytes=room.numel())
        call.run(options)
        (self._captured if capturing else idle).append(call)
        return results[0] if len(results) == 1 else tuple(results)

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
            raise TypeError(f"{wants}; there is no {', '.join(missing)}")
        return [given[i] for i in range(len(self.inputs))]


def _specs(model: native.Model, port: Port) -> tuple[Spec, ...]:
    names = model.names(port)
    for index, name in enumerate(names):
        if model.dtype(port, index) is not native.Dtype.f32:
            raise Error(f"{name} is {model.dtype(port, index).name}: a program in Python takes float32 alone so far",
                        Status.UNSUPPORTED)
    return tuple(Spec(name, model.extents(port, index)) for index, name in enumerate(names))


def extents_of(specs: Sequence[Spec], inputs: Sequence[Any]) -> dict[str, int]:
    """The named extents as the shapes of these inputs have them; inputs may be left out, from the end."""
    learnt: dict[str, int] = {}
    for spec, value in zip(specs, inputs):
        shape = tuple(value.shape)
        fits = len(shape) == len(spec.extents)
        for extent, size in zip(spec.extents, shape):
            fits = fits and (learnt.setdefault(extent, size) if isinstance(extent, str) else extent) == size
        if not fits:
            raise Error(f"input {spec} is given as {list(shape)}", Status.DATA)
    return learnt


def _name_in(weights: Mapping[str, Array], name: str) -> str:
    """What a mapping calls a parameter: in a `state_dict()` it may begin with a digit, and saving puts a _ before."""
    return name[1:] if name not in weights and name[:1] == "_" and name[1:2].isdigit() else name


# ---- arrays ----


def _module(name: str) -> Any:
    """NumPy or torch, if somebody has imported it: otherwise no argument can be of it."""
    return sys.modules.get(name)


def _bound(value: Any, what: str, parameter: bool = False, device: Any = None) -> tuple[tuple[int, ...], int, Any]:
    """Extents, address and owner of an array's values: f32, row-major. The owner is a copy where the array is not.
    device: a GPU that the values are on; otherwise they are in host memory."""
    torch, numpy = _module("torch"), _module("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        return _bound_tensor(torch, value, what, parameter, device)
    if device is not None:
        raise TypeError(f"{what} is a {type(value).__name__}, while others are torch tensors on {device}")
    if numpy is None or not isinstance(value, numpy.ndarray):
        raise TypeError(f"{what} is a {type(value).__name__}, and not a NumPy array or torch tensor")
    if value.dtype != numpy.float32:
        raise TypeError(f"{what} is {value.dtype}, not float32: pass it as .astype(numpy.float32)")
    if not (value.flags.c_contiguous and value.flags.aligned):
        value = value.copy(order="C")
    return value.shape, value.ctypes.data, value


def _is_dual(forward_ad: Any, value: torch.Tensor) -> bool:
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(value).tangent is not None


def _bound_tensor(
    torch: Any, value: torch.Tensor, what: str, parameter: bool, device: Any
) -> tuple[tuple[int, ...], int, Any]:
    if value.dtype != torch.float32:
        raise TypeError(f"{what} is {value.dtype}, not torch.float32: pass it as .float()")
    if value.layout != torch.strided:
        raise TypeError(f"{what} is {value.layout}: pass it as .to_dense()")
    if parameter:
        value = value.detach().cpu()
    elif device is not None and value.device != device:
        raise TypeError(f"{what} is on {value.device}, and the program runs on {device}: pass it as .to('{device}')")
    elif device is None and value.device.type != "cpu":
        raise TypeError(
            f"{what} is on {value.device}; this program takes host memory: pass it as .cpu(), load it with "
            'device="cuda", or use torch.compile(..., backend="linfuse"), which runs where the tensors are'
        )
    elif value.requires_grad and torch.is_grad_enabled():
        raise TypeError(
            f"{what} requires grad, and a loaded program has no backward: call it under torch.no_grad(), "
            "or pass it as .detach()"
        )
    elif _is_dual(torch.autograd.forward_ad, value):
        raise TypeError(f"{what} is a dual tensor, and a loaded program has no forward-mode gradient: pass its primal")
    value = value.resolve_neg().contiguous()
    if device is not None and value.data_ptr() % ALIGNED:
        value = value.clone()
    return tuple(value.shape), value.data_ptr(), value


def _maker(given: Sequence[Any]) -> Any:
    """A function that makes an output of some extents: torch where any input is."""
    torch = _module("torch")
    if torch is not None and any(isinstance(value, torch.Tensor) for value in given):
        return _tensor_maker(torch, "cpu")
    import numpy

    def array(shape: tuple[int, ...]) -> tuple[Any, int]:
        made = numpy.empty(shape, numpy.float32)
        return made, made.ctypes.data

    return array


def _tensor_maker(torch: Any, device: Any) -> Any:
    def tensor(shape: tuple[int, ...]) -> tuple[Any, int]:
        made = torch.empty(shape, dtype=torch.float32, device=device)
        return made, made.data_ptr()

    return tensor

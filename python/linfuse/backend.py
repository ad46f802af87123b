# SPDX-License-Identifier: Apache-2.0
"""torch.compile(model, backend="linfuse")."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch._dynamo
from torch.fx import Graph, GraphModule, Node

from . import cuda, loss_found, native, notices, weights
from .capture import line_of
from .fused import CompiledGraph
from .partition import compile_module
from .counters import Left, registry
from .notices import NEEDS_GRADIENTS
from .rest import Eager, Inductor

_cpu = torch.device("cpu")
if torch.__version__.startswith("2.4."):
    # From 2.5 on PyTorch traces into its own modules by itself; 2.4 hands nn.Linear over as it is unless told to. This
    # comes before the first trace: torch.compile looks a backend up when it is called.
    torch._dynamo.config.inline_inbuilt_nn_modules = True

_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")  # PyTorch's


_OPTIONS = ("precision", "assume_finite", "rules", "tune", "fallback", "rest", "loss_head")


class Options:
    """What torch.compile(options={...}) may say.

    precision      fp32 | tf32 | bf16 | fp16: what a GPU's products may round to. Without it, what PyTorch's own may:
                   torch.set_float32_matmul_precision("highest") is fp32, "high" tf32, "medium" bf16. On the CPU
                   everything is computed in fp32; another one that is asked for by name is warned of.
    assume_finite  True: rows with NaN or Inf in them are not looked for.
    rules          "+NAME,-NAME": rewrites switched on and off.
    tune           True: the first call at some extents measures on the GPU which tiles of products take least, and
                   waits for it; remembered on disk. Results are the same to the bit. torch.compile's mode
                   "max-autotune" asks for it too. The CPU has nothing to measure.
    fallback       "pytorch": what is not supported runs in PyTorch; "error": it is an error.
    rest           "inductor": what runs in PyTorch is compiled by PyTorch's own compiler; "eager": it is not; "auto":
                   it is where nothing of a graph is fused, or more than a few ops are left.
    loss_head      True: a linear layer and a cross-entropy of its logits are one loss head, which stores no logits;
                   False: they are PyTorch's; "auto": a head where it costs no time, or where logits are large.
    """

    def __init__(self, given: Mapping[str, Any] | None = None):
        words = dict(given or {})
        self.named = "precision" in words
        asked = {"highest": "fp32", "high": "tf32", "medium": "bf16"}[torch.get_float32_matmul_precision()]
        self.precision = str(words.pop("precision", asked))
        self.assume_finite = words.pop("assume_finite", False)
        self.rules = words.pop("rules", None)
        self.tune = words.pop("tune", False)
        self.fallback = words.pop("fallback", "pytorch")
        self.rest = words.pop("rest", "auto")
        self.loss_head = words.pop("loss_head", "auto")
        if words:
            unknown = sorted(map(str, words))
            near = native.suggestion(unknown[0], _OPTIONS)
            raise native.Error(f"linfuse has no option {', '.join(unknown)}; it has {', '.join(_OPTIONS)}{near}")
        for name, value, known in (
            ("precision", self.precision, native.option_words("precision")),
            ("fallback", self.fallback, ("pytorch", "error")),
            ("rest", self.rest, ("auto", "inductor", "eager")),
            ("loss_head", self.loss_head, loss_found.OPTION),
        ):
            if value not in known:
                known = [str(word) for word in known]
                near = native.suggestion(str(value), known)
                raise native.Error(f"{name} is one of {', '.join(known)}, not {value}{near}")
        for name, value in (("assume_finite", self.assume_finite), ("tune", self.tune)):
            if not isinstance(value, bool):
                raise native.Error(f"{name} is True or False, not {value!r}")
        if self.rules is not None and not isinstance(self.rules, str):
            if not isinstance(self.rules, (list, tuple)) or not all(isinstance(rule, str) for rule in self.rules):
                raise native.Error(f'rules is "+NAME,-NAME" or a list of such words, not {self.rules!r}')

    def words(self, device: torch.device) -> dict[str, str]:
        """The options of the C library."""
        words = {"device": device.type}
        if device.type == "cuda":  # what PyTorch's setting allows need not be done; what an option names must be
            words["precision"] = self.precision if self.named or _has(device, self.precision) else "fp32"
            if self.tune:
                words["tune"] = "true"
        elif self.named and self.precision != "fp32":
            notices.warn_once(
                ("precision", self.precision), f"precision {self.precision} is a GPU's; the CPU computes in fp32"
            )
        if self.assume_finite:
            words["assume_finite"] = "true"
        if self.rules is not None:
            words["rules"] = self.rules if isinstance(self.rules, str) else ",".join(self.rules)
        return words


@functools.cache
def _has(device: torch.device, precision: str) -> bool:
    """Whether a GPU has products of this precision."""
    if precision == "fp32":
        return True
    with weights.making, cuda.on(device):
        try:
            context = weights.context(device, torch.get_num_threads())
            native.check_options(context, {"device": "cuda", "precision": precision})
        except native.Error as why:
            return why.status is not native.Status.UNSUPPORTED
    return True


def _on_gpu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cuda"


def backend(module: GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None,
            mode: str | None = None) -> Callable[..., Any]:
    """Compiles a graph that Dynamo has traced; what torch.compile calls. mode: "max-autotune" and its kin are the
    option tune; inductor is told of all of them."""
    mode = mode or "default"
    if mode not in _MODES:
        said = f"mode {mode} is unknown and chooses nothing; there are {', '.join(_MODES)}"
        notices.warn_once(("mode", mode), said + native.suggestion(mode, _MODES))
        mode = "default"
    if (options or {}).get("tune") is True and not any(_on_gpu(one) for one in inputs):
        notices.warn_once("tune", "tune measures a GPU's kernels; on the CPU there is nothing to choose from")
    if mode.startswith("max-autotune"):
        options = {"tune": True, **(options or {})}
    return compile_graph(module, inputs, options, mode).run


def compile_graph(module: GraphModule, inputs: Sequence[Any], options: Mapping[str, Any] | None = None,
                  mode: str = "default") -> CompiledGraph:
    """The same, with the account of what was done. mode: of torch.compile, for what inductor compiles."""
    chosen = Options(options)
    if chosen.rules is not None:  # a wrong name is an error now, not a reason to run in PyTorch later
        with weights.making:
            native.check_options(weights.context(_cpu, torch.get_num_threads()), chosen.words(_cpu))
    own = _copied(module, inputs)
    strict = chosen.fallback == "error"
    rest = Eager() if chosen.rest == "eager" or strict else Inductor(inputs, mode, chosen.rest == "inductor")
    compiled = compile_module(own, chosen.words, strict, rest=rest, loss_head=chosen.loss_head)
    computing = [left for left in compiled.left if left.computes]
    if strict and computing:
        raise native.Error(_refusal(own.graph, computing))
    for part in compiled.parts:
        part.begin()
    registry.count("graphs")
    registry.count("graphs_fused", not computing and bool(compiled.parts or compiled.heads))
    registry.count("fused_parts", len(compiled.parts))
    registry.count("loss_heads", len(compiled.heads))
    registry.count("ops", compiled.ops + len(computing))
    for left in computing:
        registry.leave(left, "compile")
    notices.of_graph(own.graph, compiled, computing)
    return compiled


def _refusal(graph: Graph, computing: Sequence[Left]) -> str:
    """What is left to PyTorch where nothing may be: by reason, with the lines of the user's it comes from."""
    nodes = {node.name: node for node in graph.nodes}
    by_reason: dict[str, list[str]] = {}
    for one in computing:
        line = line_of(nodes[one.node]) if one.node in nodes else ""
        by_reason.setdefault(one.reason, []).append(f"{one.node} ({one.op}{line and f', {line}'})")
    said = "; ".join(f"{', '.join(who)}: {reason}" for reason, who in by_reason.items())
    with_gradients, others = "call it under torch.no_grad()", 'PyTorch runs it with fallback="pytorch"'
    mend = with_gradients if NEEDS_GRADIENTS in by_reason else others
    return f"left to PyTorch: {said} ({mend})"


def _copied(module: GraphModule, inputs: Sequence[Any]) -> GraphModule:
    """The graph in nodes of our own, on the same parameters."""
    graph, known = Graph(), dict[Node, Any]()
    returned = graph.graph_copy(module.graph, known)
    places = [node for node in graph.nodes if node.op == "placeholder"]
    graph.output(returned)
    for node, value in zip(places, inputs):
        if isinstance(value, torch.Tensor) and value.is_inference():
            node.meta["linfuse_uncounted"] = True
    return GraphModule(module, graph)


def register() -> None:
    """Makes the name "linfuse" known to torch.compile, where no installed package does."""
    from torch._dynamo.backends.registry import register_backend

    try:
        register_backend(compiler_fn=backend, name="linfuse")
    except AssertionError:
        pass  # PyTorch has the name already


__all__ = ["Options", "backend", "compile_graph", "register"]

# SPDX-License-Identifier: Apache-2.0
"""A Spec as a torch.nn.Module, by way of its source: what runs is what a person would have typed, with no loop over
steps inside, so eager PyTorch pays for its ops and for nothing of ours."""

import torch

from spec import Value

OLD_SPELLING = {"sigmoid", "tanh"}  # torch.nn.functional has them too, as wrappers around torch's


def source(spec):
    lines = [f"def forward(self, {', '.join(_name(v) for v in spec.inputs)}):"]
    params = {v.name for v in spec.params}
    for step in spec.steps:
        words = [_word(a, params) for a in step.args]
        words += [f"{key}={_word(a, params)}" for key, a in step.attrs.items()]
        home = "F" if hasattr(torch.nn.functional, step.op) and step.op not in OLD_SPELLING else "torch"
        lines.append(f"    {_name(step.result)} = {home}.{step.op}({', '.join(words)})")
    return "\n".join(lines + [f"    return {_name(spec.output)}", ""])


def module(spec, tensor_of):
    """The module, its parameters made by tensor_of(value)."""
    scope = {"torch": torch, "F": torch.nn.functional}
    exec(compile(source(spec), "<spec>", "exec"), scope)
    made = type("Model", (torch.nn.Module,), {"forward": scope["forward"]})()
    for value in spec.params:
        made.register_parameter(_name(value), torch.nn.Parameter(tensor_of(value), requires_grad=False))
    return made.eval()


def output_shape(spec, dims):
    """Found by PyTorch, without computing anything."""
    def empty(value):
        return torch.empty([dims.get(e, e) for e in value.extents], device="meta")
    return tuple(module(spec, empty)(*map(empty, spec.inputs)).shape)


def _name(value):
    return value.name.replace(".", "_")


def _word(arg, params):
    if isinstance(arg, Value):
        return f"self.{_name(arg)}" if arg.name in params else _name(arg)
    return repr(arg)

# SPDX-License-Identifier: Apache-2.0
"""A model written down once, from which every contender's form of it is made.

A Spec is the list of an .lf file's statements. lf() prints it as that file; to_torch.py and to_onnx.py turn it into
PyTorch source and an ONNX graph. One list, so nobody computes something else.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Value:
    """A tensor of the model. An extent is a number, or the name of one that is learnt at the call."""

    name: str
    extents: tuple = ()


@dataclass(frozen=True)
class Param(Value):
    low: float = -1.0
    high: float = 1.0


@dataclass(frozen=True)
class Step:
    result: Value
    op: str
    args: tuple  # Values, numbers, lists of numbers, None
    attrs: dict


@dataclass
class Spec:
    inputs: list = field(default_factory=list)
    params: list = field(default_factory=list)
    steps: list = field(default_factory=list)

    def input(self, name, *extents):
        self.inputs.append(Value(name, extents))
        return self.inputs[-1]

    def weight(self, name, *extents):
        """A matrix or a bias, uniform in +-1/sqrt(last extent), as torch.nn.Linear draws it."""
        bound = extents[-1] ** -0.5
        return self.param(name, extents, -bound, bound)

    def param(self, name, extents, low, high):
        self.params.append(Param(name, tuple(extents), low, high))
        return self.params[-1]

    def op(self, op, *args, **attrs):
        self.steps.append(Step(Value(f"v{len(self.steps)}"), op, args, attrs))
        return self.steps[-1].result

    def linear(self, x, name, n, k):
        return self.op("linear", x, self.weight(f"{name}.weight", n, k), self.weight(f"{name}.bias", n))

    def affine(self, name, n):
        """A norm's weight and bias: around 1 and around 0, so that neither is lost in the rounding."""
        return self.param(f"{name}.weight", (n,), 0.5, 1.5), self.param(f"{name}.bias", (n,), -0.5, 0.5)

    @property
    def output(self):
        return self.steps[-1].result

    def lf(self, dtype="f32"):
        lines = [f"input {v.name} {dtype}[{_listed(v.extents)}]" for v in self.inputs]
        lines += [f"param {v.name} {dtype}[{_listed(v.extents)}]" for v in self.params]
        for step in self.steps:
            words = [_word(a) for a in step.args] + [f"{key}={_word(a)}" for key, a in step.attrs.items()]
            lines.append(f"{step.result.name} = {step.op}({', '.join(words)})")
        return "\n".join(lines + [f"return {self.output.name}", ""])

    def draw(self, dims, allocate, seed=1):
        """name -> array: inputs uniform in [0, 1), parameters in their bounds. allocate(shape) gives f32 memory."""
        import numpy as np  # here: bench/cuda.py draws on the GPU and does without

        rng = np.random.default_rng(seed)
        arrays = {}
        for value in self.inputs + self.params:
            array = allocate(tuple(dims.get(e, e) for e in value.extents))
            rng.random(dtype=np.float32, out=array)
            if isinstance(value, Param):
                array *= np.float32(value.high - value.low)
                array += np.float32(value.low)
            arrays[value.name] = array
        return arrays


def _listed(items):
    return ", ".join(str(i) for i in items)


def _word(arg):
    """An argument as the .lf text spells it."""
    if isinstance(arg, Value):
        return arg.name
    if isinstance(arg, bool):
        return str(arg).lower()
    if isinstance(arg, str):
        return f'"{arg}"'
    if isinstance(arg, (list, tuple)):
        return f"[{_listed(arg)}]"
    return str(arg)

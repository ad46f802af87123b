# SPDX-License-Identifier: Apache-2.0
"""A Spec as an ONNX graph with fixed extents, in the ops that PyTorch's exporter would choose."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from spec import Value

OPSET = 20  # the first with Gelu
IR_VERSION = 10


class Unsupported(Exception):
    """The op has no form here: this peer is left out."""


class Builder:
    def __init__(self, spec, dims, arrays):
        self.spec, self.dims, self.arrays = spec, dims, arrays
        self.nodes, self.constants = [], []
        self.rank = {v.name: len(v.extents) for v in spec.inputs + spec.params}

    def node(self, op, inputs, rank, output=None, **attrs):
        """Appends a node with one output, whose name it gives."""
        output = output or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], **attrs))
        self.rank[output] = rank
        return output

    def constant(self, array, name=None):
        name = name or f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        self.rank[name] = np.ndim(array)
        return name

    def name(self, arg):
        """Of a value, or of the constant that a number becomes."""
        return arg.name if isinstance(arg, Value) else self.constant(np.float32(arg))

    def model(self):
        for step in self.spec.steps:
            if step.op not in TRANSLATIONS:
                raise Unsupported(f"{step.op} has no ONNX form here")
            TRANSLATIONS[step.op](self, step.result.name, *step.args, **step.attrs)
        used = {name for node in self.nodes for name in node.input}
        given = [numpy_helper.from_array(self.arrays[v.name], v.name) for v in self.spec.params if v.name in used]
        inputs = [helper.make_tensor_value_info(v.name, TensorProto.FLOAT, [self.dims.get(e, e) for e in v.extents])
                  for v in self.spec.inputs]
        output = helper.make_tensor_value_info(self.spec.output.name, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "bench", inputs, [output], given + self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


# ---- one function an op: (builder, name of the result, the step's arguments) ----


def linear(b, out, x, weight, bias):
    if b.rank[x.name] == 2:
        b.node("Gemm", [x.name, weight.name, bias.name], 2, out, transB=1)
        return
    turned = b.constant(np.ascontiguousarray(b.arrays[weight.name].T))
    product = b.node("MatMul", [x.name, turned], b.rank[x.name])
    b.node("Add", [product, bias.name], b.rank[x.name], out)


def pointwise(op, **renamed):
    """An op of one value; renamed: ONNX's name of an attribute -> PyTorch's."""
    def translate(b, out, x, **attrs):
        given = {theirs: attrs[ours] for theirs, ours in renamed.items() if ours in attrs}
        b.node(op, [x.name], b.rank[x.name], out, **given)
    return translate


def binary(op):
    def translate(b, out, x, y):
        names = [b.name(x), b.name(y)]
        b.node(op, names, max(b.rank[n] for n in names), out)
    return translate


def reduction(op):
    def translate(b, out, x, dim, keepdim=False):
        axes = b.constant(np.array([dim], np.int64))
        b.node(op, [x.name, axes], b.rank[x.name] - (not keepdim), out, keepdims=int(keepdim))
    return translate


def over_axis(op):
    def translate(b, out, x, dim):
        b.node(op, [x.name], b.rank[x.name], out, axis=dim)
    return translate


def gelu(b, out, x, approximate="none"):
    b.node("Gelu", [x.name], b.rank[x.name], out, approximate=approximate)


def silu(b, out, x):
    gate = b.node("Sigmoid", [x.name], b.rank[x.name])
    b.node("Mul", [x.name, gate], b.rank[x.name], out)


def hardtanh(b, out, x, min_val=-1, max_val=1):
    b.node("Clip", [x.name, b.name(min_val), b.name(max_val)], b.rank[x.name], out)


def layer_norm(b, out, x, shape, weight, bias, eps=1e-5):
    b.node("LayerNormalization", [x.name, weight.name, bias.name], b.rank[x.name], out, axis=-len(shape), epsilon=eps)


def rms_norm(b, out, x, shape, weight, eps=1e-5):
    """ONNX Runtime's own kernel: the standard's RMSNormalization came with a later opset."""
    b.node("SimplifiedLayerNormalization", [x.name, weight.name], b.rank[x.name], out, axis=-len(shape), epsilon=eps)


def group_norm(b, out, x, groups, weight, bias, eps=1e-5):
    """As PyTorch exports it: an instance norm with a group for an instance's channel, then weight and bias."""
    split = b.node("Reshape", [x.name, b.constant(np.array([0, groups, -1], np.int64))], 3)
    ones, zeros = b.constant(np.ones(groups, np.float32)), b.constant(np.zeros(groups, np.float32))
    normed = b.node("InstanceNormalization", [split, ones, zeros], 3, epsilon=eps)
    whole = b.node("Reshape", [normed, b.constant(np.array([0, b.arrays[weight.name].size], np.int64))], 2)
    b.node("Add", [b.node("Mul", [whole, weight.name], 2), bias.name], 2, out)


def batch_norm(b, out, x, mean, var, weight, bias, training=False, eps=1e-5):
    channels = b.arrays[weight.name].size
    mean = mean.name if mean else b.constant(np.zeros(channels, np.float32))
    var = var.name if var else b.constant(np.ones(channels, np.float32))
    outputs = [out, f"{out}_mean", f"{out}_var"] if training else [out]
    b.nodes.append(helper.make_node("BatchNormalization", [x.name, weight.name, bias.name, mean, var], outputs,
                                    epsilon=eps, training_mode=int(training)))
    b.rank[out] = b.rank[x.name]


def pool(op):
    def translate(b, out, x, kernel_size):
        axes = b.constant(np.array([0], np.int64))
        one_image = b.node("Unsqueeze", [x.name, axes], 3)
        pooled = b.node(op, [one_image], 3, kernel_shape=[kernel_size], strides=[kernel_size])
        b.node("Squeeze", [pooled, axes], 2, out)
    return translate


TRANSLATIONS = {
    "linear": linear, "gelu": gelu, "silu": silu, "hardtanh": hardtanh,
    "relu": pointwise("Relu"), "leaky_relu": pointwise("LeakyRelu", alpha="negative_slope"),
    "sigmoid": pointwise("Sigmoid"), "tanh": pointwise("Tanh"), "mish": pointwise("Mish"),
    "hardswish": pointwise("HardSwish"), "exp": pointwise("Exp"),
    "add": binary("Add"), "sub": binary("Sub"), "mul": binary("Mul"), "div": binary("Div"),
    "sum": reduction("ReduceSum"), "mean": reduction("ReduceMean"), "max": reduction("ReduceMax"),
    "logsumexp": reduction("ReduceLogSumExp"),
    "softmax": over_axis("Softmax"), "log_softmax": over_axis("LogSoftmax"),
    "layer_norm": layer_norm, "rms_norm": rms_norm, "group_norm": group_norm, "batch_norm": batch_norm,
    "max_pool1d": pool("MaxPool"), "avg_pool1d": pool("AveragePool"),
}

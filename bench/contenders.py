# SPDX-License-Identifier: Apache-2.0
"""Who is measured. Each lives in a process of its own (worker.py) and does the same: load, then call again and again.

What a contender is given is copied first, into memory from PyTorch's allocator for all of them, so that nobody has
larger pages or warmer data than the others. linfuse and ONNX Runtime write into an output made before the first call;
PyTorch makes its own, as it always does.
"""

import json
import statistics
import subprocess
import time
from dataclasses import dataclass, field

import numpy as np
import torch

import linfuse_c
import to_torch

REPEATS = 5  # of compiling and of preparing


@dataclass(frozen=True)
class Job:
    """One model at one size."""

    spec: object
    dims: dict
    arrays: dict            # name -> shared numpy array: inputs and parameters
    output_shape: tuple
    threads: int
    library: object = None  # path of liblinfuse.so
    overhead: object = None  # path of the C driver
    facts: dict = field(default_factory=dict)

    def tensor(self, value):
        """The caller's own copy of an input or a parameter."""
        return torch.from_numpy(self.arrays[value.name]).clone()

    def inputs(self):
        return [self.tensor(v) for v in self.spec.inputs]


class TorchEager:
    def load(self, job):
        torch.set_num_threads(job.threads)
        self.inputs = job.inputs()
        self.model = to_torch.module(job.spec, job.tensor)

    def call(self):
        with torch.inference_mode():
            self.last = self.model(*self.inputs)

    def result(self):
        return self.last.numpy()


class TorchCompile(TorchEager):
    def load(self, job):
        super().load(job)
        self.model = torch.compile(self.model, fullgraph=True, dynamic=False)
        self.call()  # compiles
        self.last = None


def start_compiler():
    """Lets torch.compile do once, before workers are forked, what it would do in each: imports, a look at the C++
    compiler, its precompiled header. On one thread: OpenMP's pool does not survive a fork."""
    torch.set_num_threads(1)
    with torch.inference_mode():
        torch.compile(lambda x: torch.relu(x + 1).sum(1))(torch.zeros(64, 64))


class OnnxRuntime:
    def load(self, job):
        import onnxruntime

        import to_onnx

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = job.threads, 1
        options.log_severity_level = 3
        model = to_onnx.Builder(job.spec, job.dims, job.arrays).model()
        self.session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self.inputs = [x.numpy() for x in job.inputs()]
        self.output = torch.empty(job.output_shape).numpy()
        self.binding = self.session.io_binding()
        for value, array in zip(job.spec.inputs, self.inputs):
            self.bind(self.binding.bind_input, value.name, array)
        self.bind(self.binding.bind_output, job.spec.output.name, self.output)

    @staticmethod
    def bind(how, name, array):
        how(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)

    def call(self):
        self.session.run_with_iobinding(self.binding)

    def result(self):
        return self.output


class Linfuse:
    def load(self, job):
        native = linfuse_c.load(job.library)
        context = native.Context(job.threads)
        compile_ms = [self.compile(native, context, job.dims, job.spec.lf()) for _ in range(REPEATS)]
        prepare_ms = [self.prepare({v.name: job.arrays[v.name] for v in job.spec.params}) for _ in range(REPEATS)]
        self.bind([x.numpy() for x in job.inputs()])
        fused = self.account()["fused"]
        job.facts.update(compile_ms=statistics.median(compile_ms), prepare_ms=statistics.median(prepare_ms),
                         predicted_ms=fused["us"] / 1e3, flops=fused["flops"], bytes=fused["bytes"],
                         intermediate_bytes=fused["intermediate_bytes"], workspace_bytes=fused["workspace_bytes"])

    def compile(self, native, context, dims, text):
        """From text to a program without parameters, weighed by these extents; milliseconds."""
        options = {f"dim.{name}": str(extent) for name, extent in dims.items()}
        start = time.perf_counter()
        model = native.Model.read(context, text)
        program = native.Compiled(model, options)
        took = 1e3 * (time.perf_counter() - start)
        model.close()
        if hasattr(self, "program"):
            self.program.close()
        self.native, self.program = native, program
        return took

    def account(self):
        """What `linfuse explain --json` prints, at the extents given to compile."""
        return json.loads(self.program.explain(json=True))

    def bind(self, inputs):
        self.inputs, self.bound = inputs, self.native.Call(self.program)
        for index, x in enumerate(inputs):
            self.bound.set_input(index, x.shape, x.ctypes.data)
        self.output = torch.empty(self.bound.output_shape(0)).numpy()
        self.bound.set_output(0, self.output.shape, self.output.ctypes.data)
        self.call = self.bound.run

    def end(self):
        self.bound.close()
        self.program.close()

    def prepare(self, params):
        """Gives the parameters and prepares them; milliseconds of preparing alone."""
        for name, array in params.items():
            self.program.set_param(name, array.shape, array.ctypes.data)
        start = time.perf_counter()
        self.program.prepare()
        return 1e3 * (time.perf_counter() - start)

    def result(self):
        return self.output


class LinfuseFromC:
    """The C driver: the same model, called without Python in between."""

    def load(self, job):
        self.command = [str(job.overhead), "200", str(job.threads)]

    def burst(self, seconds):
        """Milliseconds a call, one number a batch of calls. It takes about as long as the others' bursts."""
        text = subprocess.run(self.command, check=True, capture_output=True, text=True).stdout
        return [float(line) / 1e6 for line in text.split()]


PEERS = {"torch eager": TorchEager, "torch.compile": TorchCompile, "ONNX Runtime": OnnxRuntime}
OURS = {"linfuse": Linfuse, "linfuse from C": LinfuseFromC}

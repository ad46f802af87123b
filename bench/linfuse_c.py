# SPDX-License-Identifier: Apache-2.0
"""liblinfuse.so through its public header, by ctypes: as much of it as the benchmark calls."""

import ctypes
import json
from ctypes import POINTER, byref, c_bool, c_char_p, c_double, c_int, c_int64, c_size_t, c_void_p

MAX_RANK = 8

# name: (result, arguments); lf_status is an int, and 0 is LF_OK
SIGNATURES = {
    "lf_status_name": (c_char_p, [c_int]),
    "lf_context_new": (c_int, [POINTER(c_void_p)]),
    "lf_context_free": (None, [c_void_p]),
    "lf_context_message": (c_char_p, [c_void_p]),
    "lf_context_set_threads": (c_int, [c_void_p, c_int]),
    "lf_device_peak": (c_int, [c_void_p, c_char_p, POINTER(c_double), POINTER(c_double)]),
    "lf_model_read": (c_int, [c_void_p, c_char_p, c_char_p, c_size_t, POINTER(c_void_p)]),
    "lf_model_free": (None, [c_void_p]),
    "lf_model_message": (c_char_p, [c_void_p]),
    "lf_model_dim_count": (c_size_t, [c_void_p]),
    "lf_model_dim_name": (c_char_p, [c_void_p, c_size_t]),
    "lf_options_new": (c_int, [c_void_p, POINTER(c_void_p)]),
    "lf_options_free": (None, [c_void_p]),
    "lf_options_set": (c_int, [c_void_p, c_char_p, c_char_p]),
    "lf_options_message": (c_char_p, [c_void_p]),
    "lf_program_new": (c_int, [c_void_p, c_void_p, POINTER(c_void_p)]),
    "lf_program_free": (None, [c_void_p]),
    "lf_program_message": (c_char_p, [c_void_p]),
    "lf_program_set_param": (c_int, [c_void_p, c_char_p, c_void_p, c_size_t]),
    "lf_program_prepare": (c_int, [c_void_p]),
    "lf_program_memory": (None, [c_void_p] + 3 * [POINTER(c_size_t)]),
    "lf_program_explain": (c_int, [c_void_p, POINTER(c_int64), c_bool, POINTER(c_void_p)]),
    "lf_string_free": (None, [c_void_p]),
    "lf_call_new": (c_int, [c_void_p, POINTER(c_void_p)]),
    "lf_call_free": (None, [c_void_p]),
    "lf_call_message": (c_char_p, [c_void_p]),
    "lf_call_set_input": (c_int, [c_void_p, c_size_t, c_int, POINTER(c_int64), c_void_p]),
    "lf_call_output_shape": (c_int, [c_void_p, c_size_t, POINTER(c_int), POINTER(c_int64)]),
    "lf_call_set_output": (c_int, [c_void_p, c_size_t, c_void_p]),
    "lf_call_run": (c_int, [c_void_p]),
    "lf_call_memory": (c_size_t, [c_void_p]),
}


class LinfuseError(Exception):
    pass


def load(path):
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class Handle:
    """Owns one lf_* handle; `kind` names its functions lf_<kind>_message and lf_<kind>_free."""

    kind = None

    def __init__(self, library):
        self.library, self.pointer = library, c_void_p()

    def check(self, status):
        if status != 0:
            message = getattr(self.library, f"lf_{self.kind}_message")(self.pointer) or b""
            raise LinfuseError(f"{self.library.lf_status_name(status).decode()}: {message.decode()}")

    def free(self):
        getattr(self.library, f"lf_{self.kind}_free")(self.pointer)
        self.pointer = c_void_p()


class Context(Handle):
    kind = "context"

    def __init__(self, library, threads):
        super().__init__(library)
        self.check(library.lf_context_new(byref(self.pointer)))
        self.check(library.lf_context_set_threads(self.pointer, threads))


class Model(Handle):
    kind = "model"

    def __init__(self, context, text):
        super().__init__(context.library)
        self.context, data = context, text.encode()
        context.check(self.library.lf_model_read(context.pointer, b"bench", data, len(data), byref(self.pointer)))

    def dim_names(self):
        count = self.library.lf_model_dim_count(self.pointer)
        return [self.library.lf_model_dim_name(self.pointer, i).decode() for i in range(count)]


class Options(Handle):
    kind = "options"

    def __init__(self, context, dims):
        super().__init__(context.library)
        context.check(self.library.lf_options_new(context.pointer, byref(self.pointer)))
        for name, extent in dims.items():
            self.check(self.library.lf_options_set(self.pointer, f"dim.{name}".encode(), str(extent).encode()))


class Program(Handle):
    kind = "program"

    def __init__(self, model, options):
        super().__init__(model.library)
        model.check(self.library.lf_program_new(model.pointer, options.pointer, byref(self.pointer)))

    def set_param(self, name, array):
        self.check(self.library.lf_program_set_param(self.pointer, name.encode(), array.ctypes.data, array.size))

    def prepare(self):
        self.check(self.library.lf_program_prepare(self.pointer))

    def memory(self):
        """Bytes of parameters as given, parameters prepared, everything else."""
        sizes = [c_size_t() for _ in range(3)]
        self.library.lf_program_memory(self.pointer, *[byref(s) for s in sizes])
        return tuple(s.value for s in sizes)

    def explain(self):
        """The account, at the extents of the options: the object that `linfuse explain --json` prints."""
        text = c_void_p()
        self.check(self.library.lf_program_explain(self.pointer, None, True, byref(text)))
        try:
            return json.loads(ctypes.string_at(text.value))
        finally:
            self.library.lf_string_free(text)


class Call(Handle):
    kind = "call"

    def __init__(self, program):
        super().__init__(program.library)
        program.check(self.library.lf_call_new(program.pointer, byref(self.pointer)))

    def set_input(self, index, array):
        """Borrows array (f32, C order) until another is bound."""
        extents = (c_int64 * array.ndim)(*array.shape)
        self.check(self.library.lf_call_set_input(self.pointer, index, array.ndim, extents, array.ctypes.data))

    def output_shape(self, index):
        rank, extents = c_int(), (c_int64 * MAX_RANK)()
        self.check(self.library.lf_call_output_shape(self.pointer, index, byref(rank), extents))
        return tuple(extents[: rank.value])

    def set_output(self, index, array):
        self.check(self.library.lf_call_set_output(self.pointer, index, array.ctypes.data))

    def run(self):
        status = self.library.lf_call_run(self.pointer)
        if status != 0:
            self.check(status)

    def memory(self):
        return self.library.lf_call_memory(self.pointer)

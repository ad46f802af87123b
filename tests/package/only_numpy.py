# SPDX-License-Identifier: Apache-2.0
"""only_numpy.py PREFIX: a user's script where the wheel is unpacked below PREFIX and there is NumPy, but no PyTorch."""

import ctypes
import pathlib
import platform
import sys
import tempfile

import numpy as np

import linfuse

MODEL = """
input x f32[B, 24]
param w f32[16, 24]
a = linear(x, w)
b = relu(a)
return b
"""


def main(prefix: str) -> None:
    assert linfuse.__file__.startswith(prefix), linfuse.__file__
    random = np.random.default_rng(1)
    x, w = (random.integers(-8, 8, (rows, 24)).astype(np.float32) for rows in (5, 16))
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "model.lf"
        file.write_text(MODEL)
        assert np.array_equal(linfuse.load(file, {"w": w})(x), np.maximum(x @ w.T, 0))  # small integers: exactly

    # Python's stable ABI, which PyTorch's calls go by. It says how many words it wants, and not none.
    shortcut = ctypes.PyDLL(pathlib.Path(linfuse.__file__).with_name("liblinfuse_shortcut.so"))
    shortcut.lf_shortcut_teach.argtypes = ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p
    assert shortcut.lf_shortcut_teach((), None, None) > 0
    print(f"fine: Python {sys.version.split()[0]}, {' '.join(platform.libc_ver())}")


if __name__ == "__main__":
    main(sys.argv[1])

# SPDX-License-Identifier: Apache-2.0
"""The package's binding to the C library, python/linfuse/native.py, by itself: the package around it would bring
torch.compile along, which is not what linfuse's memory and time are measured with."""

import importlib.util
import os
import sys

import machine


def load(library):
    """The binding as a module, with this liblinfuse.so behind it."""
    if not os.path.exists(library):
        sys.exit(f"bench: there is no {library}: `make` builds one, `make pack-gpu` one to carry away, in build/gpu")
    os.environ["LINFUSE_LIBRARY"] = str(library)
    spec = importlib.util.spec_from_file_location("linfuse_native", machine.ROOT / "python" / "linfuse" / "native.py")
    native = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(native)
    return native

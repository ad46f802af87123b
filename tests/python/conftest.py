# SPDX-License-Identifier: Apache-2.0
"""What the Python tests share: where the built files are (ctest says so; otherwise build/release), and calling them."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILT = ROOT / "build" / "release"
# The package from the source tree, with the library just built; in processes that tests start, too.
os.environ.setdefault("LINFUSE_LIBRARY", str(BUILT / "liblinfuse.so"))
os.environ.setdefault("LINFUSE_COMMAND", str(BUILT / "linfuse"))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "python"), os.environ.get("PYTHONPATH")]))
sys.path.insert(0, str(ROOT / "python"))
# cpu or cuda: where tests of torch.compile make their tensors.
DEVICE = os.environ.get("LINFUSE_TEST_DEVICE", "cpu")
if DEVICE != "cpu":
    import torch

    if not torch.cuda.is_available():
        pytest.exit("LINFUSE_TEST_DEVICE=cuda: there is no GPU that this PyTorch can use", 3)
    torch.set_default_device(DEVICE)


def _built(variable, default):
    path = pathlib.Path(os.environ.get(variable, default))
    if not path.exists():
        pytest.fail(f"{path} is not there: build it first ({variable} names another place)")
    return path


@pytest.fixture(scope="session")
def root():
    """The top of the source tree."""
    return ROOT


@pytest.fixture(scope="session")
def eval_tool():
    """tests/eval_tool.c, built."""
    return _built("LINFUSE_EVAL_TOOL", BUILT / "tests" / "eval_tool")


@pytest.fixture(scope="session")
def derive_tool():
    """tests/derive_tool.c, built."""
    return _built("LINFUSE_DERIVE_TOOL", BUILT / "tests" / "derive_tool")


@pytest.fixture(scope="session")
def command():
    """The linfuse command."""
    return _built("LINFUSE_COMMAND", BUILT / "linfuse")


@pytest.fixture(scope="session")
def library():
    """The shared library."""
    return _built("LINFUSE_LIBRARY", BUILT / "liblinfuse.so")


@pytest.fixture(scope="session")
def environment(root, library, tmp_path_factory):
    """What an installed package would give: the modules, and the entry point by which torch.compile finds them."""
    place = tmp_path_factory.mktemp("installed")
    info = place / "linfuse-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: linfuse\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[torch_dynamo_backends]\nlinfuse = linfuse.backend:backend\n")
    paths = os.pathsep.join([str(place), str(root / "python")])
    return {**os.environ, "PYTHONPATH": paths, "LINFUSE_LIBRARY": str(library)}


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory):
    """The machine is measured for a file of tests and forgotten after them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def linfuse_command(linfuse):
    """The same by another name, for tests that import linfuse."""
    return linfuse


@pytest.fixture(scope="session")
def linfuse(command):
    """linfuse("explain", model, "--json"): a finished run; its .json is the object printed, if that was asked for."""

    def call(*arguments, status=0):
        done = subprocess.run([str(command), *map(str, arguments)], capture_output=True, text=True, timeout=300)
        assert done.returncode == status, f"exit status {done.returncode}, not {status}\n{done.stderr}"
        done.json = json.loads(done.stdout) if "--json" in arguments and done.stdout else None
        return done

    return call

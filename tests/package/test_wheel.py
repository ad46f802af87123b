# SPDX-License-Identifier: Apache-2.0
"""From a clean copy of the tree to a script that imports only torch: sdist, wheel, clean environment, install, run.

Nothing is fetched: the build tools are those of the environment that runs the tests (requirements-test.txt), and the
clean environment sees its PyTorch by a .pth file. What is installed there comes from the wheel alone. LINFUSE_WHEEL
names another wheel to be tested, such as tools/wheel's.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
TAKEN = ("CMakeLists.txt", "CMakePresets.json", "LICENSE", "Makefile", "README.md", "pyproject.toml",
         "cmake", "examples", "include", "models", "python", "src", "tests/python")  # fmt: skip


def run(*words, **more):
    """A finished command that must succeed; its output."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LINFUSE_", "PYTHON", "CMAKE_", "PIP_"))}
    clean.update(PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INDEX="1", PIP_CONFIG_FILE=os.devnull)
    done = subprocess.run(list(map(str, words)), env=clean, capture_output=True, text=True, timeout=500, **more)
    assert done.returncode == 0, f"{' '.join(map(str, words))}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The source package, made in a clean copy of the tree."""
    copy = tmp_path_factory.mktemp("tree")
    for name in TAKEN:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(ROOT / name, copy / name)
    out = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "-o", out, copy)
    (made,) = out.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """The wheel, made from the source package: what it lacks would be missing here. Or one that was made elsewhere."""
    if "LINFUSE_WHEEL" in os.environ:
        return pathlib.Path(os.environ["LINFUSE_WHEEL"])
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", out, sdist)
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """The interpreter of a clean environment with the wheel in it, and PyTorch to be seen."""
    place = tmp_path_factory.mktemp("clean") / "venv"
    run(sys.executable, "-m", "venv", place)
    inside = place / "bin" / "python"
    paths = run(inside, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))").strip()
    run(inside, "-m", "pip", "install", "--no-deps", wheel)
    (pathlib.Path(paths) / "torch_of_the_tests.pth").write_text(sysconfig.get_path("platlib") + "\n")
    return inside


def header_version():
    header = (ROOT / "include" / "linfuse.h").read_text()
    return ".".join(re.search(rf"LF_VERSION_{part} (\d+)", header)[1] for part in ("MAJOR", "MINOR", "PATCH"))


def test_sdist(sdist):
    assert sdist.name == f"linfuse-{header_version()}.tar.gz"
    with tarfile.open(sdist) as file:
        names = [name.split("/", 1)[1] for name in file.getnames() if "/" in name]
    headers = {"include/linfuse.h", "include/linfuse_tools.h"}
    assert headers | {"python/linfuse/native.py", "pyproject.toml", "LICENSE"} <= set(names)
    assert not [name for name in names if re.search(r"^(\.|build|bench|tests|models)|\.(so|pyc)$", name)]


def test_wheel(wheel):
    assert re.fullmatch(rf"linfuse-{header_version()}-py3-none-[\w.]+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        libraries = {"linfuse/liblinfuse.so", "linfuse/liblinfuse_shortcut.so"}
        assert libraries | {"linfuse/py.typed", "linfuse/__init__.py"} <= names
        modules = {f"linfuse/{path.name}" for path in (ROOT / "python" / "linfuse").glob("*.py")}
        assert {name for name in names if name.endswith(".py")} == modules
        info = f"linfuse-{header_version()}.dist-info"
        assert "[torch_dynamo_backends]\nlinfuse = " in file.read(f"{info}/entry_points.txt").decode()
        metadata = file.read(f"{info}/METADATA").decode()
    assert "Requires-Python: >=3.10" in metadata
    assert not re.search(r"^Requires-Dist: (?!.*extra ==)", metadata, re.MULTILINE)


def test_only_torch_is_imported(python, tmp_path):
    script = tmp_path / "script.py"
    shutil.copy(HERE / "only_torch.py", script)
    told = run(python, script, python.parents[1], cwd=tmp_path)
    assert told.strip().endswith("fine")


def test_command(python):
    assert "logsumexp" in run(python.parent / "linfuse", "ops")
    assert "logsumexp" in run(python, "-m", "linfuse", "ops")


def test_without_torch(python, tmp_path):
    """linfuse.load wants NumPy or nothing."""
    told = run(python, "-c", "import linfuse, sys; print(linfuse.__version__, 'torch' in sys.modules)", cwd=tmp_path)
    assert told.split() == [header_version(), "False"]

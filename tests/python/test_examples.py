# SPDX-License-Identifier: Apache-2.0
"""examples/: the reference models as a user runs them, small; and the C program that serves what they save."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

EXAMPLES = ["lse_chain", "gelu_softmax", "mean_residual"]
BATCH, FEATURES = 24, 96


@pytest.fixture(scope="module")
def saved(root, environment, tmp_path_factory):
    """name -> what the example printed, and the folder it saved into."""
    found = {}
    for name in EXAMPLES:
        folder = tmp_path_factory.mktemp(name)
        words = [sys.executable, root / "examples" / f"{name}.py", "--batch", BATCH, "--features", FEATURES]
        words = [*map(str, words), "--explain", "--save", str(folder)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        found[name] = done.stdout, folder
    return found


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(saved, name):
    told, folder = saved[name]
    assert "linfuse" in told and "largest difference" in told
    assert "Fused: 1 launch\n" in told and "Left to PyTorch" not in told
    assert (folder / "model.lf").exists() and (folder / "model.safetensors").exists()


@pytest.fixture(scope="module")
def serve(root, library, tmp_path_factory):
    """examples/serve.c, built as its first comment says, on the library as built."""
    compiler = os.environ.get("CC") or shutil.which("cc")
    program = tmp_path_factory.mktemp("serve") / "serve"
    words = [compiler, "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{root / 'include'}"]
    words += [
        root / "examples" / "serve.c",
        "-o",
        program,
        f"-L{library.parent}",
        "-llinfuse",
        f"-Wl,-rpath,{library.parent}",
    ]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr

    def call(*arguments, status=0):
        done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=120)
        assert done.returncode == status, done.stderr
        return done

    return call


@pytest.mark.parametrize("name", EXAMPLES)
def test_served_by_c(root, saved, serve, name, tmp_path):
    """What C serves is what the module gives; at a batch other than the one it was saved with."""
    from safetensors.torch import load_file

    sys.path.insert(0, str(root / "examples"))
    try:
        module = __import__(name)
    finally:
        sys.path.pop(0)
    kind = {"lse_chain": "LseChain", "gelu_softmax": "GeluSoftmax", "mean_residual": "MeanResidual"}[name]
    model = getattr(module, kind)(FEATURES, FEATURES).double().eval()
    folder = saved[name][1]
    weights = {key.removeprefix("_"): value.double() for key, value in load_file(folder / "model.safetensors").items()}
    model.load_state_dict(weights)
    x = np.random.default_rng(3).random((7, FEATURES), np.float32)
    np.save(tmp_path / "x.npy", x)
    assert serve(folder, tmp_path / "x.npy", tmp_path / "y.npy").stdout == "7 rows served\n"
    with torch.no_grad():
        want = model(torch.from_numpy(x).double()).numpy()
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), want, rtol=2e-5, atol=1e-6)


def test_serve_says_what_is_wrong(saved, serve, tmp_path):
    folder = saved["lse_chain"][1]
    np.save(tmp_path / "narrow.npy", np.zeros((2, 5), np.float32))
    assert "extent 1 of the tensor is 5" in serve(folder, tmp_path / "narrow.npy", status=1).stderr
    assert "nowhere" in serve(tmp_path / "nowhere", tmp_path / "narrow.npy", status=1).stderr
    assert "usage" in serve(status=2).stderr

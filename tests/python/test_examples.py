# SPDX-License-Identifier: Apache-2.0
"""examples/: each as a user runs it, small; and the C program that serves what they save."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

EXAMPLES = ["lse_chain", "gelu_softmax", "mean_residual"]
BATCH, FEATURES = 24, 96


@pytest.fixture(scope="module")
def example(root, environment):
    """example("lm_head", "--batch", 8): what that prints."""

    def call(name, *arguments):
        words = [sys.executable, root / "examples" / f"{name}.py", *arguments]
        done = subprocess.run(list(map(str, words)), env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


@pytest.fixture(scope="module")
def saved(example, tmp_path_factory):
    """name -> what the example printed, and the folder it saved into."""
    found = {}
    for name in EXAMPLES:
        folder = tmp_path_factory.mktemp(name)
        found[name] = example(name, "--batch", BATCH, "--features", FEATURES, "--explain", "--save", folder), folder
    return found


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(saved, name):
    told, folder = saved[name]
    assert "linfuse" in told and "largest difference" in told
    assert "Fused: 1 launch\n" in told and "Left to PyTorch" not in told
    assert (folder / "model.lf").exists() and (folder / "model.safetensors").exists()


def test_classifier(example, tmp_path):
    """It learns, and linfuse gives the points the classes that PyTorch gives them."""
    told = example("mlp_classifier", "--batch", 500, "--features", 64, "--save", tmp_path, "--explain")
    plain, fused = map(float, re.search(r"PyTorch (\S+)%, linfuse (\S+)%", told).groups())
    assert plain > 90 and abs(plain - fused) < 0.3  # at most one point of 500, on the border of two arms
    assert "Left to PyTorch" not in told and (tmp_path / "model.lf").exists()


def test_recommender(example):
    """The products run in linfuse; no op is told twice, and none is missing."""
    told = example("recommender", "--batch", 32, "--features", 48)
    fused = re.findall(r"^linfuse: (.*)", told, re.M)
    left = re.findall(r"^PyTorch: (\w+): \S+", told, re.M)
    ops = [op for names in fused for op in names.split(", ")]
    assert {"user.hidden", "user.out", "item.hidden", "item.out", "mul"} <= set(ops)
    assert not set(ops) & set(left) and len(left) == len(set(left))
    assert "embedding" in told and "normalize" in told


def test_lm_head(example):
    """The log-probabilities are those of log_softmax, and the logits are never stored."""
    told = example("lm_head", "--batch", 16, "--features", 32, "--vocabulary", 1000, "--explain")
    plain, fused = re.search(r"perplexity .* (\d+), by log_softmax and gather (\d+)", told).groups()
    assert plain == fused
    assert re.search(r"never stored +linear,", told)


def cells_of(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell, kind):
    """What a cell shows of that MIME type, or prints where that is None."""
    if kind is None:
        return ["".join(one.text for one in cell.outputs if one.output_type == "stream" and one.name == "stdout")]
    return [one.data[kind] for one in cell.outputs if kind in one.get("data", {})]


def test_lm_train(example):
    """It learns, and as PyTorch's own loss does."""
    ours, plain = (re.findall(r"step +(\d+)  loss (\S+)", example("lm_train", "--vocabulary", 2000, *more))
                   for more in ([], ["--plain"]))
    assert float(ours[-1][1]) < 0.1 * float(ours[0][1])
    assert all(abs(float(one) - float(other)) < 2e-3 for (_, one), (_, other) in zip(ours, plain, strict=True))


@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("nbclient", "ipykernel")),
    reason="nbclient and ipykernel are not installed (requirements-test.txt has them)",
)
def test_notebook(root, environment):
    """examples/explain.ipynb runs in a kernel of Jupyter, says nothing on standard error, and what is stored in it is
    what it prints and shows. LINFUSE_REFRESH=1 stores what it shows now."""
    import nbclient
    import nbformat

    file = root / "examples" / "explain.ipynb"
    stored, now = nbformat.read(file, as_version=4), nbformat.read(file, as_version=4)
    nbclient.NotebookClient(now, timeout=300).execute(env=environment)
    if os.environ.get("LINFUSE_REFRESH"):
        for cell in cells_of(now):
            cell.metadata.pop("execution", None)  # when it ran is no part of it
        nbformat.write(now, file)
        stored = now
    assert not [one for cell in cells_of(now) for one in cell.outputs if one.get("name") == "stderr"]
    printed = [[shown(cell, None) for cell in cells_of(one)] for one in (stored, now)]
    assert printed[0] == printed[1] and any(filter(None, sum(printed[1], [])))
    pages = [[page for cell in cells_of(one) for page in shown(cell, "text/html")] for one in (stored, now)]
    for account, bench in pages:
        assert "lf-account" in account and "eager" in bench  # the page, and a table of times that differ every time
    assert without_numbers(pages[0][0]) == without_numbers(pages[1][0])


def without_numbers(page):
    """The words of a page: times, positions in drawings, points above the roof and the machine's name are another
    machine's."""
    words = re.sub(r"(?s)<svg.*?</svg>|<[^>]*>", " ", page)
    words = re.sub(r" \(above the roof: [^)]*\)", "", words)
    words = re.sub(r" on [^,:]*, \d+ threads?, \w+", "", words)
    return re.sub(r"-?\d[\d.]*(e-?\d+)?(\s?[kMGT]?(FLOP|B)(/[sB])?|\s[µum]?s)?x?%?", "N", words).split()


def built(root, library, folder, name, compiler=None):
    """examples/NAME.c, built as its first comment says, on the library as built."""
    compiler = compiler or os.environ.get("CC") or shutil.which("cc")
    program = folder / name
    words = [compiler, "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{root / 'include'}"]
    words += [
        root / "examples" / f"{name}.c",
        "-o",
        program,
        f"-L{library.parent}",
        "-llinfuse",
        f"-Wl,-rpath,{library.parent}",
    ]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return program


def test_trained_by_c(root, library, tmp_path):
    """It learns; what it prints is the same on any number of threads."""
    done = subprocess.run(
        [built(root, library, tmp_path, "train_head"), "200"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    assert len(losses) == 5 and losses[0] > 4 and losses[-1] < 1.2


@pytest.fixture(scope="module")
def mpi_head(root, library, tmp_path_factory):
    """Runs examples/mpi_head.c on so many processes."""
    if not shutil.which("mpicc") or not shutil.which("mpirun"):
        pytest.skip("no MPI here: mpicc and mpirun are not found (tools/setup test installs Open MPI as root)")
    program = built(root, library, tmp_path_factory.mktemp("mpi"), "mpi_head", shutil.which("mpicc"))
    # Open MPI's, which other MPIs do not read: as root in a container, more processes than cores, no network.
    own = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PRTE_ALLOW_RUN_AS_ROOT": "1",
           "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
           "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_btl": "self,vader",
           "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_MCA_mpi_yield_when_idle": "1"}

    def run(ranks):
        done = subprocess.run(["mpirun", "-n", str(ranks), program, "120"], env={**os.environ, **own},
                              capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_trained_over_ranks_by_c(root, library, tmp_path, mpi_head):
    """Words split over processes of MPI, unevenly, some of them nobody's target: what one process learns, which is what
    train_head does without MPI, to the digit."""
    alone = subprocess.run([built(root, library, tmp_path, "train_head"), "120"], capture_output=True, text=True,
                           timeout=120).stdout
    assert len(alone.splitlines()) == 4 and mpi_head(1) == alone
    losses = [float(line.split()[-1]) for line in alone.splitlines()]
    for ranks in (2, 3, 4):
        over_ranks = [float(line.split()[-1]) for line in mpi_head(ranks).splitlines()]
        assert over_ranks == pytest.approx(losses, abs=2e-3) and over_ranks[0] == losses[0]


@pytest.fixture(scope="module")
def serve(root, library, tmp_path_factory):
    program = built(root, library, tmp_path_factory.mktemp("serve"), "serve")

    def call(*arguments, requests="", status=0):
        words = [program, *map(str, arguments)]
        done = subprocess.run(words, input=requests, capture_output=True, text=True, timeout=120)
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


def test_serves_requests(saved, serve, tmp_path):
    """Requests of different batches, in turn, on one program; one that is wrong stops nobody else."""
    folder = saved["gelu_softmax"][1]
    batches = [7, 3, 11]
    for batch in batches:
        np.save(tmp_path / f"x{batch}.npy", np.random.default_rng(batch).random((batch, FEATURES), np.float32))
    np.save(tmp_path / "narrow.npy", np.zeros((2, 5), np.float32))
    lines = [f"{tmp_path}/x{batch}.npy {tmp_path}/y{batch}.npy" for batch in batches]
    assert serve(folder, requests="\n".join(lines)).stdout == "7 rows served\n3 rows served\n11 rows served\n"
    for batch in batches:
        serve(folder, tmp_path / f"x{batch}.npy", tmp_path / "alone.npy")
        assert np.array_equal(np.load(tmp_path / f"y{batch}.npy"), np.load(tmp_path / "alone.npy"))
    told = serve(folder, requests=f"{tmp_path}/narrow.npy\n\n{lines[0]}\n", status=1)
    assert "is 5" in told.stderr and told.stdout == "7 rows served\n"
    assert serve(folder).stdout == ""


def test_serve_says_what_is_wrong(saved, serve, tmp_path):
    folder = saved["lse_chain"][1]
    np.save(tmp_path / "narrow.npy", np.zeros((2, 5), np.float32))
    assert "extent 1 of the tensor is 5" in serve(folder, tmp_path / "narrow.npy", status=1).stderr
    assert "nowhere" in serve(tmp_path / "nowhere", tmp_path / "narrow.npy", status=1).stderr
    assert "usage" in serve(status=2).stderr

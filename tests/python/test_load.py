# SPDX-License-Identifier: Apache-2.0
"""linfuse.load: arrays in, arrays out, of NumPy and of torch; what is refused, and in which words."""

import copy
import dataclasses
import gc
import importlib
import json
import multiprocessing
import os
import pickle
import platform
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import linfuse
from linfuse import native

TWO = """
input x f32[B, 24]
input y f32[B, 1]
param w f32[16, 24]
param b f32[16]
a = linear(x, w, b)
s = softmax(a, dim=1)
m = max(a, dim=1)
t = mul(s, y)
return t, m
"""


@pytest.fixture(scope="module")
def weights():
    random = np.random.default_rng(1)
    return {"w": random.standard_normal((16, 24), np.float32), "b": random.standard_normal(16, np.float32)}


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("load") / "two.lf"
    file.write_text(TWO)
    return file


@pytest.fixture(scope="module")
def program(model_file, weights):
    return linfuse.load(model_file, weights, threads=2)


def draw(batch, seed=2):
    random = np.random.default_rng(seed)
    return random.standard_normal((batch, 24), np.float32), random.standard_normal((batch, 1), np.float32)


def reference(x, y, weights):
    a = torch.from_numpy(np.array(x)).double() @ torch.from_numpy(weights["w"]).double().T + torch.from_numpy(
        weights["b"]
    )
    return (a.softmax(1) * torch.from_numpy(np.array(y))).numpy(), a.amax(1).numpy()


def assert_near(got, want):
    assert len(got) == len(want)
    for one, other in zip(got, want):
        np.testing.assert_allclose(np.asarray(one), other, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("batch", [0, 1, 5, 64])
def test_numpy(program, weights, batch):
    x, y = draw(batch)
    got = program(x, y)
    assert all(isinstance(one, np.ndarray) and one.dtype == np.float32 for one in got)
    assert got[0].shape == (batch, 16) and got[1].shape == (batch,)
    assert_near(got, reference(x, y, weights))


def test_masked_arrays_are_refused(tmp_path):
    """Their mask would be lost."""
    path = tmp_path / "m.lf"
    path.write_text("input x f32[B, 3]\ny = relu(x)\nreturn y\n")
    program = linfuse.load(path)
    x = np.ma.masked_array(np.ones((2, 3), np.float32), mask=[[0, 0, 1], [0, 0, 0]])
    with pytest.raises(TypeError, match=r"x is a masked array: pass it as \.filled\(\.\.\.\)"):
        program(x)
    assert np.array_equal(program(x.filled(-1)), np.float32([[1, 1, 0], [1, 1, 1]]))


def test_torch(program, weights):
    x, y = draw(7)
    got = program(torch.from_numpy(x), y=torch.from_numpy(y))
    assert all(isinstance(one, torch.Tensor) for one in got)
    assert_near(got, reference(x, y, weights))
    assert isinstance(program(torch.from_numpy(x), y)[0], torch.Tensor)


def test_not_contiguous(program, weights):
    x, y = draw(6)
    want = reference(x, y, weights)
    assert_near(program(np.asfortranarray(x), y), want)
    assert_near(program(np.repeat(x, 2, axis=0)[::2], y), want)
    assert_near(program(torch.from_numpy(np.ascontiguousarray(x.T)).t(), torch.from_numpy(y)), want)
    shifted = np.frombuffer(b"." + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape)
    assert not shifted.flags.aligned
    assert_near(program(shifted, y), want)
    spread = np.broadcast_to(y[:1], (6, 1))
    assert_near(program(x, spread), reference(x, spread, weights))


def test_what_came_out_stays(program):
    """A later call does not write into an earlier call's results."""
    x, y = draw(9)
    first = program(x, y)
    kept = [one.copy() for one in first]
    program(*draw(9, seed=3))
    for one, other in zip(first, kept):
        np.testing.assert_array_equal(one, other)


def test_weights_from_a_file(model_file, weights, tmp_path):
    save_file(weights, tmp_path / "w.safetensors")
    x, y = draw(4)
    assert_near(linfuse.load(model_file, weights=tmp_path / "w.safetensors")(x, y), reference(x, y, weights))


def test_weights_of_torch(model_file, weights):
    x, y = draw(4)
    given = {
        "w": torch.from_numpy(weights["w"].copy()).requires_grad_(),
        "b": torch.from_numpy(weights["b"]),
        "other": None,
    }
    assert_near(linfuse.load(model_file, given)(x, y), reference(x, y, weights))


def test_seed_is_the_commands(model_file, linfuse_command, tmp_path):
    x, y = draw(3)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    arguments = [
        "--seed",
        5,
        "--input",
        f"x={tmp_path}/x.npy",
        "--input",
        f"y={tmp_path}/y.npy",
        "--output",
        f"t={tmp_path}/t.npy",
    ]
    linfuse_command("run", model_file, *arguments)
    np.testing.assert_array_equal(linfuse.load(model_file, seed=5)(x, y)[0], np.load(tmp_path / "t.npy"))


def test_options(model_file, weights):
    x, y = draw(8)
    plain = linfuse.load(
        model_file, weights, rules="-all", assume_finite=True, dims={"B": 8}, threads=1, precision="fp32"
    )
    assert_near(plain(x, y), reference(x, y, weights))


def test_threads(program, weights):
    """Several threads call one program."""
    wrong = []

    def work(seed):
        for batch in range(1, 30):
            x, y = draw(batch, seed)
            try:
                assert_near(program(x, y), reference(x, y, weights))
            except AssertionError as why:
                wrong.append(why)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    assert not wrong


def test_words(program, model_file):
    assert [str(spec) for spec in program.inputs] == ["x f32[B, 24]", "y f32[B, 1]"]
    assert [str(spec) for spec in program.outputs] == ["t f32[B, 16]", "m f32[B]"]
    assert str(model_file) in repr(program)
    assert "softmax" in program.text
    assert program.memory().params == 4 * (16 * 24 + 16)


# ---- copies ----


def sent_to(function, value):
    """What a spawned process makes of a value."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, (value,))


def saved(program, tmp_path):
    torch.save({"step": 3, "program": program}, tmp_path / "program.pt")
    return torch.load(tmp_path / "program.pt", weights_only=False)["program"]


@dataclasses.dataclass
class Holder:
    program: linfuse.Program


class Module(torch.nn.Module):
    def __init__(self, program):
        super().__init__()
        self.linear, self.program = torch.nn.Linear(24, 24), program


COPIES = {
    "copy": lambda program, _: copy.copy(program),
    "deepcopy": lambda program, _: copy.deepcopy(program),
    "dataclass": lambda program, _: copy.deepcopy(Holder(program)).program,
    "replace": lambda program, _: dataclasses.replace(copy.deepcopy(Holder(program))).program,
    "module": lambda program, _: copy.deepcopy(Module(program)).program,
    "there and back": lambda program, _: sent_to(copy.copy, program),
    "torch.save": saved,
    **{
        f"pickle {protocol}": lambda program, _, protocol=protocol: pickle.loads(pickle.dumps(program, protocol))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    },
}


@pytest.mark.parametrize("made", COPIES.values(), ids=COPIES)
def test_a_copy_is_a_program_of_its_own(model_file, weights, tmp_path, made):
    program = linfuse.load(model_file, weights, threads=1, rules="-all", assume_finite=True)
    x, y = draw(5)
    want = program(x, y)
    other = made(program, tmp_path)
    assert other is not program and repr(other) == repr(program) and other.text == program.text
    assert other.explain(dims={"B": 8}).json() == program.explain(dims={"B": 8}).json()
    del program
    gc.collect()
    for one, two in zip(other(x, y), want):
        np.testing.assert_array_equal(one, two)
    again = copy.deepcopy(other)
    del other
    gc.collect()
    for one, two in zip(again(x, y), want):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("given", [{"seed": 4}, {"weights": "file"}])
def test_a_copy_has_the_weights_wherever_they_were_from(model_file, weights, tmp_path, given):
    file = tmp_path / "w.safetensors"
    save_file(weights, file)
    program = linfuse.load(model_file, **{**given, **({"weights": file} if "weights" in given else {})})
    words = pickle.dumps(program)
    file.unlink()
    x, y = draw(2)
    for one, two in zip(pickle.loads(words)(x, y), program(x, y)):
        np.testing.assert_array_equal(one, two)


def test_a_copy_while_others_call(program):
    x, y = draw(64)
    want, wrong = program(x, y), []

    def work():
        for _ in range(50):
            wrong.extend(one for one, two in zip(program(x, y), want) if not np.array_equal(one, two))

    callers = [threading.Thread(target=work) for _ in range(2)]
    for one in callers:
        one.start()
    copies = [copy.deepcopy(program) for _ in range(5)]
    for one in callers:
        one.join()
    assert not wrong
    for other in copies:
        np.testing.assert_array_equal(other(x, y)[0], want[0])


def test_handles_say_that_they_cannot_be_copied(program, model_file):
    context = native.Context()
    model = native.Model.read_file(context, model_file)
    for handle in (context, model, program._program, native.Call(program._program)):
        for attempt in (copy.copy, copy.deepcopy, pickle.dumps, lambda one: pickle.dumps(one, 0)):
            with pytest.raises(TypeError, match="belongs to this process, and cannot be copied or pickled"):
                attempt(handle)


X, Y = draw(3)


@pytest.mark.parametrize(
    ("arguments", "named", "kind", "words"),
    [
        ((X,), {}, TypeError, r"takes 2 inputs \(x, y\); y is missing"),
        ((X, Y, Y), {}, TypeError, r"takes 2 inputs \(x, y\), not 3"),
        ((X, Y), {"z": Y}, TypeError, "not 3"),
        ((X,), {"z": Y}, TypeError, "none is called z"),
        ((X,), {"x": X}, TypeError, "x is given twice"),
        ((X.astype(np.float64), Y), {}, TypeError, r"input x is float64, not float32: pass it as \.astype"),
        ((X.astype(">f4"), Y), {}, TypeError, "input x is >f4"),
        ((X.tolist(), Y), {}, TypeError, "input x is a list"),
        ((X, torch.from_numpy(Y).double()), {}, TypeError, r"input y is torch.float64.*\.float\(\)"),
        ((torch.from_numpy(X).requires_grad_(), Y), {}, TypeError, "input x requires grad.*no_grad"),
        ((torch.from_numpy(X).to_sparse(), Y), {}, TypeError, r"sparse.*to_dense"),
        ((torch.empty(3, 24, device="meta"), Y), {}, TypeError, "is on meta"),
        ((X[:, :5], Y), {}, linfuse.Error, r"input x f32\[B, 24\] is given as \[3, 5\]$"),
        ((X[0], Y), {}, linfuse.Error, "input x"),
        ((X, Y[:2]), {}, linfuse.Error, r"input y f32\[B, 1\] is given as \[2, 1\], where B is 3"),
    ],
)
def test_bad_inputs(program, weights, arguments, named, kind, words):
    with pytest.raises(kind, match=words):
        program(*arguments, **named)
    assert_near(program(X, Y), reference(X, Y, weights))  # and it goes on


def test_forward_mode_is_refused(program):
    with torch.autograd.forward_ad.dual_level():
        x = torch.from_numpy(X)
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(TypeError, match="input x is a dual tensor"):
            program(dual, Y)


def test_no_grad_is_enough(program, weights):
    with torch.no_grad():
        assert_near(program(torch.from_numpy(X).requires_grad_(), Y), reference(X, Y, weights))


TURNED = np.zeros((24, 16), np.float32)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, r"two.lf: no weights for its parameters \(w, b\)"),
        ({"weights": {"w": np.zeros((16, 24), np.float32)}}, "the weights have no b"),
        ({"weights": {"w": TURNED, "b": np.zeros(16)}}, r"parameter w f32\[16, 24\] is given as \[24, 16\]"),
        ({"weights": "nowhere.safetensors"}, "nowhere.safetensors"),
        ({"weights": "a\0b.safetensors"}, "null character"),
        ({"seed": 1 << 64}, "a seed cannot be 18446744073709551616"),
        ({"seed": -1}, "a seed cannot be -1"),
        ({"seed": 1, "precision": "half"}, "precision"),
        ({"seed": 1, "precision": "tf32"}, "precision tf32: device cpu has only fp32"),
        ({"seed": 1, "rules": "+nothing"}, "no rule 'nothing'"),
        ({"seed": 1, "device": "tpu"}, "device"),
        ({"seed": 1, "dims": {"Q": 3}}, "Q"),
        ({"seed": 1, "threads": -1}, "threads"),
    ],
)
def test_bad_options(model_file, options, words):
    with pytest.raises(linfuse.Error, match=words):
        linfuse.load(model_file, **options)


def test_an_extent_beyond_an_int64_is_not_cut_short(program):
    with pytest.raises(linfuse.Error, match="an extent cannot be 18446744073709551624"):
        program.explain(dims={"B": (1 << 64) + 8})


def test_bad_model(tmp_path):
    (tmp_path / "bad.lf").write_text("input x f32[B, 4]\na = nonsense(x)\nreturn a\n")
    with pytest.raises(linfuse.Error, match=r"bad.lf:2:5: .*nonsense"):
        linfuse.load(tmp_path / "bad.lf")
    with pytest.raises(linfuse.Error, match="nowhere.lf"):
        linfuse.load(tmp_path / "nowhere.lf")


def test_dir_is_what_is_public():
    listed = [name for name in dir(linfuse) if not name.startswith("__")]
    assert listed == sorted(linfuse.__all__) and all(hasattr(linfuse, name) for name in listed)


def test_what_wants_pytorch_says_so():
    code = (
        "import sys; sys.modules['torch'] = None; import linfuse\n"
        "try: linfuse.stats()\nexcept linfuse.Error as why: print(why)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "linfuse.stats needs PyTorch, which is not installed\n", done.stderr


# ---- folders, and the command ----


def test_load_a_folder(model_file, weights, tmp_path):
    x, y = np.ones((3, 24), np.float32), np.ones((3, 1), np.float32)
    with pytest.raises(linfuse.Error, match="has no .lf file"):
        linfuse.load(tmp_path)
    (tmp_path / "one.lf").write_text(TWO)
    assert [output.shape for output in linfuse.load(str(tmp_path), seed=1)(x, y)] == [(3, 16), (3,)]
    save_file(weights, tmp_path / "one.safetensors")
    wanted = linfuse.load(model_file, weights)(x, y)
    for got, want in zip(linfuse.load(tmp_path)(x, y), wanted):
        np.testing.assert_array_equal(got, want)
    for got, want in zip(linfuse.load(tmp_path / "one.lf")(x, y), wanted):
        np.testing.assert_array_equal(got, want)
    assert str(linfuse.explain(tmp_path)) == str(linfuse.explain(tmp_path / "one.lf"))
    zeros = {name: np.zeros_like(values) for name, values in weights.items()}
    assert not linfuse.load(tmp_path, zeros)(x, y)[1].any()
    (tmp_path / "other.lf").write_text(TWO)
    with pytest.raises(linfuse.Error, match="2 models, one.lf, other.lf"):
        linfuse.load(tmp_path)


def test_the_command_by_way_of_python(command, tmp_path, monkeypatch):
    def run(*arguments, named=str(command)):
        return subprocess.run([sys.executable, "-m", "linfuse", *arguments], capture_output=True, text=True,
                              env={**os.environ, "LINFUSE_COMMAND": named})

    done = run("--version")
    assert done.returncode == 0 and done.stdout == f"linfuse {linfuse.version()}\n"
    assert run("fly").returncode == 2
    done = run("--version", named="")
    assert done.returncode == 1 and "LINFUSE_COMMAND is not set" in done.stderr
    done = run("--version", named="/nowhere/linfuse")
    assert done.returncode == 1 and "/nowhere/linfuse cannot be run: No such file" in done.stderr
    (tmp_path / "linfuse").symlink_to(command)
    monkeypatch.setattr("sysconfig.get_path", lambda *_: str(tmp_path))
    assert importlib.import_module("linfuse.__main__").command() == str(tmp_path / "linfuse")


def doctor(*arguments, **more):
    done = subprocess.run([sys.executable, "-m", "linfuse", "doctor", *arguments], capture_output=True, text=True,
                          env={**os.environ, **more})
    assert done.returncode == 0 and done.stderr == ""
    return done.stdout


def test_doctor_tells_of_python_and_torch():
    found = json.loads(doctor("--json"))
    assert found["python"] == {"version": platform.python_version(), "executable": sys.executable}
    assert found["package"] == {"library": str(native.library_path()), "version": linfuse.version()}
    assert found["torch"] == {"version": torch.__version__, "cuda": torch.version.cuda}
    assert found["numpy"] == {"version": np.__version__}
    assert found["version"] == linfuse.version() and found["cuda"]["nvrtc"]  # the one of requirements-test.txt
    lines = doctor().splitlines()
    (start,) = {line.index(value) for line, value in zip(lines, [linfuse.version(), platform.system()])}
    for title, value in ("Python", platform.python_version()), ("torch", torch.__version__), ("numpy", np.__version__):
        assert [line for line in lines if line.startswith(f"  {title} ") and line[start:].startswith(value)]


def test_doctor_where_much_is_missing(tmp_path, monkeypatch):
    (tmp_path / "broken_torch.py").write_text("raise OSError('libcudart.so: cannot open')")
    monkeypatch.syspath_prepend(tmp_path)
    version = importlib.import_module("linfuse.__main__").version_of
    assert version("broken_torch") == (None, "cannot be imported: libcudart.so: cannot open")
    assert version("no_such_torch") == (None, "not installed")
    help_text = doctor("--help")
    assert help_text.startswith("linfuse doctor") and "torch" not in help_text

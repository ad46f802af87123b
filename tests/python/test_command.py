# SPDX-License-Identifier: Apache-2.0
"""The linfuse command from outside: what every command prints and returns, what it says when something is wrong, and
that `run` computes what PyTorch computes."""

import json
import os
import pathlib
import platform
import pty
import re
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file

SMALL = """\
# Linear -> LogSumExp -> LeakyReLU -> GELU
input x f32[B, 33]
param linear.weight f32[47, 33]
param linear.bias f32[47]
a = linear(x, linear.weight, linear.bias)
b = logsumexp(a, dim=1, keepdim=true)
c = leaky_relu(b, negative_slope=0.01)
d = gelu(c)
return d
"""

TWO = "input x f32[B, T, 8]\ninput y f32[B, 8]\na = relu(x)\nb = sum(y, dim=1)\nreturn a, b\n"


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "small.lf"
    path.write_text(SMALL)
    return path


@pytest.fixture
def refused(linfuse):
    """Runs what should fail with this exit status; returns its one line on stderr."""

    def call(*arguments, status=2):
        done = linfuse(*arguments, status=status)
        assert done.stdout == ""
        assert re.fullmatch(r"linfuse: [^\n]+\n", done.stderr), done.stderr
        return done.stderr

    return call


def assert_number(value, least=0.0):
    assert isinstance(value, (int, float)) and not isinstance(value, bool) and value >= least


# ---- usage ----


def test_help_and_version(linfuse):
    text = linfuse("--help").stdout
    commands = "explain check run bench emit ops doctor".split()
    for word in [*commands, *"--dim --batch --device --precision --threads --seed --rules".split()]:
        assert word in text
    assert re.fullmatch(r"linfuse \d+\.\d+\.\d+\n", linfuse("--version").stdout)
    for name in commands:
        done = linfuse(name, "--help")
        assert done.stdout.startswith(f"linfuse {name}") and "--json" in done.stdout and done.stderr == ""
    assert "an input's data (f32, f16, bf16 or i64)" in linfuse("run", "--help").stdout
    assert max(map(len, text.splitlines())) < 200


@pytest.mark.parametrize(
    "arguments, says",
    [
        ([], "no command given"),
        (["fly"], "unknown command 'fly'; see linfuse --help"),
        (["chekc", "M"], "unknown command 'chekc'; did you mean check? See linfuse --help"),
        (["--hepl"], "unknown option '--hepl'; did you mean --help? See linfuse --help"),
        (["check", "M", "--tread=3"], "unknown option '--tread=3'; did you mean --threads? See linfuse --help"),
        (["check", "M", "--inptu=3"], "unknown option '--inptu=3'; see linfuse --help"),
        (["run", "M", "--inptu=3"], "unknown option '--inptu=3'; did you mean --input? See linfuse --help"),
        (["check", "M", "--rules", "-idempotant"], "'idempotant'; did you mean idempotent?\n"),
        (["--fly"], "unknown option '--fly'; see linfuse --help"),
        (["check", "M", "--fly"], "unknown option '--fly'; see linfuse --help"),
        (["check", "M", "--fly=3"], "unknown option '--fly=3'"),
        (["check", "M", "-f"], "unknown option '-f'"),
        (["check"], "check needs a model file"),
        (["check", "M", "M"], "one model at a time"),
        (["check", "M", "--batch"], "--batch needs a whole number"),
        (["check", "M", "--batch", "0"], "--batch needs a whole number, 1 or more, not '0'"),
        (["check", "M", "--batch=-3"], "not '-3'"),
        (["check", "M", "--batch=3x"], "not '3x'"),
        (["check", "M", "--batch", "99999999999999999999"], "--batch 99999999999999999999 is too large"),
        (["check", "M", "--batch", "9223372036854775808"], "--batch 9223372036854775808 is too large"),
        (["check", "M", "--dim", "B=9223372036854775808"], "--dim B=9223372036854775808 is too large"),
        (["check", "M", "--seed", "18446744073709551616"], "--seed 18446744073709551616 is too large"),
        (["check", "M", "--json=yes"], "--json takes no value"),
        (["check", "M", "--dim", "B"], "--dim needs NAME=NUMBER, not 'B'"),
        (["check", "M", "--dim", "B=x"], "--dim B needs a whole number, 1 or more, not 'x'"),
        (["check", "M", "--dim", "C=4"], "no extent of that name (it has: B)"),
        (["check", "M", "--runs", "3"], "check takes no option --runs"),
        (["check", "M", "--input", "x=x.npy"], "check takes no option --input"),
        (["ops", "M"], "ops takes no argument"),
        (["check", "M", "--batch", "4", "--dim", "B=5"], "--dim B=5: B was given as 4 before"),
        (["check", "M", "--dim", "B=5", "--dim=B=6"], "--dim B=6: B was given as 5 before"),
        (["ops", "--batch", "3"], "ops takes no option --batch"),
        (["check", "M", "--device", "abacus"], "abacus"),
        (["explain", "M", "--device", "abacus"], "abacus"),
        (["check", "M", "--device", "h200"], "needs cpu or cuda"),
        (["check", "M", "--tune"], "tune: device cpu has nothing to measure"),
        (["explain", "M", "--tune"], "explain takes no option --tune"),
        (["explain", "M", "--html"], "--html needs a file to write the page to"),
        (["explain", "M", "--html="], "--html needs a file to write the page to"),
        (["explain", "M", "--htm", "x.html"], "did you mean --html?"),
        (["check", "M", "--html", "x.html"], "check takes no option --html"),
        (["explain", "M", "--html", "no/such/x.html"], "cannot write no/such/x.html: No such file"),
        (["explain", "M", "--html", "/dev/full"], "cannot write /dev/full: No space left"),
        (["explain", "M", "--json", "--html", "/dev/stdout"], "--json and --html both go to standard output"),
        (["check", "M", "--precision", "fp7"], "fp7"),
        (["check", "M", "--rules", "+no_such_rule"], "no_such_rule"),
        (["check", "M", "--threads", "0"], "--threads needs"),
        (["check", "M", "--threads", "99999999999"], "no machine has as many"),
        (["check", "M", "--weights", "no/such.safetensors"], "no/such.safetensors"),
        (["check", "no/such.lf"], "cannot read no/such.lf: No such file"),
        (["check", "."], "the folder . has no .lf file"),
        (["emit", "M"], "emit needs --arch"),
        (["emit", "M", "--arch", "sm_10"], "sm_10"),
    ],
)
def test_bad_usage(refused, model, arguments, says):
    assert says in refused(*[str(model) if a == "M" else a for a in arguments])


def test_option_spellings(linfuse, model):
    a = linfuse("check", model, "--dim", "B=5", "--seed", "7", "--threads", "2", "--json").json
    b = linfuse("check", "--json", "--batch=5", "--seed=7", "--threads=1", "--", model).json
    assert a == b and a["rows"] == 5
    assert linfuse("check", model, "--batch=5", "--seed=8", "--json").json != a


MIXED = """input x bf16[B, 300]
input r f16[B, 40]
param w bf16[40, 300]
param b f32[40]
a = linear(x, w)
h = to(a, dtype="f32")
c = add(h, b)
d = softmax(c, dim=1)
e = to(d, dtype="f16")
f = mul(e, r)
return a, d, f
"""


def test_check_knows_types(linfuse, tmp_path):
    """Fused is allowed the error of op by op in these types, or one rounding of the result: never more than that."""
    (tmp_path / "mixed.lf").write_text(MIXED)
    unit = {"a": 2.0**-9, "d": 2.0**-9, "f": 2.0**-9}  # d and f follow from a, which op by op rounds to bf16
    for seed in range(4):
        done = linfuse("check", tmp_path / "mixed.lf", "--json", f"--seed={seed}", "--batch=1024").json
        most = max(1.07 * done["plain_error"]["rel"], unit[done["output"]] + 1e-5)
        assert done["ok"] and 0 < done["error"]["rel"] <= done["allowed_rel"] <= most, done
        assert done["rows"] == 1024 and done["nonfinite_match"]
    assert "Of 3 outputs, these are the errors of " in linfuse("check", tmp_path / "mixed.lf").stdout


def test_bench_and_explain_know_types(linfuse, tmp_path):
    (tmp_path / "mixed.lf").write_text("input target i64[B]\n" + MIXED)
    (tmp_path / "wide.lf").write_text(re.sub("b?f16", "f32", MIXED))
    assert linfuse("bench", tmp_path / "mixed.lf", "--batch=8", "--runs=2", "--json").json["fused_ms"] > 0
    mixed, wide = (linfuse("explain", tmp_path / f"{n}.lf", "--batch=8", "--json").json for n in ("mixed", "wide"))
    halves = 8 * 300 + 40 * 300 + 8 * 40  # x, w, a
    assert wide["ops"][0]["bytes"] - mixed["ops"][0]["bytes"] == 2 * halves


def test_check_overflows_as_the_type_does(linfuse, tmp_path):
    """Beyond 65504 an f16 is infinite, which is no error; in f32 the same numbers are finite."""
    text = "input x {0}[B, 8]\na = add(x, 250)\nb = mul(a, a)\nc = mul(b, {1})\nreturn c\n"
    for kind, factor, odd in (("f16", 1.045, True), ("f16", 0.5, False), ("bf16", 1.045, False)):
        (tmp_path / "over.lf").write_text(text.format(kind, factor))
        done = linfuse("check", tmp_path / "over.lf", "--batch=64", "--json").json
        assert done["nonfinite_match"] and (done["nonfinite"] > 0) == odd, done


def test_run_shows_types(linfuse, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = 'input x f16[B]\na = to(x, dtype="bf16")\nb = to(x, dtype="f32")\nreturn a, b\n'
    (tmp_path / "m.lf").write_text(text)
    np.save("x.npy", np.array([1.5, 3.0], np.float16))
    done = linfuse("run", "m.lf", "--input", "x.npy")
    assert "a: bf16[2], min 1.5, mean 2.25, max 3; begins 1.5 3\n" in done.stdout and "b: [2], min" in done.stdout
    done = linfuse("run", "m.lf", "--input", "x.npy", "--json").json
    assert [o["dtype"] for o in done["outputs"]] == ["bf16", "f32"]


def test_batch_wants_one_name(refused, tmp_path):
    (tmp_path / "two.lf").write_text(TWO)
    assert "several: B, T; use --dim" in refused("explain", tmp_path / "two.lf", "--batch", "3")
    (tmp_path / "none.lf").write_text("input x f32[3, 4]\na = relu(x)\nreturn a\n")
    assert "has none; use --dim" in refused("explain", tmp_path / "none.lf", "--batch", "3")


def test_no_cuda_here(linfuse, model):
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("this machine may have one")
    for name in ("check", "bench"):
        done = linfuse(name, model, "--device", "cuda", status=3)
        assert done.stdout == "" and re.fullmatch(r"linfuse: [^\n]+\n", done.stderr)


def test_model_mistakes_are_shown(command, linfuse, tmp_path):
    path = tmp_path / "bad.lf"
    path.write_text("input x f32[B, 4]\na = gleu(x)\nreturn a\n")
    for name in ("explain", "check", "bench", "run"):
        done = linfuse(name, path, status=2)
        where, line, caret = done.stderr.splitlines()
        assert re.match(rf"{re.escape(str(path))}:2:\d+: .*gleu", where)
        assert line == "a = gleu(x)" and re.fullmatch(r" *\^", caret) and done.stdout == ""
    done = subprocess.run([command, "explain", "-"], input="return a\n", capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("stdin:1:")
    done = subprocess.run([command, "explain", "-"], input="", capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr == "stdin:1:1: the model ends without a return\n"


def test_saved_model(linfuse, refused, model, tmp_path):
    """A folder is its model, and the weights beside it are used, which is said, unless --weights decides."""
    saved = tmp_path / "saved"
    saved.mkdir()
    x, y, weights = tmp_path / "x.npy", tmp_path / "y.npy", saved / "small.safetensors"
    np.save(x, np.ones((3, 33), np.float32))
    assert f"the folder {saved} has no .lf file" in refused("run", saved)
    (saved / "small.lf").write_text(SMALL)
    drawn = linfuse("run", saved, "--input", x)
    assert "drawn from seed 0" in drawn.stdout and drawn.stdout.splitlines()[0] == linfuse(
        "run", model, "--input", x).stdout.splitlines()[0]
    zeros = {"linear.weight": np.zeros((47, 33), np.float32), "linear.bias": np.full(47, 2, np.float32)}
    save_file(zeros, weights)
    ones = {**zeros, "linear.bias": np.ones(47, np.float32)}
    save_file(ones, tmp_path / "ones.safetensors")
    for named in (saved, f"{saved}/", saved / "small.lf"):
        done = linfuse("run", named, "--input", x, "--output", y)
        assert f"The weights are those beside the model, {weights}.\n" in done.stdout and "drawn" not in done.stdout
        np.testing.assert_allclose(np.load(y), F.gelu(torch.full((3, 1), 2 + np.log(47))), rtol=1e-6)
    done = linfuse("run", saved, "--input", x, "--output", y, "--weights", tmp_path / "ones.safetensors")
    assert "beside the model" not in done.stdout
    np.testing.assert_allclose(np.load(y), F.gelu(torch.full((3, 1), 1 + np.log(47))), rtol=1e-6)
    for name, more in (("check", []), ("bench", ["--runs", 3])):
        assert f"beside the model, {weights}." in linfuse(name, saved, "--batch", 4, *more).stdout
    save_file({"linear.bias": zeros["linear.bias"]}, weights)
    for name in ("run", "check", "bench", "explain"):  # they are read, so what is wrong with them is said
        assert "linear.weight" in refused(name, saved, *(["--input", x] if name == "run" else []))
    weights.unlink()
    weights.symlink_to("nowhere")
    assert "No such file" in refused("run", saved, "--input", x)
    (saved / "other.lf").write_text(SMALL)
    assert "has 2 models: name one of them" in refused("check", saved)


def test_files_that_are_no_text_are_recognised(command, tmp_path):
    model = torch.nn.Linear(2, 2)
    save_file({"w": np.ones(3, np.float32)}, tmp_path / "weights.safetensors")
    torch.save(model.state_dict(), tmp_path / "zip.pt")
    torch.save(model.state_dict(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "model.py").write_text("import torch\n")
    (tmp_path / "model.onnx").write_bytes(b"\x08\x08\x12\x07pytorch")
    np.save(tmp_path / "x.npy", np.ones(3, np.float32))
    for name, says in {"weights.safetensors": "weights without a model", "zip.pt": "linfuse.save(model",
                       "old.pt": "linfuse.save(model", "model.onnx": "ONNX, which linfuse does not read yet",
                       "model.py": "it is Python; linfuse.save(model",
                       "x.npy": "it goes with the model's .lf, as its --input"}.items():
        done = subprocess.run([command, "explain", tmp_path / name], capture_output=True, text=True)
        assert done.returncode == 2 and done.stdout == ""
        assert done.stderr.startswith(f"{tmp_path / name} is no model text: it is ") and says in done.stderr
        assert done.stderr.count("\n") == 1


def test_names_do_nothing_to_a_terminal(command, model, tmp_path):
    """Control characters of a name are shown as they are written in C, wherever a name is."""
    odd = tmp_path / "a\x1b[31mb.lf"
    odd.write_text(SMALL)
    np.save(tmp_path / "x.npy", np.ones((2, 33), np.float32))
    runs = [
        ["explain", tmp_path / "no\x1b[31m.lf"],
        ["no\x1b[31m"],
        ["explain", model, "--no\x1b[31m"],
        ["bench", odd, "--batch", "2", "--runs", "3"],
        ["run", odd, "--input", tmp_path / "x.npy", "--output", tmp_path / "y\x1b[31m.npy"],
    ]
    for arguments in runs:
        done = subprocess.run([command, *arguments], capture_output=True, text=True)
        said = done.stdout + done.stderr
        assert "\x1b" not in said and "\\x1b[31m" in said, said


def test_bench_on_a_busy_machine(linfuse, model):
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]
    try:
        said = linfuse("bench", model, "--batch", 64, "--runs", 20000).stdout
        share = linfuse("bench", model, "--batch", 64, "--runs", 20000, "--json").json.get("others_share_of_cpus")
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    if os.path.exists("/proc/stat"):
        assert 0.1 < share <= 1 and re.search(r"Other programs used \d+ % of the CPUs meanwhile: medians", said)


def test_output_over_the_input(linfuse, tmp_path):
    """A file that is read and written: the result takes its place when all of it was read."""
    model, path = tmp_path / "m.lf", tmp_path / "x.npy"
    model.write_text("input x f32[B, 3]\ny = add(x, 1.0)\nreturn y\n")
    x = np.arange(3 * 100000, dtype=np.float32).reshape(-1, 3)
    np.save(path, x)
    linfuse("run", model, "--input", path, "--output", path)
    assert np.array_equal(np.load(path), x + 1)


def test_model_from_standard_input(command, linfuse, model):
    for name in ("explain", "check"):
        arguments = ["--batch", "4", "--json"]
        done = subprocess.run([command, name, "-", *arguments], input=SMALL, capture_output=True, text=True)
        assert done.returncode == 0 and json.loads(done.stdout) == linfuse(name, model, *arguments).json


# ---- output that cannot be written ----


@pytest.mark.parametrize("arguments", [["ops"], ["ops", "--json"], ["--help"], ["explain", "M"], ["check", "M"]])
def test_full_disk_on_standard_output(command, model, arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run([command, *[model if a == "M" else a for a in arguments]], stdout=full,
                              stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "linfuse: cannot write to standard output: No space left on device\n"


def without_a_reader(*arguments):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(arguments, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    return done


def test_reader_went_away(command, linfuse, tmp_path):
    done = without_a_reader(command, "ops")
    assert done.returncode == 0 and done.stderr == ""
    names = ["x", *(f"y{i}" for i in range(3000))]
    steps = [f"param w_{new} f32[4, 4]\n{new} = linear({old}, w_{new})\n" for old, new in zip(names, names[1:])]
    path = tmp_path / "long.lf"
    path.write_text(f"input x f32[B, 4]\n{''.join(steps)}return {names[-1]}\n")
    arguments = ["explain", path, "--json", "--device", "h200", "--rules", "none"]
    assert len(linfuse(*arguments).stdout) > 1 << 20, "is to be longer than the command's buffer"
    done = without_a_reader(command, *arguments)
    assert done.returncode == 0 and done.stderr == ""


@pytest.mark.parametrize("name", ["check", "bench"])
def test_more_than_the_machine_has(refused, model, name):
    assert re.search(r"no memory for x \[1000000000000, 33\]: 132 TB", refused(name, model, "--batch", "1000000000000"))
    assert "x would have more elements than can be counted" in refused(name, model, "--batch", "9223372036854775807")


# ---- explain ----


def test_explain_fields(linfuse, model):
    for device in ("cpu", "h200", "a100"):
        got = linfuse("explain", model, "--device", device, "--batch", "256", "--json").json
        assert got["device"] == device and got["dims"] == {"B": 256}
        assert {op["name"] for op in got["ops"]} >= {"a", "b", "c", "d"}
        for op in got["ops"]:
            assert isinstance(op["op"], str)
            for field in ("flops", "bytes", "us"):
                assert_number(op[field])
        for side, fields in (
            ("plain", "launches flops bytes us host_us"),
            ("fused", "launches flops bytes intermediate_bytes workspace_bytes us"),
        ):
            for field in fields.split():
                assert_number(got[side][field])
        assert got["plain"]["flops"] >= 2 * 256 * 33 * 47
        assert got["fused"]["launches"] == 1 and got["fused"]["intermediate_bytes"] == 0
        for row in (*got["rewrites"], *got["refused"]):
            assert all(isinstance(row[field], str) for field in ("rule", "class", "at", "why"))
        for kernel in got["kernels"]:
            assert isinstance(kernel["name"], str) and kernel["covers"]
            assert_number(kernel["us"])


def test_explain_text(linfuse, model):
    done = linfuse("explain", model)
    assert done.stderr == "" and done.stdout.endswith("\n") and "logsumexp" in done.stdout
    assert linfuse("explain", model, "--json").json["dims"] == {"B": 1024}


def test_explain_page(linfuse, model, tmp_path):
    """Beside what is printed without it; alone on standard output."""
    path = tmp_path / "page.html"
    for form in ([], ["--json"]):
        plain = linfuse("explain", model, "--device", "h200", *form)
        path.write_text("old")
        done = linfuse("explain", model, "--device", "h200", "--html", path, *form)
        assert done.stdout == plain.stdout and done.stderr == ""
        page = path.read_text(encoding="utf-8")
        assert page.startswith("<!doctype html>") and page.endswith("</html>\n") and str(model) in page
        assert linfuse("explain", model, "--device", "h200", "--html", "/dev/stdout").stdout == page


def test_page_that_cannot_be_written(command, model, tmp_path):
    """The disk is full half way: one line, nothing printed, and the file is as it was, with nothing beside it."""
    import resource
    import signal

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    (tmp_path / "page.html").write_text("old")
    words = [command, "explain", model, "--device", "h200", "--html", tmp_path / "page.html"]
    done = subprocess.run(words, capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == 2 and done.stdout == "" and re.fullmatch(r"linfuse: cannot write .*\n", done.stderr)
    assert (tmp_path / "page.html").read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"page.html", model.name}


def test_page_of_a_hostile_path(linfuse, model, tmp_path):
    """The path is the page's title; what is no UTF-8 in it is replaced."""
    path = os.fsencode(tmp_path) + b"/<script>&\"\xff\xc0\xaf.lf"
    os.link(model, path)
    page = linfuse("explain", os.fsdecode(path), "--device", "h200", "--html", "/dev/stdout").stdout
    assert "/&lt;script&gt;&amp;&quot;\ufffd\ufffd\ufffd.lf</title>" in page and "<script" not in page


# ---- check ----


def test_check_fields(linfuse, model):
    got = linfuse("check", model, "--batch", "19", "--json").json
    assert got["ok"] is True and got["nonfinite_match"] is True
    assert got["rows_checked"] == got["rows"] == 19
    for error in (got["error"], got["plain_error"]):
        assert_number(error["rel"])
        assert_number(error["max"])
        assert error["rel"] < 1e-5 and error["max"] < 1e-4
    text = linfuse("check", model, "--batch", "19").stdout
    assert "all 19 rows" in text and "op by op" in text and text.endswith("ok\n")


def test_check_samples_rows_when_that_is_much_work(linfuse, tmp_path):
    path = tmp_path / "wide.lf"
    path.write_text("input x f32[B, 2048]\nparam w f32[2048, 2048]\na = linear(x, w)\nb = relu(a)\nreturn b\n")
    got = linfuse("check", path, "--batch", "1500", "--json").json
    assert got["ok"] and 8 <= got["rows_checked"] < got["rows"] == 1500
    text = linfuse("check", path, "--batch", "1500").stdout
    assert f"{got['rows_checked']} of 1500 rows, chosen at random" in text


def test_check_takes_all_rows_where_they_see_each_other(linfuse, tmp_path):
    path = tmp_path / "columns.lf"
    path.write_text("input x f32[B, 300]\na = sub(x, 0.5)\nb = sum(a, dim=0)\nc = exp(b)\nreturn c\n")
    got = linfuse("check", path, "--batch", "100", "--json").json
    assert got["ok"] and got["rows_checked"] == got["rows"] == 100


@pytest.mark.parametrize("name", sorted(p.stem for p in pathlib.Path(__file__).parents[2].glob("models/*.lf")))
def test_check_reference_models(linfuse, root, name):
    model = root / "models" / f"{name}.lf"
    dims = linfuse("explain", model, "--json").json["dims"]
    for size in (2 if name == "batch_norm_train" else 1, 13):  # PyTorch takes no statistic of one value
        got = linfuse("check", model, *[f"--dim={d}={size}" for d in dims], "--json").json
        assert got["ok"], got


def test_check_with_weights_that_are_not_finite(linfuse, model, tmp_path):
    weight = np.ones((47, 33), np.float32)
    weight[5, 6] = np.inf
    save_file({"linear.weight": weight, "linear.bias": np.zeros(47, np.float32)}, tmp_path / "w.safetensors")
    got = linfuse("check", model, "--batch", "6", "--weights", tmp_path / "w.safetensors", "--json").json
    assert got["ok"] and got["nonfinite_match"] and got["nonfinite"] == 6
    assert "not finite" not in linfuse("check", model, "--batch", "6").stdout


# ---- bench ----


def test_bench_fields(linfuse, model):
    got = linfuse("bench", model, "--batch", "64", "--runs", "5", "--json").json
    for field in "fused_ms plain_ms ratio gflops peak_gflops prepare_ms compile_ms predicted_fused_ms".split():
        assert_number(got[field])
    assert got["runs"] == 5 and got["ratio"] == pytest.approx(got["plain_ms"] / got["fused_ms"], rel=1e-6)
    text = linfuse("bench", model, "--batch", "64").stdout
    runs = int(re.search(r"^(\d+) runs of each", text, re.MULTILINE)[1])
    assert 3 <= runs <= 100 and "predicted" in text and "times as fast" in text


# ---- ops ----


def test_ops(linfuse):
    ops = linfuse("ops", "--json").json["ops"]
    names = {op["name"] for op in ops}
    wanted = """linear matmul relu leaky_relu gelu sigmoid tanh silu mish softplus clamp hardtanh hardswish hardsigmoid
        elu selu celu exp log abs neg sqrt rsqrt reciprocal pow clone to dropout add sub mul div gt lt ge le eq ne
        logical_and logical_or logical_not where minimum maximum sum
        mean max min logsumexp softmax log_softmax layer_norm group_norm instance_norm rms_norm batch_norm avg_pool1d
        max_pool1d reshape squeeze unsqueeze flatten transpose slice"""
    assert names >= set(wanted.split())
    assert all(isinstance(op[f], str) and op[f] for op in ops for f in ("name", "kind", "signature"))
    text = linfuse("ops").stdout
    assert all(re.search(rf"^ +{name} ", text, re.MULTILINE) for name in names)


# ---- doctor ----


def doctor(command, *arguments, **environment):
    done = subprocess.run([command, "doctor", *arguments], capture_output=True, text=True,
                          env={**os.environ, "LINFUSE_NVRTC": "/nowhere/libnvrtc.so", **environment})
    assert done.returncode == 0 and done.stderr == ""
    return done.stdout


def test_doctor(command, linfuse, tmp_path):
    cache = tmp_path / "linfuse"
    found = json.loads(doctor(command, "--json", XDG_CACHE_HOME=str(tmp_path), LINFUSE_ISA="scalar"))
    assert found["version"] == linfuse("--version").stdout.split()[1]
    assert found["system"].startswith(f"{platform.system()} {platform.release()} {platform.machine()}")
    assert found["cpu"] and found["threads"] >= 1 and found["isa"] == "scalar"
    assert found["cuda"]["nvrtc"] is None and "LINFUSE_NVRTC" in found["cuda"]["nvrtc_error"]
    assert {"driver", "gpu"} < found["cuda"].keys()
    assert found["cache"] == {"folder": str(cache), "files": 0, "bytes": 0}
    cache.mkdir()
    (cache / "one").write_bytes(b"x" * 1500)
    (cache / "two").write_bytes(b"x" * 500)
    found = json.loads(doctor(command, "--json", XDG_CACHE_HOME=str(tmp_path)))
    assert found["cache"] == {"folder": str(cache), "files": 2, "bytes": 2000}
    text = doctor(command, XDG_CACHE_HOME=str(tmp_path))
    assert found["cpu"] in text and str(cache) in text and "2 files, 2.00 kB" in text


def test_doctor_says_when_the_machine_was_measured(command, model, tmp_path):
    """And each build reads its own files alone, whatever lies beside them."""
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    found = json.loads(doctor(command, "--json", **environment))
    assert found["measured"] is None
    assert re.search(r"measured +not yet with \d+ threads?: explain does it", doctor(command, **environment))
    subprocess.run([command, "explain", model], env={**os.environ, **environment}, check=True, capture_output=True)
    (file,) = (tmp_path / "linfuse").glob("cpu-*.json")
    said = json.loads(doctor(command, "--json", **environment))["measured"]
    assert re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d UTC", said) and said in doctor(command, **environment)
    assert json.loads(file.read_text())["measured"] == said


def test_doctor_where_much_is_missing(command):
    found = json.loads(doctor(command, "--json", XDG_CACHE_HOME="", HOME="", LINFUSE_ISA="abacus"))
    assert found["isa"] is None and found["cache"] == {"folder": None, "files": 0, "bytes": 0}
    text = doctor(command, XDG_CACHE_HOME="", HOME="", LINFUSE_ISA="abacus")
    assert "LINFUSE_ISA names no instruction set" in text and "neither XDG_CACHE_HOME nor HOME" in text


# ---- run ----

MODELS = {
    "lse": (SMALL, lambda x, p: [F.gelu(F.leaky_relu(torch.logsumexp(
        F.linear(x, p["linear.weight"], p["linear.bias"]), 1, True), 0.01))]),
    "softmax": ("input x f32[B, 20]\nparam w f32[31, 20]\na = linear(x, w)\nb = gelu(a, approximate=\"tanh\")\n"
                "c = softmax(b, dim=-1)\nreturn c, a\n",
                lambda x, p: [F.softmax(F.gelu(F.linear(x, p["w"]), approximate="tanh"), -1), F.linear(x, p["w"])]),
    "norm": ("input x f32[B, S, 24]\nparam g f32[24]\nparam h f32[24]\nparam w f32[24, 10]\n"
             "a = layer_norm(x, [24], g, h)\nb = matmul(a, w)\nc = silu(b)\nreturn c\n",
             lambda x, p: [F.silu(F.layer_norm(x, (24,), p["g"], p["h"]) @ p["w"])]),
    "mean": ("input x f32[B, 40]\nparam w f32[40, 40]\nparam s f32[40]\na = linear(x, w)\nb = sub(a, s)\n"
             "c = mean(b, dim=1, keepdim=true)\nd = gelu(c)\ne = add(d, x)\nreturn e\n",
             lambda x, p: [F.gelu((F.linear(x, p["w"]) - p["s"]).mean(1, True)) + x]),
    "batch": ("input x f32[B, 12]\nparam m f32[12]\nparam v f32[12]\na = batch_norm(x, m, v, training=true)\n"
              "b = relu(a)\nreturn b\n",
              lambda x, p: [F.relu(F.batch_norm(x, None, None, training=True))]),
}


def declared(text, kind):
    """{name: extents} of the inputs or parameters a model declares."""
    found = re.findall(rf"^{kind} (\S+) f32\[(.*)\]", text, re.MULTILINE)
    return {name: extents.split(", ") for name, extents in found}


def run_beside_torch(linfuse, folder, text, reference, x, params):
    """The outputs of `linfuse run` and those of PyTorch, both as lists of arrays."""
    (folder / "m.lf").write_text(text)
    np.save(folder / "x.npy", x)
    save_file(params, folder / "w.safetensors")
    names = re.search(r"return (.*)", text)[1].split(", ")
    outputs = [f"--output={n}={folder / n}.npy" for n in names]
    got = linfuse("run", folder / "m.lf", f"--input=x={folder / 'x.npy'}", *outputs, "--weights",
                  folder / "w.safetensors", "--json").json
    assert_number(got["ms"])
    # In double precision: PyTorch's f32 loops give NaN for gelu(inf) where eight values are done at once, else inf.
    arguments = {k: torch.from_numpy(v).double() for k, v in params.items()}
    expected = [e.numpy() for e in reference(torch.from_numpy(x).double(), arguments)]
    for entry, name, e in zip(got["outputs"], names, expected, strict=True):
        assert entry == {"name": name, "dtype": "f32", "shape": list(e.shape), "file": f"{folder / name}.npy"}
    return [np.load(folder / f"{n}.npy") for n in names], expected


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("size", [1, 2, 37])
def test_run_computes_what_torch_computes(linfuse, tmp_path, name, size):
    text, reference = MODELS[name]
    if name == "batch" and size == 1:
        pytest.skip("PyTorch refuses the statistics of one value")
    rng = np.random.default_rng(size)
    x = rng.standard_normal([int(e) if e.isdigit() else size for e in declared(text, "input")["x"]]).astype(np.float32)
    params = {k: rng.uniform(-0.3, 0.3, [int(e) for e in v]).astype(np.float32)
              for k, v in declared(text, "param").items()}
    for got, expected in zip(*run_beside_torch(linfuse, tmp_path, text, reference, x, params), strict=True):
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", [n for n in MODELS if n != "batch"])
@pytest.mark.parametrize("planted", [np.nan, np.inf, -np.inf])
def test_run_puts_nan_and_infinity_where_torch_does(linfuse, tmp_path, name, planted):
    text, reference = MODELS[name]
    rng = np.random.default_rng(3)
    x = rng.standard_normal([int(e) if e.isdigit() else 9 for e in declared(text, "input")["x"]]).astype(np.float32)
    x[4, ..., 7] = planted
    params = {k: rng.uniform(-0.3, 0.3, [int(e) for e in v]).astype(np.float32)
              for k, v in declared(text, "param").items()}
    for got, expected in zip(*run_beside_torch(linfuse, tmp_path, text, reference, x, params), strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6, equal_nan=True)


def test_run_without_output_prints_a_summary(linfuse, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.ones((3, 33), np.float32))
    before = sorted(os.listdir())
    done = linfuse("run", model, "--input", "x=x.npy")
    assert re.search(r"^d: \[3, 1\], min \S+, mean \S+, max \S+; begins( \S+){3}$", done.stdout, re.MULTILINE)
    assert "drawn from seed 0" in done.stdout and sorted(os.listdir()) == before
    got = linfuse("run", model, "--input", "x=x.npy", "--json").json
    assert got["outputs"] == [{"name": "d", "dtype": "f32", "shape": [3, 1], "file": None}]


def test_run_writes_to_a_pipe(command, model, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((3, 33), np.float32))
    arguments = [command, "run", model, "--input", f"x={tmp_path / 'x.npy'}", "--output", "d=/dev/stdout"]
    done = subprocess.run(arguments, capture_output=True)
    assert done.returncode == 0 and done.stdout[:6] == b"\x93NUMPY" and len(done.stdout) == 128 - 64 + 64 + 12
    assert b"written to /dev/stdout" in done.stderr
    assert subprocess.run([*arguments, "--json"], capture_output=True).returncode == 2


def test_run_refuses_two_outputs_in_one_file(refused, linfuse, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.ones((2, 3), np.float32))
    (tmp_path / "two.lf").write_text("input x f32[B, 3]\na = exp(x)\nb = neg(x)\nreturn a, b\n")
    outputs = ["--output", "a=y.npy", "--output", "b=y.npy"]
    assert "--output a and --output b are both to be written to y.npy" in refused(
        "run", "two.lf", "--input", "x=x.npy", *outputs
    )
    assert not (tmp_path / "y.npy").exists()
    linfuse("run", "two.lf", "--input", "x=x.npy", "--output", "a=/dev/null", "--output", "b=/dev/null")


def test_run_refuses(refused, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.ones((3, 33), np.float32))
    np.save("narrow.npy", np.ones((3, 32), np.float32))
    np.save("flat.npy", np.ones(33, np.float32))
    np.save("wide.npy", np.ones((3, 33)))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-1])
    (tmp_path / "text.npy").write_text("1 2 3\n")
    (tmp_path / "old.npy").write_bytes(b"old")
    for arguments, says in (
        ([], "input x is missing; give it with --input x=FILE.npy"),
        (["--input", "y=x.npy"], "no input of that name (it has: x)"),
        (["--input", "x=x.npy", "--input", "x=x.npy"], "--input x is given twice"),
        (["--input", "x.npy", "--input", "x=x.npy"], "--input x is given twice"),
        (["--input", "=x.npy"], "--input needs [NAME=]FILE.npy, not '=x.npy'"),
        (["--input", "x="], "--input needs [NAME=]FILE.npy, not 'x='"),
        (["--input", "no.npy"], "cannot read no.npy: No such file"),
        (["--input", "x=no.npy"], "cannot read no.npy: No such file"),
        (["--input", "x=."], "cannot read .: it is a directory"),
        (["--input", "x=cut.npy"], "cut.npy is cut short"),
        (["--input", "x=text.npy"], "text.npy: not a .npy file"),
        (["--input", "x=wide.npy"], "wide.npy holds f8, not f4 (float32), f2, V2 (bfloat16) or i8; convert it"),
        (["--input", "x=narrow.npy"], "narrow.npy: "),
        (["--input", "x=flat.npy"], "flat.npy: "),
        (["--input", "x=x.npy", "--output", "e=e.npy"], "no output of that name (it has: d)"),
        (["--input", "x=x.npy", "--output", "d=/dev/full"], "cannot write /dev/full: No space left on device"),
        (["--input", "x=x.npy", "--output", "d=."], "cannot write .: it is a directory"),
        (["--input", "x=x.npy", "--output", "d=no/such.npy"], "cannot write no/such.npy"),
    ):
        assert says in refused("run", model, *arguments), arguments
    assert (tmp_path / "old.npy").read_bytes() == b"old"
    assert not [n for n in os.listdir() if n.startswith(".linfuse")]


def test_run_names_no_port_where_there_is_one(linfuse, refused, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.ones((3, 33), np.float32))
    linfuse("run", model, "--input", "x=x.npy", "--output", "d=named.npy")
    linfuse("run", model, "--input", "x.npy", "--output", "alone.npy")
    assert (tmp_path / "alone.npy").read_bytes() == (tmp_path / "named.npy").read_bytes()
    (tmp_path / "two.lf").write_text(TWO)
    said = refused("run", "two.lf", "--input", "x.npy")
    assert "--input x.npy: the model has 2 inputs (x, y); give NAME=x.npy" in said
    assert "2 outputs (a, b)" in refused("run", "two.lf", "--output", "y.npy")


def test_run_refuses_inputs_that_disagree(refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.lf").write_text(TWO)
    np.save("x.npy", np.ones((3, 2, 8), np.float32))
    np.save("y.npy", np.ones((4, 8), np.float32))
    assert "B" in refused("run", "two.lf", "--input", "x=x.npy", "--input", "y=y.npy")


# ---- progress ----


def on_a_terminal(arguments):
    """Exit status and what the command wrote to a terminal that is its stderr."""
    try:
        ours, theirs = pty.openpty()
    except OSError as why:
        pytest.skip(f"no terminal can be opened here: {why}")
    child = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # how a terminal says that the other side is gone
            break
        if not piece:
            break
        seen += piece
    os.close(ours)
    return child.wait(), seen.decode()


def test_progress_only_on_a_terminal_and_gone_afterwards(command, model):
    status, quick = on_a_terminal([command, "check", model, "--batch", "2"])
    assert status == 0 and quick == ""
    for runs in (10**5, 10**6, 10**7):  # until it takes more than a second, on whatever machine
        status, seen = on_a_terminal([command, "bench", model, "--batch", "64", "--runs", str(runs)])
        if re.search(r"\rtiming \.\.\. 1 s", seen):
            break
    assert status == 0 and re.search(r"\rtiming \.\.\. 1 s", seen)
    assert re.search(r"\r +\r$", seen)


def test_measuring_the_machine_says_so(command, model, tmp_path, monkeypatch):
    """The first account on a machine takes longer than the ones that follow; where that is a second, it says why."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    start = time.monotonic()
    status, first = on_a_terminal([command, "explain", model])
    assert status == 0 and list((tmp_path / "linfuse").glob("cpu-*.json"))
    if time.monotonic() - start > 2.5:
        assert re.search(r"\rmeasuring this CPU, once \.\.\. 1 s.*\r +\r$", first, re.S)
    assert on_a_terminal([command, "explain", model]) == (0, "")

# SPDX-License-Identifier: Apache-2.0
"""Files as NumPy and safetensors write them, and as they do not: read or refused by `linfuse run` as they should be."""

import io
import json
import struct

import numpy as np
import pytest
import torch
from numpy.lib import format as npy
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

IDENTITY = "input x f32[B, 3]\na = add(x, 0)\nreturn a\n"
LINEAR = "input x f32[B, 3]\nparam w f32[2, 3]\na = linear(x, w)\nreturn a\n"
X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5
W = np.array([[1, 2, 3], [-1, 0, 1]], np.float32)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def passed(linfuse, folder):
    """What comes out of a model that returns its input; the model may be another."""

    def call(text=IDENTITY):
        (folder / "m.lf").write_text(text)
        linfuse("run", "m.lf", "--input", "x=x.npy", "--output", "a=a.npy")
        return np.load("a.npy")

    return call


@pytest.fixture
def refused(linfuse, folder):
    """The one line that says why x.npy (or w.safetensors) is not taken."""

    def call(text=IDENTITY, *arguments):
        (folder / "m.lf").write_text(text)
        done = linfuse("run", "m.lf", "--input", "x=x.npy", *arguments, status=2)
        assert done.stdout == "" and done.stderr.startswith("linfuse: ") and done.stderr.count("\n") == 1
        return done.stderr

    return call


def write_npy(array, version=(1, 0)):
    with open("x.npy", "wb") as f:
        npy.write_array(f, array, version=version)


def write_raw(header, data, version=1):
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    with open("x.npy", "wb") as f:
        f.write(b"\x93NUMPY" + bytes([version, 0]) + length + header + data)


# ---- npy ----


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_versions(passed, version):
    write_npy(X, version)
    np.testing.assert_array_equal(passed(), X)


def test_npy_written_is_what_numpy_reads(passed):
    write_npy(X)
    assert passed().dtype == np.dtype("<f4")
    with open("a.npy", "rb") as f:
        assert npy.read_magic(f) == (1, 0)
        assert npy.read_array_header_1_0(f) == ((2, 3), False, np.dtype("<f4"))
        assert f.tell() % 64 == 0


@pytest.mark.parametrize("spaces", range(4))
def test_npy_data_at_any_alignment(passed, spaces):
    write_raw(b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}" + b" " * spaces + b"\n", X.tobytes())
    np.testing.assert_array_equal(passed(), X)


@pytest.mark.parametrize("header", [b"{'shape':(2,3),'fortran_order':False,'descr':'<f4'}",
                                    b'{ "descr" : "<f4", "shape" : ( 2 , 3 , ) , "fortran_order" : False , } \n',
                                    b"{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L)}"])
def test_npy_header_spellings(passed, header):
    write_raw(header, X.tobytes())
    np.testing.assert_array_equal(passed(), X)


def test_npy_other_ranks(passed):
    write_npy(np.float32(2.5))
    assert passed("input x f32[]\na = mul(x, 2)\nreturn a\n") == np.float32(5)
    x = np.arange(4, dtype=np.float32)
    write_npy(x)
    np.testing.assert_array_equal(passed("input x f32[N]\na = neg(x)\nreturn a\n"), -x)
    x = np.arange(4, dtype=np.float32).reshape(1, 2, 1, 2, 1, 1, 1, 1)
    write_npy(x)
    got = passed("input x f32[B, 2, 1, 2, 1, 1, 1, 1]\na = neg(x)\nreturn a\n")
    assert got.shape == x.shape and np.array_equal(got, -x)


def test_npy_one_row_in_fortran_order_is_refused_by_its_header_only(passed, refused):
    write_npy(np.asfortranarray(X))
    assert "x.npy is in Fortran order; convert it with numpy.ascontiguousarray" in refused()
    write_raw(b"{'descr': '<f4', 'fortran_order': True, 'shape': (3,)}", X[0].tobytes())
    np.testing.assert_array_equal(passed("input x f32[N]\na = neg(x)\nreturn a\n"), -X[0])


@pytest.mark.parametrize("dtype, found", [("<f8", "f8"), ("|V3", "V3"), ("<i4", "i4"), ("|u1", "u1"),
                                          ("|b1", "b1"), ("<c8", "c8"), ("<U3", "U3"), (">f4", "big-endian f4")])
def test_npy_other_types_are_named(refused, dtype, found):
    write_npy(np.zeros((2, 3), dtype))
    assert f"x.npy holds {found}, not " in refused() and '.astype("float32")' in refused()


# A bf16 is the upper half of an f32. NumPy has no such type, and leaves what it reads as two bytes: V2.
def to_bf16(x):
    """Of numbers that have no more digits."""
    return (np.asarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16).view("V2")


def of_bf16(x):
    assert x.dtype == np.dtype("V2")
    return (x.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


HALVES = {"f16": (lambda x: np.asarray(x, np.float16), lambda x: x.astype(np.float32), "<f2"),
          "bf16": (to_bf16, of_bf16, "<V2")}


@pytest.mark.parametrize("kind", HALVES)
def test_npy_of_halves(passed, kind):
    """In and out, infinity and denormals included; ml_dtypes, where it is, reads and writes the same files."""
    to, of, code = HALVES[kind]
    x = np.array([[1.5, -2.25, np.inf], [-0.0, 2.0**-24, 2.0**-15]], np.float32)
    write_npy(to(x))
    y = passed(f"input x {kind}[B, 3]\na = neg(x)\nreturn a\n")
    assert open("a.npy", "rb").read(128).count(f"'descr': '{code}'".encode()) == 1
    np.testing.assert_array_equal(of(y), -x)
    assert np.signbit(of(y))[0, 0] and not np.signbit(of(y))[1, 0]
    if kind == "bf16":
        ml_dtypes = pytest.importorskip("ml_dtypes")
        np.testing.assert_array_equal(np.load("a.npy").view(ml_dtypes.bfloat16).astype(np.float32), -x)
        np.save("x.npy", x.astype(ml_dtypes.bfloat16))
        assert passed(f"input x bf16[B, 3]\na = neg(x)\nreturn a\n").tobytes() == y.tobytes()


@pytest.mark.parametrize("kind", HALVES)
def test_npy_of_another_float_is_converted(passed, kind):
    to, of, _ = HALVES[kind]
    write_npy(X + np.float32(2.0**-20))
    np.testing.assert_array_equal(of(passed(f"input x {kind}[B, 3]\na = neg(x)\nreturn a\n")), -X)
    write_npy(to(X))
    np.testing.assert_array_equal(passed(), X)
    np.testing.assert_array_equal(HALVES["f16"][1](passed(IDENTITY.replace("f32", "f16"))), X)


def test_npy_of_positions(passed, refused):
    write_npy(np.arange(6).reshape(2, 3))
    assert "x.npy: input x is f32" in refused()


def test_npy_records(refused):
    write_npy(np.zeros(2, [("a", "<f4"), ("b", "<f4")]))
    assert "x.npy holds records" in refused()


def test_npy_nothing_in_it(passed, refused):
    write_npy(np.zeros((0, 3), np.float32))
    assert passed().shape == (0, 3)
    open("x.npy", "wb").close()
    assert "cannot read x.npy: the file is empty" in refused()


def test_npy_every_truncation(refused):
    write_npy(X)
    whole = open("x.npy", "rb").read()
    for length in [1, 5, 6, 7, 8, 9, 10, 30, 64, 127, 128, 129, len(whole) - 1]:
        open("x.npy", "wb").write(whole[:length])
        assert "x.npy" in refused()
    open("x.npy", "wb").write(whole + b"\0")
    assert "1 bytes after the data" in refused()


def test_npz_and_pickles(refused):
    np.savez("x.npz", X)
    open("x.npy", "wb").write(open("x.npz", "rb").read())
    assert "x.npy is an .npz archive; save the one array with numpy.save" in refused()
    torch.save(torch.zeros(3), "x.npy", _use_new_zipfile_serialization=False)
    assert "x.npy: not a .npy file" in refused()


@pytest.mark.parametrize("header", [b"", b"{}", b"[]", b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, -3)}",
                                    b"{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 3)}",
                                    b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'more': 1}",
                                    b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, __import__('os'))}",
                                    b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,2,3)}"])
def test_npy_bad_headers(refused, header):
    write_raw(header, X.tobytes())
    assert "x.npy" in refused()


# ---- safetensors ----


def weights(linfuse, folder):
    """The result of LINEAR with w.safetensors."""
    (folder / "m.lf").write_text(LINEAR)
    np.save("x.npy", X)
    linfuse("run", "m.lf", "--input", "x=x.npy", "--weights", "w.safetensors", "--output", "a=a.npy")
    return np.load("a.npy")


def refused_weights(refused):
    np.save("x.npy", X)
    return refused(LINEAR, "--weights", "w.safetensors")


def write_st(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    open("w.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data)


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_safetensors_among_others(linfuse, folder):
    others = {"a": np.zeros(5, np.int8), "zz": np.ones((2, 2)), "flag": np.array(True)}
    save_file({"w": W, **others}, "w.safetensors", metadata={"format": "pt"})
    np.testing.assert_array_equal(weights(linfuse, folder), X @ W.T)


def test_safetensors_data_not_aligned(linfuse, folder):
    write_st({"pad": entry("U8", [3], 0, 3), "w": entry("F32", [2, 3], 3, 27)}, b"abc" + W.tobytes())
    np.testing.assert_array_equal(weights(linfuse, folder), X @ W.T)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_safetensors_halves_become_f32(linfuse, folder, dtype):
    w = (torch.from_numpy(W) / 7).to(dtype)
    save_torch({"w": w}, "w.safetensors")
    np.testing.assert_allclose(weights(linfuse, folder), X @ w.float().numpy().T, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
def test_safetensors_for_halves(linfuse, folder, kind, stored):
    """As PyTorch converts them, infinities and NaN included."""
    w = torch.tensor([[1 / 3, -2e5, 1e-6], [torch.nan, torch.inf, 3e38]]).to(stored)
    save_torch({"w": w}, "w.safetensors")
    (folder / "m.lf").write_text(f"param w {kind}[2, 3]\na = to(w, dtype=\"f32\")\nreturn a\n")
    linfuse("run", "m.lf", "--weights", "w.safetensors", "--output", "a=a.npy")
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[kind]
    np.testing.assert_array_equal(np.load("a.npy"), w.to(dtype).float().numpy())


def test_safetensors_of_positions_are_no_floats(refused):
    save_file({"w": W.astype(np.int64)}, "w.safetensors")
    assert "w.safetensors: tensor 'w' holds I64, not F32; convert" in refused_weights(refused)


def test_safetensors_wrong_tensors(refused, folder):
    save_file({"v": W}, "w.safetensors")
    assert "w.safetensors" in refused_weights(refused) and " w" in refused_weights(refused)
    save_file({"w": W.T.copy()}, "w.safetensors")
    assert "w.safetensors" in refused_weights(refused)
    save_file({"w": W.astype(np.float64)}, "w.safetensors")
    assert "w.safetensors: tensor 'w' holds F64, not F32; convert" in refused_weights(refused)


@pytest.mark.parametrize(
    "header, data, says",
    [
        ({"w": entry("F32", [2, 3], 0, 24)}, 23, "cut short"),
        ({"w": entry("F32", [2, 3], 0, 24)}, 25, "the last 1 bytes belong to no tensor"),
        ({"w": entry("F32", [2, 3], 0, 20)}, 20, "20 bytes do not fit 6 elements of F32"),
        ({"w": entry("F32", [2, 3], 4, 28)}, 28, "the 4 bytes before tensor 'w' belong to no tensor"),
        ({"w": entry("F32", [2, 3], 0, 24), "v": entry("F32", [2], 20, 28)}, 28, "tensors 'w' and 'v' overlap"),
        ({"w": entry("F31", [2, 3], 0, 24)}, 24, "its dtype 'F31' is not known"),
        ({"w": entry("F32", [1 << 40, 1 << 40], 0, 24)}, 24, "more elements than can be counted"),
        (b'{"w":1,"w":2}', 0, "duplicate"),
        (b"[]", 0, "does not begin with {"),
        (b'{"w"', 0, "not JSON"),
    ],
)
def test_safetensors_broken(refused, folder, header, data, says):
    write_st(header, bytes(data))
    line = refused_weights(refused)
    assert "w.safetensors" in line and says in line


def test_safetensors_huge_header(refused, folder):
    for length in (100000001, 1 << 40, (1 << 64) - 1):
        open("w.safetensors", "wb").write(struct.pack("<Q", length) + b"{}")
        assert "w.safetensors: not a safetensors file, or cut short" in refused_weights(refused)


def test_safetensors_that_is_something_else(refused, folder):
    torch.save({"w": torch.zeros(2, 3)}, "w.safetensors")
    assert "w.safetensors: not a safetensors file: it is what PyTorch saves; safeten" in refused_weights(refused)
    open("w.safetensors", "w").write("input x f32[B, 3]\nreturn x\n")
    assert "it is text, as a model's .lf is; its weights lie in the .safetensors beside it" in refused_weights(refused)
    buffer = io.BytesIO()
    np.save(buffer, W)
    open("w.safetensors", "wb").write(buffer.getvalue())
    assert "w.safetensors: not a safetensors file: it is one array" in refused_weights(refused)

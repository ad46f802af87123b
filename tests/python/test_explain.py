# SPDX-License-Identifier: Apache-2.0
"""linfuse explain on the reference models: fields, sums, launches and what is stored, on every device of the table."""

import pytest

MODELS = {"lse_chain": 1024, "gelu_softmax": 1024, "mean_residual": 2048}
DEVICES = ("cpu", "h200", "a100")


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def explain(linfuse, root):
    def call(model, device, *more):
        return linfuse(
            "explain", root / "models" / f"{model}.lf", "--device", device, "--batch", MODELS.get(model, 64), *more
        )

    return call


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", MODELS)
def test_json(explain, model, device):
    got = explain(model, device, "--json").json
    assert got["device"] == device and got["dims"] == {"B": MODELS[model]}
    peak = got["peak"]
    assert peak["product_flops"] >= peak["flops"] > peak["bytes"] > 1e9
    for op in got["ops"]:
        assert isinstance(op["name"], str) and isinstance(op["op"], str)
        assert op["flops"] > 0 and op["bytes"] > 0 and op["us"] > 0
        assert op["us"] >= 0.999 * 1e6 * op["flops"] / peak["flops"]
    plain, fused = got["plain"], got["fused"]
    assert plain["launches"] == len(got["ops"]) and fused["launches"] == len(got["kernels"]) == 1
    for key in ("flops", "bytes", "us"):
        assert sum(op[key] for op in got["ops"]) == pytest.approx(plain[key])
        assert sum(kernel[key] for kernel in got["kernels"]) == pytest.approx(fused[key])
    assert fused["workspace_bytes"] >= 0
    assert fused["bytes"] < plain["bytes"]
    if model != "gelu_softmax":
        assert fused["intermediate_bytes"] == 0
    assert got["kernels"][0]["covers"] == [op["name"] for op in got["ops"]]
    for note in got["rewrites"]:
        assert note["class"] in ("EXACT", "REROUNDS", "GUARDED", "ASSUMES_FINITE")
        assert note["rule"] and note["at"] and note["why"]
    for note in got["refused"]:
        assert note["rule"] and note["at"] and note["why"]


def test_times_on_gpus(explain):
    """As an engineer would draw it, and as measured on the H200."""
    a100 = explain("lse_chain", "a100", "--json").json
    assert a100["ops"][0]["us"] == pytest.approx(7000, rel=0.03)
    assert a100["ops"][0]["us"] > 0.98 * a100["plain"]["us"]
    for model, plain, fused in (("lse_chain", 2770, 543), ("gelu_softmax", 2740, 580), ("mean_residual", 5530, 40.2)):
        got = explain(model, "h200", "--json").json
        assert got["plain"]["us"] == pytest.approx(plain, rel=0.05)
        assert got["fused"]["us"] == pytest.approx(fused, rel=0.15)


def test_collapsed_product(explain):
    got = explain("mean_residual", "cpu", "--json").json
    assert got["fused"]["flops"] < got["plain"]["flops"] / 1000
    assert any(note["class"] == "GUARDED" for note in got["rewrites"])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", MODELS)
def test_text(explain, model, device):
    text = explain(model, device).stdout
    compared = ", linfuse's own kernels: without fusion" if device == "cpu" else ": op by op with cuBLAS in fp32"
    assert text.startswith(f"Predicted{compared} ")
    for words in ("As written, op by op", "Fused: 1 launch\n", "never stored", "covers"):
        assert words in text
    assert all(len(line) <= 120 for line in text.splitlines())


def test_two_kernels_say_why(explain):
    got = explain("mlp", "h200", "--json").json
    assert (
        got["fused"]["launches"] == 1
        and len(got["kernels"]) == 2
        and got["fused"]["intermediate_bytes"] == 4 * 64 * 256
    )
    assert got["kernels"][1]["why_apart"]
    assert "apart because" in explain("mlp", "h200").stdout


def test_every_model_has_an_account(linfuse, root):
    models = sorted((root / "models").glob("*.lf"))
    assert len(models) >= 3
    for model in models:
        for device in DEVICES:
            assert linfuse("explain", model, "--device", device, "--json").json["kernels"]

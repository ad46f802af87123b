# SPDX-License-Identifier: Apache-2.0
"""The account as a page: saved, and looked at by a browser where there is one, on a wide window and on a phone's."""

import html
import json
import re
import shutil
import subprocess

import pytest

import linfuse
from linfuse.account import Account, Fallback, Part

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

# Boxes of text that share more than a pixel although none is inside the other; and whether the page is wider than its
# window.
LOOK = """
const page = document.querySelector("iframe").contentDocument, faults = [];
for (const folded of page.querySelectorAll("details")) folded.open = true;
const seen = ".box, .chip, .arrow, p, h4, summary, td, th, svg text, circle[fill='#009e73']";
const boxes = [...page.querySelectorAll(seen)];
const area = boxes.map(one => one.getBoundingClientRect());
for (let i = 0; i < boxes.length; i++)
    for (let k = 0; k < i; k++) {
        const a = area[i], b = area[k];
        if (boxes[i].contains(boxes[k]) || boxes[k].contains(boxes[i])) continue;
        if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
            Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1)
            faults.push(boxes[k].textContent + " | " + boxes[i].textContent);
    }
const root = page.documentElement;
document.title = JSON.stringify({boxes: boxes.length, faults: faults, wide: root.scrollWidth - root.clientWidth,
                                 ground: page.defaultView.getComputedStyle(page.body).backgroundColor});
"""


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def account(root):
    """Three parts with PyTorch's ops before, between and behind them."""
    parts = [linfuse.explain(root / "models" / f"{name}.lf").parts[0] for name in ("mean_residual", "mlp", "pool")]
    long = "encoder.layers.11.attention.output.a_module_of_quite_a_long_name.dropout"
    left = [Fallback(f"n{i}", "torch.nn.functional.embedding", long, "not supported yet", i) for i in (1, 2, 2, 4)]
    return Account(parts, left, title="a model", notes=["PyTorch broke the model into 3 graphs."])


def test_save(account, tmp_path):
    page = account.save(tmp_path / "x.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and account._repr_html_() in page and "prefers-color-scheme:dark" in page
    assert "<script" not in page and not re.search(r"https?://(?!www.w3.org/2000/svg)", page)
    assert json.loads(account.save(tmp_path / "x.json").read_text()) == account.json()
    assert account.save(str(tmp_path / "x.txt")).read_text(encoding="utf-8") == str(account)
    with pytest.raises(linfuse.Error, match=".html, .json, .txt, not as .pdf"):
        account.save(tmp_path / "x.pdf")


def test_is_the_commands(root, linfuse_command, tmp_path):
    """One renderer: the command and Python write the same page."""
    file = root / "models" / "mlp.lf"
    linfuse_command("explain", file, "--batch", 64, "--device", "a100", "--html", tmp_path / "c.html")
    linfuse.explain(file, dims={"B": 64}, device="a100").save(tmp_path / "python.html")
    assert (tmp_path / "c.html").read_bytes() == (tmp_path / "python.html").read_bytes()


def test_order(account):
    """PyTorch's ops stand between the kernels, in the order in which they run; kernels are counted through."""
    kinds = re.findall(r'class="box (\w+)"', account._repr_html_())
    count = [len(part.facts["kernels"]) for part in account.parts]
    assert kinds == ["end", "torch", *["kernel"] * count[0], "torch", *["kernel"] * sum(count[1:]), "torch", "end"]
    assert re.findall(r"<b>(\d+)\. ", account._repr_html_()) == [str(i + 1) for i in range(sum(count))]


@pytest.mark.parametrize("slower, words", [(1, None), (200, "what it reads is still in a cache")])
def test_above_the_roof_is_explained(root, slower, words):
    """Points above the roof say why, others do not: the same model with a memory that is slower than its figures."""
    facts = linfuse.explain(root / "models" / "mlp.lf", dims={"B": 64}, device="h200").json()
    facts["peak"]["bytes"] /= slower
    page = Account([Part("", facts)])._repr_html_()
    rows = re.findall(r"<tr>(?:(?!</tr>).)*FLOP/B(?:(?!</tr>).)*</tr>", page)
    above = 0
    for row, one in zip(rows, facts["kernels"] + facts["ops"], strict=True):
        over = one["flops"] / one["us"] * 1e6 > 1.02 * facts["peak"]["bytes"] * one["flops"] / one["bytes"]
        assert (f"(above the roof: {words}" in row) == over
        above += over
    assert (above > 0) == (words is not None)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to look at pages with (tools/setup ci installs it)")
@pytest.mark.parametrize("scheme, ground", [("1", "rgb(255, 255, 255)"), ("0", "rgb(20, 23, 26)")])
@pytest.mark.parametrize("width", [1200, 390])
def test_in_a_browser(account, tmp_path, width, scheme, ground):
    """No boxes overlap, nothing is wider than the window, the console has nothing to say; dark where that is asked."""
    inner = html.escape(account.save(tmp_path / "x.html").read_text(encoding="utf-8"))
    page = f'<meta charset="utf-8"><iframe srcdoc="{inner}" style="width:{width}px;height:900px;border:0"></iframe>'
    (tmp_path / "look.html").write_text(f"{page}<script>onload = () => {{{LOOK}}}</script>", encoding="utf-8")
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=1300,1000"]
    flags += [f"--user-data-dir={tmp_path / 'profile'}", f"--blink-settings=preferredColorScheme={scheme}"]
    command = [CHROMIUM, *flags, "--dump-dom", f"file://{tmp_path / 'look.html'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    (title,) = re.findall(r"<title>(\{.*?)</title>", done.stdout)[-1:]
    seen = json.loads(html.unescape(title))
    assert seen["boxes"] > 100 and not seen["faults"] and seen["wide"] <= 0 and seen["ground"] == ground, seen
    assert "CONSOLE" not in done.stderr

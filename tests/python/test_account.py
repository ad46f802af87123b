# SPDX-License-Identifier: Apache-2.0
"""linfuse.explain on files and programs, and the account's forms: text, JSON, HTML."""

import html.parser
import json
import pickle
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import linfuse
from linfuse import native
from linfuse.account import Account, Fallback, Part

MODELS = ["lse_chain", "gelu_softmax", "mean_residual", "mlp", "group_norm", "pool", "batch_norm_train", "prenorm"]


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def accounts(root):
    dims = {"B": 64, "S": 16}
    found = {}
    for name in MODELS:
        file = root / "models" / f"{name}.lf"
        found[name] = linfuse.explain(file, dims=dims if name == "prenorm" else {"B": 64}, device="h200")
    return found


# ---- the same facts as the command ----


def test_is_the_commands(root, linfuse_command):
    """Costed for a device whose figures are in the table, so that no measuring lies between."""
    file = root / "models" / "mean_residual.lf"
    got = linfuse.explain(file, dims={"B": 2048}, device="h200")
    arguments = ("explain", file, "--batch", 2048, "--device", "h200")
    assert str(got).strip() == linfuse_command(*arguments).stdout.strip()
    facts = got.json()
    assert facts.pop("fallbacks") == [] and facts.pop("notes") == [] and facts.pop("views") == []
    assert facts == linfuse_command(*arguments, "--json").json
    assert json.loads(json.dumps(facts)) == facts


def test_program(root):
    program = linfuse.load(root / "models" / "mlp.lf", seed=1)
    x = np.zeros((32, 784), np.float32)
    facts = program.explain(x).json()
    assert facts["dims"] == {"B": 32} and facts["device"] == "cpu"
    assert linfuse.explain(program, x).json() == facts
    assert program.explain(dims={"B": 7}).json()["dims"] == {"B": 7}
    assert program.explain().json()["dims"] == {"B": 1024}


def test_bad(root):
    file = root / "models" / "mlp.lf"
    program = linfuse.load(file, seed=1)
    with pytest.raises(linfuse.Error, match=r"mlp.lf has no extent Q; it has B"):
        linfuse.explain(file, dims={"Q": 1})
    with pytest.raises(linfuse.Error, match=r"input x f32\[B, 784\] is given as \[3\]"):
        program.explain(np.zeros(3, np.float32))
    with pytest.raises(linfuse.Error, match="options already: rules"):
        linfuse.explain(program, rules="-all")
    with pytest.raises(linfuse.Error, match="device"):
        linfuse.explain(file, device="abacus")


def test_every_field(accounts):
    """Each row of src/run/report.def is in the JSON object, an attribute of the class, and told in HTML."""
    account = accounts["mlp"]
    facts, words = account.json(), " ".join(check_html(account._repr_html_()).words)
    fields = native.fields()
    assert len(fields) > 30 and {field.unit for field in fields} >= {"text", "count", "FLOP", "B", "us"}
    for field in fields:
        made, section = getattr(account, field.section), facts if field.section == "report" else facts[field.section]
        for one, row in zip(made, section) if field.each else [(made, section)]:
            assert getattr(one, field.name) == row[field.name]
            assert row[field.name] is None or isinstance(row[field.name], str if field.unit == "text" else (int, float))
        if field.unit != "text":
            assert field.phrase in words and field.column in words
        assert field.name in dir(made[0] if field.each and made else made) or not section
    assert account.fused.prepared_bytes > 0 and "of prepared weights" in words
    with pytest.raises(AttributeError, match="wings"):
        account.fused.wings
    with pytest.raises(AttributeError, match="wings"):
        account.wings
    assert pickle.loads(pickle.dumps(account)) == account


# ---- several parts ----


def test_typing_its_name_shows_it(accounts):
    assert repr(accounts["mlp"]) == str(accounts["mlp"])


def test_parts(accounts):
    one, two = accounts["mlp"].parts[0], accounts["lse_chain"].parts[0]
    left = Fallback("sin_1", "torch.sin", "body.wave", "not supported yet: torch.sin", 2)
    both = Account([one, two], [left], title="two", notes=["a note"], views=["q", "k", "v"])
    text = str(both)
    first, _, second = text.splitlines()[:3]
    summary = r"2 parts in linfuse, \d+ ops: predicted op by op .+, fused .+: .+x; 1 op in PyTorch, not predicted"
    assert re.fullmatch(summary, first)
    assert "; 1 op in PyTorch, whose time is not predicted. " in both._repr_html_()
    assert "PyTorch" not in str(Account([one])) and str(Account([one])).startswith("Predicted: ")
    assert second == "Part 1 of 2" and "Part 2 of 2\n" in text
    assert "Left to PyTorch\n  sin_1: torch.sin in body.wave: not supported yet: torch.sin\n" in text
    assert "\n  views and slices, which cost nothing: q, k, v\n\na note\n" in text
    facts = both.json()
    for side in ("plain", "fused"):
        for key in facts[side]:
            assert facts[side][key] == one.facts[side][key] + two.facts[side][key]
    assert [op["part"] for op in facts["ops"]] == [1] * len(one.facts["ops"]) + [2] * len(two.facts["ops"])
    told = {"node": "sin_1", "op": "torch.sin", "module": "body.wave", "why": left.why, "part": 2}
    assert facts["fallbacks"] == [told]


def test_nothing():
    account = Account([], [Fallback("sin_1", "torch.sin", "", "no op")])
    assert str(account) == "Nothing of it runs in linfuse.\n\nLeft to PyTorch\n  sin_1: torch.sin: no op\n"
    assert account.json()["ops"] == [] and account.json()["fused"]["launches"] == 0
    check_html(account._repr_html_())


# ---- HTML ----


class Checker(html.parser.HTMLParser):
    """Every tag is closed in its order, and none fetches or runs anything."""

    VOID = {"br", "hr", "img", "meta", "link"}

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.words, self.tags = [], [], []

    def handle_starttag(self, tag, attributes):
        assert tag not in {"script", "img", "link", "iframe", "object", "embed", "use", "image", "a"}
        for name, value in attributes:
            assert name not in {"src", "href", "xlink:href", "srcset"} and not name.startswith("on")
            assert "url(" not in (value or "")
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def check_html(text):
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert not checker.open
    assert set(re.findall(r"https?://[^\s\"']+", text)) <= {"http://www.w3.org/2000/svg"}
    assert "@import" not in text and "url(" not in text
    for picture in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        check_picture(ElementTree.fromstring(picture))
    return checker


def check_picture(svg):
    """All that is drawn lies inside the picture."""
    width, height = float(svg.get("width")), float(svg.get("height"))
    drawn = 0
    for element in svg.iter():
        for key in ("x", "x1", "x2", "cx"):
            if element.get(key):
                assert 0 <= float(element.get(key)) <= width, ElementTree.tostring(element)
                drawn += 1
        for key in ("y", "y1", "y2", "cy"):
            if element.get(key):
                assert 0 <= float(element.get(key)) <= height, ElementTree.tostring(element)
    assert drawn > 3


@pytest.mark.parametrize("name", MODELS)
def test_html(accounts, name):
    account = accounts[name]
    checker = check_html(account._repr_html_())
    words, facts = " ".join(checker.words), account.json()
    assert checker.tags.count("svg") == 1 and checker.tags.count("details") == 2
    assert checker.tags.count("tr") >= 2 + len(facts["ops"])
    for op in facts["ops"]:
        assert op["op"] in words
    for note in facts["rewrites"]:
        assert note["rule"] in words
    for note in facts["refused"]:
        assert note["why"] in words
    for kernel in facts["kernels"]:
        assert kernel["phases"] in words and f". {kernel['name']}" in words
    order = [words.index(word) for word in ("Predicted: ", "input", "output", "Roofline")]
    assert order == sorted(order)
    # Text and lines take the notebook's colour, whatever it is: nothing is painted black or white.
    assert not re.search(r'(fill|stroke|color)\s*[=:]\s*"?(#000|#fff|black|white)', account._repr_html_())


def test_html_escapes(accounts, tmp_path):
    facts = json.loads(json.dumps(accounts["mlp"].parts[0].facts))
    evil = "<script>alert('x')</script>&\""
    facts["device"] = facts["title"] = facts["precision"] = facts["ops"][0]["op"] = evil
    facts["peak"]["product_flops"] = 2 * facts["peak"]["flops"]
    facts["dims"] = {evil: 1}
    facts["ops"][0]["name"] = evil
    facts["kernels"][0]["covers"][0] = evil
    for key in ("name", "phases", "shared", "why_apart"):
        facts["kernels"][0][key] = evil
    facts["rewrites"] = facts["refused"] = [
        {"at": at, "rule": evil, "class": evil, "why": evil} for at in (evil, evil + "2")
    ]
    account = Account([Part("", facts)], [Fallback(evil, evil, evil, evil)], title=evil, notes=[evil])
    for page in (account._repr_html_(), account.save(tmp_path / "evil.html").read_text(encoding="utf-8")):
        words = "".join(check_html(page).words)
        assert page.count("<script") == 0 and words.count(evil) == page.count("&lt;script&gt;") > 30


def test_what_is_no_text(accounts, tmp_path):
    """Halves of characters, control characters and a null character; they are replaced, and nothing ends there."""
    odd = "a\ud800b\x1b\x00c"
    account = Account(accounts["mlp"].parts, [Fallback(odd, "torch.sin", odd, odd)], title="\udcff\x1b", notes=["end"])
    page = account.save(tmp_path / "odd.html").read_text(encoding="utf-8")
    assert "a?b\ufffd" in page and not set(page) & {"\x00", "\x1b"} and "<p>end</p>" in page
    check_html(page)


def test_classes_are_explained(accounts, root):
    """What a class means is told in the same words by the text, the page and the documentation."""
    table = (root / "src" / "rewrite" / "classes.def").read_text()
    classes = dict(re.findall(r'^LF_CLASS\((\w+), *"(.*)"\)', table, re.M))
    docs = " ".join((root / "docs" / "cli.md").read_text().split())
    assert len(classes) == 4
    for name, words in classes.items():
        assert f"`{name}`: {words}" in docs
    for account in accounts.values():
        for note in account.json()["rewrites"]:
            told = note["class"], classes[note["class"]]
            assert "{} ({}; {})".format(note["rule"], *told) in str(account)
            assert "({}; {}: {})".format(note["rule"], *told) in "".join(check_html(account._repr_html_()).words)


def test_refused(tmp_path):
    """A refusal stands in the box of the kernel that goes without, with its reason and the class it would have."""
    lines = "input x f32[B, 64]", "param w f32[32, 64]", "param s f32[32]", "a = linear(x, w)", "b = mul(a, s)"
    (tmp_path / "model.lf").write_text("\n".join([*lines, "return a, b", ""]))
    account = linfuse.explain(tmp_path / "model.lf", device="a100")
    (note,) = account.refused
    box = re.search(r'<div class="box kernel">.*?<div class="arrow">', account._repr_html_(), re.S).group()
    words = "".join(check_html(box.removesuffix('<div class="arrow">')).words)
    assert note["at"] == "b" and note["rule"] == "fold_gain"
    assert f"not rewrittenb = mul 1024 × 32: {note['why']} (fold_gain; would be {note['class']}: a row" in words


def test_many_ops(tmp_path):
    """A long chain takes as many lines as it needs."""
    lines = [f"v{i + 1} = relu(v{i})" if i % 2 else f"v{i + 1} = tanh(v{i})" for i in range(1, 60)]
    (tmp_path / "long.lf").write_text("\n".join(["input v1 f32[B, 300]", *lines, "return v60", ""]))
    checker = check_html(linfuse.explain(tmp_path / "long.lf", device="a100")._repr_html_())
    assert "v60" in " ".join(checker.words)


@pytest.mark.parametrize("columns", [8, 9])  # narrow, which adds the bias with the product, and not
def test_bias_is_told(tmp_path, columns):
    lines = "input x f32[B, 64]", f"param w f32[{columns}, 64]", f"param b f32[{columns}]", "a = linear(x, w, b)"
    (tmp_path / "bias.lf").write_text("\n".join([*lines, "return a", ""]))
    account = linfuse.explain(tmp_path / "bias.lf", device="a100")
    assert f"x {columns} x 64, bias" in str(account)


def test_one_reason_for_several():
    several = [Fallback(f"sin_{i}", "torch.sin", "", "no op") for i in (1, 2)]
    text = str(Account([], [*several, Fallback("cos", "torch.cos", "", "another")]))
    assert text.endswith(
        "Left to PyTorch\n  no op\n    sin_1: torch.sin; sin_2: torch.sin\n  cos: torch.cos: another\n"
    )

# SPDX-License-Identifier: Apache-2.0
"""Tests `narrowfloat report`: the numbers, and the page that shows them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from cli import folder_bytes, obey_modes, run, run_json
from foreign_model import write_model

import narrowfloat as nf

HOSTILE = "layers.</script><img src=x>.weight"
SCHEMES = ["mxfp8_e4m3", "nvfp4", "fp8_block128x128_e4m3"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    random = np.random.default_rng(6)
    wide = random.standard_normal((64, 96)).astype(np.float32)
    wide[0, :40] *= np.exp2(random.integers(-30, 1, 40)).astype(np.float32)
    tensors = {
        "a.weight": wide,
        HOSTILE: wide[:40, :33].astype(ml_dtypes.bfloat16),
        "norm.weight": np.ones(5, np.float32),
    }
    return write_model(tmp_path / "in", [tensors])


def report(model: Path, page: Path, *options: object) -> dict:
    schemes = [word for scheme in SCHEMES for word in ("--scheme", scheme)]
    return run_json("report", model, "-o", page, *schemes, *options)


def data_of(page: Path) -> dict:
    text = page.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return json.loads(found.group(1))


def test_codes_and_scales_of_columns_are_counted_if_there_are_no_others(
    model: Path, tmp_path: Path
) -> None:
    only = ("--scheme", "mxfp8_e4m3:columnwise=1,rowwise=0")
    found = run_json("report", model, "-o", tmp_path / "page.html", *only)
    (tensor,) = (t for t in found["tensors"] if t["name"] == "a.weight")
    (outcome,) = tensor["schemes"]
    q = nf.quantize(nf.load(model)["a.weight"], "mxfp8_e4m3", rowwise=False, columnwise=True)
    codes = q.buffers["columnwise_data"]
    largest = np.count_nonzero(codes & 0x7F == 0x7E)
    assert largest > 0 and outcome["saturation"] == largest / codes.size
    scales = q.buffers["columnwise_scale_inv"]
    assert sum(outcome["scales"].values()) == np.count_nonzero(scales)


def test_the_numbers_are_those_of_numpy(model: Path, tmp_path: Path) -> None:
    found = report(model, tmp_path / "page.html")
    tensors = {tensor["name"]: tensor for tensor in found["tensors"]}
    assert tensors.keys() == {"a.weight", HOSTILE} and found["tensors_total"] == 3
    x = nf.load(model)["a.weight"]
    assert sum(tensors["a.weight"]["values"].values()) == np.count_nonzero(x)
    for outcome in tensors["a.weight"]["schemes"]:
        q = nf.quantize(x, outcome["scheme"])
        y = q.dequantize(np.float32).astype(np.float64)
        noise, signal = ((y - x) ** 2).sum(), (x.astype(np.float64) ** 2).sum()
        assert outcome["sqnr_db"] == pytest.approx(10 * np.log10(signal / noise), rel=1e-9)
        assert outcome["largest_error"] == np.abs(y - x).max()
        assert outcome["underflow"] == np.count_nonzero((x != 0) & (y == 0)) / x.size
        data = q.buffers["rowwise_data"]
        codes = np.stack((data & 15, data >> 4)) if q.scheme == "nvfp4" else data
        largest, sign = (7, 8) if q.scheme == "nvfp4" else (0x7E, 0x80)
        assert outcome["saturation"] == np.count_nonzero(codes & (sign - 1) == largest) / x.size
        assert sum(outcome["scales"].values()) > 0
    assert {"nvfp4"} == set(SCHEMES) - {each["scheme"] for each in tensors[HOSTILE]["schemes"]}
    totals = {scheme["scheme"]: scheme for scheme in found["schemes"]}
    assert [totals[scheme]["refused"] for scheme in SCHEMES] == [0, 1, 0]
    run("quantize", model, tmp_path / "q", "--scheme", "mxfp8_e4m3")
    assert totals["mxfp8_e4m3"]["bytes_after"] == run_json("inspect", tmp_path / "q")["bytes"]


def test_the_page_holds_all_and_needs_nothing(model: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    found = report(model, page)
    assert data_of(page) == found
    text = page.read_text(encoding="utf-8")
    assert "<img" not in text and text.count("</script>") == 2
    code = text.replace(json.dumps(HOSTILE)[1:-1].replace("<", "\\u003c"), "")
    assert not re.findall(r"(?:src|href)=|url\(|@import|fetch\(", code)
    assert "default-src 'none'" in text, "the page may load nothing"
    assert "prefers-color-scheme: dark" in text
    assert "--overwrite is needed" in run("report", model, "-o", page, code=2).stderr
    report(model, page, "--overwrite")
    run("quantize", model, tmp_path / "q", "--scheme", "mxfp8_e4m3")
    refused = run("report", tmp_path / "q", "-o", tmp_path / "no.html", code=2).stderr
    assert "must be a float checkpoint" in refused and not (tmp_path / "no.html").exists()


def test_the_page_replaces_no_file_of_the_model(model: Path, tmp_path: Path) -> None:
    shard = model / "model-00001-of-00001.safetensors"
    (model / "config.json").write_text("{}")
    (model / "sub").mkdir()
    (model / "sub" / "tokenizer.json").write_text("{}")
    (tmp_path / "link").hardlink_to(shard)
    before = folder_bytes(model)
    for source, page in (
        (shard, shard),
        (shard, tmp_path / "link"),
        (model, shard),
        (model, model / "config.json"),
        (model, model / "sub" / "tokenizer.json"),
    ):
        refused = run("report", source, "-o", page, "--overwrite", code=2).stderr
        assert f"the page must not replace a file of IN, got {page}" in refused
        assert folder_bytes(model) == before
    report(model, model / "page.html")
    report(model, model / "page.html", "--overwrite")


def test_the_place_of_the_page_is_checked_before_the_model_is_read(tmp_path: Path) -> None:
    folder = run("report", "no such model", "-o", tmp_path, "--overwrite", code=2).stderr
    message = "narrowfloat: report: the page must be a file, {} is a folder or no regular file\n"
    assert folder == message.format(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    pipe = run("report", "no such model", "-o", tmp_path / "pipe", "--overwrite", code=2).stderr
    assert pipe == message.format(tmp_path / "pipe")
    page = tmp_path / "no" / "page.html"
    missing = run("report", "no such model", "-o", page, code=2).stderr
    assert missing == f"narrowfloat: report: the folder of the page must exist, got {page}\n"


def test_a_folder_that_is_not_writable_is_found_before_tensors_are_read(
    model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "pages"
    folder.mkdir()
    left = folder / ".narrowfloat-killed.partial"
    left.touch()
    report(model, folder / "page.html")
    assert not left.exists(), "the file of a run that was killed"
    (folder / "page.html").unlink()
    folder.chmod(0o555)
    done = run("report", model, "-o", folder / "page.html", code=4, preexec_fn=obey_modes)
    assert done.stderr == f"narrowfloat: write: {folder}/page.html, Permission denied\n"


def test_every_scheme_is_tried_by_default(model: Path, tmp_path: Path) -> None:
    found = run_json("report", model, "-o", tmp_path / "page.html")
    assert {each["scheme"] for each in found["schemes"]} == {
        each["name"] for each in run_json("schemes")["schemes"]
    }


DOCUMENT = """
const make = tag => ({
  tag, children: [], attributes: {}, textContent: "",
  append(...nodes) { this.children.push(...nodes); },
  replaceChildren(...nodes) { this.children = nodes; },
  setAttribute(name, value) { this.attributes[name] = value; },
  get value() { return this.children[0]?.textContent ?? ""; },
});
const known = {};
const document = {
  createElement: make,
  createElementNS: (_, tag) => make(tag),
  getElementById: id => (known[id] ??= make(id)),
};
document.getElementById("data").textContent = require("fs").readFileSync(0, "utf8");
"""
PRINT = """
const lines = known.tensors.children[1].children;
const rows = lines.map(row => row.children.map(cell => cell.textContent));
const bars = lines[0].children[7].children[0].children.length;
known.tensors.children[0].children[0].children[0].children[0].onclick();
const again = known.tensors.children[1].children.map(row => row.children[0].textContent);
console.log(JSON.stringify({rows, bars, again}));
"""


def test_the_script_fills_the_tables(model: Path, tmp_path: Path) -> None:
    """Runs the page's script on a document that records the nodes that the script adds."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed")
    page = tmp_path / "page.html"
    found = report(model, page)
    script = page.read_text(encoding="utf-8").split("<script>")[1].split("</script>")[0]
    program = tmp_path / "page.js"
    program.write_text(DOCUMENT + script.replace('"use strict";', "") + PRINT, encoding="utf-8")
    command = [node, program]
    done = subprocess.run(
        command, input=json.dumps(found), capture_output=True, text=True, timeout=60, check=True
    )
    drawn = json.loads(done.stdout)
    worst = sorted(found["tensors"], key=lambda tensor: tensor["schemes"][0]["sqnr_db"])
    assert [row[0] for row in drawn["rows"]] == [tensor["name"] for tensor in worst]
    assert drawn["rows"][0][2] == f"{worst[0]['schemes'][0]['sqnr_db']:.2f}"
    assert drawn["bars"] == 1 + len(worst[0]["values"]), "a title and a bar for each power"
    assert drawn["again"] == sorted(tensor["name"] for tensor in worst)


def test_destroyed_nan_and_infinity_are_counted(tmp_path: Path) -> None:
    nan = np.full((16, 32), np.nan, np.float32)
    mixed = np.ones((16, 32), np.float32)
    mixed[0, 0], mixed[1, 1] = np.inf, np.nan
    model = write_model(tmp_path / "in", [{"nan.weight": nan, "mixed.weight": mixed}])
    found = run_json(
        "report", model, "-o", tmp_path / "p", "--scheme", "nvfp4", "--scheme", "fp8_e4m3"
    )
    for tensor in found["tensors"]:
        x = {"nan.weight": nan, "mixed.weight": mixed}[tensor["name"]]
        for outcome in tensor["schemes"]:
            y = nf.quantize(x, outcome["scheme"]).dequantize(np.float32)
            same = (x == y) | (np.isnan(x) & np.isnan(y))
            finite = np.isfinite(x) & np.isfinite(y)
            assert outcome["nonfinite_changed"] == np.count_nonzero(~same & ~finite)
    totals = [scheme["nonfinite_changed"] for scheme in found["schemes"]]
    assert totals[0] >= nan.size and totals[1] >= 1, "E2M1 has no NaN, and E4M3 no infinity"
    text = run("report", model, "-o", tmp_path / "q", "--scheme", "nvfp4").stdout
    assert "NaN, infinity changed" in text and str(totals[0]) in text


def test_it_says_how_far_it_is(model: Path, tmp_path: Path) -> None:
    done = run("report", model, "-o", tmp_path / "page.html")
    assert re.match(r"report: [\d.]+ kB to read\n", done.stderr), done.stderr


def test_the_text_outside_of_scripts_has_no_escapes_of_javascript(
    model: Path, tmp_path: Path
) -> None:
    report(model, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    text = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert "&ndash; stands for no error" in text and "\\u" not in text

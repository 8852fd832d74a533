# SPDX-License-Identifier: Apache-2.0
"""Tests the page of `narrowfloat report` in a browser: sorting, filtering, light and dark."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cli import run_json
from foreign_model import write_model

ROWS = 520  # more than the page draws at first
HOSTILE = "layers.</script><img src=x>.weight"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason=f"none of {BROWSERS} is installed")
# A script that reads the drawn page.
PROBE = """<script>
window.addEventListener("load", () => {
  %s
  const found = {
    names: [...document.querySelectorAll("#tensors tbody td:first-child")].map(n => n.textContent),
    sorted: [...document.querySelectorAll("#tensors th")].map(h => h.getAttribute("aria-sort")),
    bars: document.querySelectorAll("#tensors rect").length,
    more: document.getElementById("more").textContent,
    images: document.images.length,
    loaded: performance.getEntriesByType("resource").map(entry => entry.name),
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  };
  document.body.textContent = JSON.stringify(found);
});
</script></body>"""


def browse(page: Path, *options: str) -> str:
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={page.parent / 'profile'}", *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def probe(page: Path, script: str = "", *options: str) -> dict:
    """Runs a script in the page, and returns the content that the page then shows."""
    copy = page.with_name("probe.html")
    copy.write_text(page.read_text("utf-8").replace("</body>", PROBE % script), "utf-8")
    body = re.search(r"<body>(.*)</body>", browse(copy, "--dump-dom", *options), re.DOTALL)
    return json.loads(html.unescape(body.group(1)))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("report")
    random = np.random.default_rng(8)
    tensors = {HOSTILE: np.ones((2, 32), np.float32)}
    for i in range(ROWS - 1):
        values = random.standard_normal((2, 32)).astype(np.float32)
        tensors[f"layers.{i}.weight"] = values * np.float32(2.0) ** (i % 7)
    model = write_model(folder / "in", [tensors])
    page = folder / "page.html"
    schemes = ["--scheme", "mxfp8_e4m3", "--scheme", "nvfp4"]
    return page, run_json("report", model, "-o", page, *schemes)


def worst(found: dict, key: str, scheme: int = 0, *, largest: bool = False) -> list[float]:
    """Returns the figures of a column, worst first, without missing ones, which count as best."""
    figures = [tensor["schemes"][scheme][key] for tensor in found["tensors"]]
    return sorted((f for f in figures if f is not None), reverse=largest)


def figures_of(found: dict, names: list[str], key: str, scheme: int = 0) -> list[float]:
    by_name = {tensor["name"]: tensor["schemes"][scheme][key] for tensor in found["tensors"]}
    return [by_name[name] for name in names]


@needs_browser
def test_the_worst_stand_first_and_a_click_sorts(report: tuple[Path, dict]) -> None:
    page, found = report
    drawn = probe(page)
    shown = figures_of(found, drawn["names"], "sqnr_db")
    assert len(shown) == 500 and shown == worst(found, "sqnr_db")[:500]
    assert drawn["sorted"][2] == "ascending" and drawn["bars"] > 1000
    assert drawn["more"].startswith(f"The first 500 of {ROWS} tensors.")
    click = 'document.querySelectorAll("#tensors th button")[3].click();'
    drawn = probe(page, click)
    assert drawn["sorted"][3] == "descending" and drawn["sorted"][2] is None
    shown = figures_of(found, drawn["names"], "largest_error")
    assert shown == worst(found, "largest_error", largest=True)[:500]
    drawn = probe(page, click + click)
    assert drawn["sorted"][3] == "ascending"
    assert figures_of(found, drawn["names"], "largest_error")[0] == 0, "the tensor of ones"


@needs_browser
def test_another_scheme_a_filter_and_all_rows(report: tuple[Path, dict]) -> None:
    page, found = report
    choose = """
    const select = document.getElementById("scheme");
    select.value = "nvfp4"; select.onchange();
    document.querySelector("#more button").click();"""
    drawn = probe(page, choose)
    assert len(drawn["names"]) == ROWS and drawn["more"] == ""
    shown = figures_of(found, drawn["names"], "sqnr_db", 1)
    assert [figure for figure in shown if figure is not None] == worst(found, "sqnr_db", 1)
    name = 'const filter = document.getElementById("filter"); filter.value = "img"; '
    drawn = probe(page, name + "filter.oninput();")
    assert drawn["names"] == [HOSTILE] and drawn["images"] == 0


@needs_browser
@pytest.mark.parametrize("width", [360, 1400])
def test_nothing_is_loaded_and_nothing_leaves_the_window(
    report: tuple[Path, dict], width: int
) -> None:
    drawn = probe(report[0], "", f"--window-size={width},900")
    assert drawn["loaded"] == []
    assert drawn["overflow"] <= 0, "tables scroll within themselves"


@needs_browser
def test_light_and_dark(report: tuple[Path, dict]) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    page = report[0]
    means = []
    for dark, name in ((1, "light"), (0, "dark")):
        picture = page.with_name(f"{name}.png")
        setting = f"--blink-settings=preferredColorScheme={dark}"
        browse(page, "--window-size=900,700", setting, f"--screenshot={picture}")
        pixels = np.asarray(image.open(picture).convert("RGB"), np.float64)
        assert pixels.std() > 10, f"the {name} page is blank"
        means.append(pixels.mean())
    assert means[0] > 200 and means[1] < 60, "text on white, and text on black"

"""The page of a study: what it says, and that a browser draws all of it and asks for nothing."""

from __future__ import annotations

import html
import json
import math
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from studies import RECIPE

from leanify.comparison import comparing as studies
from leanify.comparison.folder import Outcome, StudyFolder
from leanify.comparison.plan import PlannedDesign, StudyPlan, rank_designs
from leanify.comparison.report import plot_differences
from leanify.comparison.values import Costs, Study
from leanify.core import recipe as recipes
from leanify.spectra.report import format_kappa

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
BOUNDS = {"baseline": (30.0, None), "lean": (159.0, 161.0), "control": (40.0, 200.0)}
SHAPES = {"baseline": (8, 2, 128), "lean": (4, 5, 64), "control": (4, 2, 161), "wide": (6, 3, 90)}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Four designs, four seeds, one run that failed: everything that a page can show, without training."""
    recipe = recipes.parse(RECIPE)
    designs = []
    for name, (depth, heads, mlp) in SHAPES.items():
        sizes = (depth, heads, 16, mlp, 1000 * depth * heads, 10**6 * depth, 0, float(depth))
        designs.append(PlannedDesign(name, recipe.model, *sizes))
    plan = StudyPlan("page", recipe, "0.5", (0, 1, 2, 3), rank_designs(tuple(designs)), 1, tokens=17)
    folder = StudyFolder.create(tmp_path / "study", plan)
    for number, key in enumerate(plan.runs()):
        print_ = plan.fingerprint(key)
        if (key.design, key.seed) == ("wide", 3):
            folder.record(Outcome(key.design, key.seed, print_, "failed", "the loss of step 7 is not finite"))
            continue
        quality = 80 + SHAPES[key.design][1] + math.sin(number)
        kappas = ((0, 900.0 / (1 + key.seed)), (10, 300.0), (20, 40.0 * SHAPES[key.design][0]))
        folder.run(key).mkdir()
        rows = [
            {"step": s, "epoch": s / 10, "split": "validation", "loss": 1.0, "top1": quality - 20 + s} for s in (10, 20)
        ]
        (folder.run(key) / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        done = Outcome(key.design, key.seed, print_, "finished", "", "top1", "validation", 1, quality, 20, kappas)
        folder.record(replace(done, kappa_bounds=BOUNDS.get(key.design), best=100.0, unit="points of top1"))
        right = np.arange(500) < 5 * quality
        folder.record_samples(key, 100.0 * right - 100 * right.mean() + quality)
    found = studies.finish_study(folder)
    data = found.to_json()
    for place, design in enumerate(data["designs"]):
        design |= vars(Costs(1e-3 * (1 + place), 900.0, 300.0, 10**7, 9 * 10**6, 32, "cpu"))
    folder.write_results(data)
    return studies.finish_study(folder)


def test_page_states_findings_and_links(study: Study) -> None:
    page = study.html(study.path / "report.html")
    text = page.read_text()
    for verdict in study.verdicts:
        assert verdict.words.split(":")[0] in text
    links = re.findall(r'href="(runs/[^"]+)"', text)
    assert len(links) == 16
    assert all((study.path / link).is_dir() for link in links if "wide-3" not in link)
    assert "wide, seed 3, failed: the loss of step 7 is not finite" in text
    assert not re.search(r'(src|href)="(https?:)?//', text)
    assert text.count("<svg") == 4


def test_inexact_kappa_shows_bounds(study: Study) -> None:
    found = {result.name: result.to_json()["kappa_bounds"] for result in study.results}
    assert found == {"baseline": [30.0, "inf"], "lean": [159.0, 161.0], "control": [40.0, 200.0], "wide": None}
    text = study.html(study.path / "report.html").read_text()
    kappas = {name: format_kappa(study.result(name).kappa, study.result(name).kappa_bounds) for name in found}
    assert kappas["baseline"] == "> 30.0"
    assert kappas["control"] == "40.0–200"
    assert kappas["lean"] == f"{40 * SHAPES['lean'][0]}"
    assert all(f"<td>{html.escape(kappa)}</td>" in text for kappa in kappas.values())


def test_single_difference_stays_inside_figure(study: Study) -> None:
    """Its bar ends where its interval does, which need not be as far on both sides."""
    pair = replace(study.pairs[0], difference=1.0, low=-2.0, high=1.5)
    one = replace(study, pairs=[pair])
    axes = Figure().subplots()
    assert plot_differences(axes, one)
    low, high = axes.get_ylim()
    for line in axes.lines[:2]:  # the dots, and the middle of the bar
        assert all(low + 0.2 * (high - low) < y < high - 0.2 * (high - low) for y in line.get_ydata())
    assert axes.collections[0].get_segments()[0][:, 0].tolist() == [pair.low, pair.high]


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium")
@pytest.mark.parametrize("width", [400, 1400])
def test_browser_draws_figures_offline(study: Study, width: int, tmp_path: Path) -> None:
    """Headless Chromium: nothing on the console, no request, every figure with ink, nothing wider than the window; a
    click sorts a table, and marks say their numbers.
    """
    page = study.html(study.path / "report.html")
    probe = """<script>addEventListener("load", () => {
      const drawn = [...document.querySelectorAll("figure svg")].map(svg => {
        const box = svg.getBoundingClientRect(), ink = svg.querySelector("#axes_1").getBBox();
        return box.width > 200 && box.height > 100 && ink.width > 0 && ink.height > 0 });
      const heads = document.querySelectorAll("th"), first = () => heads[4].closest("table").tBodies[0].rows[0];
      heads[4].click(); const least = first().cells[0].textContent;
      heads[1].click(); heads[1].click(); const deepest = first().cells[0].textContent;
      const hints = document.querySelectorAll("svg g > title").length;
      document.title = JSON.stringify([least, deepest, hints, drawn, document.documentElement.scrollWidth <= innerWidth,
        performance.getEntriesByType("resource").map(entry => entry.name)]) })</script>"""
    watched = study.path / "watched.html"
    watched.write_text(page.read_text().replace("</body>", f"{probe}</body>"))
    done = subprocess.run(
        [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
         "--enable-logging=stderr", f"--window-size={max(width, 500)},900", "--dump-dom", watched.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title is not None, done.stderr
    least, deepest, hints, drawn, fits, requests = json.loads(title[1])
    sizes = {result.name: result.plan.params for result in study.results}
    depths = {result.name: result.plan.depth for result in study.results}
    assert sizes[least] == min(sizes.values())
    assert depths[deepest] == max(depths.values())
    assert hints > len(study.results)
    assert drawn == [True] * 4
    assert fits
    assert [name for name in requests if not name.startswith("data:")] == []
    assert "CONSOLE" not in done.stderr

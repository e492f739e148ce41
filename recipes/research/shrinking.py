"""Checkpoints shrunk by one command each, all candidates side by side: before and after healing.

    python -m recipes.research.shrinking WORK --checkpoint DIR --data DIR --share 0.6 --minutes 60 --seeds 0 1 2
    python -m recipes.research.shrinking WORK --table

A folder in WORK a seed; the same command goes on where it was stopped. ``--set`` is passed on (data.length=256).
``--stsb DIR`` adds Spearman's ρ × 100 on STS-B's test pairs for every candidate of a sentence encoder.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import leanify
from leanify.shrinking.folder import ShrinkFolder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--checkpoint")
    parser.add_argument("--data")
    parser.add_argument("--share", type=float, default=0.6)
    parser.add_argument("--count", default="body")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--set", dest="settings", action="append", default=[])
    parser.add_argument("--stsb", type=Path)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.stsb:
        score_on(given.stsb)
    given.work.mkdir(parents=True, exist_ok=True)
    for seed in () if given.table else given.seeds:
        leanify.shrink(
            given.checkpoint,
            given.data,
            given.share,
            given.minutes,
            given.work / f"seed-{seed}",
            count=given.count,
            shape="free",
            settings=[*given.settings, f"run.seed={seed}"],
        )
    print("\n".join(table(sorted(given.work.glob("seed-*/report.json")))))


def score_on(stsb: Path) -> None:
    """Let a shrink score all candidates on STS-B before it removes those that were not chosen."""
    from .warm_minilm import Scales

    finish = ShrinkFolder.finish

    def scored(folder: ShrinkFolder, model: Path, report: dict[str, Any]) -> None:
        source = Path(report["source"])
        scales = Scales(source, Path(folder.request["data"]) / "validation.csv", stsb)
        places = {"original": source}
        for one in report["candidates"]:
            places[f"{one['name']}, carried"] = folder.place(one["name"])
            places[f"{one['name']}, healed"] = folder.place(f"{one['name']}-run")
        report["stsb"] = {
            name: scales.of(leanify.load(place))["stsb"] for name, place in places.items() if place.is_dir()
        }
        finish(folder, model, report)

    ShrinkFolder.finish = scored  # type: ignore[assignment, method-assign]


def table(files: list[Path]) -> Iterator[str]:
    """Every candidate of every seed, with the original and the trivial reference."""
    yield "| seed | candidate | parameters | MACs | latency, ms | carried | healed | STS-B carried | healed |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for file in files:
        report, seed = json.loads(file.read_text(encoding="utf-8")), file.parent.name.removeprefix("seed-")
        rows: list[dict[str, Any]] = [{"name": "original", **report["original"], "carried": report["original"]}]
        for one in [*rows, *report["candidates"]]:
            carried, healed = one.get("carried") or {}, one.get("healed") or {}
            latency = one.get("latency_s")
            cells = [
                seed,
                one["name"] + (" (chosen)" if one["name"] == report["chosen"] else ""),
                f"{one['params']:,}" if one.get("params") else "–",
                f"{one['macs']:,}" if one.get("macs") else "–",
                f"{1000 * latency:.3g}" if latency else "–",
                f"{carried['quality']:.4g}" if "quality" in carried else "–",
                f"{healed['quality']:.4g}" if "quality" in healed else "–",
                *_stsb(report.get("stsb", {}), one["name"]),
            ]
            yield f"| {' | '.join(cells)} |"
        if report["reference"]:
            yield f"| {seed} | {report['reference']['name']} | | | | {report['reference']['value']:.4g} | | | |"


def _stsb(scores: Mapping[str, float], name: str) -> Iterator[str]:
    for key in (name if name in scores else f"{name}, carried", f"{name}, healed"):
        yield f"{scores[key]:.1f}" if key in scores else "–"


if __name__ == "__main__":
    main()

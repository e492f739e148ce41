"""What `redesign` says of its own rule is what recipes/results/ranking.csv gives."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from leanify.design.search.ranking import EVIDENCE

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("causal", [False, True])
def test_the_regrets_that_are_printed_are_those_of_the_table(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "tests" / "benchmarks"), *sys.path])
    import ranking_rules
    import ranking_scores
    import ranking_table

    tasks, _ = ranking_table.read(ROOT / "recipes" / "results" / "ranking.csv")
    learnt = [task for task in tasks if task.learnt]
    group = [one for one in ranking_rules.proposed(learnt) if ranking_scores.is_causal(one.task) == causal]
    known = EVIDENCE[causal]
    assert ranking_scores.DEFAULT[causal] == known.rule
    assert len(group) == known.tasks
    assert np.mean([one.default for one in group]) == pytest.approx(known.regret, abs=0.005)
    assert np.mean([one.held_out for one in group]) == pytest.approx(known.held_out, abs=0.005)

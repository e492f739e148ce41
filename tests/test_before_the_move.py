"""What leanify did before its files moved, it does now: shapes, prices, weights, outputs and runs.

What must not depend on the processor is compared exactly: shapes, prices, what a lean directory holds. Sums of many
products do depend on it (and on torch's build), in their last bits, so outputs are compared in float64 to far more
figures than a change would leave; weights that were drawn, and a run's rows and weights, bit for bit where the
processor is of the kind that the figures are from, and closely anywhere else. See `before`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import before
import pytest
import torch
from before import HERE, MODELS, PROFILED, RUNS
from safetensors.torch import load_file

import leanify

GOLDEN: dict[str, Any] = json.loads((HERE / "golden.json").read_text())


def plain(value: Any) -> Any:
    """As it comes back out of JSON."""
    return json.loads(json.dumps(value))


def card_of(folder: Path) -> dict[str, Any]:
    """What a lean directory says of itself, but which versions wrote it."""
    card = json.loads((folder / "leanify.json").read_text())
    return {key: value for key, value in card.items() if key not in ("written_with", "requires")}


@pytest.mark.parametrize("name", MODELS)
def test_a_lean_directory_of_before_loads_and_computes_what_it_did(name: str) -> None:
    expected = load_file(HERE / f"{name}.expected.safetensors")
    inputs = {key.removeprefix("input:"): value for key, value in expected.items() if key.startswith("input:")}
    wanted = {key: value for key, value in expected.items() if not key.startswith("input:")}
    found = before.outputs(leanify.load(HERE / name), inputs)
    assert wanted
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        # some parts of transformers compute in float32 whatever they are given
        torch.testing.assert_close(
            found[key], value, rtol=1e-5, atol=1e-6, msg=lambda words, key=key: f"{key}: {words}"
        )


@pytest.mark.parametrize("name", MODELS)
def test_a_lean_directory_of_before_is_written_again_as_it_was(name: str, tmp_path: Path) -> None:
    model = leanify.load(HERE / name)
    again = leanify.save(model, tmp_path / name)
    old, new = card_of(HERE / name), card_of(again)
    apart = ("options",)  # upstream's defaults may be spelt out
    assert {**new["origin"], **dict.fromkeys(apart)} == {**old["origin"], **dict.fromkeys(apart)}
    assert (new["architecture"], new["upstream"]) == (old["architecture"], old["upstream"])
    assert leanify.read(model).to_json() == old["architecture"]
    (before_it,) = (HERE / name).glob("*.safetensors")
    assert before.digest(load_file(again / "model.safetensors")) == before.digest(load_file(before_it))


@pytest.mark.parametrize("name", MODELS)
def test_a_seed_draws_the_weights_that_it_drew(name: str) -> None:
    found, wanted = before.seeded(name), GOLDEN["weights"][name]
    assert found.keys() == wanted.keys()
    for how in wanted:
        # normal and truncated draws go through logarithms and their like, whose last bits are the processor's
        assert found[how]["names"] == wanted[how]["names"], how
        assert found[how]["size"] == pytest.approx(wanted[how]["size"], rel=1e-6), how
        if before.draws() == GOLDEN["draws"]:
            assert found[how]["sha256"] == wanted[how]["sha256"], how


@pytest.mark.parametrize("name", GOLDEN["prices"])
def test_a_given_shape_costs_what_it_did(name: str) -> None:
    wanted = GOLDEN["prices"][name]
    assert plain(before.priced(name, [given["pins"] for given in wanted["given"]])) == wanted


@pytest.mark.parametrize("name", PROFILED)
def test_a_profile_counts_what_it_did(name: str) -> None:
    assert plain(before.profiled(name)) == GOLDEN["profiles"][name]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_was_interrupted_before_comes_to_the_same_end(name: str, tmp_path: Path) -> None:
    run = Path(shutil.copytree(HERE / "runs" / name, tmp_path / name))
    shutil.copy(HERE / "runs" / "text.txt", tmp_path)
    begun = before.rows_of(run)
    before.resume(run)
    rows, weights = before.rows_of(run), before.last_weights(run)
    wanted = json.loads((HERE / "runs" / f"{name}.json").read_text())
    assert rows[: len(begun)] == begun
    if before.machine() == GOLDEN["machine"]:
        assert rows == wanted["rows"]
        assert before.digest(weights) == wanted["sha256"]
    assert [row.keys() for row in rows] == [row.keys() for row in wanted["rows"]]
    for row, old in zip(rows, wanted["rows"], strict=True):
        assert row.pop("split") == old.pop("split")
        assert row == pytest.approx(old, rel=1e-4)
    torch.testing.assert_close(weights, load_file(HERE / "runs" / f"{name}.safetensors"), rtol=1e-4, atol=1e-5)

"""What the code decides, against oracles by hand: which design, which heads, which control, which verdict.

A wrong judgement breaks no shape and no sum: the model that comes out is as well made as the right one.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from cases import TEXT, price_list
from safetensors.torch import load_file, save_file
from torch import Tensor

import leanify
from leanify.carrying.choose import RIDGE, least_squares, survivors
from leanify.search import ranking
from leanify.search.towers import towers
from leanify.spectra.results import gaussian_kappa

T5 = {"d_model": 24, "d_kv": 8, "d_ff": 48, "num_layers": 8, "num_decoder_layers": 3, "num_heads": 3, "vocab_size": 41}

# -- designs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", [[4, 9], [9, 4]])
def test_predicted_kappa_is_worst_tower(heads: list[int]) -> None:
    """Theorem 3.2 for each tower of an encoder-decoder; its worse number is the model's, in either order."""
    plan = leanify.redesign("t5", overrides=T5, heads=heads)
    each = [gaussian_kappa(8 * count, plan.tokens) for count in heads]
    assert each[0] != pytest.approx(each[1], rel=0.05)
    assert plan.chosen.to_json()["kappa_predicted"] == pytest.approx(max(each))


def test_tower_scores_weigh_parameters() -> None:
    """An encoder of eight layers beside a decoder of three: the mean of two scores, weighted by what blocks hold."""
    model = leanify.load("t5", overrides=T5, device="meta")
    prices = price_list(model)
    weights = [sum(p.numel() for p in part.parameters()) for part in (model.encoder.block, model.decoder.block)]
    each = []
    for tower, stage in zip(towers(prices.architecture, prices.stage_indices), prices.baseline, strict=True):
        sizes = (stage.depth, stage.heads, stage.head_dim, stage.mlp)
        each.append(float(ranking.preference(prices, tower).score(*sizes)))
    assert abs(each[0] - each[1]) > 0.1
    by_hand = (weights[0] * each[0] + weights[1] * each[1]) / sum(weights)
    assert ranking.score(prices, prices.baseline) == pytest.approx(by_hand)


def test_slack_limit_changes_no_alternative() -> None:
    """A design is no alternative where it leaves more than a little of every limit; of one that is enough."""
    alone = leanify.redesign("vit_base", target_params=0.5)
    beside = leanify.redesign("vit_base", target_params=0.5, max_macs=1.0)
    assert len(alone.candidates) > 2
    assert [c.to_json() for c in beside.candidates] == [c.to_json() for c in alone.candidates]


@pytest.mark.parametrize("pins", [{"depth": 8, "heads": 13, "head_dim": 62}, {"depth": 7, "heads": 16, "head_dim": 50}])
def test_no_mlp_step_beats_control(pins: dict[str, int]) -> None:
    """Steps of 64 units are more than a percent: the control goes on to smaller ones until it is near enough."""
    plan = leanify.redesign("vit_base", **pins)
    lean, control = plan.chosen, plan.control
    units = 2 * 768 + 1  # parameters of a hidden unit in each layer
    per_step = 8 * units * lean.depth  # type: ignore[operator]
    best = min(abs(control.params + step * per_step - lean.params) for step in range(-40, 41))
    assert abs(control.params - lean.params) <= max(best, 0.0005 * lean.params)
    assert control.heads == plan.baseline.heads


# -- heads and units --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [1e-6, 1.0, 1e6])
def test_correction_ignores_input_units(power: float) -> None:
    """λ is a share of the inputs' own power: W' is the same in volts and in millivolts."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(60, 12, generator=generator, dtype=torch.float64)
    a[:, 3] = a[:, 4] + 1e-3 * a[:, 5]
    w = torch.randn(5, 12, generator=generator, dtype=torch.float64)
    second, kept = a.T @ a / 60, torch.tensor([0, 2, 3, 4, 8, 9])
    expected = least_squares(w, second, kept)
    torch.testing.assert_close(least_squares(w, power * second, kept), expected, rtol=1e-8, atol=1e-10)


def loss_without(w: Tensor, second: Tensor, gone: list[int]) -> float:
    """What the best projection of the other inputs misses."""
    second = second + RIDGE * second.diagonal().mean() * torch.eye(len(second), dtype=second.dtype)
    kept = [i for i in range(len(second)) if i not in gone]
    rest = w.clone()
    rest[:, kept] -= w @ second[:, kept] @ torch.linalg.inv(second[kept][:, kept])
    return float(torch.einsum("oi,ij,oj->", rest, second, rest))


def test_units_are_chosen_in_turn() -> None:
    """Of a hundred inputs two go at once: of a pair that cancels out both, though each alone weighs much."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(4000, 100, generator=generator, dtype=torch.float64)
    a[:, 71] = a[:, 13] + 0.01 * a[:, 71]
    w = 1 + torch.rand(3, 100, generator=generator, dtype=torch.float64)
    w[:, 13], w[:, 71], w[:, 40] = 10, -10.001, 0.2  # 40 is the cheapest but for them
    second = a.T @ a / 4000
    gone: list[int] = []
    for _ in range(2):
        rest = [i for i in range(100) if i not in gone]
        gone.append(min(rest, key=lambda i: loss_without(w, second, [*gone, i])))
    assert sorted(gone) == [13, 71]
    kept = survivors(w, second, torch.arange(100)[:, None], [98])[98].tolist()
    assert sorted(set(range(100)) - set(kept)) == sorted(gone)


# -- heads of classes and losses --------------------------------------------------------------------------------------


def test_foreign_head_labels_are_refused(tmp_path: Path) -> None:
    """Labels that were asked for anew draw a new head; weights beside a configuration that fits none are damage."""
    config = transformers.BertConfig(**TEXT, num_labels=5)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "bert")
    with pytest.warns(UserWarning, match="re-initialised"):
        other = leanify.load(tmp_path / "bert", overrides={"num_labels": 3})
    assert other.classifier.weight.shape == (3, 60)
    tensors = load_file(tmp_path / "bert" / "model.safetensors")
    cut = {name: tensor[:4].clone() if name.startswith("classifier") else tensor for name, tensor in tensors.items()}
    save_file(cut, tmp_path / "bert" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(leanify.SourceError, match=r"classifier\.weight \(4, 60\).*\(5, 60\)"):
        leanify.load(tmp_path / "bert")

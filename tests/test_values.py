"""Architectures, layouts and theory: values that know no torch."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from leanify import Architecture, Layer, ShapeError, Stage
from leanify.lens import notation
from leanify.spectra.results import gaussian_kappa

WIDE = Layer(width=96, heads=6, kv_heads=2, head_dim=16, mlp=256)


def architecture(*depths: int) -> Architecture:
    return Architecture("timm/x", tuple(Stage(f"s{i}", ((WIDE,),) * depth) for i, depth in enumerate(depths)))


def test_architecture_survives_json() -> None:
    """It is written run-length encoded."""
    shape = Architecture(
        "hf/y", (Stage("a", ((WIDE,),) * 5 + ((), (WIDE, WIDE))), Stage("pool", ((WIDE,),), is_fixed=True))
    )
    data = json.loads(json.dumps(shape.to_json()))
    assert Architecture.from_json(data) == shape
    assert [run["repeat"] for run in data["stages"][0]["blocks"]] == [5, 1, 1]
    assert "5 × [6×16 on 2 kv, mlp 256, width 96]" in str(shape)
    with pytest.raises(ShapeError, match="not an architecture"):
        Architecture.from_json({"source": "x"})


def test_equality_compares_shapes_only() -> None:
    assert Architecture("a", architecture(3).stages) == Architecture("b", architecture(3).stages)
    assert architecture(3) != architecture(4)


@pytest.mark.parametrize(
    ("depths", "varied"),
    [((12,), (0,)), ((24, 2), (0,)), ((1, 1, 9, 1), (2,)), ((8, 8, 16, 4), (0, 1, 2, 3)), ((2, 2), (0, 1))],
)
def test_redesign_turns_deep_stages(depths: tuple[int, ...], varied: tuple[int, ...]) -> None:
    assert architecture(*depths).variable_stages == varied


def test_pins_cover_one_or_all_stages() -> None:
    assert architecture(24, 2).per_stage(16, "heads") == [16, None]
    assert architecture(24, 2).per_stage([16, 8], "heads") == [16, 8]
    with pytest.raises(ShapeError, match=r"heads .* 3 .* 2 stages: s0 \(24\), s1 \(2\)"):
        architecture(24, 2).per_stage([1, 2, 3], "heads")


def test_differing_layers_change_proportionally() -> None:
    """Hiera's heads double where its width does; a mixture's first layer is dense, and its experts are small."""
    small, large = Layer(48, 1, 1, 48, 192), Layer(96, 2, 2, 48, 384)
    hiera = Stage("blocks", ((small,), (large,), (large,)))
    assert [block[0].heads for block in hiera.reshape(heads=3).blocks] == [3, 6, 6]
    assert [block[0].mlp for block in hiera.reshape(mlp=96).blocks] == [96, 192, 192]
    assert (hiera.group, hiera.units) == (1, 1)
    mixture = Stage("layers", ((Layer(64, 8, 2, 8, 180),), (Layer(64, 12, 2, 8, 40),)))
    assert (mixture.group, mixture.units) == (4, 9)
    assert [block[0].heads for block in mixture.reshape(heads=12).blocks] == [12, 18]
    with pytest.raises(ShapeError, match="180 and of 40 mlp"):
        mixture.reshape(mlp=100)


def test_experts_are_optional_in_json() -> None:
    """A dense layer's JSON is what it was before layers had experts."""
    dense, mixture = Layer(64, 4, 4, 16, 96), Layer(64, 4, 4, 16, 96, experts=8, active=2)
    assert dense != mixture
    stage = Stage("layers", ((dense,), (mixture,), (mixture,)))
    shape = Architecture("hf/y", (stage,))
    first, second = (run["layers"][0] for run in shape.to_json()["stages"][0]["blocks"])
    assert first == {"width": 64, "heads": 4, "kv_heads": 4, "head_dim": 16, "mlp": 96}
    assert second == {**first, "experts": 8, "active": 2}
    assert Architecture.from_json(json.loads(json.dumps(shape.to_json()))) == shape
    assert "2 × [4×16, mlp 8 experts (2 active) of 96, width 64]" in str(shape)
    narrow = Stage("layers", ((replace(dense, mlp=48),), (replace(mixture, mlp=48),), (replace(mixture, mlp=48),)))
    assert stage.reshape(mlp=48) == narrow
    with pytest.raises(ShapeError, match=" 0 units"):
        stage.reshape(mlp=0)


@pytest.mark.parametrize(
    ("attending", "shortest"), [("aaa", 1), ("a", 1), ("---a---a", 8), ("a-a", 3), ("aa---", 1), ("-aa", 3)]
)
def test_hybrid_keeps_two_attention_blocks(attending: str, shortest: int) -> None:
    assert Stage("s", tuple((WIDE,) if mark == "a" else () for mark in attending)).shortest == shortest


def test_main_layer_has_an_mlp() -> None:
    """Whisper's decoder: attention to itself, then to the sound and an MLP."""
    decoder = Stage("decoder", (((own := Layer(48, 6, 6, 8, 0)), (cross := Layer(48, 6, 6, 8, 96))),))
    assert decoder.primary == cross
    assert decoder.reshape(mlp=64).blocks == ((own, Layer(48, 6, 6, 8, 64)),)
    with pytest.raises(ShapeError, match="no MLP of it is known"):
        Stage("s", ((own,),)).reshape(mlp=64)


def test_grow_wants_heads_or_factor() -> None:
    assert {layer.kv_heads for layer in architecture(3).grown(factor=2).layers()} == {4}
    for arguments in ({}, {"heads": 12, "factor": 2}, {"factor": 0}):
        with pytest.raises(ShapeError):
            architecture(3).grown(**arguments)


# -- layouts ------------------------------------------------------------------------------------------------------

SIZES = {"h": 4, "g": 2, "d": 3, "m": 10}


def test_sizes_solve_from_axes() -> None:
    assert (notation.evaluate("h /g", SIZES), notation.evaluate("d^-0.5", SIZES)) == (2, 3**-0.5)  # of attributes
    assert notation.solve([("h d", 12), ("g d", 6), ("d", 3)], {}) == {"h": 4, "g": 2, "d": 3}
    assert notation.solve([("m | 3 h d", 46), ("h d", 12), ("h", 4)], {})["m"] == 10
    assert notation.solve([("h d", 12), ("d", 4), ("g d", 4)], {}) == {"h": 3, "d": 4, "g": 1}
    with pytest.raises(ValueError, match="an axis of length 13"):
        notation.solve([("h", 4), ("d", 3), ("h d", 13)], {})


@pytest.mark.parametrize("how", ["h d", "3 h d", "h 3 d", "d h", "h d | g d | g d", "m | 3 h d"])
def test_positions_place_every_head(how: str) -> None:
    """Growing: old channel c of head i of part p is channel c of head i of part p, whatever the layout."""
    new = {"h": 6, "g": 3, "d": 3, "m": 12}

    def labels(sizes: dict[str, int]) -> list[tuple[int, ...]]:
        places = []
        for number, part in enumerate(how.split("|")):
            factors = part.split()
            for index in torch.cartesian_prod(
                *(torch.arange(int(f) if f.isdigit() else sizes[f]) for f in factors)
            ).view(-1, len(factors)):
                places.append((number, *(int(i) for i in index)))
        return places

    source, target = notation.positions(how, SIZES, new)
    before, after = labels(SIZES), labels(new)
    assert [before[i] for i in source] == [after[i] for i in target] == before
    assert notation.evaluate(how, new) == len(after)


def test_split_keeps_channel_order() -> None:
    """h heads side by side cut into 2h: interleaved layouts must be reordered, plain ones stay."""
    halves = {"h": 8, "d": 2}
    whole = {"h": 4, "d": 4}
    source, target = notation.positions("3 h d", whole, halves)
    assert torch.equal(source, target)
    source, target = notation.positions("h 3 d", whole, halves)
    moved = torch.empty(48, dtype=torch.long)
    moved[target] = torch.arange(48)[source]
    old, new = torch.arange(48).view(4, 3, 4), moved.view(8, 3, 2)
    assert torch.equal(old.transpose(0, 1).reshape(3, 16), new.transpose(0, 1).reshape(3, 16))


def test_per_head_values_repeat() -> None:
    """For new heads."""
    assert notation.cycle("h", {"h": 3}, {"h": 5}).tolist() == [0, 1, 2, 0, 1]


# -- theory -------------------------------------------------------------------------------------------------------


def test_predicted_kappa_peaks_at_tokens() -> None:
    """Where the inner width meets the number of tokens."""
    printed = {12: 3.05, 16: 2.56, 18: 2.41, 23: 2.15}
    for heads, kappa in printed.items():
        assert gaussian_kappa(64 * heads, 197) == pytest.approx(kappa, abs=0.005)
    assert max(range(1, 31), key=lambda heads: gaussian_kappa(64 * heads, 197)) == 3
    assert math.isinf(gaussian_kappa(197, 197))
    assert gaussian_kappa(64, 1024) == gaussian_kappa(1024, 64)


@pytest.mark.parametrize(
    ("how", "heads", "places"),
    [
        ("h d", [0, 2], [0, 1, 4, 5]),
        ("2 h d", [1], [2, 3, 8, 9]),
        ("h d | g d", [2, 0], [4, 5, 0, 1, 6, 7]),
        ("d h", [1], [1, 4]),
    ],
)
def test_picked_positions_follow_heads(how: str, heads: list[int], places: list[int]) -> None:
    sizes = {"h": 3, "g": 1, "d": 2}
    assert notation.pick_positions(how, sizes, {"h": torch.tensor(heads)}).tolist() == places

"""The models of the paper's recipes: the paper's counts, the laws of surgery, and each mechanism against an oracle."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import laws

import leanify
from crammed_bert import ScaledSinusoidal
from gpt2 import Gpt2
from leaner_layers import Attention
from leanify.sources import find
from leanify.upstream.build import build_model, initialise_model
from leanify.upstream.inputs import example_inputs
from leanify.upstream.origin import Origin, get_origin
from nystromformer import NystromAttention, Nystromformer, nystrom, pseudo_inverse

TINY: dict[str, Any] = {"vocab": 50, "length": 24, "width": 16, "depth": 3, "heads": 3, "head_dim": 5, "mlp": 20}
SMALL = {
    "crammed-bert": TINY,
    "crammed-bert, classes": {**TINY, "classes": 3},
    "gpt2-tinystories": TINY,
    "nystromformer": {**TINY, "landmarks": 8},
    "nystromformer, pair": {**TINY, "landmarks": 8, "pair": True, "classes": 2},
    "point-encoder": {name: value for name, value in TINY.items() if name not in ("vocab", "length")},
}


CODE = {
    "crammed-bert": "crammed_bert.py:CrammedBert",
    "gpt2-tinystories": "gpt2.py:Gpt2",
    "nystromformer": "nystromformer.py:Nystromformer",
    "point-encoder": "point_encoder.py:PointEncoder",
}


def origin(name: str, **options: Any) -> Origin:
    """A model of the recipes."""
    return replace(find.find(CODE[name]).origin, options=options)


def built(case: str, **options: Any) -> nn.Module:
    """A small model in float64 whose zero and constant parameters are drawn, so that nothing is silent."""
    torch.manual_seed(0)
    model = build_model(origin(case.split(",")[0], **{**SMALL[case], **options})).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def drawn(model: nn.Module) -> dict[str, Tensor]:
    """Two samples, in float64 where they are no ids."""
    return {name: x.double() if x.is_floating_point() else x for name, x in example_inputs(model, 2).items()}


def run(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        outputs: Tensor = model(**inputs)
    return outputs


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", SMALL)
def test_models_obey_every_law(case: str) -> None:
    model = built(case)
    inputs = drawn(model)
    applied = laws.hold(model, lambda one: one(**inputs))
    laws.check_saving(model, lambda one: one(**inputs))
    assert {law for law, applies in applied.items() if not applies} == {"cached", "split"}  # heads of 5 channels


@pytest.mark.parametrize("case", SMALL)
def test_written_shapes_equal_constructed(case: str) -> None:
    model = built(case)
    inputs = drawn(model)
    assert torch.equal(run(model, inputs), run(leanify.write(model, leanify.read(model)), inputs))
    shape = leanify.read(model)
    wanted = replace(shape, stages=(shape.stages[0].reshape(depth=2, heads=4, head_dim=6, mlp=7),))
    lean = leanify.write(model, wanted)
    assert leanify.read(lean) == wanted
    direct = built(case, depth=2, heads=4, head_dim=6, mlp=7)
    direct.load_state_dict(lean.state_dict())
    for twin in (direct, copy.deepcopy(lean), pickle.loads(pickle.dumps(lean))):
        assert torch.equal(run(lean, inputs), run(twin, inputs))


@pytest.mark.parametrize("case", SMALL)
def test_step_reaches_every_parameter(case: str) -> None:
    """The export agrees with the model."""
    model = leanify.grow(built(case), factor=2)
    inputs = drawn(model)
    model.train()(**inputs).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    model.eval()
    exported = torch.export.export(model, (), inputs).module()
    assert torch.allclose(run(model, inputs), run(exported, inputs))


def test_model_reports_its_arguments() -> None:
    made = built("crammed-bert")
    assert get_origin(made) == Origin("module", "leaner-transformers/crammed_bert.py:CrammedBert", TINY)
    with pytest.raises(leanify.SourceError, match="'layers'"):
        build_model(origin("crammed-bert", layers=2))


def test_reset_draws_every_parameter() -> None:
    for case in SMALL:
        model = built(case)
        before = copy.deepcopy(model.state_dict())
        initialise_model(model)
        same = [name for name, tensor in model.state_dict().items() if torch.equal(tensor, before[name])]
        assert same == []


# -- attention ----------------------------------------------------------------------------------------------------


def test_attention_matches_torch() -> None:
    torch.manual_seed(0)
    ours = Attention(24, 4, 6, qkv_bias=True, bias=True, causal=False, dropout=0.0).double()
    theirs = nn.MultiheadAttention(24, 4, batch_first=True).double()
    theirs.load_state_dict(
        {
            "in_proj_weight": ours.qkv.weight,
            "in_proj_bias": ours.qkv.bias,
            "out_proj.weight": ours.proj.weight,
            "out_proj.bias": ours.proj.bias,
        }
    )
    x = torch.randn(2, 9, 24, dtype=torch.float64)
    mask = torch.arange(9) < torch.tensor([[9], [5]])
    expected, _ = theirs(x, x, x, key_padding_mask=~mask)
    assert torch.allclose(ours(x, mask), expected)


@pytest.mark.parametrize("masked", [False, True])
def test_gpt2_is_causal(masked: bool) -> None:
    model = built("gpt2-tinystories")
    ids = torch.randint(50, (2, 12))
    mask = {"attention_mask": torch.ones_like(ids)} if masked else {}
    other = ids.clone()
    other[:, 7:] = (other[:, 7:] + 1) % 50
    before, after = model(ids, **mask), model(other, **mask)
    assert torch.allclose(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7], after[:, 7])
    assert torch.allclose(before, model(ids))


@pytest.mark.parametrize("case", ["crammed-bert", "nystromformer"])
def test_masked_tokens_do_not_count(case: str) -> None:
    model = built(case)
    ids = torch.randint(50, (2, 20))
    mask = (torch.arange(20) < torch.tensor([[20], [13]])).long()
    other = torch.where(mask.bool(), ids, (ids + 1) % 50)
    before, after = model(ids, mask), model(other, mask)
    if case == "crammed-bert":  # a masked token still has an output of its own
        before, after = before[mask.bool()], after[mask.bool()]
    assert torch.allclose(before, after)
    assert not torch.allclose(model(ids)[1], model(other)[1])


def test_sinusoids_match_formula() -> None:
    table = ScaledSinusoidal(6)(4) * 6**0.5
    angle = 3 / 10000 ** (2 / 6)
    assert table[3, 2].item() == pytest.approx(torch.tensor(angle).sin().item(), abs=1e-6)
    assert table[3, 3].item() == pytest.approx(torch.tensor(angle).cos().item(), abs=1e-6)


# -- Nyström ------------------------------------------------------------------------------------------------------


def test_pseudo_inverse_converges() -> None:
    torch.manual_seed(0)
    matrix = torch.randn(2, 3, 8, 8, dtype=torch.float64).softmax(-1)
    exact = torch.linalg.pinv(matrix)
    errors = [(pseudo_inverse(matrix, n) - exact).abs().max().item() for n in (6, 12, 30)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-8


def test_full_landmarks_equal_softmax() -> None:
    """With a landmark for each token, Nyström attention is softmax attention."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 12, 8, dtype=torch.float64).unbind(0)
    mask = torch.ones(2, 12, dtype=torch.bool)
    expected = nn.functional.scaled_dot_product_attention(q, k, v)
    assert torch.allclose(nystrom(q, k, v, mask, landmarks=12, iterations=40), expected, atol=1e-7)
    assert not torch.allclose(nystrom(q, k, v, mask, landmarks=4, iterations=40), expected, atol=1e-2)


def test_outputs_depend_on_own_sample() -> None:
    model = built("nystromformer")
    ids = torch.randint(50, (3, 24))
    assert torch.allclose(model(ids)[:1], model(ids[:1]), rtol=0, atol=1e-12)


def test_short_and_odd_lengths_run() -> None:
    torch.manual_seed(0)
    exact = Attention(16, 3, 5, qkv_bias=True, bias=True, causal=False, dropout=0.0).double()
    approximate = NystromAttention(16, 3, 5, landmarks=8).double()
    approximate.load_state_dict(exact.state_dict())
    x = torch.randn(2, 8, 16, dtype=torch.float64)
    assert torch.equal(exact(x), approximate(x))
    assert approximate(torch.randn(2, 21, 16, dtype=torch.float64)).shape == (2, 21, 16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_maps_single(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def noted(matrix: Tensor, iterations: int) -> Tensor:
        seen.append(((matrix @ matrix).dtype, matrix.dtype))
        return pseudo_inverse(matrix, iterations)

    monkeypatch.setattr("nystromformer.pseudo_inverse", noted)
    torch.manual_seed(0)
    attention = NystromAttention(64, 2, 32, landmarks=32)
    x = torch.randn(2, 128, 64)
    full = attention(x)
    with torch.autocast("cpu", dtype=dtype):
        half = attention(x)
    assert half.dtype == dtype
    assert (full - half).abs().max() < 0.02 * full.abs().max()
    assert seen == [(torch.float32, torch.float32)] * 2


def test_pair_is_read_from_both_sides() -> None:
    model = Nystromformer(**{**SMALL["nystromformer, pair"], "dropout": 0.0})
    a, b = torch.randint(50, (2, 24)), torch.randint(50, (2, 24))
    x, y = model.encode(a), model.encode(b)
    expected = model.classifier(torch.cat((x, y, x * y, x - y), dim=-1))
    assert torch.allclose(model(torch.stack((a, b), 1)), expected, atol=1e-6)


def test_gpt2_refuses_long_inputs() -> None:
    with pytest.raises(IndexError):
        Gpt2(**TINY)(torch.zeros(1, 25, dtype=torch.long))

"""Sizes on meta: every rule held against torch's own answer."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

import leanify
from leanify.design.measure import profiling
from leanify.design.prices import counting
from leanify.design.prices.sizes import RULES, Sizes

aten = torch.ops.aten


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


x, w, b = meta(2, 5, 8), meta(8, 8), meta(8)
turned, wide, half = meta(2, 8, 5).mT, meta(2, 5, 16)[..., ::2], meta(2, 5, 8, dtype=torch.bfloat16)
whole = meta(2, 5, 8, dtype=torch.int64)
heads = meta(1, 5, 3, 4, 2).permute(2, 0, 3, 1, 4)[0]  # 1 × 4 × 5 × 2, as of a fused qkv
images = meta(2, 3, 9, 7)
last = images.to(memory_format=torch.channels_last)
CALLS = {
    **{str(op): (op, [(x, x), (x, 2), (x, b), (b, x), (turned, x), (turned, 2.0), (turned, turned), (wide, 3.0),
                      (half, x), (half, 2.5), (whole, whole), (whole, 1.5), (x, meta()), (meta(), x),
                      (x, meta(4, 1, 1, 8)), (heads, 2.0), (heads, heads), (x.expand(3, 2, 5, 8), 2.0),
                      (meta(5, 1), meta(1, 8)), (x, whole), (half, meta())])
       for op in (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)},
    **{str(op): (op, [(x, 2), (turned, 2.0), (half, 2.5), (whole, 2), (heads, 0.1)])
       for op in (aten.add.Scalar, aten.sub.Scalar, aten.mul.Scalar, aten.div.Scalar, aten.add_.Scalar,
                  aten.mul_.Scalar)},
    **{str(op): (op, [(x, x), (turned, x), (x, b), (half, half)])
       for op in (aten.add_.Tensor, aten.sub_.Tensor, aten.mul_.Tensor, aten.div_.Tensor)},
    **{str(op): (op, [(x,), (turned,), (wide,), (half,), (meta(),), (heads,), (last,)])
       for op, rule in RULES.items() if rule is RULES[aten.gelu.default]
       and op not in (aten.pow.Tensor_Scalar, aten.clamp.default)},
    "tril": (aten.tril.default, [(x,), (turned,), (whole, 1)]),
    "triu": (aten.triu.default, [(x,), (turned,)]),
    "not": (aten.bitwise_not.default, [(whole > 0,), (whole,)]),
    "mask": (aten.masked_fill.Scalar, [
        (x, x > 0, 1.0), (turned, x > 0, 1.0), (x, b > 0, 1.0), (b, x > 0, 1.0), (half, x > 0, 2),
        (whole, whole > 0, 1),
    ]),
    "clamp": (aten.clamp.default, [(x, 0.0), (turned, None, 1.0), (whole, 1)]),
    "pow": (aten.pow.Tensor_Scalar, [(x, 2), (turned, 3.0), (half, 2), (whole, 2)]),
    "mm": (aten.mm.default, [(w, w), (w.mT, w), (meta(3, 8), w)]),
    "addmm": (aten.addmm.default, [(b, w, w), (w, w, w), (b, meta(3, 8), w.mT), (meta(1), w, w)]),
    "bmm": (aten.bmm.default, [(x, x.mT), (turned, w.expand(2, 8, 8))]),
    "convolution": (aten.convolution.default, [
        (images, meta(4, 3, 3, 3), None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1),
        (images, meta(4, 3, 3, 2), meta(4), [2], [1], [2], False, [0], 1),
        (images, meta(3, 1, 2, 2), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 3),
        (images, meta(3, 4, 2, 2), None, [2, 2], [0, 0], [1, 1], True, [0, 0], 1),
        (x, meta(6, 5, 3), None, [1], [1], [1], False, [0], 1),
    ]),
    "layer norm": (aten.native_layer_norm.default, [
        (x, [8], b, b, 1e-5), (turned, [8], b, b, 1e-5), (x, [5, 8], None, None, 1e-5), (half, [8], None, None, 1e-5)]),
    "softmax": (aten._softmax.default, [(x, -1, False), (turned, 1, False), (half, 0, False)]),
    "safe softmax": (aten._safe_softmax.default, [(x, -1), (turned, 1)]),
    "embedding": (aten.embedding.default, [(w, whole), (w, meta(3, dtype=torch.int64), 2)]),
    "cat": (aten.cat.default, [([x, x],), ([x, meta(2, 1, 8)], 1), ([x, x], -1), ([x, half], 0), ([meta(0), x], 0),
                               ([turned, turned], 2)]),
    "mean": (aten.mean.dim, [(x, [1]), (x, [-1], True), (x, [0, 2]), (turned, [1]), (x, None), (x, [])]),
    "sum": (aten.sum.dim_IntList, [(x, [1]), (x, [-1], True), (whole, [1]), (x, None)]),
}  # fmt: skip


def facts(found: object) -> list[tuple[object, ...]]:
    tensors = found if isinstance(found, (tuple, list)) else [found]
    return [(t.shape, t.dtype, t.stride(), t.device) for t in tensors if isinstance(t, Tensor)]


def test_every_rule_is_held_against_torch():
    assert {op for op, _ in CALLS.values()} == set(RULES)


@pytest.mark.parametrize("name", CALLS)
def test_a_rule_answers_as_torch_does(name):
    operator, calls = CALLS[name]
    answered = 0
    for args in calls:
        expected = facts(operator(*args))
        answered += RULES[operator](*args) is not None
        with Sizes():
            assert facts(operator(*args)) == facts(operator(*args)) == expected, args
    assert answered


def test_an_answer_is_kept_for_the_same_question_alone():
    """Same shapes with other strides, types, numbers or options are other questions; what shares memory is asked."""
    calls = [
        lambda: aten.cumsum.default(x, 1), lambda: aten.cumsum.default(x, 1, dtype=torch.float64),
        lambda: aten.cumsum.default(turned, 1), lambda: aten.cumsum.default(whole, 1),
        lambda: aten.cumsum.default(half, 1), lambda: aten.remainder.Scalar(whole, 2),
        lambda: aten.remainder.Scalar(whole, 2.0), lambda: aten.topk.default(x, 2), lambda: aten.topk.default(x, 3),
        lambda: aten.native_layer_norm.default(half, [8], None, None, 1e-5),
        lambda: aten.zeros_like.default(x, dtype=torch.int64), lambda: aten.max_pool2d_with_indices.default(last, [2]),
        lambda: aten.split_with_sizes.default(x, [2, 3], 1), lambda: x.mT,
    ]  # fmt: skip
    expected = [facts(call()) for call in calls]
    with Sizes():
        assert [facts(call()) for call in calls] == expected
        assert [facts(call()) for call in calls] == expected
        one = meta(3)
        assert one.view(3, 1).untyped_storage()._cdata == one.untyped_storage()._cdata
        assert one.mul_(2) is one


def test_multiply_adds_are_those_of_torch_s_counter():
    from torch.utils.flop_counter import FlopCounterMode

    model = leanify.load("hf/t5", overrides={"num_layers": 2, "vocab_size": 50}, device="meta")
    inputs = counting.unmasked_inputs(model, 16)
    with counting.plain(model), counting.Countable(), FlopCounterMode(display=False) as counter:
        counting.call(model, inputs)
    found = counter.get_flop_counts()
    names = {name.partition(".")[2] if name != "Global" else "": sum(by.values()) // 2 for name, by in found.items()}
    assert counting.macs_by_module(model, inputs) == names


@pytest.mark.parametrize(
    "args", [(aten.mm.default, w, meta(3, 8)), (aten.bmm.default, x, x), (aten.addmm.default, meta(3), w, w)]
)
def test_what_does_not_fit_fails_as_in_torch(args):
    operator, *given = args
    with pytest.raises(RuntimeError), Sizes():
        operator(*given)


def test_values_are_left_alone():
    a = torch.randn(3, 4)
    expected = a @ a.mT + 1
    with Sizes():
        assert torch.equal(a @ a.mT + 1, expected)


def test_shared_weights_stay_shared_where_a_model_is_brought_into_memory():
    small = {"d_model": 16, "d_ff": 32, "num_layers": 1, "num_heads": 2, "d_kv": 8, "vocab_size": 50}
    model = leanify.load("hf/t5", overrides=small, device="meta")
    real = profiling.fresh(model, torch.device("cpu"))
    assert counting.parameters(real) == counting.parameters(model)
    assert len(list(real.named_parameters(remove_duplicate=False))) > len(list(real.parameters()))


def test_a_plan_imports_no_computer_algebra():
    """sympy costs as much as a tenth of a plan; torch imports it for what it answers on meta by itself."""
    code = (
        "import sys; from leanify.upstream import lazy_dynamo; lazy_dynamo.install(); import leanify; "
        "leanify.redesign('timm/vit_tiny_patch16_224', target_params=0.7); assert 'sympy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "LEANIFY_PRICES": "off"})

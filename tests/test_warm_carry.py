"""From a trained model to a shape, for all blocks or for each its own: the steps, what they cost, and the command."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import typed
from safetensors.torch import load_file, save_file
from test_shrink_heads import drawn
from torch import Tensor, nn
from zoo import tiny

import leanify
from leanify.carrying.calibration import RunningDivergence, TeacherOutputs, collect_outputs, model_divergence
from leanify.carrying.free import (
    Variant,
    cut_blocks,
    interpolate_variants,
    measure_variants,
    solve_program,
    transfer_free,
)
from leanify.carrying.teacher import CalibratedTeacher
from leanify.carrying.transfer import transfer_weights
from leanify.core.errors import BudgetError, DataError, ShapeError, SourceError
from leanify.core.recipe import DistillSection
from leanify.data.texts import tokenizers
from leanify.profiling.counting import parameters
from leanify.training.teachers import load_teacher
from leanify.upstream.inputs import example_inputs

NAMES = ["timm/vit_base_patch16_224", "hf/gpt2", "hf/llama", "hf/bert", "timm/swin_tiny_patch4_window7_224"]


def built(name: str) -> tuple[nn.Module, list[dict[str, Tensor]]]:
    library, _, rest = name.partition("/")
    model, _ = tiny.build(library, rest)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval(), [example_inputs(model, 2, 12) for _ in range(4)]


def shorter(model: nn.Module) -> Any:
    shape = leanify.read(model)
    longest = max(shape.stages, key=lambda stage: stage.depth)
    main_layer: Any = longest.primary
    new = longest.reshape(longest.depth - 1, main_layer.heads + longest.group, mlp=main_layer.mlp * 3 // 4)
    return replace(shape, stages=tuple(new if s is longest else s for s in shape.stages))


@pytest.mark.parametrize("name", NAMES)
def test_weights_carry_to_another_shape(name: str) -> None:
    model, data = built(name)
    shape = shorter(model)
    found = transfer_weights(CalibratedTeacher(model, data[:2], data[2:]), shape)
    assert leanify.read(found.model) == shape
    assert found.steps[0].move == "narrow"
    assert len(found.steps) == 2
    damage = model_divergence(found.model, data[2:], collect_outputs(model, data[2:]), False)
    assert found.steps[-1].damage == pytest.approx(damage)
    assert found.steps[-1].move == "drop" or name != NAMES[4]


def test_own_shape_costs_nothing() -> None:
    model, data = built("hf/llama")
    found = transfer_weights(CalibratedTeacher(model, data[:2], data[2:]), leanify.read(model))
    assert [(step.move, step.damage) for step in found.steps] == [("narrow", 0.0)]


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("logits", [True, False])
def test_damage_adds_up_monotonically(logits: bool, step: int) -> None:
    """So a trial may end as soon as it has cost more than another; the oracle has the rows of all batches at once."""
    torch.manual_seed(0)
    batches = [{"attention_mask": (torch.rand(2, 5) > 0.3).long()} for _ in range(4)]
    said, wanted = ([torch.randn(2, 5, 7) for _ in batches] for _ in range(2))
    masks = [batch["attention_mask"].bool() for batch in batches]
    y, t = (torch.cat([x[mask] for x, mask in zip(several, masks, strict=True)])[::step] for several in (said, wanted))
    if logits:
        p, q = t.softmax(-1), y.softmax(-1)
        expected = (p * (p / q).log()).sum() / len(t)
    else:
        expected = (y - t).square().sum() / (t - t.mean(0)).square().sum()
    tally, seen = RunningDivergence(TeacherOutputs(t, logits, step)), [0.0]
    for given, batch in zip(said, batches, strict=True):
        seen.append(tally.add(given, batch))
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(float(expected), rel=1e-5)


def test_pair_or_drop_follows_importance() -> None:
    """A dead block goes for nothing; with room for twice the heads a pair costs less than any drop."""
    model, data = built("timm/vit_base_patch16_224")
    shape = leanify.read(model)
    doubled = shape.stages[0].primary
    blocks: Any = model.blocks
    for parameter in (blocks[1].attn.proj, blocks[1].mlp.fc2):
        nn.init.zeros_(parameter.weight)
        nn.init.zeros_(parameter.bias)
    wanted = replace(shape, stages=(shape.stages[0].reshape(depth=2), *shape.stages[1:]))
    found = transfer_weights(CalibratedTeacher(model, data[:2], data[2:]), wanted)
    assert (found.steps[-1].move, found.steps[-1].blocks) in {("drop", (1,)), ("pair", (0, 1)), ("pair", (1, 2))}
    assert found.steps[-1].damage < 1e-5

    torch.manual_seed(2)
    for block in blocks:  # small steps: side by side they miss the second order, a drop misses the first
        nn.init.normal_(block.mlp.fc2.weight, std=0.03)
        nn.init.normal_(block.attn.proj.weight, std=0.03)
    wide = replace(
        shape, stages=(shape.stages[0].reshape(2, 2 * doubled.heads, mlp=2 * doubled.mlp), *shape.stages[1:])
    )
    assert transfer_weights(CalibratedTeacher(model, data[:2], data[2:]), wide).steps[-1].move == "pair"


def llama_with_inert_blocks(depth: int, inert: slice) -> nn.Module:
    """A model in which the blocks of this slice do nothing, so that their pair costs nothing."""
    sizes = {"hidden_size": 24, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 64}
    model: Any = drawn("LlamaModel", num_hidden_layers=depth, **sizes).eval()
    for block in model.layers[inert]:
        nn.init.zeros_(block.self_attn.o_proj.weight)
        nn.init.zeros_(block.mlp.down_proj.weight)
    return model


def paired(model: nn.Module, depth: int) -> list[tuple[int, ...]]:
    """The pairs, in their order, that shorten a model to this depth."""
    data = [example_inputs(model, 2, 12) for _ in range(4)]
    shape = leanify.read(model)
    wanted = replace(shape, stages=(shape.stages[0].reshape(depth, 4, mlp=32),))
    found = transfer_weights(CalibratedTeacher(model, data[:2], data[2:]), wanted, moves=("pair",))
    return [step.blocks for step in found.steps[1:]]


def test_pairing_leaves_no_single_block() -> None:
    """The pair of blocks 1 and 2, taken first, would leave block 0 without a partner."""
    model = llama_with_inert_blocks(6, slice(1, 3))
    assert sorted(paired(model, 3)) == [(0, 1), (2, 3), (4, 5)]
    with pytest.raises(ShapeError, match="no further pair"):
        paired(model, 2)


def test_last_pair_is_not_separate() -> None:
    """The last blocks' pair, once made, shortens nothing: it was tried again and again."""
    assert paired(llama_with_inert_blocks(4, slice(2, 4)), 2) == [(2, 3), (0, 1)]


def test_deeper_stages_repeat_last_block() -> None:
    model, data = built("hf/llama")
    shape = leanify.read(model)
    wanted = replace(shape, stages=(shape.stages[0].reshape(depth=shape.depth + 1),))
    found = transfer_weights(CalibratedTeacher(model, data[:2], data[2:]), wanted)
    assert [step.move for step in found.steps] == ["narrow", "deepen"]
    assert leanify.read(found.model) == wanted


def test_uncarriable_shapes_are_refused() -> None:
    model, data = built("hf/llama")
    with pytest.raises(DataError, match="two batches"):
        CalibratedTeacher(model, data, [])
    stage = leanify.read(model).stages[0]
    uneven = replace(stage, blocks=(stage.blocks[0], stage.reshape(mlp=8).blocks[0]))
    with pytest.raises(ShapeError, match="several shapes"):
        transfer_weights(CalibratedTeacher(model, data[:2], data[2:]), replace(leanify.read(model), stages=(uneven,)))


# -- every block its own shape: the program's choice against trying everything, a model within the budget -------------


def drawn_variants(seed: int) -> list[Variant]:
    """Two blocks that may lose heads, units or themselves."""
    drawn = np.random.default_rng(seed)
    parts = [("heads", 10), ("heads", 20), ("mlp", 15), ("mlp", 30), ("block", 70)]
    return [
        Variant("layers", place, part, None, saved, float(drawn.exponential()))
        for place in (0, 1)
        for part, saved in parts
    ]


def allowed(several: Sequence[Variant]) -> Iterator[tuple[Variant, ...]]:
    """Every choice that a model can be made of, by trying all."""
    for count in range(len(several) + 1):
        for taken in itertools.combinations(several, count):
            of_block = [[v.part for v in taken if v.place == place] for place in (0, 1)]
            alone = all(
                len(set(parts)) == len(parts) and ("block" not in parts or len(parts) == 1) for parts in of_block
            )
            if alone and sum(v.part == "block" for v in taken) < 2:
                yield taken


@pytest.mark.parametrize("saving", [5, 40, 95, 120])
def test_choice_minimises_total_damage(saving: int) -> None:
    """Among those that save enough."""
    for seed in range(4):
        several = drawn_variants(seed)
        taken = solve_program(several, saving)
        best = min(sum(v.damage for v in t) for t in allowed(several) if sum(v.params_saved for v in t) >= saving)
        assert sum(v.params_saved for v in taken) >= saving
        assert sum(v.damage for v in taken) == pytest.approx(best)
    with pytest.raises(BudgetError, match="1,000"):
        solve_program(drawn_variants(0), 1000)


def test_last_key_value_group_stays_whole() -> None:
    """A layer that has one group left looks like multi-query attention, which may lose single heads."""
    original, data = built("hf/llama")
    group = next(leanify.read(original).layers()).group
    model = leanify.write(original, leanify.read(original).map_layers(lambda layer: layer.set_heads(group)))
    teacher = CalibratedTeacher(model, data[:2], data[2:])
    name, target = teacher.architecture.stages[0].name, collect_outputs(model, data[2:], teacher.headless)
    parts = [{one.part for one in measure_variants(teacher, {name: count}, data[2:], target)} for count in (1, group)]
    assert group > 1
    assert [("heads" in several) for several in parts] == [True, False]


@pytest.mark.parametrize("name", ["hf/bert", "hf/llama"])
def test_sizes_between_are_priced_as_built(name: str) -> None:
    """Their parameters are those of the cut model, and their damages lie between the measured neighbours'."""
    model, data = built(name)
    teacher = CalibratedTeacher(model, data[:2], data[2:])
    groups = {
        stage.name: max(layer.group for block in stage.blocks for layer in block)
        for stage in teacher.architecture.stages
    }
    target = collect_outputs(model, data[2:], teacher.headless)
    measured = measure_variants(teacher, groups, data[2:], target)
    between = interpolate_variants(teacher, groups, measured)
    assert between
    assert not {one.block for one in measured} & {one.block for one in between}
    whole = parameters(model)
    for one in between:
        assert whole - parameters(cut_blocks(teacher, [one]).model) == one.params_saved
        known = [v for v in measured if (v.stage, v.place, v.part) == (one.stage, one.place, one.part)]
        below = max((v for v in known if v.params_saved < one.params_saved), key=lambda v: v.params_saved, default=None)
        above = min((v for v in known if v.params_saved > one.params_saved), key=lambda v: v.params_saved)
        ends = sorted([above.damage, below.damage if below else 0.0])
        assert ends[0] <= one.damage <= ends[1]


def test_free_shapes_keep_the_budget() -> None:
    model, data = built("hf/llama")
    whole = sum(parameter.numel() for parameter in model.parameters())
    found = transfer_free(CalibratedTeacher(model, data[:2], data[2:]), int(0.8 * whole))
    assert sum(parameter.numel() for parameter in found.model.parameters()) <= 0.8 * whole
    assert leanify.read(found.model) != leanify.read(model)
    assert [step.description.partition(":")[0] for step in found.steps] == ["round 1", "round 2"]


# -- the command --------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*re-initialised:UserWarning")
def test_missing_layer_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"hidden_size": 48, "num_hidden_layers": 5, "num_attention_heads": 4, "intermediate_size": 96}
    broken, text = tmp_path / "broken", tmp_path / "text.txt"
    drawn("LlamaForCausalLM", **sizes, vocab_size=261, max_position_embeddings=64).save_pretrained(broken)
    tokenizers.make_tokenizer("bytes", lambda: [], "")[0].save_pretrained(broken)
    text.write_text("Two layers side by side are one with twice the heads. " * 60)
    tensors = {name: x for name, x in load_file(broken / "model.safetensors").items() if ".layers.3." not in name}
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    assert typed(f"shrink {broken} --data {text} --designs narrow --minutes 0 -o {tmp_path / 'lean'}") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "lacks 9 tensors of layers in its configuration" in said
    assert "Traceback" not in said
    with pytest.raises(SourceError, match="lacks 9 tensors"):
        load_teacher(DistillSection(str(broken)))
    assert not (tmp_path / "lean").exists()

"""Requests that cannot be met, and sources that are not one model: one message each, exit code 2, nothing written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from commands import run_here
from flows import FAMILIES
from runs import refused
from test_plans import LLAMA, SMALL_VIT

import leanify
from leanify.core import machine
from leanify.profiling.counting import count, idle_parameters, parameters
from leanify.profiling.forward import unmasked_inputs
from leanify.reshaping.sites import locate
from leanify.sources import find, names
from leanify.upstream.inputs import describe_inputs

SMALL_LLAMA = " ".join(f"--override {key}={value}" for key, value in LLAMA.items())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("vit_base --target-params 0.5 --depth 12 --mlp 3072", r"--depth 12 and --mlp 3072: .*free"),
        ("vit_base --target-params 0.3 --heads 48", r"with --heads 48: the smallest has 72,384,232 "),
        ("vit_base --target-params 0.9 --max-macs 0.1", r"no lean \(smallest .*--max-macs 0\.375.*--choose"),
        (f"llama {SMALL_LLAMA} --max-kv 0.001", r"8 bytes of key/value cache a token .*0\.375"),
        ("t5 --target-params encoder=0.05,decoder=0.9 --min-depth 2", "encoder cannot be built from 944,038"),
        ("t5 --target-params encoder=0.6,encoder=0.4", "two budgets for encoder"),
        ("t5 --target-params 0.75 --heads encoder=100", "with --heads encoder=100: the smallest"),
        ("vit_base --target-params 0.5 --min-depth 12", "its 12 blocks are the fewest"),
        ("llama --override num_hidden_layers=3000 --depth 5", "more than 1,024 blocks"),
        ("swin_tiny --override 'depths=[2, 2, 4000, 2]' --heads 5", "more than 1,024 blocks"),
    ],
)
def test_impossible_plan_is_one_message(line: str, message: str, tmp_path: Path, capsys: Any) -> None:
    code, out, err = run_here(f"redesign {line} -o {tmp_path / 'out'}", capsys)
    assert (code, out) == (2, "")
    text = " ".join(line for line in err.split("\n") if not line.startswith("planning "))  # a slow machine's progress
    assert re.search(message, text), text
    assert text.startswith("leanify: ")
    assert not (tmp_path / "out").exists()


ODD_LLAMA = {**LLAMA, "num_key_value_heads": 16}


@pytest.mark.parametrize(
    ("source", "options", "error", "words"),
    [
        ("vit_base", {"target_params": 0.001}, "BudgetError", "in embeddings, a backbone and the like, which alone"),
        ("bert", {"target_params": 0.005}, "BudgetError", "leanify shrink CHECKPOINT .* --target-params 0.005"),
        ("gpt2", {"max_kv": "1KiB"}, "BudgetError", r"max_kv=0\.5"),
        ("vit_base", {"max_kv": 0.5}, "BudgetError", "keeps no key/value cache"),
        ("vit_base", {"max_macs": 0.001}, "BudgetError", r"max_macs=0\.345"),
        ("vit_tiny", {"max_latency": "0.001us"}, "BudgetError", r"below every design.*max_latency="),
        ("t5", {"target_params": "decoder=0.1"}, "BudgetError", "decoder"),
        ("t5", {"depth": {"middle": 5}}, "ShapeError", "'middle' names no part"),
        ("vit_base", {"min_mlp": -1}, "ShapeError", "min_mlp=-1"),
        ("vit_base", {"heads": 13, "heads_mode": "split"}, "ShapeError", "splits into"),
        ("vit_base", {"tokens": 50}, "ShapeError", "224 × 224"),
        ("gpt2", {"tokens": 5000}, "ShapeError", "1024"),
        ("llama", {"overrides": ODD_LLAMA}, "LeanifyError", "8 heads on 16 key/value heads|num_key_value_heads"),
        ("hf/deepseek_v3", {"mlp": 1000}, "ShapeError", "multiple of 9"),
        ("hf/qwen3_next", {"depth": 3}, "ShapeError", "attention in two of them"),
    ],
)
def test_refusal_says_what_was_found(source: str, options: dict[str, Any], error: str, words: str) -> None:
    with pytest.raises(getattr(leanify, error), match=words):
        leanify.redesign(source, **options)


def test_misspelt_option_names_nearest() -> None:
    with pytest.raises(TypeError, match=r"redesign\(\) .* 'target_parms'; nearest: target_params"):
        leanify.redesign("vit_base", target_parms=0.5)


def test_named_budget_is_accepted() -> None:
    """With pinned values more than the baseline may be needed: then it is an amount, as no share is above 1."""
    pins: dict[str, Any] = {"depth": 12, "mlp": 3072, "heads": 14}
    with pytest.raises(leanify.BudgetError) as refused:
        leanify.redesign("vit_base", target_params=0.5, **pins)
    amount = str(refused.value).split("target_params=")[1].split(")")[0]
    assert leanify.redesign("vit_base", target_params=amount, **pins).chosen.params == int(amount)


def test_two_model_folder_names_both(tmp_path: Path, capsys: Any) -> None:
    plan = leanify.redesign("vit_base", target_params=0.75, overrides=SMALL_VIT, min_depth=3)
    plan.save(tmp_path / "both", control=True)
    with pytest.raises(leanify.SourceError, match="control, lean"):
        leanify.load(tmp_path / "both")
    code, out, _ = run_here(f"redesign {tmp_path / 'both'} --target-params 0.5", capsys)
    assert (code, out) == (2, "")
    (tmp_path / "both" / "lean" / "model.safetensors").rename(tmp_path / "both" / "lean" / "a.safetensors")
    (tmp_path / "both" / "lean" / "b.safetensors").write_bytes(b"another")
    with pytest.raises(leanify.SourceError, match=r"a\.safetensors, b\.safetensors"):
        leanify.load(tmp_path / "both" / "lean")


def test_directory_weights_are_its_own(tmp_path: Path, capsys: Any) -> None:
    source = FAMILIES["BERT"].source(tmp_path / "bert")
    code, _, err = run_here(f"redesign {source} --heads 5 --pretrained -o {tmp_path / 'lean'}", capsys)
    assert code == 0, err
    old, new = leanify.load(source), leanify.load(tmp_path / "lean")
    assert new.bert.embeddings.word_embeddings.weight.equal(old.bert.embeddings.word_embeddings.weight)


def test_design_above_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins may ask for more than the original, which alone is built by its library."""
    plan = leanify.redesign("bert", heads=64, overrides={"num_hidden_layers": 1, "vocab_size": 99})
    assert plan.chosen.params > 2 * plan.baseline.params
    free = 4 * plan.baseline.params
    monkeypatch.setattr(machine, "free_memory", lambda: free)
    with pytest.raises(leanify.SourceError, match="of memory are free here"):
        plan.save(tmp_path / "lean")
    assert list(tmp_path.iterdir()) == []


# -- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert-base-uncased", "gpt2-large"])
def test_hub_ids_need_no_slash(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "hub_answers", lambda: False)
    with pytest.raises(leanify.SourceError, match="Hugging Face hub") as refused:
        find.find(name)
    assert "nearest" not in str(refused.value)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_override_order_changes_nothing(order: int) -> None:
    """Qwen3's default has as many key/value heads as heads, and states both."""
    sizes = {"head_dim": 64, "hidden_size": 256, "num_attention_heads": 16}
    names = [*sizes][order:] + [*sizes][:order]
    for keys in (names, names[::-1]):
        options = find.find("qwen3", overrides={key: sizes[key] for key in keys}).origin.options
        assert {key: options[key] for key in sizes} == sizes
        assert options["num_key_value_heads"] == 16
    asked = {"num_key_value_heads": 32, "num_attention_heads": 64}
    for keys in ([*asked], [*asked][::-1]):
        options = find.find("llama", overrides={key: asked[key] for key in keys}).origin.options
        assert {key: options[key] for key in asked} == asked
        assert options["head_dim"] == 64


@pytest.mark.parametrize(
    ("model_type", "every", "active"), [("lfm2_moe", 8.34e9, 1.56e9), ("hunyuan_v1_moe", 80.4e9, 12.7e9)]
)
def test_type_defaults_to_published_shape(model_type: str, every: float, active: float) -> None:
    """LFM2-8B-A1B: 8.3 B parameters, 1.5 B active; Hunyuan-A13B: 80 B, 13 B active, as their cards say."""
    with pytest.warns(UserWarning, match="default configuration"):
        model = leanify.load(model_type, device="meta")
    assert parameters(model) == pytest.approx(every, rel=0.005)
    assert parameters(model) - idle_parameters(locate(model)) == pytest.approx(active, rel=0.01)


# -- inputs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("hf/detr", {}, "800 × 800 image"),
        ("hf/segformer", {}, "512 × 512 image"),
        ("hf/siglip2_vision_model", {}, "1,024 patches"),
        ("hf/siglip2", {}, "64 token ids, 1,024 patches"),
        ("hf/wav2vec2", {}, "159,760 samples of sound"),
        ("hf/gpt2", {}, "512 token ids"),
        ("hf/vit", {"image_size": 16000}, "16000 × 16000 image"),
    ],
)
def test_inputs_have_realistic_sizes(source: str, options: dict[str, Any], words: str) -> None:
    model = leanify.load(source, device="meta", overrides=options)
    assert describe_inputs(unmasked_inputs(model)) == words


def test_image_tokens_follow_config() -> None:
    """A text beside an image has as many tokens for it as the configuration says."""
    model = leanify.load("hf/gemma3", device="meta", overrides={"mm_tokens_per_image": 49})
    ids = unmasked_inputs(model, device="cpu")["input_ids"]
    assert (ids == model.config.image_token_id).sum() == 49
    assert ids.shape == (1, 512)


def test_inconsistent_defaults_are_named() -> None:
    """Gemma 3's default vision tower gives 14 × 14 patches, of which its projector wants 16 × 16."""
    with pytest.raises(leanify.UnsupportedModel, match=r"does not run .* that do not fit each other.* config\.json"):
        leanify.redesign("hf/gemma3", target_params=0.65)


@pytest.mark.slow
def test_externally_read_stage_is_named() -> None:
    """SAM 2's feature pyramid takes the states after certain blocks of its backbone."""
    with refused(leanify.UnsupportedModel, r"backbone\.blocks: with \d+ of 12"):
        leanify.redesign("hf/sam2", target_params=0.65)


def test_huge_vocabulary_takes_no_memory() -> None:
    tiny = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 3_000_000_000}
    assert count(leanify.load("bert", device="meta", overrides=tiny)).params > 192e9


def test_shared_block_cannot_be_dropped() -> None:
    """ALBERT's layers share one block's weights, so only a narrower one is smaller."""
    shape = {"hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 4, "vocab_size": 100}
    plan = leanify.redesign("albert", target_params=0.6, overrides=shape)
    assert (plan.lean, plan.first) == (None, "narrow")
    assert "one block" in str(plan.needs)

"""Plans that an engineer would train: the rules, lean and its control, towers, serving, refusals."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import leanify
from leanify.architecture import Layer, Stage
from leanify.cli import plans
from leanify.cli.tables import fit
from leanify.design.options import Options
from leanify.design.plan import Plan
from leanify.design.prices.counting import count
from leanify.design.search import alternatives
from leanify.design.search.design import Design
from leanify.design.search.rules import Rules
from leanify.lens import surgery
from leanify.lens.sites import locate
from leanify.runs import recipe
from leanify.sources import find
from leanify.upstream.initialise import initialise_model

ROOT = Path(__file__).parents[1]
LLAMA = {
    "num_hidden_layers": 16,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}


def mains(plan: Plan, design: Design) -> list[Any]:
    """(depth, main layer) of every stage that the plan changes."""
    stages = design.architecture.stages
    return [(stages[i].depth, stages[i].primary) for i in plan.baseline.architecture.varied]


@pytest.mark.parametrize(
    ("source", "share", "overrides"),
    [
        ("vit_base", 0.5, {}),
        ("vit_tiny_patch16_224", 0.6, {}),
        ("gpt2", 0.75, {}),
        ("swin_tiny_patch4_window7_224", 0.75, {}),
        ("t5", 0.75, {}),
        ("clip", 0.75, {}),
        ("llama", 0.7, LLAMA),
    ],
)
def test_every_plan_keeps_to_the_rules(source: str, share: float, overrides: dict[str, Any]) -> None:
    plan = leanify.redesign(source, target_params=share, overrides=overrides)
    limit = share * plan.baseline.params
    assert plan.control is not None
    for design in plan.candidates:
        assert 0.97 * limit <= design.params <= limit
        for (depth, layer), (old_depth, old) in zip(mains(plan, design), mains(plan, plan.baseline), strict=True):
            multiple = 64 if old.width >= 256 else 8
            assert 0.5 * old.width <= layer.mlp <= 12 * old.width
            assert layer.mlp % multiple == 0
            assert layer.inner % multiple == 0
            assert layer.heads <= 3 * old.heads
            assert depth >= max(2, old_depth / 4)
    lean, old, control = (mains(plan, design) for design in (plan.chosen, plan.baseline, plan.control))
    assert any(new[1].heads > was[1].heads and new[0] < was[0] for new, was in zip(lean, old, strict=True))
    assert [layer.heads for _, layer in control] == [layer.heads for _, layer in old]
    assert [depth for depth, _ in control] == [depth for depth, _ in lean]
    assert control != lean
    assert all(layer.mlp % 8 == 0 for _, layer in control)
    assert plan.control.params == pytest.approx(plan.chosen.params, rel=0.001)


def test_rules_follow_what_the_user_says() -> None:
    plan = leanify.redesign("llama", target_params=0.7, overrides=LLAMA, tensor_parallel=4, multiple=128, min_depth=10)
    assert plan.chosen.heads % 4 == plan.chosen.mlp % 128 == plan.chosen.inner % 128 == 0
    assert plan.chosen.architecture.stages[0].primary.kv_heads % 4 == 0  # type: ignore[union-attr]
    assert plan.chosen.depth >= 10
    with pytest.raises(leanify.ShapeError, match="min_mlp=-1"):
        leanify.redesign("vit_base", target_params=0.5, min_mlp=-1)


def test_thirty_two_heads_and_more_come_in_eights() -> None:
    shape = {**LLAMA, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8}
    stage = leanify.read(leanify.load("llama", overrides=shape, device="meta")).stages[0]
    assert Rules().head_counts(stage) == [40, 48, 56, 64, 72, 80, 88, 96]
    assert Rules(Options(tensor_parallel=1)).head_counts(stage) == list(range(36, 97, 4))


def test_no_sensible_design_is_an_answer() -> None:
    """With every layer kept nothing is left to trade for heads."""
    with pytest.raises(leanify.BudgetError, match=r"fewer layers and more heads: its 6 blocks .*min_depth=4 "):
        leanify.redesign("distilbert", target_params=0.75, min_depth=6)
    assert leanify.redesign("distilbert", target_params=0.75).chosen.depth < 6
    with pytest.raises(leanify.BudgetError, match=r"target_params=0\.\d+\)\. Loosening .*min_mlp=0.25 "):
        leanify.redesign("vit_base", target_params=0.1)


def test_what_a_rule_would_gain_has_the_unit_of_the_budget() -> None:
    with pytest.raises(leanify.BudgetError, match=r"min_depth=2 [\d.]+ KiB \("):
        leanify.redesign("gpt2", max_kv="1KiB")
    with pytest.raises(leanify.BudgetError, match=r"min_depth=2 [\d.]+ [MG] \("):
        leanify.redesign("vit_base", max_macs=0.01)


def test_a_misspelt_option_is_named_with_the_nearest_one() -> None:
    with pytest.raises(TypeError, match=r"redesign\(\) .* 'target_parms'; nearest: target_params"):
        leanify.redesign("vit_base", target_parms=0.5)


def test_the_smallest_budget_that_is_named_is_enough() -> None:
    with pytest.raises(leanify.BudgetError) as refused:
        leanify.redesign("vit_base", target_params=0.1)
    share = str(refused.value).split("target_params=")[1].split(")")[0]
    assert leanify.redesign("vit_base", target_params=share).chosen.heads > 12


def test_plain_is_the_best_design_without_more_heads_and_the_better_one_is_recommended() -> None:
    few = leanify.redesign("vit_base", target_params=0.6, ranking=lambda designs: designs.heads.astype(float))
    many = leanify.redesign("vit_base", target_params=0.6, ranking=lambda designs: -designs.heads.astype(float))
    for plan, recommended in ((few, "plain"), (many, "lean")):
        assert plan.chosen.heads >= 1.25 * 12
        assert plan.plain is not None
        assert plan.plain.heads == 12
        assert plan.plain_name in ("depth-only", "mlp-only", "plain-cut")
        assert plan.to_json()["plain"]["name"] == plan.plain_name
        assert plan.to_json()["recommended"]["design"] == recommended
        assert plan.recommended.regret is None  # the caller's ranking has no evidence here
    assert leanify.redesign("vit_base", heads=16, target_params=0.6).plain is None


@pytest.mark.parametrize(("source", "recommended"), [("vit_tiny", "lean"), ("gpt2", "plain"), ("bert", "lean")])
def test_a_recommendation_says_how_strong_it_is(source: str, recommended: str) -> None:
    plan = leanify.redesign(source, target_params=0.75)
    found = plan.to_json()["recommended"]
    assert found["design"] == recommended
    assert 0 < found["regret"] < 1
    assert f"regret {found['regret']:.2f}" in found["evidence"]
    assert "seen in these data" in found["evidence"]


def test_lean_has_a_quarter_more_heads_where_that_is_possible() -> None:
    for source, overrides in (("llama", LLAMA), ("gpt2", {}), ("vit_tiny", {})):
        plan = leanify.redesign(source, target_params=0.75, overrides=overrides)
        assert plan.chosen.heads >= 1.25 * plan.baseline.heads
    limited = leanify.redesign("vit_base", target_params=0.75, max_heads=1.2)
    assert 12 < limited.chosen.heads < 15
    assert any("no design with a quarter more" in warning for warning in limited.warnings)


def test_equal_designs_are_one_row_and_unequal_macs_are_told() -> None:
    plan = leanify.redesign("digits", target_params=0.5)
    assert plan.plain is not None
    assert plan.control is not None
    assert plan.plain.architecture == plan.control.architecture
    names = [name for name, _ in plan.designs()]
    assert "control, plain" in names
    bert = leanify.redesign("bert", target_params=0.5)
    assert bert.control is not None
    assert abs(bert.chosen.macs / bert.control.macs - 1) > 0.1
    assert any("MACs than the control" in warning for warning in bert.warnings)


def test_the_design_that_is_written_can_be_chosen(tmp_path: Any) -> None:
    small = {"img_size": 32, "embed_dim": 64, "depth": 6, "num_heads": 4, "num_classes": 7}
    plan = leanify.redesign("vit_base", target_params=0.75, overrides=small)
    for name, design in (("plain", plan.plain), ("control", plan.control), ("2", plan.candidates[1])):
        plan.save(tmp_path / name, choose=name)
        assert design is not None
        assert leanify.read(leanify.load(tmp_path / name)) == design.architecture
    for name in ("fat", "0", "9"):
        with pytest.raises(leanify.ShapeError, match="lean, plain, control and 1 to 3"):
            plan.save(tmp_path / "none", choose=name)
    with pytest.raises(leanify.LeanifyError, match="--control"):
        plan.save(tmp_path / "none", choose="plain", control=True)
    assert not (tmp_path / "none").exists()


def test_towers_have_budgets_and_pins_of_their_own() -> None:
    plan = leanify.redesign("t5", target_params="encoder=0.8,decoder=0.6")
    assert plan.towers == ["encoder", "decoder"]
    model = leanify.load("t5", device="meta")
    held = [
        sum({p.numel(): 0 for p in ()}, sum(p.numel() for p in part.block.parameters()))
        for part in (model.encoder, model.decoder)
    ]
    lean = surgery.write(model, plan.chosen.architecture)
    for part, share, had in zip((lean.encoder, lean.decoder), (0.8, 0.6), held, strict=True):
        assert 0.95 * share * had <= sum(p.numel() for p in part.block.parameters()) <= share * had
    assert plan.chosen.depth[0] != plan.chosen.depth[1] or plan.chosen.heads[0] != plan.chosen.heads[1]  # type: ignore[index]
    pinned = leanify.redesign("t5", depth={"encoder": 5}, heads={"dec": 12})
    assert (pinned.chosen.depth, pinned.chosen.heads) == ([5, 6], [8, 12])
    with pytest.raises(leanify.BudgetError, match="decoder"):
        leanify.redesign("t5", target_params="decoder=0.1")
    with pytest.raises(leanify.ShapeError, match="'middle' names no part"):
        leanify.redesign("t5", depth={"middle": 5})


@pytest.mark.parametrize(
    ("source", "overrides", "context"),
    [
        ("llama", LLAMA, 24),
        ("gpt2", {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 50}, 24),
        ("gpt_bigcode", {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 50}, 24),
        ("mistral", {**LLAMA, "sliding_window": 8}, 24),
        (
            "gemma3_text",
            {**LLAMA, "num_hidden_layers": 6, "sliding_window": 8, "head_dim": 32, "pad_token_id": 0},
            24,
        ),
    ],
)
def test_caches_are_what_upstream_caches(source: str, overrides: dict[str, Any], context: int) -> None:
    """An oracle: the tensors in upstream's own cache after a forward pass. Upstream's windows keep one token less:
    they add the newest when it comes.
    """
    model = leanify.load(f"hf/{source}", overrides=overrides)
    with torch.no_grad():
        cache = model(input_ids=torch.randint(1, 49, (1, context)), use_cache=True).past_key_values
    numbers = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    newest = sum(2 * layer.keys[:, :, :1].numel() for layer in cache.layers if layer.keys.shape[-2] < context)
    plan = leanify.redesign(
        f"hf/{source}", heads=locate(model).architecture.stages[0].primary.heads, overrides=overrides, context=context
    )  # type: ignore[union-attr]
    assert plan.baseline.serving is not None
    assert plan.baseline.serving.kv_bytes_per_token * context == 2 * (numbers + newest)


def test_latent_attention_caches_its_latent() -> None:
    """DeepSeek-V3: 61 layers of 512 + 64 numbers, whatever the heads (DeepSeek-V2, Table 1)."""
    model = leanify.load("hf/deepseek_v3", device="meta")
    from leanify.design.prices.counting import cache_bytes

    assert cache_bytes(locate(model), 100) == 100 * 61 * (512 + 64) * 2


@pytest.mark.parametrize("cls", [None, "AutoModelForCausalLM"])
def test_prompts_and_tokens_cost_what_a_forward_pass_of_them_costs(cls: str | None) -> None:
    """At 96 tokens, priced from 48; one more token costs the difference's linear part and one row of every map."""
    plan = leanify.redesign("llama", target_params=0.7, overrides=LLAMA, cls=cls, tokens=48, context=96)
    model = surgery.write(leanify.load("llama", overrides=LLAMA, cls=cls, device="meta"), plan.chosen.architecture)
    served = plan.chosen.serving
    assert served is not None
    assert served.prefill_macs == count(model, 96).macs
    assert served.decode_macs == count(model, 96).macs // 96


def test_a_budget_on_the_cache_is_kept() -> None:
    plan = leanify.redesign("llama", target_params=0.7, max_kv=0.8, overrides=LLAMA)
    assert plan.chosen.serving.kv_bytes_per_token <= 0.8 * plan.baseline.serving.kv_bytes_per_token  # type: ignore[union-attr]
    with pytest.raises(leanify.BudgetError, match="keeps no key/value cache"):
        leanify.redesign("vit_base", max_kv=0.5)


def test_designs_by_name_hold_equal_what_they_say() -> None:
    plan = leanify.redesign("vit_base", target_params=0.6)
    designs = {name: alternatives.named(plan, name) for name in alternatives.NAMES}
    assert designs["baseline"] == plan.baseline
    assert designs["lean"] == plan.chosen
    assert designs["control"] == plan.control
    lean, control = designs["lean"], designs["control"]
    assert (designs["depth-only"].heads, designs["depth-only"].mlp) == (12, 3072)
    assert (designs["mlp-only"].heads, designs["mlp-only"].depth) == (12, 12)
    assert designs["wide-heads"].heads == 12
    assert abs(designs["wide-heads"].inner - lean.inner) <= 12
    assert (designs["split"].heads, designs["split"].inner, designs["split"].params) == (24, 768, control.params)
    assert all(d.params <= 0.6 * plan.baseline.params * 1.001 for n, d in designs.items() if n != "baseline")
    model = leanify.load("vit_base", device="meta")
    for design in designs.values():
        assert count(surgery.write(model, design.architecture)).params == design.params
    assert alternatives.front(plan, 4)[0] == plan.chosen
    with pytest.raises(leanify.ShapeError, match="'fat' names no design"):
        alternatives.named(plan, "fat")


def test_lean_and_control_side_by_side(tmp_path: Any) -> None:
    small = {"img_size": 32, "embed_dim": 64, "depth": 6, "num_heads": 4, "num_classes": 7}
    plan = leanify.redesign("vit_base", target_params=0.75, overrides=small, min_depth=3)
    target = tmp_path / "some" / "where"
    plan.save(target, control=True)
    lean, control = (leanify.load(target / name) for name in ("lean", "control"))
    assert leanify.read(lean) == plan.chosen.architecture
    assert leanify.read(control) == plan.control.architecture  # type: ignore[union-attr]
    with pytest.raises(leanify.DirectoryError, match="--force replaces it"):
        plan.save(target)
    plan.save(target, force=True)
    assert leanify.read(leanify.load(target)) == plan.chosen.architecture
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(leanify.DirectoryError, match="leanify"):
        plan.save(tmp_path / "mine", force=True)
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


def test_absurd_sizes_keep_the_grid_small() -> None:
    huge = {"intermediate_size": 1_000_000, "num_hidden_layers": 200}
    plan = leanify.redesign("llama", target_params=0.5, overrides={**LLAMA, **huge})
    assert plan.searched <= 64 * 65 * 513


def test_a_length_that_changes_nothing_is_refused() -> None:
    with pytest.raises(leanify.ShapeError, match="224 × 224"):
        leanify.redesign("vit_base", target_params=0.5, tokens=50)
    with pytest.raises(leanify.ShapeError, match="1024"):
        leanify.redesign("gpt2", target_params=0.75, tokens=5000)


def test_more_key_value_heads_than_heads_are_named() -> None:
    odd = {**LLAMA, "num_key_value_heads": 16}
    with pytest.raises(leanify.LeanifyError, match=r"8 heads on 16 key/value heads|num_key_value_heads"):
        leanify.redesign("llama", target_params=0.7, overrides=odd)


def test_initialisers_that_ask_for_names_get_them() -> None:
    """GCViT's ``_init_weights(module, name)``."""
    model = leanify.load("gcvit_xxtiny", overrides={"num_classes": 7})
    before = model.stages[0].blocks[0].attn.qkv.weight.clone()
    initialise_model(model)
    assert not torch.equal(before, model.stages[0].blocks[0].attn.qkv.weight)


def test_the_ranking_follows_the_direction_of_attention() -> None:
    """Both directions: the most attention. Causal: no more attention than MLP, and then the most layers."""
    vit = leanify.redesign("vit_base", target_params=0.6, min_mlp=1)
    assert vit.chosen.mlp == 768
    d, h = vit.chosen.inner, 768
    assert vit.chosen.score == pytest.approx(-d * (4 * 768 + 3) / (d * (4 * 768 + 3) + h * (2 * 768 + 1)))
    llama = leanify.redesign("llama", target_params=0.7, overrides=LLAMA)
    assert llama.plain is not None
    assert llama.chosen.score == llama.plain.score == 0.5
    assert llama.plain.depth >= llama.chosen.depth
    assert llama.recommended.design == "plain"


def test_lean_stays_where_lean_models_were_published() -> None:
    """An MLP of two widths; alternatives show what the ranking would take beyond it, and an option asks for that."""
    vit = leanify.redesign("vit_base", target_params=0.5)
    assert vit.chosen.mlp == 2 * 768
    assert vit.candidates[1].mlp < 2 * 768
    assert vit.candidates[1].score < vit.chosen.score
    assert leanify.redesign("vit_base", target_params=0.5, min_mlp=1).chosen.mlp < 2 * 768


def test_every_design_of_the_evidence_and_every_published_lean_model_is_in_the_search_space() -> None:
    with (ROOT / "recipes" / "results" / "ranking.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    shapes = {(int(r["width"]), int(r["depth"]), int(r["heads"]), int(r["mlp"])) for r in rows}
    assert len(shapes) > 20
    for width, depth, heads, mlp in shapes:
        layer = Layer(width, 4, 4, width // 4, 4 * width)  # the baseline of every task: 8 layers of 4 heads
        assert _is_inside(Stage("blocks", ((layer,),) * 8), depth, heads, mlp), (width, depth, heads, mlp)
    published = sorted((ROOT / "recipes" / "leaner-transformers").glob("*-lean.toml"))
    assert len(published) > 10
    for path in published:
        baseline = recipe.load(path.with_name(path.name.replace("-lean", "")))
        old, lean = (leanify.read(find.build_on_meta(find.find(each))) for each in (baseline, recipe.load(path)))
        for before, after in zip(old.stages, lean.stages, strict=True):
            primary = after.primary
            assert primary is not None
            assert _is_inside(before, after.depth, primary.heads, primary.mlp), path.name


def _is_inside(stage: Stage, depth: int, heads: int, mlp: int) -> bool:
    rules = Rules()
    fewest, most = rules.mlp_range(stage)
    return (
        rules.depth_floor(stage) <= depth <= stage.depth and heads <= rules.most_heads(stage) and fewest <= mlp <= most
    )


def test_experts_are_a_dimension_and_active_parameters_a_budget() -> None:
    shape = {**LLAMA, "intermediate_size": 512, "num_local_experts": 8, "num_experts_per_tok": 2}
    plan = leanify.redesign("mixtral", max_active=0.7, target_params=0.75, overrides=shape)
    assert plan.chosen.params_active <= 0.7 * plan.baseline.params_active
    assert plan.chosen.params <= 0.75 * plan.baseline.params
    assert plan.control is not None
    assert plan.control.mlp > plan.chosen.mlp
    for design in (plan.baseline, plan.chosen, plan.control):
        model = surgery.write(leanify.load("mixtral", overrides=shape, device="meta"), design.architecture)
        experts = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
        assert design.params_active == design.params - experts * 6 // 8
        assert design.mlp % 16 == 0


def test_two_towers_fit_eighty_columns() -> None:
    plan = leanify.redesign("t5", target_params=0.75)
    out = Console(width=80, file=io.StringIO(), highlight=False)
    out.print(fit(plans._table(plan, False), out, ("inner", plans.KAPPA, "GMACs", "MMACs")))
    lines = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    assert [line.split()[0] for line in lines if "decoder" in line] == ["decoder"] * len(lines[2::2])


def test_a_budget_that_is_not_on_parameters_is_said() -> None:
    assert leanify.redesign("vit_tiny", max_macs=0.5).budget == "budget 626.84 M MACs, 50% of 1.25 G"
    assert leanify.redesign("vit_tiny", max_macs="900M", target_params=0.5).budget.startswith("budget 2.86 M, 50%")

"""Plans that an engineer would train: the rules, lean and its control, towers, serving, refusals."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import leanify
from leanify.cli import plans
from leanify.cli.output import fit
from leanify.core import recipe
from leanify.core.architecture import Layer, Stage
from leanify.profiling import counting
from leanify.profiling.counting import count
from leanify.reshaping import surgery
from leanify.reshaping.sites import locate
from leanify.search import alternatives
from leanify.search.design import Design
from leanify.search.options import Options
from leanify.search.plan import Plan
from leanify.search.rules import Rules
from leanify.sources import find
from leanify.upstream.build import initialise_model

ROOT = Path(__file__).parents[1]
LEAN_ROWS = sorted((ROOT / "recipes" / "leaner-transformers").glob("*-lean.toml"))
LLAMA = {
    "num_hidden_layers": 16, "hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 1000,
}  # fmt: skip
SMALL_VIT = {"img_size": 32, "embed_dim": 64, "depth": 6, "num_heads": 4, "num_classes": 7}


def mains(plan: Plan, design: Design) -> list[Any]:
    """(depth, main layer) of every stage that the plan changes."""
    stages = design.architecture.stages
    return [(stages[i].depth, stages[i].primary) for i in plan.baseline.architecture.variable_stages]


@pytest.mark.parametrize(
    ("source", "share", "overrides"),
    [
        ("vit_base", 0.5, {}),
        ("vit_tiny_patch16_224", 0.6, {}),
        ("gpt2", 0.75, {}),
        ("swin_tiny_patch4_window7_224", 0.75, {}),
        ("t5", 0.75, {"num_layers": 12}),
        ("clip", 0.75, {}),
        ("llama", 0.7, LLAMA),
        ("xcit_small_12_p16_224", 0.7, {}),
    ],
)
def test_plans_keep_the_rules(source: str, share: float, overrides: dict[str, Any]) -> None:
    plan = leanify.redesign(source, target_params=share, overrides=overrides)
    limit = share * plan.baseline.params
    for design in plan.candidates[plan.first == "balanced" :]:
        assert 0.97 * limit <= design.params <= limit
        for (depth, layer), (old_depth, old) in zip(mains(plan, design), mains(plan, plan.baseline), strict=True):
            multiple = 64 if old.width >= 256 else 8
            assert min(2 * old.width, old.mlp) <= layer.mlp <= old.mlp
            assert layer.mlp % multiple == 0
            assert layer.inner % multiple == 0
            assert layer.heads <= 2 * old.heads
            assert layer.heads == old.heads or layer.heads % 2 == 0
            assert depth >= old_depth / 3
    lean, old, control = (mains(plan, design) for design in (plan.lean, plan.baseline, plan.control))
    assert any(new[1].heads > was[1].heads and new[0] < was[0] for new, was in zip(lean, old, strict=True))
    assert [layer.heads for _, layer in control] == [layer.heads for _, layer in old]
    assert [depth for depth, _ in control] == [depth for depth, _ in lean]
    assert control != lean
    assert all(layer.mlp % 8 == 0 for _, layer in control)
    assert plan.control.params == pytest.approx(plan.lean.params, rel=0.001)
    assert plan.control.head_dim == plan.baseline.head_dim


def test_rules_follow_user_options() -> None:
    plan = leanify.redesign("llama", target_params=0.7, overrides=LLAMA, tensor_parallel=4, multiple=128, min_depth=10)
    assert plan.lean.heads % 4 == plan.lean.mlp % 128 == plan.lean.inner % 128 == 0
    assert plan.lean.architecture.stages[0].primary.kv_heads % 4 == 0  # type: ignore[union-attr]
    assert plan.lean.depth >= 10


@pytest.mark.parametrize(
    ("heads", "kv_heads", "options", "counts"),
    [
        (32, 8, Options(), [40, 48, 56, 64]),  # thirty-two heads and more come in eights
        (32, 8, Options(tensor_parallel=1, max_heads=3.0), list(range(36, 97, 4))),
        # 4 key/value heads are copied to 8 devices, 6 can be neither copied nor divided
        (8, 2, Options(tensor_parallel=8, max_heads=4.0), [16, 32]),
    ],
)
def test_heads_divide_among_devices(heads: int, kv_heads: int, options: Options, counts: list[int]) -> None:
    layer = Layer(64 * heads, heads, kv_heads, 64, 2048)
    assert Rules(options).head_counts(Stage("layers", ((layer,),) * 16)) == counts


@pytest.mark.parametrize(
    ("source", "request_", "needs", "first"),
    [
        ("distilbert", {"target_params": 0.75}, r"its 6 blocks are the fewest .*log3 .*768; --min-depth 5", "narrow"),
        ("distilbert", {}, r"its 6 blocks are the fewest", "narrow"),
        (
            "bert",
            {"target_params": 0.5},
            r"^smallest within the published bounds 0\.504 .*; or --count body$",
            "balanced",
        ),
        ("vit_base", {"max_macs": 0.3}, r"--max-macs 0\.375", "balanced"),
        ("vit_base", {"target_params": 0.7, "min_depth": 12}, r"its 12 blocks are the fewest", "narrow"),
        pytest.param("davit_base", {}, r"0\.506 \(3 blocks, a third of 9\)", "balanced", marks=pytest.mark.slow),
        pytest.param("t5", {"target_params": 0.7}, "decoder: its 6 blocks", "narrow", marks=pytest.mark.slow),
    ],
)
def test_table_stands_without_lean(source: str, request_: dict[str, Any], needs: str, first: str) -> None:
    """The other designs are the answer, and lean says what it would need."""
    plan = leanify.redesign(source, **request_)
    assert plan.lean is plan.control is None
    assert re.search(needs, str(plan.needs)), plan.needs
    assert (plan.first, plan.chosen) == (first, plan.named_designs[first])
    for design in filter(None, plan.named_designs.values()):
        for cost, limit in plan.request.limits.items():
            assert getattr(design.cost, cost) <= limit
    data = plan.to_json()
    assert (data["lean"], data["follows"], data["needs"]) == (None, None, plan.needs)
    with pytest.raises(leanify.ShapeError, match=r"there is no lean .*--choose"):
        plan.pick_design()


def test_named_needs_are_enough() -> None:
    share = str(leanify.redesign("bert", target_params=0.5).needs).split()[5]
    assert leanify.redesign("bert", target_params=share).lean.heads > 12
    assert leanify.redesign("bert", target_params=0.5, count="body").lean.heads > 12
    assert leanify.redesign("distilbert", target_params=0.75, min_depth=5).lean.depth == 5


@pytest.mark.parametrize(("source", "overrides"), [("gpt2", {}), ("llama", LLAMA)])
def test_first_row_of_decoders_is_balanced(source: str, overrides: dict[str, Any]) -> None:
    """Fewer layers and a smaller width, as makers of decoders divide a budget: it is what is written."""
    plan = leanify.redesign(source, target_params=0.6, overrides=overrides)
    assert (plan.first, plan.chosen) == ("balanced", plan.balanced)
    assert [name for name, _ in plan.designs()][:2] == ["baseline", "balanced"]
    assert plan.candidates[0] == plan.pick_design() == plan.chosen
    assert plan.remarks[0] == plan.reason
    assert "Qwen2.5" in plan.reason
    assert plan.chosen.depth < plan.baseline.depth
    assert plan.chosen.width < plan.baseline.width


def test_caller_ranking_chooses_lean() -> None:
    """Nothing is recommended, whoever ranks: only training shows."""
    few = leanify.redesign("vit_base", target_params=0.6, ranking=lambda designs: designs.heads.astype(float))
    many = leanify.redesign("vit_base", target_params=0.6, ranking=lambda designs: -designs.heads.astype(float))
    assert few.chosen.heads < many.chosen.heads
    for plan in (few, many):
        assert plan.plain.heads == 12
        assert plan.plain_name in ("depth-only", "mlp-only", "plain-cut")
        assert plan.to_json()["plain"]["name"] == plan.plain_name
        assert plan.to_json()["recommended"] is None
        assert plan.follows == "a ranking of the caller's own"
    assert leanify.redesign("vit_base", heads=16, target_params=0.6).plain is None


def test_lean_has_quarter_more_heads() -> None:
    """Where that is possible."""
    for source, overrides in (("llama", LLAMA), ("gpt2", {}), ("vit_tiny", {})):
        plan = leanify.redesign(source, target_params=0.75, overrides=overrides)
        assert plan.lean.heads >= 1.25 * plan.baseline.heads
    limited = leanify.redesign("vit_base", target_params=0.75, max_heads=1.2)
    assert limited.chosen.heads == 14
    assert any("no design with a quarter more" in remark for remark in limited.remarks)


def test_equal_designs_share_a_row() -> None:
    plan = leanify.redesign("digits", target_params=0.5, min_depth=1)
    assert plan.plain.architecture == plan.control.architecture
    assert "control, plain" in dict(plan.designs())


def test_chosen_design_is_written(tmp_path: Any) -> None:
    plan = leanify.redesign("vit_base", target_params=0.75, overrides=SMALL_VIT)
    for name, design in (("plain", plan.plain), ("narrow", plan.narrow), ("2", plan.candidates[1])):
        plan.save(tmp_path / name, choose=name)
        assert leanify.read(leanify.load(tmp_path / name)) == design.architecture
    for name in ("fat", "0", "9"):
        with pytest.raises(leanify.ShapeError, match="lean, control, balanced, narrow, plain and 1 to 3"):
            plan.save(tmp_path / "none", choose=name)
    with pytest.raises(leanify.LeanifyError, match="--control"):
        plan.save(tmp_path / "none", choose="plain", control=True)
    assert not (tmp_path / "none").exists()


def test_towers_have_budgets_and_pins() -> None:
    plan = leanify.redesign("t5", target_params="encoder=0.8,decoder=0.6", min_depth=2)
    assert plan.towers == ["encoder", "decoder"]
    model = leanify.load("t5", device="meta")
    lean = surgery.write(model, plan.chosen.architecture)
    for tower, share in (("encoder", 0.8), ("decoder", 0.6)):
        had, has = (counting.parameters(one.get_submodule(tower).block) for one in (model, lean))
        assert 0.95 * share * had <= has <= share * had
    assert plan.chosen.depth[0] != plan.chosen.depth[1] or plan.chosen.heads[0] != plan.chosen.heads[1]  # type: ignore[index]
    pinned = leanify.redesign("t5", depth={"encoder": 5}, heads={"dec": 12})
    assert (pinned.chosen.depth, pinned.chosen.heads) == ([5, 6], [8, 12])
    row = pinned.cells()[1]
    assert (row["depth"], row["heads"], row["width"]) == ("encoder 5, decoder 6", "encoder 8, decoder 12", "512")


@pytest.mark.parametrize(
    ("source", "overrides"),
    [
        ("llama", LLAMA),
        ("gpt2", {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 50}),
        ("gpt_bigcode", {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 50}),
        ("mistral", {**LLAMA, "sliding_window": 8}),
        ("gemma3_text", {**LLAMA, "num_hidden_layers": 6, "sliding_window": 8, "head_dim": 32, "pad_token_id": 0}),
    ],
)
def test_cache_size_matches_upstream(source: str, overrides: dict[str, Any]) -> None:
    """An oracle: the tensors in upstream's own cache after a forward pass. Upstream's windows keep one token less:
    they add the newest when it comes.
    """
    model, context = leanify.load(f"hf/{source}", overrides=overrides), 24
    with torch.no_grad():
        cache = model(input_ids=torch.randint(1, 49, (1, context)), use_cache=True).past_key_values
    numbers = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    newest = sum(2 * layer.keys[:, :, :1].numel() for layer in cache.layers if layer.keys.shape[-2] < context)
    heads = leanify.read(model).stages[0].primary.heads  # type: ignore[union-attr]
    plan = leanify.redesign(f"hf/{source}", heads=heads, overrides=overrides, context=context)
    assert plan.baseline.serving.kv_bytes_per_token * context == 2 * (numbers + newest)


def test_latent_attention_caches_latent() -> None:
    """DeepSeek-V3: 61 layers of 512 + 64 numbers, whatever the heads (DeepSeek-V2, Table 1)."""
    model = leanify.load("hf/deepseek_v3", device="meta")
    assert counting.cache_bytes(locate(model), 100) == 100 * 61 * (512 + 64) * 2


@pytest.mark.parametrize("cls", [None, "AutoModelForCausalLM"])
def test_generation_cost_matches_forward(cls: str | None) -> None:
    """At 96 tokens, priced from 48; one more token costs the difference's linear part and one row of every map."""
    named = {"class": cls} if cls else {}
    plan = leanify.redesign("llama", target_params=0.7, overrides={**LLAMA, **named}, tokens=48, context=96)
    model = surgery.write(leanify.load("llama", overrides=LLAMA, cls=cls, device="meta"), plan.chosen.architecture)
    served = plan.chosen.serving
    assert served.prefill_macs == count(model, 96).macs
    assert served.decode_macs == count(model, 96).macs // 96


def test_cache_budget_is_kept() -> None:
    plan = leanify.redesign("llama", target_params=0.7, max_kv=0.8, overrides=LLAMA)
    assert plan.chosen.serving.kv_bytes_per_token <= 0.8 * plan.baseline.serving.kv_bytes_per_token  # type: ignore[union-attr]


def test_equal_designs_keep_their_promise() -> None:
    plan = leanify.redesign("vit_base", target_params=0.6)
    designs = {name: alternatives.named_design(plan, name) for name in alternatives.NAMES}
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
        alternatives.named_design(plan, "fat")


def test_lean_and_control_compare(tmp_path: Any) -> None:
    plan = leanify.redesign("vit_base", target_params=0.75, overrides=SMALL_VIT, min_depth=3)
    target = tmp_path / "some" / "where"
    plan.save(target, control=True)
    lean, control = (leanify.load(target / name) for name in ("lean", "control"))
    assert leanify.read(lean) == plan.chosen.architecture
    assert leanify.read(control) == plan.control.architecture  # type: ignore[union-attr]
    with pytest.raises(leanify.DirectoryError, match="force=True replaces it"):
        plan.save(target)
    plan.save(target, force=True)
    assert leanify.read(leanify.load(target)) == plan.chosen.architecture
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(leanify.DirectoryError, match="leanify"):
        plan.save(tmp_path / "mine", force=True)
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


def test_absurd_sizes_keep_grid_small() -> None:
    huge = {"intermediate_size": 1_000_000, "num_hidden_layers": 200}
    plan = leanify.redesign("llama", target_params=0.5, overrides={**LLAMA, **huge})
    assert plan.searched <= 64 * 65 * 513


def test_named_initialisers_get_names() -> None:
    """GCViT's ``_init_weights(module, name)``."""
    model = leanify.load("gcvit_xxtiny", overrides={"num_classes": 7})
    before = model.stages[0].blocks[0].attn.qkv.weight.clone()
    initialise_model(model)
    assert not torch.equal(before, model.stages[0].blocks[0].attn.qkv.weight)


def test_first_rows_by_kind() -> None:
    """Both directions: lean and its control. Causal: plain ranks before lean."""
    vit = leanify.redesign("vit_base", target_params=0.5)
    names = [name for name, _ in vit.designs()]
    assert names[:6] == ["baseline", "lean", "control", "balanced", "narrow", "plain"]
    assert vit.lean.score < vit.plain.score
    llama = leanify.redesign("llama", target_params=0.7, overrides=LLAMA)
    assert llama.plain.score < llama.lean.score


def test_rules_admit_published_designs() -> None:
    """The default limits of a search hold every published lean model."""
    assert len(LEAN_ROWS) > 10
    for path in LEAN_ROWS:
        baseline = recipe.load(path.with_name(path.name.replace("-lean", "")))
        old, lean = (leanify.read(find.build_on_meta(find.find(each))) for each in (baseline, recipe.load(path)))
        for before, after in zip(old.stages, lean.stages, strict=True):
            fewest, most = Rules().mlp_range(before)
            assert Rules().depth_floor(before) <= after.depth <= before.depth, path.name
            assert after.primary.heads <= Rules().most_heads(before), path.name
            assert fewest <= after.primary.mlp <= most, path.name


@pytest.mark.slow
@pytest.mark.parametrize("path", LEAN_ROWS, ids=lambda path: path.stem)
def test_published_row_is_proposed_at_its_budget(path: Path) -> None:
    """Every lean model of the paper, at as many parameters as it has; smaller heads where its heads are split."""
    baseline = recipe.load(path.with_name(path.name.replace("-lean", "")))
    old = leanify.read(find.build_on_meta(find.find(baseline)))
    lean = find.build_on_meta(find.find(recipe.load(path)))
    row = leanify.read(lean)
    head_dims = [[stage.primary and stage.primary.head_dim for stage in shape.stages] for shape in (old, row)]
    mode = "grow" if head_dims[0] == head_dims[1] else "split"
    plan = leanify.redesign(baseline, target_params=counting.parameters(lean), heads_mode=mode)
    assert plan.lean.architecture.stages == row.stages


def test_mixture_keeps_its_budgets() -> None:
    shape = {**LLAMA, "intermediate_size": 512, "num_local_experts": 8, "num_experts_per_tok": 2}
    plan = leanify.redesign("mixtral", max_macs=0.7, target_params=0.75, overrides=shape)
    assert plan.chosen.macs <= 0.7 * plan.baseline.macs
    assert plan.chosen.params <= 0.75 * plan.baseline.params
    assert plan.control.mlp > plan.lean.mlp
    for design in (plan.baseline, plan.chosen, plan.lean, plan.control):
        model = surgery.write(leanify.load("mixtral", overrides=shape, device="meta"), design.architecture)
        experts = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
        assert design.params_active == design.params - experts * 6 // 8
        assert design.mlp % (8 if design == plan.control else 32) == 0


def test_two_towers_fit_80_columns() -> None:
    plan = leanify.redesign("t5", target_params=0.75, min_depth=3)
    out = Console(width=80, file=io.StringIO(), highlight=False)
    out.print(fit(plans._table(plan), out, ("inner", "GMACs", "MMACs")))
    lines = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    assert [line.split()[0] for line in lines if "decoder" in line] == ["decoder"] * len(lines[2::2])


def test_budget_kind_is_shown() -> None:
    """A budget that is not on parameters is said."""
    assert leanify.redesign("vit_tiny", max_macs=0.5).budget == "budget 626.84 M MACs, 50% of 1.25 G"
    assert leanify.redesign("vit_tiny", max_macs="900M", target_params=0.5).budget.startswith("budget 2.86 M, 50%")

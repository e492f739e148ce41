"""Plans for sixty-one models that people use, each at 0.7 and at 0.5 of its parameters: a table to read as an engineer.

python -m recipes.research.plans > recipes/results/plans.md       about fifteen minutes on one core
python -m recipes.research.plans ViT-B gpt2                       these alone
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

import leanify
from leanify.core.units import format_count
from leanify.lens import surgery
from leanify.profiling import counting
from leanify.search.design import Design
from leanify.search.plan import Plan
from leanify.search.ranking import is_causal
from leanify.search.rules import depth_floor, max_width
from leanify.search.towers import tower_stages, towers
from leanify.sources import find

SHARES = (0.7, 0.5)
LLAMA_1B = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "tie_word_embeddings": True,
}  # fmt: skip
QWEN2 = {
    "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
    "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip
SMOLLM = {
    "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True,
}  # fmt: skip
MINILM = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 12}
DEBERTA_V3 = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "vocab_size": 128100,
}  # fmt: skip
SMOLLM2_360M = {
    "hidden_size": 960, "intermediate_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 15,
    "num_key_value_heads": 5, "vocab_size": 49152, "tie_word_embeddings": True,
}  # fmt: skip
LLAMA_3B = {
    "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "tie_word_embeddings": True,
}  # fmt: skip
TINYLLAMA = {
    "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
    "num_key_value_heads": 4, "vocab_size": 32000,
}  # fmt: skip
PYTHIA_410M = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "vocab_size": 50304,
}  # fmt: skip
OPT_1B = {
    "hidden_size": 2048, "ffn_dim": 8192, "num_hidden_layers": 24, "num_attention_heads": 32, "vocab_size": 50272,
    "word_embed_proj_dim": 2048,
}  # fmt: skip
OLMO2_1B = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 16,
    "num_key_value_heads": 16, "vocab_size": 100352,
}  # fmt: skip
STARCODER2_3B = {
    "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 30, "num_attention_heads": 24,
    "num_key_value_heads": 2, "vocab_size": 49152,
}  # fmt: skip
QWEN25_1B = {
    "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
    "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip
QWEN3_06B = {
    "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip
BERT_SMALL = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 8}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {  # what people call it → a SOURCE and its overrides
    "ViT-Ti": ("vit_tiny_patch16_224", {}),
    "ViT-S": ("vit_small_patch16_224", {}),
    "ViT-B": ("vit_base_patch16_224", {}),
    "ViT-L": ("vit_large_patch16_224", {}),
    "DeiT III-B": ("deit3_base_patch16_224", {}),
    "BEiT-B": ("beit_base_patch16_224", {}),
    "EVA-02-B": ("eva02_base_patch14_224", {}),
    "DINOv2-S, 518 px": ("vit_small_patch14_dinov2", {}),
    "DINOv2-B, 518 px": ("vit_base_patch14_dinov2", {}),
    "SigLIP-B, images": ("vit_base_patch16_siglip_224", {}),
    "Swin-T": ("swin_tiny_patch4_window7_224", {}),
    "Swin-B": ("swin_base_patch4_window7_224", {}),
    "DaViT-B": ("davit_base", {}),
    "XCiT-M": ("xcit_medium_24_p16_224", {}),
    "XCiT-S": ("xcit_small_12_p16_224", {}),
    "CaiT-S24": ("cait_s24_224", {}),
    "VOLO-d1": ("volo_d1_224", {}),
    "TNT-B": ("tnt_b_patch16_224", {}),
    "bert": ("bert", {}),
    "bert-large": ("bert", {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
                            "num_attention_heads": 16}),
    "roberta": ("roberta", {}),
    "distilbert": ("distilbert", {}),
    "MiniLM-L6": ("bert", MINILM),
    "electra": ("electra", {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072,
                            "embedding_size": 768}),
    "mpnet": ("mpnet", {}),
    "deberta-v3": ("deberta-v2", DEBERTA_V3),
    "modernbert": ("modernbert", {}),
    "gpt2": ("gpt2", {}),
    "gpt2-medium": ("gpt2", {"n_embd": 1024, "n_layer": 24, "n_head": 16}),
    "phi": ("hf/phi", {}),
    "qwen2 0.5B": ("qwen2", QWEN2),
    "gemma2": ("gemma2", {}),
    "gemma3": ("gemma3_text", {}),
    "mistral": ("mistral", {}),
    "llama 1B": ("llama", LLAMA_1B),
    "smollm2 135M": ("llama", SMOLLM),
    "t5": ("t5", {}),
    "bart": ("bart", {}),
    "whisper": ("hf/whisper", {}),
    "clip": ("hf/clip", {}),
    "wav2vec2": ("wav2vec2", {}),
    "pythia 410M": ("gpt_neox", PYTHIA_410M),
    "opt 1.3B": ("opt", OPT_1B),
    "llama 3.2 3B": ("llama", LLAMA_3B),
    "smollm2 360M": ("llama", SMOLLM2_360M),
    "olmo2 1B": ("olmo2", OLMO2_1B),
    "starcoder2 3B": ("starcoder2", STARCODER2_3B),
    "tinyllama 1.1B": ("llama", TINYLLAMA),
    "qwen2.5 1.5B": ("qwen2", QWEN25_1B),
    "qwen3 0.6B": ("qwen3", QWEN3_06B),
    "stablelm 3B": ("stablelm", {}),
    "hubert": ("hf/hubert", {}),
    "ast": ("hf/audio-spectrogram-transformer", {}),
    "detr": ("hf/detr", {}),
    "yolos": ("hf/yolos", {}),
    "olmoe": ("hf/olmoe", {}),
    "gpt-oss 20B": ("hf/gpt_oss", {"num_hidden_layers": 24, "num_local_experts": 32}),
    "deepseek-v3": ("hf/deepseek_v3", {}),
    "siglip2": ("hf/siglip2", {}),
    "segformer": ("hf/segformer", {}),
    "bert-small": ("bert", BERT_SMALL),
}  # fmt: skip
HEAD = """# Plans

Sixty-one models that people use, at 0.7 and at 0.5 of their parameters, at the defaults of `leanify redesign`, by

    python -m recipes.research.plans > recipes/results/plans.md

*first* is the row that is listed first and that `-o` writes, with the reason that the plan gives; numbers are old →
new, by slashes where the stages or towers that change differ. *lean* says its depth × heads, MLP and MACs beside the
control's, or what it would need. *narrow* and *balanced*: depth × width, heads × dim, MLP.
Verdicts of *first*: *would train*: as it is. *odd*: over twice the heads, an MLP below two widths (gated 2.67) that was
wider, an MLP over 1.5 times the baseline's in widths, or a lean of over 1.1 × its control's MACs. *would not*: a tower
below log₃ of its width, two layers, a decoder with under half of its layers, one head of many, or an MLP below 1.2
widths.

| model | share | first | depth | width | heads × dim | MLP | parameters | reason | lean | narrow | balanced | |
|---|---|---|---|---|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class Row:
    """A line of the table, what would be done with it, and the laws that its narrow and balanced designs keep."""

    cells: tuple[str, ...]
    verdict: str
    laws: tuple[tuple[str, str], ...] = ()  # (the design, the law that it breaks or "" if it keeps all)

    def __str__(self) -> str:
        return f"| {' | '.join((*self.cells, self.verdict))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    names = parser.parse_args().names or list(MODELS)
    print(HEAD, flush=True)
    rows = []
    for name in names:
        for share in SHARES:
            rows.append(plan_row(name, share))
            print(rows[-1], flush=True)
    print()
    for verdict in ("would train", "odd", "would not", "refused"):
        members = [f"{row.cells[0]} {row.cells[1]}" for row in rows if row.verdict.startswith(verdict)]
        listed = "" if verdict == "would train" or not members else f": {', '.join(members)}"
        print(f"- **{verdict}**: {len(members)} of {len(rows)}{listed}.")
    laws = [law for row in rows for law in row.laws]
    broken = [f"{design}: {law}" for design, law in laws if law]
    print(
        f"- **narrow and balanced**: {len(laws)} designs; the width is a multiple of 64 or of the head_dim, inner the "
        "baseline's share of the width, parameters within 3% below the budget, and equal to those of the model that "
        f"upstream's constructor builds, in {len(laws) - len(broken)}{': all but ' * bool(broken)}{'; '.join(broken)}."
    )


def plan_row(name: str, share: float) -> Row:
    """The line of one model at one budget."""
    source, overrides = MODELS[name]
    try:
        plan = leanify.redesign(source, target_params=share, overrides=overrides)
    except leanify.LeanifyError as refused:
        reason = str(refused).replace("|", "/")
        return Row((name, str(share), "–", *[""] * 5, reason, *[""] * 3), "refused")
    faults = list(find_faults(plan))
    verdict = "would train"
    if faults:
        verdict = "would not" if any(is_grave for _, is_grave in faults) else "odd"
        verdict += f": {'; '.join(words for words, _ in faults)}"
    cells = (
        name,
        str(share),
        plan.first,
        change(plan, "depth"),
        change(plan, "width"),
        f"{change(plan, 'heads')} × {text(plan, plan.chosen, 'head_dim')}",
        change(plan, "mlp"),
        f"{format_count(plan.chosen.params)} of {format_count(plan.baseline.params)}",
        "; ".join([plan.reason.partition(": ")[2], *plan.warnings]),
        lean_cell(plan),
        shape_cell(plan, plan.narrow),
        shape_cell(plan, plan.balanced),
    )
    model = find.build_on_meta(find.find(source, overrides=overrides))
    laws = []
    for design_name, design in (("narrow", plan.narrow), ("balanced", plan.balanced)):
        if design is not None:
            laws.append((f"{name} {share} {design_name}", "; ".join(broken_laws(plan, design, model))))
    return Row(cells, verdict, tuple(laws))


def lean_cell(plan: Plan) -> str:
    lean = plan.lean
    if lean is None:
        return str(plan.needs)
    sizes = f"{text(plan, lean, 'depth')} × {text(plan, lean, 'heads')}, {text(plan, lean, 'mlp')}"
    if plan.control is None:
        return sizes
    return f"{sizes}; {lean.macs / plan.control.macs:.2f} × the control's MACs"


def shape_cell(plan: Plan, design: Design | None) -> str:
    if design is None:
        return "–"
    sizes = {what: text(plan, design, what) for what in ("depth", "width", "heads", "head_dim", "mlp")}
    return f"{sizes['depth']} × {sizes['width']}, {sizes['heads']} × {sizes['head_dim']}, {sizes['mlp']}"


def broken_laws(plan: Plan, design: Design, model: nn.Module) -> Iterator[str]:
    """What a narrower design owes to makers' practice and to the budget, where it fails."""
    stages = plan.prices.stage_indices
    for i in stages:
        old, new = (each.architecture.stages[i].primary for each in (plan.baseline, design))
        assert old is not None
        assert new is not None
        if new.width % 64 and new.width % old.head_dim:
            yield f"width {new.width} with heads of {new.head_dim}"
        if new.inner * old.width != old.inner * new.width:
            yield f"inner {new.inner} at width {new.width}"
        if new.heads == 1 < old.heads:
            yield "one head"
    used = design.params / plan.request.limits["params"]
    if not 0.97 <= used <= 1:
        yield f"{used:.1%} of the budget"
    if counting.parameters(surgery.write(model, design.architecture)) != design.params:
        yield "another count as built"


def find_faults(plan: Plan) -> Iterator[tuple[str, bool]]:
    """What an engineer would object to in the first row, and whether it keeps him from training the design."""
    for tower in towers(plan.prices.architecture, plan.prices.stage_indices):
        indices = tower_stages(plan.prices.architecture, tower)
        stages = [plan.chosen.architecture.stages[i] for i in indices]
        old_depth = sum(plan.baseline.architecture.stages[i].depth for i in indices)
        depth = sum(stage.depth for stage in stages)
        if depth < min(old_depth, depth_floor(max_width(stages))) or depth <= 2 < old_depth:
            yield f"{tower.name} has {depth} layers", True
        if is_causal(plan.prices) and depth < old_depth / 2:
            yield f"{depth} of {old_depth} layers in a decoder", True
    for i in plan.prices.stage_indices:
        old, new = (design.architecture.stages[i].primary for design in (plan.baseline, plan.chosen))
        assert old is not None
        assert new is not None
        if not old.mlp:
            continue
        widths, old_widths = (each.mlp * max(1, each.active) / each.width for each in (new, old))
        needed = 8 / 3 if plan.prices.is_gated(i) else 2
        if new.heads > 2 * old.heads:
            yield f"{new.heads} heads", False
        if new.heads == 1 < old.heads:
            yield "one head", True
        if widths > 1.5 * old_widths:
            yield f"an MLP of {widths:.1f} widths where the baseline has {old_widths:.1f}", False
        if widths < min(needed, old_widths) - 0.01:
            yield f"an MLP of {widths:.1f} widths", widths < 1.2
    if plan.first == "lean" and plan.control is not None and plan.chosen.macs > 1.1 * plan.control.macs:
        yield f"{plan.chosen.macs / plan.control.macs:.2f} × the control's MACs", False


def text(plan: Plan, design: Design, what: str) -> str:
    """One number, or one for each stage that the plan changes where they differ."""
    stages = [design.architecture.stages[i] for i in plan.prices.stage_indices]
    values = [stage.depth if what == "depth" else getattr(stage.primary, what) for stage in stages]
    return "/".join(map(str, values)) if len(set(values)) > 1 else str(values[0])


def change(plan: Plan, what: str) -> str:
    old, new = text(plan, plan.baseline, what), text(plan, plan.chosen, what)
    return new if old == new else f"{old} → {new}"


if __name__ == "__main__":
    main()

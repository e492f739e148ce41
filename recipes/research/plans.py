"""Plans for forty-one models that people use, each at 0.7 and at 0.5 of its parameters: a table to read as an engineer.

python -m recipes.research.plans > recipes/results/plans.md       about three minutes on one core
python -m recipes.research.plans ViT-B gpt2                       these alone
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import leanify
from leanify.core.units import format_count
from leanify.search.design import Design
from leanify.search.plan import Plan
from leanify.search.rules import tower_floor
from leanify.search.towers import tower_stages, towers

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
}  # fmt: skip
HEAD = """# Plans

Forty-one models that people use, at 0.7 and at 0.5 of their parameters, at the defaults of `leanify redesign`, by

    python -m recipes.research.plans > recipes/results/plans.md

Numbers are old → new, by slashes where the stages or towers that change differ. *MACs* are lean's beside the control's
and plain's. *first*: would be trained as it is. *odd*: over twice the heads, an MLP below two widths (gated 2.67) that
was wider, an MLP that grows, or over 1.1 × the control's MACs. *would not*: a tower below log₃ of its width, two
layers, an MLP below 1.2 widths, or over 1.25 × the control's MACs. *refused*: nothing within the bounds fits, and what
does is named.

| model | share | follows | depth | heads × dim | MLP | parameters | MACs, × control | × plain | warnings | |
|---|---|---|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class Row:
    """A line of the table, and what would be done with it: first, odd, would not or refused."""

    cells: tuple[str, ...]
    verdict: str

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
    for verdict in ("first", "odd", "would not", "refused"):
        members = [f"{row.cells[0]} {row.cells[1]}" for row in rows if row.verdict.startswith(verdict)]
        listed = "" if verdict in ("first", "refused") or not members else f": {', '.join(members)}"
        print(f"- **{verdict}**: {len(members)} of {len(rows)}{listed}.")


def plan_row(name: str, share: float) -> Row:
    """The line of one model at one budget."""
    source, overrides = MODELS[name]
    try:
        plan = leanify.redesign(source, target_params=share, overrides=overrides)
    except leanify.LeanifyError as refused:
        reason = str(refused).replace("|", "/")
        return Row((name, str(share), reason, *[""] * 7), "refused")
    faults = list(find_faults(plan))
    verdict = "first"
    if faults:
        verdict = "would not" if any(is_grave for _, is_grave in faults) else "odd"
        verdict += f": {'; '.join(words for words, _ in faults)}"
    ratios = []
    for other in (plan.control, plan.plain):
        ratios.append("–" if other is None else f"{plan.chosen.macs / other.macs:.2f}")
    cells = (
        name,
        str(share),
        plan.follows,
        change(plan, "depth"),
        f"{change(plan, 'heads')} × {text(plan, plan.chosen, 'head_dim')}",
        change(plan, "mlp"),
        f"{format_count(plan.chosen.params)} of {format_count(plan.baseline.params)}",
        *ratios,
        "; ".join(plan.warnings) or "none",
    )
    return Row(cells, verdict)


def find_faults(plan: Plan) -> Iterator[tuple[str, bool]]:
    """What an engineer would object to, and whether it keeps him from training the design."""
    for tower in towers(plan.prices.architecture, plan.prices.stage_indices):
        indices = tower_stages(plan.prices.architecture, tower)
        depth = sum(plan.chosen.architecture.stages[i].depth for i in indices)
        if depth < tower_floor([plan.prices.architecture.stages[i] for i in indices]) or depth <= 2:
            yield f"{tower.name} has {depth} layers", True
    for i in plan.prices.stage_indices:
        old, new = (design.architecture.stages[i].primary for design in (plan.baseline, plan.chosen))
        assert old is not None
        assert new is not None
        widths = new.mlp * max(1, new.active) / old.width
        needed = 8 / 3 if plan.prices.is_gated(i) else 2
        if new.heads > 2 * old.heads:
            yield f"{new.heads} heads", False
        if new.mlp > old.mlp:
            yield f"an MLP of {new.mlp} that grows", False
        if new.mlp < old.mlp and widths < needed - 0.01:
            yield f"an MLP of {widths:.1f} widths", widths < 1.2
    if plan.control is not None and plan.chosen.macs > 1.1 * plan.control.macs:
        yield f"{plan.chosen.macs / plan.control.macs:.2f} × the MACs", plan.chosen.macs > 1.25 * plan.control.macs


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

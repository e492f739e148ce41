"""Plans for sixty names that people use, each at 0.75 and at 0.5 of its parameters: a table to be read as an engineer.

python tests/benchmarks/plans.py > recipes/results/plans.md        # about twenty minutes on one core
python tests/benchmarks/plans.py vit_base_patch16_224 gpt2         # these names alone
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import leanify
from leanify.design.plan import Plan
from leanify.design.search.design import Design
from leanify.design.search.rules import LEAST_MLP, Rules
from leanify.units import binary, millions

NAMES: list[str] = []
for line in (
    "vit_tiny_patch16_224 vit_small_patch16_224 vit_base_patch16_224 vit_large_patch16_224 deit3_base_patch16_224",
    "beit_base_patch16_224 eva02_base_patch14_224 vit_base_patch14_dinov2 vit_base_patch16_dinov3",
    "vit_base_patch16_siglip_224 swin_tiny_patch4_window7_224 swin_base_patch4_window7_224 swinv2_base_window8_256",
    "davit_base xcit_medium_24_p16_224 cait_s24_224 maxvit_tiny_tf_224 volo_d1_224 pvt_v2_b2 mvitv2_small hf/vit",
    "hf/dinov2 hf/segformer hf/sam hf/detr hf/clip hf/siglip hf/owlvit bert roberta distilbert electra albert mpnet",
    "deberta-v2 modernbert hf/xlm-roberta gpt2 opt gpt_neox llama mistral qwen2 qwen3 gemma gemma3_text phi3 olmo2",
    "falcon starcoder2 t5 bart pegasus mbart whisper wav2vec2 hubert moonshine mixtral qwen3_moe gpt_oss",
    "deepseek_v3",
):
    NAMES += line.split()
LLAMA_3_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
SHAPES = {"llama 3 8B": ("llama", LLAMA_3_8B)}  # where the library's default is another model than people mean
HEAD = (
    "# Plans",
    "",
    "Sixty names that people use at 0.75 and at 0.5 of their parameters, at the defaults of `leanify redesign`, by",
    "",
    "    python tests/benchmarks/plans.py > recipes/results/plans.md",
    "",
    "Numbers are old → new, by slashes where the stages or towers that change differ. *rules*: what the plan's",
    "shape, read again, says of the rules (heads added, MLP ≥ half a width, multiples of 64, of 8 below a width of",
    "256, of 16 in experts, alternatives within 3% of the budget); *one width*: an MLP below two widths, where the",
    "budget leaves no other. *control*: its MLP, and how far its parameters are from lean's. *KV*: bytes of cache a",
    "token, at two bytes a number and a context of at most 4,096 tokens. *recommended*: lean, or plain: the best",
    "design without more heads.",
    "The ranking is one of small models (`leanify.design.search.search`): no row shows that quality is kept.",
    "",
    "| name | budget | depth | heads × dim | mlp | rules | params | control: mlp | off | KV | recommended | s |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|",
)


TAIL = (
    "",
    "What one may object to: where attention goes in both directions, lean goes to three times the heads where the",
    "budget lets it, as the best small designs did; the published depth floor, log3 of the width, is then crossed, and",
    "a warning says so. Where embeddings are much of a model (gpt2 at 0.5), few layers are left.",
)


def main(names: list[str]) -> None:
    print("\n".join(HEAD), flush=True)
    for name in names or [*NAMES, *SHAPES]:
        for share in (0.75, 0.5):
            print(row(name, share), flush=True)
    print("\n".join(TAIL))


def row(name: str, share: float) -> str:
    source, overrides = SHAPES.get(name, (name, {}))
    began = time.perf_counter()
    try:
        plan = leanify.redesign(source, target_params=share, overrides=overrides)
    except leanify.LeanifyError as refused:
        return f"| {name} | {share} | refused: {str(refused).replace('|', '/')} | | | | | | | | | {took(began)} |"
    control = plan.control
    off = "–" if control is None else f"{control.params / plan.chosen.params - 1:+.2%}"
    cells = (
        name,
        str(share),
        change(plan, "depth"),
        f"{change(plan, 'heads')} × {text(plan, plan.chosen, 'head_dim')}",
        change(plan, "mlp"),
        ", ".join(broken(plan)) or ", ".join(["kept", *narrow(plan)]),
        f"{millions(plan.chosen.params)} of {millions(plan.baseline.params)}",
        "–" if control is None else text(plan, control, "mlp"),
        off,
        cache(plan),
        plan.recommended.design,
        took(began),
    )
    return f"| {' | '.join(cells)} |"


def took(began: float) -> str:
    return f"{time.perf_counter() - began:.1f}"


def text(plan: Plan, design: Design, what: str) -> str:
    """One number, or one for each stage that the plan changes where they differ."""
    stages = [design.architecture.stages[i] for i in plan.baseline.architecture.varied]
    values = [stage.depth if what == "depth" else getattr(stage.primary, what) for stage in stages]
    return "/".join(map(str, values)) if len(set(values)) > 1 else str(values[0])


def change(plan: Plan, what: str) -> str:
    old, new = text(plan, plan.baseline, what), text(plan, plan.chosen, what)
    return new if old == new else f"{old} → {new}"


def cache(plan: Plan) -> str:
    pair = [design.serving for design in (plan.baseline, plan.chosen)]
    return " → ".join(binary(served.kv_bytes_per_token) for served in pair if served is not None)


def broken(plan: Plan) -> Iterator[str]:
    """The rules that a plan does not keep to, told from its shape alone."""
    more = False
    for i in plan.baseline.architecture.varied:
        old, new = (design.architecture.stages[i].primary for design in (plan.baseline, plan.chosen))
        assert old is not None
        assert new is not None
        more |= new.heads > old.heads
        multiple = Rules().mlp_multiple(plan.baseline.architecture.stages[i])
        if new.mlp < min(old.mlp, LEAST_MLP * old.width) and not old.experts:
            yield f"mlp {new.mlp} below {LEAST_MLP:g} widths"
        if new.mlp != old.mlp and multiple and new.mlp % multiple:
            yield f"mlp {new.mlp} no multiple of {multiple}"
        if new.inner != old.inner and new.inner % Rules().inner_multiple(old):
            yield f"inner {new.inner} no multiple"
    if not more:
        yield "no heads added"
    for other in plan.candidates[1:]:
        if other.params < 0.97 * plan.request.limits.get("params", 0):
            yield f"an alternative of {millions(other.params)}"


def narrow(plan: Plan) -> Iterator[str]:
    """Whether an MLP was cut below two widths."""
    changed = plan.baseline.architecture.varied
    pairs = [[design.architecture.stages[i].primary for design in (plan.baseline, plan.chosen)] for i in changed]
    if any(
        new.mlp * max(1, new.active) < min(2 * old.width, old.mlp)
        for old, new in pairs
        if old and new and not old.experts
    ):
        yield "one width"


if __name__ == "__main__":
    main(sys.argv[1:])

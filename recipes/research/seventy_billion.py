"""What a 70B redesign-and-heal takes on 64 GPUs, from counted bytes and multiply-adds: the table of docs/scale.md.

    python -m recipes.research.seventy_billion
    python -m recipes.research.seventy_billion --layers 8      whether it runs

Nothing is measured on GPUs here. Bytes are those of `design.peak` on tensors without memory; multiply-adds those of
torch's counter; the constants of the hardware are named with their sources in docs/scale.md.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import leanify
from leanify.profiling import counting
from leanify.training import memory
from leanify.training.preparation import checkpoint_gradients
from leanify.training.sharding import shardable_blocks

SHAPE = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
GPUS, TOKENS, SEQUENCES = 64, 4096, 2  # of each GPU in a step, in one pass
FLOPS, SHARE = 989e12, 0.40  # of an H100 in bfloat16, and the part of it that training reaches
WIRE = 50e9  # bytes a second a GPU between machines: 400 Gb/s
HEAL = 10e9  # tokens


def rows(layers: int) -> list[tuple[str, str, str]]:
    """(what, the 70B model, its lean half)"""
    kind = "AutoModelForCausalLM"
    shape = {**SHAPE, "num_hidden_layers": layers}
    big = leanify.load("hf/llama", device="meta", overrides=shape, cls=kind)
    plan = leanify.redesign("hf/llama", target_params=0.5, tokens=TOKENS, overrides={**shape, "class": kind})
    lean = leanify.write(big, plan.chosen.architecture)
    columns = [column(model) for model in (big, lean)]
    teacher = counting.macs(big, counting.unmasked_inputs(big, TOKENS))
    extra = 2 * teacher / TOKENS * HEAL / (GPUS * FLOPS * SHARE) / 3600
    columns[0]["hours with the 70B model as teacher"] = "–"
    columns[1]["hours with the 70B model as teacher"] = f"{float(columns[1]['hours to heal']) + extra:.0f}"
    return [(name, columns[0][name], columns[1][name]) for name in columns[0]]


def column(model: Any) -> dict[str, str]:
    model.config.use_cache = False
    weights = sum(p.numel() for p in model.parameters())
    units = [sum(p.numel() for p in unit.parameters()) for unit in shardable_blocks(model)]
    checkpoint_gradients(model)
    model.train()
    need = memory.need(model, TOKENS, half=True, fused_attention=True, keeps_gradients=True, parts=GPUS)
    assert need is not None
    macs = counting.macs(model.eval(), counting.unmasked_inputs(model, TOKENS))
    state = 16 * weights / GPUS
    whole = (weights - sum(units) + 2 * max(units)) * 2 + 8 * max(units)
    computing = SEQUENCES * 2 * macs * 4 / (FLOPS * SHARE)  # forward, backward twice that, and the blocks once more
    talking = (2 + 2 + 4) * weights / WIRE  # gathered twice in 16 bits, gradients scattered in 32
    tokens_a_step = GPUS * SEQUENCES * TOKENS
    step = max(computing, talking)
    return {
        "parameters": f"{weights / 1e9:.2f} G",
        "weights, gradients, two moments in float32, a GPU's part": f"{state / 1e9:.1f} GB",
        "gathered: two blocks, embeddings, head; gradients of two blocks": f"{whole / 1e9:.1f} GB",
        "activations of two sequences, blocks computed again": f"{(need.of(SEQUENCES) - state - whole) / 1e9:.1f} GB",
        "together": f"{need.of(SEQUENCES) / 1e9:.1f} GB",
        "float32 state of one process without sharding": f"{16 * weights / 1e9:,.0f} GB",
        "one checkpoint (weights and moments)": f"{12 * weights / 1e9:,.0f} GB",
        "bytes a GPU sends and gets in a step": f"{8 * weights / 1e9:,.0f} GB",
        "seconds of computing in a step": f"{computing:.0f}",
        "seconds of communication in a step, beside it": f"{talking:.0f}",
        "tokens a second, all GPUs": f"{tokens_a_step / step:,.0f}",
        "hours to heal": f"{HEAL / tokens_a_step * step / 3600:.0f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=SHAPE["num_hidden_layers"])
    layers = parser.parse_args().layers
    warnings.simplefilter("ignore")
    print("| | 70B | lean, half of it |\n|---|---|---|")
    for cells in rows(layers):
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()

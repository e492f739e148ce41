"""Training memory, predicted and measured: plain, windowed, hierarchical and hybrid models of both zoos, two batches.

    python -m recipes.research.memory -o recipes/results/memory.md
    python -m recipes.research.memory levit_128 -o FILE      this model alone

Predicted: what `leanify profile` and `leanify train` say before anything is built (`design.peak`). Measured: what
torch's CPU allocator holds at most in the second of two AdamW steps in float32, by torch's profiler; and, in a fresh
process, the peak of the resident set over what the process held before the model, with the heap settings of training.
The program can be stopped: what is in the page's .json is not measured again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

MODELS: dict[str, tuple[int | None, tuple[int, int]]] = {  # tokens of a text, two batches
    "vit_small_patch16_224": (None, (2, 8)),
    "deit3_small_patch16_224": (None, (2, 8)),
    "xcit_nano_12_p16_224": (None, (2, 8)),
    "swin_tiny_patch4_window7_224": (None, (2, 6)),
    "swinv2_tiny_window8_256": (None, (2, 4)),
    "hiera_tiny_224": (None, (2, 6)),
    "davit_tiny": (None, (2, 4)),
    "maxvit_nano_rw_256": (None, (2, 4)),
    "coatnet_nano_rw_224": (None, (2, 4)),
    "pvt_v2_b1": (None, (2, 4)),
    "edgenext_small": (None, (2, 4)),
    "levit_128": (None, (2, 8)),
    "hf/bert": (64, (2, 8)),
    "hf/distilbert": (64, (2, 8)),
    "hf/gpt2": (128, (1, 4)),
    "hf/opt": (64, (1, 4)),
    "hf/t5": (64, (2, 4)),
    "hf/vit": (None, (1, 4)),
    "hf/swin": (None, (2, 4)),
    "hf/deberta-v2": (64, (1, 2)),
}
OVERRIDES: dict[str, dict[str, Any]] = {
    "hf/deberta-v2": {"num_hidden_layers": 4, "hidden_size": 384},
    "hf/opt": {"vocab_size": 5000},
}


def measured(source: str, batch: int) -> dict[str, Any]:
    """One model at one batch, in this process."""
    warnings.simplefilter("ignore")
    import torch

    import leanify
    from leanify.core import machine
    from leanify.profiling import counting
    from leanify.profiling import profile as profiling
    from leanify.profiling import training_memory as peak
    from leanify.training.engine import disable_malloc_trim
    from tests.allocated import ADAMW, training_peak, weight_bytes

    tokens = MODELS[source][0]
    shell = leanify.load(source, overrides=OVERRIDES.get(source), device="meta")
    need = peak.MemoryNeed(ADAMW * weight_bytes(shell), peak.fit_lines(shell, tokens))
    small = profiling.materialise(
        leanify.load("vit_tiny_patch16_224", overrides={"depth": 1}, device="meta"), torch.device("cpu")
    )
    profiling.training_steps(small.train(), counting.unmasked_inputs(small, None, "cpu", 1))  # libraries are loaded
    del small
    with disable_malloc_trim():
        before = machine.settled_resident_set()
        machine.reset_resident_peak()
        model = profiling.materialise(shell, torch.device("cpu")).train()
        profiling.training_steps(model, counting.unmasked_inputs(model, tokens, "cpu", batch))
        resident = (machine.status("VmHWM") or 0) - before
    del model
    return {
        "parameters": weight_bytes(shell) // 4,
        "predicted": need.of(batch),
        "allocated": training_peak(shell, batch, tokens),
        "resident": resident,
    }


def page(found: dict[str, dict[str, Any]]) -> str:
    lines = [
        "# Training memory, predicted and measured",
        "",
        "    python -m recipes.research.memory -o recipes/results/memory.md",
        "",
        "One AdamW step in float32 on a CPU, in MB. *Allocated*: the most that torch's allocator holds (its profiler's",
        "record; on a GPU `max_memory_allocated` is the like). *Resident*: the process's peak over what it held before",
        "the model, which has scratch space of kernels, allocator slack and fragments besides.",
        "",
        "| model | parameters | batch | predicted | allocated | ratio | resident | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for key, row in found.items():
        source, batch = key.rsplit("@", 1)
        if "error" in row:
            lines.append(f"| {source} | | {batch} | | {row['error']} | | | |")
            continue
        cells = [source, f"{row['parameters'] / 1e6:.1f} M", batch, f"{row['predicted'] / 1e6:,.1f}"]
        for name in ("allocated", "resident"):
            cells += [f"{row[name] / 1e6:,.1f}", f"{row['predicted'] / row[name]:.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
    good = [row for row in found.values() if "error" not in row]
    for name in ("allocated", "resident"):
        ratios = sorted(row["predicted"] / row[name] for row in good)
        within = sum(abs(ratio - 1) <= 0.05 for ratio in ratios)
        low = sum(ratio < 0.98 for ratio in ratios)
        lines += [
            "",
            f"Predicted / {name}: {ratios[0]:.3f} to {ratios[-1]:.3f}, median {ratios[len(ratios) // 2]:.3f}; "
            f"{within} of {len(ratios)} within 5%, {low} below by more than 2%.",
        ]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="of `MODELS`; default: all")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--batch", type=int, help="measure one MODEL in this process, and print it")
    given = parser.parse_args()
    if given.batch:
        print(json.dumps(measured(given.models[0], given.batch)))
        return
    kept = given.output.with_suffix(".json")
    found = json.loads(kept.read_text()) if kept.is_file() else {}
    for source in given.models or MODELS:
        for batch in MODELS[source][1]:
            key = f"{source}@{batch}"
            if key in found and "error" not in found[key]:
                continue
            command = [sys.executable, "-m", "recipes.research.memory", source, "--batch", str(batch), "-o", kept]
            done = subprocess.run(command, capture_output=True, text=True)
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            found[key] = json.loads(lines[-1]) if lines else {"error": (done.stderr.splitlines() or ["?"])[-1][:120]}
            print(key, found[key], flush=True)
            kept.write_text(json.dumps(found, indent=1) + "\n")
            given.output.write_text(page(found))


if __name__ == "__main__":
    main()

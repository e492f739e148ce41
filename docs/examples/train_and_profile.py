"""Redesign a small model, train it and its baseline on handwritten digits, and put both side by side.

python train_and_profile.py OUTPUT [STEPS]
"""

import json
import sys
from pathlib import Path

import leanify

output, steps = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "230"
short = [f"schedule.steps={steps}", f"run.eval_every={steps}"]
small = {"img_size": 8, "patch_size": 2, "in_chans": 1, "num_classes": 10, "embed_dim": 32, "depth": 8, "num_heads": 2}

plan = leanify.redesign("vit_tiny", target_params=0.5, overrides=small)
lean = plan.chosen
shape = [f"model.depth={lean.depth}", f"model.heads={lean.heads}", f"model.mlp={lean.mlp}"]

for name, settings in (("baseline", []), ("lean", shape)):
    run = leanify.train("digits-study", output / name, settings=[*short, *settings])
    facts = leanify.profile(output / name, measure=False)
    rows = [json.loads(line) for line in (output / name / "metrics.jsonl").read_text().splitlines()]
    print(f"{name}: {facts.params:,} parameters, {facts.macs:,} MACs, {rows[-1]['top1']:.1f} % right")

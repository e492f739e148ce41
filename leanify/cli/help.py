"""The help of a command: an example first, and its options in groups."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

EXAMPLES: dict[str, tuple[str, ...]] = {
    "redesign": ("leanify redesign vit_base --target-params 0.5 -o lean", "leanify redesign t5 --depth encoder=5"),
    "train": ("leanify train digits", "leanify train own-images --set data.path=FOLDER -o run"),
    "compare": ("leanify compare FOLDER --seeds 5", "leanify compare digits --designs baseline,lean,control"),
    "shrink": ("leanify shrink CHECKPOINT --data FOLDER --target-params 0.6 -o lean",),
    "glue": ("leanify glue RUN --data GLUE",),
    "profile": ("leanify profile vit_base lean", "leanify profile lean --no-measure --max-params 43M"),
    "condition": ("leanify condition vit_tiny --data FOLDER", "leanify condition RUN --plot kappa.html"),
    "export": ("leanify export lean --format onnx -o lean.onnx",),
    "recipes": ("leanify recipes images", "leanify recipes digits > mine.toml"),
    "runs": ("leanify runs",),
    "show": ("leanify show RUN --plot curves.html",),
    "predict": ("leanify predict RUN picture.png",),
    "zoo": ("leanify zoo swin", "leanify zoo --status refused"),
}

GROUPS: dict[str, dict[str, str]] = {  # options by their names in Python; the others stand under Options
    "redesign": {
        "Budgets": "target_params count max_macs max_memory max_active max_kv context max_latency",
        "Latency": "batch_size device dtype compiled latency_of",
        "Shape": "depth heads head_dim mlp experts active_experts heads_mode",
        "Constraints": "multiple tensor_parallel min_mlp max_mlp min_depth max_heads",
        "Weights": "weights pretrained data samples seed",
        "Source": "tokens overrides cls",
        "Output": "choose output control force as_type push top study explain format json",
    },
    "train": {
        "Run": "output resume device dry_run accept_changed_data",
        "Recipe": "settings teacher show_list",
        "Output": "format json",
    },
    "compare": {
        "Designs": "designs target_params sweep tournament more weights teacher",
        "Evidence": "seeds rates margin minutes",
        "Study": "output settings jobs engine retry report dry_run",
        "Output": "explain format json",
    },
    "shrink": {
        "Purpose": "data settings",
        "Budget": "target_params count",
        "Candidates": "designs shape",
        "Healing": "minutes rates",
        "Output": "output push dry_run format json",
    },
    "condition": {
        "Input": "data samples batch_size tokens device seed",
        "Source": "override model_class pretrained",
        "Several": "heads seeds checkpoints",
        "Output": "theory per_head weights plot format as_json",
    },
    "zoo": {
        "Search": "library status explain",
        "Checks": "check log propose",
        "Output": "format as_json",
    },
    "profile": {
        "Measurement": "batch_size device dtype tokens img_size repeats measure",
        "Limits": "max_params max_macs max_latency",
        "Source": "override model_class",
        "Output": "explain format json",
    },
}


LEAST = re.compile(r"  \[x>=[0-9.]+\]|; x>=[0-9.]+")  # said by the error of who goes below it


class GroupedCommand(TyperCommand):
    """A command whose help has an example and its options in `GROUPS`."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        super().format_help_text(ctx, formatter)
        name = ctx.command_path.split()[-1]
        if name in EXAMPLES:
            with formatter.section("Example" + "s" * (len(EXAMPLES[name]) > 1)):
                for line in EXAMPLES[name]:
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups = {each: names.split() for each, names in GROUPS.get(ctx.command_path.split()[-1], {}).items()}
        records: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Arguments", *groups, "Options")}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                found = next((each for each, names in groups.items() if param.name in names), "Options")
                record = record[0], LEAST.sub("", record[1])
                records["Arguments" if param.param_type_name == "argument" else found].append(record)
        for name, some in records.items():
            if some:
                with formatter.section(name):
                    formatter.write_dl(some)

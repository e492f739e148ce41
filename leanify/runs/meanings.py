"""Other names for recipe keys: from what users type to the key that leanify has, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

# Names from other libraries and papers → `section.key`.
MEANINGS: Mapping[str, str] = {
    "learning_rate": "optim.lr",
    "base_lr": "optim.lr",
    "rate": "optim.lr",
    "optimizer": "optim.name",
    "optimiser": "optim.name",
    "opt": "optim.name",
    "wd": "optim.weight_decay",
    "decay": "optim.weight_decay",
    "momentum": "optim.betas",
    "beta1": "optim.betas",
    "beta2": "optim.betas",
    "grad_clip": "optim.clip",
    "clip_grad": "optim.clip",
    "max_grad_norm": "optim.clip",
    "gradient_clip_val": "optim.clip",
    "smoothing": "optim.label_smoothing",
    "model_ema": "optim.ema",
    "num_epochs": "schedule.epochs",
    "num_train_epochs": "schedule.epochs",
    "max_epochs": "schedule.epochs",
    "epoch": "schedule.epochs",
    "max_steps": "schedule.steps",
    "iterations": "schedule.steps",
    "train_steps": "schedule.steps",
    "bs": "schedule.batch_size",
    "batch": "schedule.batch_size",
    "batchsize": "schedule.batch_size",
    "train_batch_size": "schedule.batch_size",
    "per_device_train_batch_size": "schedule.batch_size",
    "scheduler": "schedule.kind",
    "lr_scheduler": "schedule.kind",
    "lr_scheduler_type": "schedule.kind",
    "sched": "schedule.kind",
    "warmup_steps": "schedule.warmup",
    "warmup_epochs": "schedule.warmup",
    "warmup_ratio": "schedule.warmup",
    "fp16": "run.precision",
    "bf16": "run.precision",
    "dtype": "run.precision",
    "amp": "run.precision",
    "mixed_precision": "run.precision",
    "random_seed": "run.seed",
    "gradient_accumulation_steps": "run.accumulate",
    "grad_accum_steps": "run.accumulate",
    "accumulation": "run.accumulate",
    "torch_compile": "run.compile",
    "grad_checkpointing": "run.gradient_checkpointing",
    "logging_steps": "run.log_every",
    "log_interval": "run.log_every",
    "eval_steps": "run.eval_every",
    "eval_interval": "run.eval_every",
    "save_steps": "run.checkpoint_every",
    "save_every": "run.checkpoint_every",
    "save_total_limit": "run.keep",
    "report_to": "run.trackers",
    "dataset": "data.name",
    "data": "data.path",
    "dir": "data.path",
    "data_dir": "data.path",
    "folder": "data.path",
    "root": "data.path",
    "val": "data.validation",
    "val_split": "data.holdout",
    "split": "data.holdout",
    "subset_size": "data.samples",
    "max_samples": "data.samples",
    "max_train_samples": "data.samples",
    "num_samples": "data.samples",
    "image_size": "data.img_size",
    "input_size": "data.img_size",
    "resolution": "data.img_size",
    "max_length": "data.length",
    "max_seq_length": "data.length",
    "seq_len": "data.length",
    "seq_length": "data.length",
    "tokens": "data.length",
    "columns": "data.text",
    "text_column": "data.text",
    "label_column": "data.label",
    "num_workers": "data.workers",
    "mlm_probability": "data.mask",
    "randaugment": "data.rand_augment",
    "aa": "data.rand_augment",
    "hflip": "data.flip",
    "reprob": "data.erase",
    "model": "model.source",
    "model_name": "model.source",
    "layers": "model.depth",
    "num_layers": "model.depth",
    "n_layers": "model.depth",
    "num_hidden_layers": "model.depth",
    "num_heads": "model.heads",
    "n_heads": "model.heads",
    "num_attention_heads": "model.heads",
    "mlp_ratio": "model.mlp",
    "intermediate_size": "model.mlp",
    "temperature": "distill.temperature",
}
# Settings that belong to the model, or to the environment: not keys of their own in a recipe.
UPSTREAM = {
    "dropout": "model.override.drop_rate (timm) or model.override.hidden_dropout_prob (transformers)",
    "drop_path": "model.override.drop_path_rate (timm)",
    "drop_rate": "model.override.drop_rate",
    "num_classes": "model.override.num_classes",
    "num_labels": "model.override.num_labels",
    "device": "CUDA_VISIBLE_DEVICES in the environment (empty: the CPU)",
    "gpu": "CUDA_VISIBLE_DEVICES in the environment (empty: the CPU)",
    "pretrained": "model.source: a hub id or a directory brings its weights along",
}


def meant(key: str, section: str, known: Iterable[str]) -> str | None:
    """Guess the ``section.key`` meant by an unknown key: by meaning, then by name, then by spelling.

    Returns None if nothing is close, or if a key of the same section is: the caller suggests that one itself.
    """
    names = list(known)
    word = key.rpartition(".")[2].lower().replace("-", "_")
    if word in UPSTREAM:
        return UPSTREAM[word]
    if word in MEANINGS:
        return MEANINGS[word]
    if same := [name for name in names if name.rpartition(".")[2] == word]:
        return " or ".join(same)
    here = [name.rpartition(".")[2] for name in names if name.startswith(f"{section}.")]
    if section and difflib.get_close_matches(word, here, n=1):
        return None
    near = difflib.get_close_matches(word, {name.rpartition(".")[2] for name in names}, n=1, cutoff=0.7)
    return next((name for name in names if near and name.endswith(f".{near[0]}")), None)

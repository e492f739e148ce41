"""The recipe's keys for names of other libraries, which error messages suggest."""

from collections.abc import Mapping

ALIASES: Mapping[str, str] = {
    "learning_rate": "optim.lr",
    "optimizer": "optim.name",
    "max_grad_norm": "optim.clip",
    "num_train_epochs": "schedule.epochs",
    "max_steps": "schedule.steps",
    "bs": "schedule.batch_size",
    "scheduler": "schedule.kind",
    "warmup_steps": "schedule.warmup",
    "fp16": "run.precision",
    "bf16": "run.precision",
    "gradient_accumulation_steps": "run.accumulate",
    "dataset": "data.name",
    "data": "data.path",
    "data_dir": "data.path",
    "max_length": "data.length",
    "num_workers": "data.workers",
    "num_layers": "model.depth",
    "model": "model.source",
    "dropout": "model.override.drop_rate (timm) or model.override.hidden_dropout_prob (transformers)",
    "num_classes": "model.override.num_classes",
    "num_labels": "model.override.num_labels",
}

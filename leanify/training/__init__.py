"""Train a recipe: start a run, resume one, or rehearse it.

`start` is what is called, `loop` the training loop, to be read from top to bottom. `defaults` and `preparation` build
the model and the data of a recipe, `engine`, `memory`, `heap` and `reach` handle the device, `schedule` and
`distillation` define a step, `saver` writes checkpoints, and `window`, `watcher` and `interrupts` are the log, its
reader and signals. What a run keeps on the disk is `leanify.runs.run_directory`.

Names are loaded when they are first used: what only looks at a folder imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leanify.training.start import new_folder as new_folder
    from leanify.training.start import rehearse as rehearse
    from leanify.training.start import resolve as resolve
    from leanify.training.start import train as train
    from leanify.training.start import with_tokenizer_of as with_tokenizer_of

_HOMES = {
    "new_folder": "start",
    "rehearse": "start",
    "resolve": "start",
    "train": "start",
    "with_tokenizer_of": "start",
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

"""Train a recipe: start a run, resume one, or rehearse it.

`start` is what is called, `loop` the training loop, to be read from top to bottom. `defaults` and
`preparation` build the model and the data of a recipe, `engine` and `memory` handle the device, `schedule`
and `distillation` define a step, `saver` writes checkpoints, and `window`, `watcher` and `interrupts` are the
log, its reader and signals. What a run keeps on the disk is `leanify.runs.run_directory`.
"""

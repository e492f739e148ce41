"""Train a recipe: start a run, resume one, or rehearse it.

`start` has the functions that others call, `loop` the training loop, to be read from top to bottom. A trainer
is built by `build_model` and `build_data` (`preparation`), `build_teacher` (`teachers`), `build_schedule`
(`schedule`), `build_task` (`distillation`) and `build_optimizer` (`engine`), each from the values that the
others returned; `memory` predicts the bytes of a step. `state` has what checkpoints hold, and `callbacks` and
`interrupts` are the readers of the log and signals. The files of a run are in `leanify.runs.run_directory`.
"""

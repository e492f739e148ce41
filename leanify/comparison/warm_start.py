"""Warm starts: all designs of a study start from one trained model, transferred to each design's shape.

Heads and units are selected on batches of the recipe's training split (`leanify.carrying.transfer`); the baseline
takes the weights unchanged. A start is a lean directory in the study's folder, written once. All seeds start from it;
they differ in the order of samples and in augmentation.
"""

from __future__ import annotations

from functools import partial

import torch

from leanify.carrying.teacher import CalibratedTeacher
from leanify.carrying.transfer import Step, transfer_weights
from leanify.comparison.folder import StudyFolder
from leanify.core.terminal import note, progress
from leanify.core.units import format_damage
from leanify.data.splits import load_splits
from leanify.reshaping import surgery
from leanify.shrinking.carry import BATCH_SIZE, sample_batches
from leanify.sources import find, lean_directory
from leanify.sources.weights import is_headless
from leanify.training.preparation import data_section, trainable

BATCHES = 8  # batches of 8 samples: even ones select heads and units, odd ones measure the damage


def prepare(folder: StudyFolder) -> None:
    """Write the missing starts of a study with ``weights``. Raises LeanifyError if weights cannot be transferred."""
    plan = folder.plan
    todo = [design for design in plan.designs if plan.weights and not folder.start(design.name).exists()]
    if not todo:
        return
    model = plan.recipe.model
    trained_model = find.load_with_weights(find.section_source(model), plan.weights)
    splits = load_splits(data_section(trainable(plan.recipe)), trained_model)
    batches = sample_batches(splits, trained_model, BATCHES * BATCH_SIZE, plan.seeds[0])
    shape = surgery.read(trained_model)

    def note_step(name: str, step: Step) -> None:
        note(f"{name}: {step.description}, damage {format_damage(step.damage)}")

    teacher = CalibratedTeacher(trained_model, batches[::2], batches[1::2], is_headless(trained_model))
    for design in todo:
        target = design.model.shape(shape)
        start_model = trained_model
        if target != shape:
            torch.manual_seed(plan.seeds[0])
            with progress(f"transferring weights to {design.name}", None):
                start_model = transfer_weights(teacher, target, partial(note_step, design.name)).model
        lean_directory.save(start_model, folder.start(design.name), title=f"The design {design.name} of a study")

"""What `checkpoints.py` compares: leanify's way to a budget, and what people do otherwise.

An arm takes a subject, a limit of parameters and a seed, and yields smaller models, of which other samples choose.
"""

from __future__ import annotations

import copy
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leanify
from leanify.carrying.blocks import copy_modules, replace_blocks, stage_blocks
from leanify.core.errors import LeanifyError
from leanify.data.texts import tokenizers
from leanify.lens.resize import weighted_part
from leanify.profiling.counting import embedding_parameters, parameters
from leanify.reshaping.sites import locate
from leanify.vocabulary.closure import RankedTokens
from leanify.vocabulary.cut_model import checkpoint_vocabulary, named_ids
from leanify.vocabulary.ranking import rank_tokens
from recipes.research.checkpoint_subject import Sample, Small, Subject
from recipes.research.vocabulary_law import save_cut

OURS = ("leanify shrink", "leanify shrink, healed by itself", "leanify shrink, vocabulary kept")
VOCABULARIES = (0.2, 0.3, 0.4, 0.55, 0.75, 1.0)  # shares of the vocabulary that the simple arms try


def shrunk(subject: Subject, limit: int, seed: int, minutes: float = 0.0, vocabulary: str = "auto") -> Iterator[Small]:
    """`leanify shrink`, which sees no sample that judges; without minutes it heals nothing."""
    has_texts = subject.task != "classification"
    with tempfile.TemporaryDirectory() as folder:
        data, place = subject.data, Path(folder) / "small"
        if has_texts:
            data = Path(folder) / "data"
            data.mkdir()
            for name, rows in (("train", subject.train), ("validation", subject.choosing)):
                subject.write(data / name, rows)
        settings = [f"run.seed={seed}", f"schedule.steps={subject.steps}", f"schedule.batch_size={subject.batch}"]
        options: Any = {"vocabulary": vocabulary, "settings": settings, "rates": subject.rates[:1]}
        leanify.shrink(subject.source, data, limit, minutes, place, **options)
        yield Small(leanify.load(place).eval(), tokenizers.load(place) if has_texts else subject.original.reader)


def cut_vocabularies(subject: Subject, limit: int, seed: int) -> Iterator[Small]:
    """The most frequent tokens of the calibration texts, as vocabtrimmer and embedding-vocab-trimmer take them.

    In several sizes, and in the one that meets the limit by itself.
    """
    if subject.task == "classification":
        yield subject.original
        return
    calibration = random.Random(seed).sample(subject.train, min(8000, len(subject.train)))
    counts = Counter(chain.from_iterable(
        ids for texts, _ in calibration for ids in subject.original.reader(list(texts))["input_ids"]
    ))  # fmt: skip
    try:
        vocabulary = checkpoint_vocabulary(subject.original.model)
        ranked = RankedTokens.of(vocabulary, rank_tokens(vocabulary, counts, 0), named_ids(subject.original.model))
    except LeanifyError:  # no token can go
        yield subject.original
        return
    # the share of the tokens that meets the limit without any other cut, if there is one
    shares, saving = set(VOCABULARIES), parameters(subject.original.model) - limit
    table = embedding_parameters(subject.original.model)
    if table and 0 < saving < table:
        shares.add(1 - saving / table)
    for share in sorted(shares):
        with tempfile.TemporaryDirectory() as folder, suppress(LeanifyError):  # fewer tokens than must stay
            kept = ranked.keep(int(share * len(vocabulary.tokens)))
            place = save_cut(subject.original.model, vocabulary, kept, Path(folder) / "cut")
            yield Small(leanify.load(place).eval(), tokenizers.load(place))


def with_layers(choose: Callable[..., Iterable[Any]], subject: Subject, limit: int, seed: int) -> Iterator[Small]:
    """All pairs of a vocabulary and the fewest layers left out that meet the budget; ``choose`` says which layers."""
    calibration = random.Random(seed).sample(subject.train, min(64, len(subject.train)))
    tried: set[int] = set()
    for cut in reversed(list(cut_vocabularies(subject, limit, seed))):  # of equal depth the largest vocabulary
        located = locate(cut.model)
        name = max(located.stages, key=lambda stage: len(stage_blocks(located, stage.name))).name
        blocks = stage_blocks(located, name)
        each = sum(parameter.numel() for parameter in blocks[0].parameters())
        count = max(0, -(-(parameters(cut.model) - limit) // each))
        if count >= len(blocks) or count in tried:
            continue
        tried.add(count)
        for dropped in choose(subject, cut, blocks, count, calibration):
            kept = [(i, copy_modules(block)) for i, block in enumerate(blocks) if i not in dropped]
            yield Small(copy.deepcopy(replace_blocks(located, {name: kept}).model), cut.reader)


def runs(subject: Subject, cut: Small, blocks: Sequence[nn.Module], count: int, seen: Any) -> Iterable[Any]:
    """Every run of neighbouring layers (Gromov et al. 2024)."""
    return [range(start, start + count) for start in range(len(blocks) - count + 1)]


def middle(subject: Subject, cut: Small, blocks: Sequence[nn.Module], count: int, seen: Any) -> Iterable[Any]:
    start = (len(blocks) - count) // 2
    return [range(start, start + count)]


@torch.no_grad()
def least_influence(
    subject: Subject, cut: Small, blocks: Sequence[nn.Module], count: int, seen: Sequence[Sample]
) -> Iterable[Any]:
    """The layers whose output is most like their input."""
    influence = torch.zeros(len(blocks))

    def compare(module: nn.Module, inputs: Any, keywords: Any, output: Any) -> None:
        state = inputs[0] if inputs else keywords["hidden_states"]
        after = output if isinstance(output, Tensor) else output[0]
        influence[blocks.index(module)] += (1 - F.cosine_similarity(state, after, dim=-1)).mean()

    handles = [block.register_forward_hook(compare, with_kwargs=True) for block in blocks]
    subject.answer(cut, seen)
    for handle in handles:
        handle.remove()
    return [influence.argsort()[:count].tolist()]


def units(subject: Subject, limit: int, seed: int) -> Iterator[Small]:
    """MLP units by Torch-Pruning's first-order estimate, an equal share of every layer, with each vocabulary."""
    if find_spec("torch_pruning") is None:
        raise LeanifyError(
            "Torch-Pruning is not installed: pip install torch-pruning, and the same command adds its rows"
        )
    calibration = random.Random(seed).sample(subject.train, min(128, len(subject.train)))
    for cut in cut_vocabularies(subject, limit, seed):
        located = locate(cut.model)
        sites = [site for layer in located.layers for site in layer.sites if "m" in site.sizes]
        mlps = sum(parameters(site.module) for site in sites)
        ratio = (parameters(cut.model) - limit) / mlps
        while 0 < ratio < 0.95:
            small = without_units(subject, cut, ratio, calibration)
            if parameters(small.model) <= limit:  # shares are rounded down, layer by layer
                yield small
                break
            ratio += 0.02


def without_units(subject: Subject, cut: Small, ratio: float, calibration: Sequence[Sample]) -> Small:
    import torch_pruning as tp

    small = Small(copy.deepcopy(cut.model), cut.reader)
    roots = []
    for site in chain.from_iterable(layer.sites for layer in locate(small.model).layers):
        if "m" in site.sizes:
            roots += [weighted_part(site.module, part) for part in site.reading.rows]
    inputs = small.inputs(calibration[:1])
    example = inputs if isinstance(inputs, Tensor) else dict(inputs)
    layers = (nn.Linear, nn.Conv2d)
    pruner = tp.pruner.BasePruner(
        small.model, example, tp.importance.GroupTaylorImportance(), pruning_ratio=ratio,
        ignored_layers=[m for m in small.model.modules() if isinstance(m, layers) and m not in roots],
        output_transform=lambda output: output[0],
    )  # fmt: skip
    for start in range(0, len(calibration), 16):
        subject.loss(small, calibration[start : start + 16], noise=0.1).backward()
    pruner.step()
    small.model.zero_grad()
    return small


ARMS: dict[str, Callable[..., Iterator[Small]]] = {
    OURS[0]: shrunk,
    OURS[1]: partial(shrunk, minutes=30.0),
    OURS[2]: partial(shrunk, vocabulary="keep"),
    "vocabulary by counts + best run of layers dropped": partial(with_layers, runs),
    "vocabulary by counts + Block Influence": partial(with_layers, least_influence),
    "vocabulary by counts + middle layers dropped (mergekit)": partial(with_layers, middle),
    "vocabulary by counts + MLP units by Torch-Pruning": units,
}

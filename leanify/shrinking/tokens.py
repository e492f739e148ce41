"""The vocabulary as a part of the budget: how many tokens stay, and the original with these alone.

A row of the embeddings costs less than its share of the blocks as long as few texts need it, and more in the end. So
a few sizes of the vocabulary are tried: the damage of each is measured on samples that choose, with the texts split
again against the original on its own tokens, and the blocks must save the rest of the budget. Spread over all blocks
at the least cost, a loss of one block's parameters does 1 / Σ 1/d, where d is the damage of leaving out each; a loss of
k blocks' parameters does k^1.5 times as much, as measured once weights are carried. The size with the smallest sum is
taken.

The weights are then carried from the model with fewer tokens, but judged, and embeddings healed, against the original.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from leanify.carrying.blocks import copy_modules, replace_blocks, stage_blocks
from leanify.core.errors import BudgetError, DataError, LeanifyError, ShapeError, UnsupportedModel
from leanify.core.files import cache as cache_files
from leanify.core.files.reading import read_bytes
from leanify.core.terminal import note, progress
from leanify.data.common import choose_indices, spread_places
from leanify.data.samples import Selection, Splits
from leanify.data.splits import load_splits
from leanify.data.texts import tokenizers
from leanify.data.texts.encoded import Sentences
from leanify.data.texts.masked import Masked, token_stream
from leanify.profiling.counting import embedding_parameters, parameters
from leanify.reshaping.sites import locate
from leanify.shrinking.judging import compare_embeddings
from leanify.shrinking.original import SPLITS, FewerTokens, Original, base_places, base_samples
from leanify.shrinking.taught import taught_tokens
from leanify.sources import side_files
from leanify.training.preparation import data_section
from leanify.upstream.origin import in_mode
from leanify.vocabulary.closure import KeptTokens, RankedTokens
from leanify.vocabulary.cut_model import check_cuttable, checkpoint_vocabulary, cut_model, named_ids, vocabulary_rows
from leanify.vocabulary.cut_tokenizer import cut_tokenizer
from leanify.vocabulary.kinds import Vocabulary
from leanify.vocabulary.ranking import rank_by_damage

SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)  # of what all tokens that may go would save, or of the budget's saving
MIN_BLOCKS = 0.2  # share of the blocks that must stay
SAMPLES, TOKENS = (32, 256), 6144  # samples that measure the damage of a size, and how many tokens they should have
COUNTED = 20_000  # texts whose tokens are counted, and batches of as many samples
BLOCKS = 6  # whose loss is measured
GROWTH = 1.5  # of the blocks' damage with their number, once weights are carried: 0.037, 0.060, 0.074 on MiniLM by 1.5,
# 2.1 and 2.7 blocks, where the loss of one is 0.020 (a square chose a vocabulary that cost 0.03 of cosine more)
DROPPED = 20  # tokens that the report lists


def fewer_tokens(
    original: Original,
    counted: Any,
    limit: int,
    requested: str,
    multiple: int,
    findings: dict[str, Any],
    is_alone: bool,
) -> Original:
    """Return the original with the tokens that a budget of ``limit`` parameters leaves it; itself if all stay.

    Tokens are ranked by what the samples ``counted`` lose without them. ``requested`` is auto or a number;
    ``is_alone``: no other part may save parameters. The number of tokens is kept in ``findings``. Raises LeanifyError
    for a vocabulary that cannot be cut if a number was asked for.
    """
    if original.recipe.data.task == "classification":
        return original
    try:
        vocabulary = checkpoint_vocabulary(original.module)
        counts = count_tokens(counted)
        is_language_model = original.recipe.data.task.endswith("-lm")
        ranked_ids = rank_by_damage(vocabulary, counts, original.module, is_language_model)
        ranking = RankedTokens.of(vocabulary, ranked_ids, named_ids(original.shell))
    except (UnsupportedModel, DataError) as error:
        if requested != "auto":
            raise
        note(f"the vocabulary stays as it is: {error}")
        return original
    if "tokens" not in findings:
        count = int(requested) if requested != "auto" else _choose_count(original, ranking, limit, multiple, is_alone)
        findings["tokens"] = {"count": count}
    kept_tokens = ranking.keep(findings["tokens"]["count"], multiple)
    if kept_tokens.is_all:
        return original
    with progress(f"splitting texts into {len(kept_tokens.ids):,} tokens", None):
        return cut_original(original, vocabulary, kept_tokens, counts)


def count_tokens(samples: Any) -> Counter[int]:
    """Count the tokens of samples, at most `COUNTED`."""
    counts: Counter[int] = Counter()
    chosen = choose_indices(samples, COUNTED, "random")
    for start in range(0, len(chosen), 256):
        indices = chosen[start : start + 256]
        if isinstance(base_samples(samples), Masked):
            rows = base_samples(samples).rows[base_places(samples)[indices]]
            some = torch.from_numpy(rows.flatten().astype(np.int64))
        elif hasattr(samples, "batch"):
            inputs = samples.batch(indices)[0]
            ids, mask = inputs["input_ids"], inputs.get("attention_mask")
            some = (ids if mask is None else ids[mask.bool()]).flatten()
        else:
            items = [samples[int(index)][0] for index in indices]
            parts = [item["input_ids"] if isinstance(item, Mapping) else item for item in items]
            some = torch.cat([torch.as_tensor(part).flatten() for part in parts])
        numbers, repeats = np.unique(some.numpy(), return_counts=True)
        counts.update(dict(zip(numbers.tolist(), repeats.tolist(), strict=True)))
    return counts


def _choose_count(original: Original, ranking: RankedTokens, limit: int, multiple: int, is_alone: bool) -> int:
    """Return the number of tokens with the least damage, including the damage of the blocks' saving."""
    all_params = parameters(original.shell)
    a_token = (embedding_parameters(original.shell) or 0) / vocabulary_rows(original.shell)
    saving, blocks = all_params - limit, parameters(nn.ModuleList(original.located.blocks))
    maximum = min(ranking.total - len(ranking.required_ids), int(-(-saving // a_token)) + multiple)
    if saving <= 0 or is_alone:
        return ranking.total - maximum
    # a few samples that choose; windows of a text are left as they are
    splits, few_samples = original.splits, original
    if isinstance(base_samples(splits.train), Sentences):
        parts: dict[str, Any] = {}
        for name in SPLITS:
            samples = getattr(splits, name)
            count = _sample_count(samples, original) if name == "validation" else 2
            places = base_places(samples)[choose_indices(samples, count, "random")]
            parts[name] = base_samples(samples).retokenise(splits.tokenizer, places.tolist())
        few_samples = replace(original, splits=replace(splits, **parts))

    # the score on these samples: of blocks, and of each size
    vocabulary = checkpoint_vocabulary(original.module)
    with progress("measuring what blocks are worth", None):
        block_params, block_damage = price_blocks(few_samples)
        before = _score(few_samples)
    totals: list[tuple[float, int]] = []  # the damage of each count
    with progress("trying sizes of the vocabulary", len(SHARES)) as advance:
        for number, share in enumerate((*SHARES, 0.0)):
            advance(number)
            count = ranking.total - int(share * maximum)
            of_blocks = max(0.0, saving - (ranking.total - count) * a_token)
            if of_blocks > (1 - MIN_BLOCKS) * blocks:
                continue
            damage = 0.0
            if share:
                with suppress(BudgetError):
                    kept_tokens = ranking.keep(count, multiple)
                    damage = max(0.0, before - _score(cut_original(few_samples, vocabulary, kept_tokens, {})))
            totals.append((damage + block_damage * (of_blocks / block_params) ** GROWTH, count))
    return min(totals, key=lambda total: total[0], default=(0.0, ranking.total - maximum))[1]


def vocabulary_costs(model: nn.Module) -> dict[str, int]:
    """The tokens of a model and the parameters of their tables, as a report lists them; {} for another model."""
    try:
        check_cuttable(model)
    except UnsupportedModel:
        return {}
    return {"tokens": vocabulary_rows(model), "params_embeddings": embedding_parameters(model) or 0}


def _sample_count(samples: Any, original: Original) -> int:
    lengths = getattr(samples, "lengths", None)
    length = (original.length or 1) if lengths is None else float(lengths.mean())
    return int(min(SAMPLES[1], max(SAMPLES[0], TOKENS // length)))


def price_blocks(original: Original) -> tuple[float, float]:
    """Return the mean parameters of a block, and the least damage of losing this many: 1 / Σ 1/d."""
    located_model, before = locate(original.module), _score(original)
    stage = max(located_model.stages, key=lambda stage: len(stage.blocks))
    blocks = stage_blocks(located_model, stage.name)
    places = spread_places(len(blocks), BLOCKS)
    damages = []
    for place in places:
        rest = [(i, copy_modules(block)) for i, block in enumerate(blocks) if i != place]  # they are renumbered
        with suppress(ShapeError, UnsupportedModel):
            model = replace_blocks(located_model, {stage.name: rest}).model
            damages.append(max(1e-4, before - _score(original, model)))
    if not damages:
        return max(1.0, parameters(nn.ModuleList(original.located.blocks)) / 10), 0.1
    total = sum(1 / damage for damage in damages) * len(blocks) / len(damages)
    return sum(map(parameters, blocks)) / len(blocks), 1 / total


def _score(original: Original, model: nn.Module | None = None) -> float:
    """Return the score of the original, or of a model in its place, on a few samples that choose."""
    evaluator, task = original.evaluator, original.evaluator.task
    model, validation = model or original.module, evaluator.splits.validation
    if original.recipe.data.task == "sentence-embedding":
        return compare_embeddings(model, validation, evaluator.splits.pooling)[0]
    samples = Selection(validation, choose_indices(validation, _sample_count(validation, original), "random"))
    score = task.sign * evaluator.metrics(model, samples)[task.metric] * original.length_ratio
    model.eval()
    return score


# -- the original with fewer tokens ------------------------------------------------------------------------------------


def cut_original(
    original: Original, vocabulary: Vocabulary, kept_tokens: KeptTokens, counts: Mapping[int, int]
) -> Original:
    """Return the original with these tokens alone, its samples split into them; embeddings stay the original's."""
    folder = _tokenizer_folder(original, vocabulary, kept_tokens)

    def load() -> tuple[nn.Module, torch.dtype]:
        module: Any = cut_model(original.module, kept_tokens)
        module.config._name_or_path = str(folder)
        return in_mode(module), original.dtype

    shell: Any = cut_model(original.shell, kept_tokens)
    shell.config._name_or_path = str(folder)
    # the same samples of the same splits, read by the new tokenizer
    data = replace(original.recipe.data, tokenizer=str(folder))
    distill = original.recipe.distill
    if distill is not None and original.teacher is not None:
        distill = replace(distill, teacher=str(folder))
    recipe = replace(original.recipe, data=data, distill=distill)
    before = original.splits
    if isinstance(base_samples(before.train), Sentences):
        parts: dict[str, Any] = {"tokenizer": tokenizers.load(folder)}
        for name in SPLITS:
            samples = getattr(before, name)
            if samples is not None:
                places = base_places(samples).tolist()
                parts[name] = base_samples(samples).retokenise(parts["tokenizer"], places)
        splits = replace(before, **parts)
    else:  # windows of a text
        splits = load_splits(data_section(recipe), shell)
    facts = _facts(before, splits, vocabulary, kept_tokens, counts)
    old, new = (token_stream(base_samples(one.train)) for one in (before, splits))
    taught = None if old is None or new is None else taught_tokens(old, new, vocabulary, kept_tokens)
    fewer = FewerTokens(original, folder, facts, taught)
    return original.with_model(shell, load, recipe=recipe, splits=splits, fewer=fewer)


def _tokenizer_folder(original: Original, vocabulary: Vocabulary, kept_tokens: KeptTokens) -> Path:
    """Return a folder of the user's cache with the smaller tokenizer and the files that accompany the weights."""
    source = side_files.side_file_folder(original.module)
    digest = hashlib.sha256(f"{source} {kept_tokens.ids}".encode())
    for path in sorted(source.iterdir()) if source is not None else ():
        if path.is_file() and path.suffix in (".json", ".txt", ".jinja", ".model"):
            digest.update(read_bytes(path))
    place = cache_files.home() / "tokenizers" / f"fewer-{digest.hexdigest()[:24]}"
    if not place.is_dir():
        with cache_files.new_entry(place, "the tokenizer") as folder:
            side_files.copy_side_files(original.module, folder)
            cut_tokenizer(folder, vocabulary, kept_tokens)
    return place


def _facts(
    before: Splits, after: Splits, vocabulary: Vocabulary, kept_tokens: KeptTokens, counts: Mapping[int, int]
) -> dict[str, Any]:
    """Return the vocabulary's part of the report, judged on the samples that choose."""
    dropped_tokens = sorted(
        (number for number in counts if number not in kept_tokens.new_ids), key=lambda number: -counts[number]
    )
    facts: dict[str, Any] = {"tokens": len(kept_tokens.ids), "kept": len(kept_tokens.ids) / kept_tokens.old_count}
    facts["texts_split_as_before"] = facts["length_ratio"] = None
    old: Any = before.validation
    new: Any = after.validation
    if isinstance(base_samples(old), Sentences):
        chosen = choose_indices(old, 2000, "random")
        is_known = torch.zeros(1 + max(vocabulary.tokens), dtype=torch.bool)
        is_known[list(kept_tokens.ids)] = True
        same = old_count = new_count = 0
        for index in chosen:
            ids = old.batch(np.array([index]))[0]["input_ids"][0]
            is_same = bool(is_known[ids].all())
            same += is_same
            if not is_same:
                old_count += len(ids)
                new_count += int(new.lengths[index])
        facts["texts_split_as_before"] = same / max(1, len(chosen))
        facts["length_ratio"] = new_count / old_count if old_count else 1.0
    elif before.bytes_per_target and after.bytes_per_target:
        facts["length_ratio"] = before.bytes_per_target / after.bytes_per_target
    facts["dropped"] = [vocabulary.tokens[number] for number in dropped_tokens[:DROPPED]]
    return facts


def check_vocabulary_option(requested: str, count: str) -> str:
    """Return auto, keep or a number of tokens; auto is keep where blocks alone count. Raises LeanifyError."""
    if requested in ("auto", "keep"):
        return "keep" if count == "body" else requested
    try:
        number = int(requested.replace(",", ""))
    except ValueError:
        number = 0
    if number < 1:
        raise LeanifyError(f"--vocabulary {requested!r} is not auto, keep or a number of tokens such as 8000")
    return str(number)

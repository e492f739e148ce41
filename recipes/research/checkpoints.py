"""A checkpoint brought to a share of ALL its parameters, by leanify and by what people do otherwise, healed alike.

    python -m recipes.research.checkpoints CHECKPOINT --data FOLDER [--budget 0.75 0.5] [--glue DIR] [--other FILE]
    python -m recipes.research.checkpoint_page > recipes/results/checkpoints.md

The arms: `leanify shrink` as it comes, also with as many steps of its own healing; the vocabulary cut by plain counts
together with the best run of layers left out (of all pairs of both that meet the budget, the best on the choosing
samples), with the layers of least Block Influence (Men et al. 2024, ShortGPT), with the middle layers (as mergekit's
passthrough is used), or with MLP units pruned by Torch-Pruning's Taylor estimate (Fang et al. 2023). All others are
then trained by the same steps at the better of the same rates. A seed draws the calibration samples and the order of
healing. Rows are kept in recipes/results/checkpoints.csv as they are measured; the same command continues. GLUE's
tables are read from ``--glue`` (sts-b, sst2, mrpc, cola, rte with train.tsv and validation.tsv or test.tsv), a second
domain of texts from ``--other``.
"""

from __future__ import annotations

import argparse
import copy
import csv
import math
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leanify
from leanify.carrying.blocks import copy_modules, replace_blocks, stage_blocks
from leanify.core.errors import LeanifyError
from leanify.data.texts import corpus, own_texts, sentences, tokenizers
from leanify.layouts.faults import Faults
from leanify.lens.resize import weighted_part
from leanify.profiling.counting import parameters
from leanify.reshaping.sites import locate
from leanify.shrinking.original import resolve
from leanify.sources.pooling import read_pooling
from leanify.tasks.sentence_embedding import embed
from leanify.training.preparation import data_section
from leanify.vocabulary.closure import RankedTokens
from leanify.vocabulary.cut_model import checkpoint_vocabulary
from leanify.vocabulary.ranking import rank_tokens
from leanify.vocabulary.token_ids import named_ids
from recipes.research.sentence_metrics import TASKS, nearest, probe, read_table, sts
from recipes.research.vocabulary_law import save_cut

CSV = Path(__file__).parents[1] / "results" / "checkpoints.csv"
COLUMNS = ("checkpoint", "budget", "arm", "seed", "stage", "metric", "value")
OURS = ("leanify shrink", "leanify shrink, healed by itself")
VOCABULARIES = (0.2, 0.3, 0.4, 0.55, 0.75, 1.0)  # shares of the vocabulary that the simple arms try
TRAINED = 20_000  # texts at most that an arm may see
LENGTH, CROWD = 128, 1000  # tokens of a text; embeddings among which neighbours are counted
Sample = tuple[tuple[str, ...], Any]  # its texts, and its label


@dataclass(frozen=True)
class Small:
    """A model with its tokenizer, which no longer splits texts as the original's."""

    model: nn.Module
    tokenizer: Any

    def inputs(self, samples: Sequence[Sample]) -> dict[str, Tensor]:
        columns = [list(column) for column in zip(*(texts for texts, _ in samples), strict=True)]
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        length = min(LENGTH, self.tokenizer.model_max_length)
        encoded = self.tokenizer(*columns, truncation=True, max_length=length, padding=True, return_tensors="pt")
        return {key: value for key, value in encoded.items() if key in ("input_ids", "attention_mask")}


# -- the checkpoint and its samples -----------------------------------------------------------------------------------


class Subject:
    """A checkpoint, its samples, what its answers are, and how well another model gives them."""

    def __init__(self, source: Path, data: Path, small: bool) -> None:
        original = resolve(source, data, [])
        self.source, self.data, self.task = source, data, original.recipe.data.task
        self.section = data_section(original.recipe)
        self.is_labelled = self.task not in ("sentence-embedding", "causal-lm")
        self.original = Small(original.module, tokenizers.load(source))
        self.pooling = read_pooling(source)
        self.steps, self.batch = (3, 4) if small else (60, 32) if self.task != "causal-lm" else (30, 4)
        self.rates = (3e-4, 1e-3) if self.task == "sentence-embedding" else (5e-5, 2e-4)
        rows = list(self._read())
        random.Random(0).shuffle(rows)
        judged = min(16 if small else CROWD if self.task != "causal-lm" else 120, len(rows) // 4)
        self.judging, self.choosing = rows[:judged], rows[judged : judged + judged // 4]
        self.train = rows[2 * judged :][:TRAINED]

    def _read(self) -> Iterable[Sample]:
        """All samples of the data's own training split."""
        faults = Faults(skip=True)
        if self.task == "sentence-embedding":
            file = sentences.find_file(self.data, "train")
            assert file is not None
            return [((text,), 0) for text in sentences.read_sentences(file, self.section, faults)]
        if self.task == "causal-lm":
            texts, _ = corpus.find_texts(self.section, faults)
            whole = texts[0] if isinstance(texts[0], str) else texts[0].read()
            pieces = [whole[start : start + 4 * LENGTH] for start in range(0, len(whole), 4 * LENGTH)]
            return [((piece,), 0) for piece in pieces if piece.strip()]
        table = own_texts.read_split_table(self.section, self.section.train, faults)
        names = self.original.model.config.label2id
        by_name = {str(name).lower(): index for name, index in names.items()}
        return [(texts, by_name[label.lower()]) for texts, label in table.rows if label.lower() in by_name]

    def write(self, file: Path, rows: Sequence[Sample]) -> None:
        """Write texts as `leanify shrink` reads them: a text file for a language model, otherwise a table."""
        if self.task == "causal-lm":
            file.with_suffix(".txt").write_text("\n".join(texts[0] for texts, _ in rows), encoding="utf-8")
            return
        names = getattr(self.original.model.config, "id2label", {})
        with file.with_suffix(".csv").open("w", newline="", encoding="utf-8") as lines:
            writer = csv.writer(lines)
            writer.writerow(["text", "text2"][: len(rows[0][0])] + ["label"] * bool(self.is_labelled))
            writer.writerows([*texts, *([names[label]] if self.is_labelled else [])] for texts, label in rows)

    def answer(self, small: Small, samples: Sequence[Sample]) -> Tensor:
        """Embeddings (B, width), logits of classes (B, classes), or the loss of each text in nats a byte (B,)."""
        inputs = small.inputs(samples)
        if self.task == "sentence-embedding":
            return embed(small.model, inputs, self.pooling)
        output: Any = small.model(**inputs)
        if self.task != "causal-lm":
            return output.logits
        ids, mask = inputs["input_ids"][:, 1:], inputs["attention_mask"][:, 1:].bool()
        loss = F.cross_entropy(output.logits[:, :-1].float().transpose(1, 2), ids, reduction="none")
        size = torch.tensor([len(texts[0].encode()) for texts, _ in samples])
        return (loss * mask).sum(1) / size

    def loss(self, small: Small, samples: Sequence[Sample], noise: float = 0.0) -> Tensor:
        """Towards the original's answers to the same texts; of a language model, of the texts themselves.

        ``noise`` is a dropout on the answers: at the original itself the gradient would be 0.
        """
        answer = F.dropout(self.answer(small, samples), noise)
        if self.task == "causal-lm":
            return answer.mean()
        with torch.no_grad():
            target = self.answer(self.original, samples)
        if self.task == "sentence-embedding":
            return (1 - F.cosine_similarity(answer, target)).mean()
        return F.kl_div(answer.log_softmax(-1), target.log_softmax(-1), reduction="batchmean", log_target=True)

    @torch.no_grad()
    def answers(self, small: Small, samples: Sequence[Sample]) -> Tensor:
        """All answers, in the order of the samples."""
        small.model.eval()
        order = sorted(range(len(samples)), key=lambda i: sum(map(len, samples[i][0])))
        rows: list[Any] = [None] * len(samples)
        for start in range(0, len(order), 32):
            some = order[start : start + 32]
            for i, row in zip(some, self.answer(small, [samples[i] for i in some]), strict=True):
                rows[i] = row
        return torch.stack(rows)

    def score(self, small: Small, samples: Sequence[Sample]) -> float:
        """Cosine to the original's embeddings, share of right classes in percent, or −(nats a byte)."""
        answers = self.answers(small, samples)
        if self.task == "sentence-embedding":
            return float(F.cosine_similarity(answers, self.answers(self.original, samples)).mean())
        if self.task == "causal-lm":
            return -float(answers.mean())
        labels = torch.tensor([label for _, label in samples])
        return 100 * float((answers.argmax(-1) == labels).float().mean())

    def best(self, candidates: Iterable[Small]) -> Small:
        """The best on the choosing samples; one is held at a time beside the best."""
        scored = max(((self.score(small, self.choosing), i, small) for i, small in enumerate(candidates)), default=None)
        if scored is None:
            raise LeanifyError("no candidate meets the budget")
        return scored[2]

    def heal(self, small: Small, seed: int) -> Iterator[Small]:
        """Yield the model after equal steps at each rate."""
        for rate in self.rates:
            student = Small(copy.deepcopy(small.model).train(), small.tokenizer)
            for module in student.model.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
            optimiser = torch.optim.AdamW(student.model.parameters(), rate, weight_decay=0.0)
            drawn = random.Random(seed)
            for step in range(self.steps):
                warm = min(1.0, (step + 1) / (0.1 * self.steps))
                for group in optimiser.param_groups:
                    group["lr"] = rate * warm * 0.5 * (1 + math.cos(math.pi * step / self.steps))
                optimiser.zero_grad()
                self.loss(student, drawn.sample(self.train, min(self.batch, len(self.train)))).backward()
                nn.utils.clip_grad_norm_(student.model.parameters(), 1.0)
                optimiser.step()
            yield student


# -- arms: a checkpoint, a budget of parameters and a seed give smaller models, of which other samples choose ----------


def shrunk(subject: Subject, limit: int, seed: int, minutes: float = 0.0) -> Iterator[Small]:
    """`leanify shrink`, which sees no text that judges; without minutes it heals nothing."""
    with tempfile.TemporaryDirectory() as folder:
        data, place = Path(folder) / "data", Path(folder) / "small"
        data.mkdir()
        for name, rows in (("train", subject.train), ("validation", subject.choosing)):
            subject.write(data / name, rows)
        settings = [f"run.seed={seed}", f"schedule.steps={subject.steps}", f"schedule.batch_size={subject.batch}"]
        leanify.shrink(subject.source, data, limit, minutes, place, settings=settings, rates=subject.rates[:1])
        yield Small(leanify.load(place), tokenizers.load(place))


def cut_vocabularies(subject: Subject, seed: int) -> Iterator[Small]:
    """The most frequent tokens of the calibration texts, as vocabtrimmer and embedding-vocab-trimmer take them."""
    calibration = random.Random(seed).sample(subject.train, min(8000, len(subject.train)))
    counts = Counter(chain.from_iterable(
        ids for texts, _ in calibration for ids in subject.original.tokenizer(list(texts))["input_ids"]
    ))  # fmt: skip
    try:
        vocabulary = checkpoint_vocabulary(subject.original.model)
        ranked = RankedTokens.of(vocabulary, rank_tokens(vocabulary, counts, 0), named_ids(subject.original.model))
    except LeanifyError:  # no token can go
        yield subject.original
        return
    for share in VOCABULARIES:
        with tempfile.TemporaryDirectory() as folder, suppress(LeanifyError):  # fewer tokens than must stay
            kept = ranked.keep(int(share * len(vocabulary.tokens)))
            place = save_cut(subject.original.model, vocabulary, kept, Path(folder) / "cut")
            yield Small(leanify.load(place).eval(), tokenizers.load(place))


def with_layers(choose: Callable[..., Iterable[Any]], subject: Subject, limit: int, seed: int) -> Iterator[Small]:
    """All pairs of a vocabulary and the fewest layers left out that meet the budget; ``choose`` says which layers."""
    calibration = random.Random(seed).sample(subject.train, min(64, len(subject.train)))
    tried: set[int] = set()
    for cut in reversed(list(cut_vocabularies(subject, seed))):  # of equal depth the largest vocabulary
        located = locate(cut.model)
        name = located.stages[0].name
        blocks = stage_blocks(located, name)
        each = sum(parameter.numel() for parameter in blocks[0].parameters())
        count = max(0, -(-(parameters(cut.model) - limit) // each))
        if count >= len(blocks) or count in tried:
            continue
        tried.add(count)
        for dropped in choose(cut, blocks, count, calibration):
            kept = [(i, copy_modules(block)) for i, block in enumerate(blocks) if i not in dropped]
            yield Small(copy.deepcopy(replace_blocks(located, {name: kept}).model), cut.tokenizer)


def runs(cut: Small, blocks: Sequence[nn.Module], count: int, calibration: Any) -> Iterable[Any]:
    """Every run of neighbouring layers (Gromov et al. 2024)."""
    return [range(start, start + count) for start in range(len(blocks) - count + 1)]


def middle(cut: Small, blocks: Sequence[nn.Module], count: int, calibration: Any) -> Iterable[Any]:
    start = (len(blocks) - count) // 2
    return [range(start, start + count)]


@torch.no_grad()
def least_influence(cut: Small, blocks: Sequence[nn.Module], count: int, calibration: Any) -> Iterable[Any]:
    """The layers whose output is most like their input."""
    influence = torch.zeros(len(blocks))

    def compare(module: nn.Module, inputs: Any, keywords: Any, output: Any) -> None:
        state = inputs[0] if inputs else keywords["hidden_states"]
        after = output if isinstance(output, Tensor) else output[0]
        influence[blocks.index(module)] += (1 - F.cosine_similarity(state, after, dim=-1)).mean()

    handles = [block.register_forward_hook(compare, with_kwargs=True) for block in blocks]
    cut.model(**cut.inputs(calibration))
    for handle in handles:
        handle.remove()
    return [influence.argsort()[:count].tolist()]


def units(subject: Subject, limit: int, seed: int) -> Iterator[Small]:
    """MLP units by Torch-Pruning's first-order estimate, an equal share of every layer, with each vocabulary."""
    calibration = random.Random(seed).sample(subject.train, min(128, len(subject.train)))
    for cut in cut_vocabularies(subject, seed):
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

    small = Small(copy.deepcopy(cut.model), cut.tokenizer)
    roots = []
    for site in chain.from_iterable(layer.sites for layer in locate(small.model).layers):
        if "m" in site.sizes:
            roots += [weighted_part(site.module, part) for part in site.reading.rows]
    pruner = tp.pruner.BasePruner(
        small.model, dict(small.inputs(calibration[:1])), tp.importance.GroupTaylorImportance(), pruning_ratio=ratio,
        ignored_layers=[m for m in small.model.modules() if isinstance(m, nn.Linear) and m not in roots],
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
    "vocabulary by counts + best run of layers dropped": partial(with_layers, runs),
    "vocabulary by counts + Block Influence": partial(with_layers, least_influence),
    "vocabulary by counts + middle layers dropped (mergekit)": partial(with_layers, middle),
    "vocabulary by counts + MLP units by Torch-Pruning": units,
}


# -- measuring --------------------------------------------------------------------------------------------------------


def measure(subject: Subject, small: Small, glue: Path | None, other: Path | None, probes: bool) -> dict[str, float]:
    """What users measure: the task's metric and, of sentence encoders, neighbours and GLUE; parameters and latency."""
    found = {"score": subject.score(small, subject.judging), "parameters": float(parameters(small.model))}
    found["bytes"] = float(sum(t.numel() * t.element_size() for t in small.model.parameters()))
    found["milliseconds"] = latency(subject, small)
    if subject.task == "sentence-embedding":
        pairs = [subject.answers(model, subject.judging) for model in (small, subject.original)]
        count = min(10, len(subject.judging) - 2)
        mine, theirs = (nearest(rows, count) for rows in pairs)
        found["neighbours"] = float((mine & theirs).sum()) / (count * len(mine))
        if glue is not None:

            def embed_texts(texts: Sequence[str]) -> Tensor:
                return subject.answers(small, [((text,), 0) for text in texts])

            found["STS-B"] = sts(embed_texts, read_table(glue / "stsb" / "test.tsv"))
            for task in TASKS if probes else ():
                found[task] = probe(embed_texts, glue / task)
    elif other is not None and subject.task == "causal-lm":
        lines = [line for line in other.read_text(encoding="utf-8").splitlines() if len(line) > 40]
        random.Random(1).shuffle(lines)
        found["other domain"] = subject.score(
            small, [((line[: 4 * LENGTH],), 0) for line in lines[: len(subject.judging)]]
        )
    return found


def latency(subject: Subject, small: Small) -> float:
    """Milliseconds of one text on one thread, the median of twenty texts."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seconds = []
    with torch.no_grad():
        for sample in subject.judging[:20]:
            began = time.perf_counter()
            subject.answer(small, [sample])
            seconds.append(time.perf_counter() - began)
    torch.set_num_threads(threads)
    return 1000 * float(np.median(seconds))


# -- rows and pages ---------------------------------------------------------------------------------------------------


def measured(file: Path) -> list[dict[str, str]]:
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def run(subject: Subject, options: argparse.Namespace) -> None:
    """Measure every row that is missing."""
    name, file = options.name or options.checkpoint.name, options.output
    known = {tuple(row[key] for key in COLUMNS[:4]) for row in measured(file)}

    def keep(budget: str, arm: str, seed: int, stages: dict[str, dict[str, float]]) -> None:
        is_new = not file.is_file()
        with file.open("a", newline="", encoding="utf-8") as lines:
            writer = csv.writer(lines, lineterminator="\n")
            writer.writerows([COLUMNS] if is_new else [])
            for stage, found in stages.items():
                writer.writerows([name, budget, arm, seed, stage, key, f"{value:.6g}"] for key, value in found.items())
        print(budget, arm, seed, stages, flush=True)

    look = (options.glue, options.other)
    if (name, "1", "original", "0") not in known:
        keep("1", "original", 0, {"carried": measure(subject, subject.original, *look, True)})
    whole = parameters(subject.original.model)
    for seed, budget, arm in product(options.seeds, options.budget, options.arms):
        if (name, str(budget), arm, str(seed)) in known:
            continue
        torch.manual_seed(seed)
        began = time.process_time()
        try:
            small = subject.best(ARMS[arm](subject, int(budget * whole), seed))
        except LeanifyError as error:
            print(budget, arm, seed, error, flush=True)
            continue
        minutes = (time.process_time() - began) / 60
        if arm == OURS[1]:
            keep(str(budget), arm, seed, {"healed": measure(subject, small, *look, True) | {"minutes": minutes}})
            continue
        carried = measure(subject, small, *look, False) | {"minutes": minutes}
        began = time.process_time()
        healed = subject.best(subject.heal(small, seed))
        minutes = (time.process_time() - began) / 60
        keep(
            str(budget),
            arm,
            seed,
            {"carried": carried, "healed": measure(subject, healed, *look, True) | {"minutes": minutes}},
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="texts, labelled or not, as shrink takes them")
    parser.add_argument("--name", help="of the checkpoint in the table (default: its folder's)")
    parser.add_argument("--budget", type=float, nargs="+", default=[0.75, 0.5, 0.35], help="shares of all parameters")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--glue", type=Path, help="GLUE's tables, for sentence encoders")
    parser.add_argument("--other", type=Path, help="texts of another domain, for language models")
    parser.add_argument("--small", action="store_true", help="few samples and steps: whether it runs")
    parser.add_argument("-o", "--output", type=Path, default=CSV, help="where the rows are kept (%(default)s)")
    options = parser.parse_args()
    run(Subject(options.checkpoint, options.data, options.small), options)


if __name__ == "__main__":
    main()

"""`shrink` beside its peers: the same checkpoints, calibration samples, budgets and healing, three seeds.

    python -m recipes.research.rivals --minilm DIR --sentences DIR --vit RUN --tiny RUN [--smollm2 DIR --text FILE]
    python -m recipes.research.rivals --table > recipes/results/rivals.md

The peers: Block Influence (Men et al. 2024, ShortGPT), the best run of layers left out (Gromov et al. 2024), heads and
units by Torch-Pruning's Taylor estimate (Fang et al. 2023), MLPs alone by the same, one rotation of the residual
stream (after Ashkboos et al. 2024, SliceGPT; pre-norm models only). A seed draws the calibration samples and the
order of healing. Every row is written as it is measured to recipes/results/rivals.csv; the same command continues.
Needs torch-pruning.
"""

from __future__ import annotations

import argparse
import copy
import csv
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from scipy.stats import t as student_t
from torch import Tensor, nn

from leanify.core.errors import LeanifyError
from leanify.data.samples import Reader
from leanify.lens.resize import weighted_part
from leanify.lens.sites import locate
from leanify.profiling.counting import body_parameters, call, parameters
from leanify.search.redesign import redesign
from leanify.shrinking.axes import layer_sites
from leanify.shrinking.blocks import copy_modules, replace_blocks, stage_blocks
from leanify.shrinking.calibration import collect_outputs, divergence
from leanify.shrinking.call_traces import record
from leanify.shrinking.candidates import NO_BOUNDS
from leanify.shrinking.free import transfer_free
from leanify.shrinking.neighbours import nearest_neighbours
from leanify.shrinking.original import resolve
from leanify.shrinking.teacher import CalibratedTeacher
from leanify.shrinking.transfer import transfer_weights
from leanify.tasks.sentence_embedding import pool

CSV = Path(__file__).parents[1] / "results" / "rivals.csv"
COLUMNS = ("checkpoint", "budget", "arm", "seed", "share", "carried", "healed", "neighbours", "rate", "seconds")
BUDGETS = {"blocks 0.7": ("body", 0.7), "blocks 0.5": ("body", 0.5), "all 0.7": ("all", 0.7), "all 0.5": ("all", 0.5)}
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """How a checkpoint is used: calibration, choosing and judging samples; steps and rates of healing."""

    unit: str
    calibration: int
    choosing: int
    judging: int
    steps: int
    rates: tuple[float, ...]
    batch: int = 16


CASES = {
    "BERT-tiny": Case("accuracy, %", 256, 256, 436, 60, (1e-4, 5e-4)),
    "ViT": Case("accuracy, %", 256, 500, 2000, 60, (3e-4, 1e-3), 32),
    "MiniLM": Case("cosine", 256, 64, 300, 20, (1.5e-4,)),
    "SmolLM2": Case("nats a token", 64, 16, 64, 12, (1e-4,), 4),
}


# -- data and measuring -----------------------------------------------------------------------------------------------


class Bench:
    """A checkpoint with its samples: what it answers is what the smaller models are healed towards."""

    def __init__(self, case: Case, source: str, data: str | None, settings: Sequence[str]) -> None:
        self.case, self.source = case, source
        original = resolve(source, data, settings)
        self.splits, self.model = original.splits, original.module
        self.task = original.recipe.data.task
        self.choosing = self.samples(self.splits.validation, self.case.choosing, 0)
        self.judging = self.samples(self.splits.test, self.case.judging, 0)
        self.targets: dict[int, Tensor] = {}  # the original's embeddings, by batch

    def samples(self, samples: Any, count: int, seed: int, batch: int = 16) -> list[tuple[Batch, Any]]:
        """Batches of inputs and labels."""
        order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed))[:count].tolist()
        lengths = getattr(samples, "lengths", None)
        if lengths is not None and seed == 0:  # what is measured alone needs no order, and so no padding
            order.sort(key=lambda i: int(lengths[i]))
        keys = [[(0, i) for i in order[start : start + batch]] for start in range(0, len(order), batch)]
        batches = []
        for inputs, targets in Reader(samples, keys, seed, 0):
            scaled = self.splits.scale_inputs(inputs)
            batches.append((dict(scaled) if isinstance(scaled, dict) else {"x": scaled}, targets))
        return batches

    def answer(self, model: nn.Module, batch: Batch) -> Tensor:
        """Embeddings of sentences, or logits of all tokens or of the image."""
        output: Any = call(model, batch)
        if self.task == "sentence-embedding":
            mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"]))
            return pool(output.last_hidden_state.float(), mask, "mean")
        logits: Tensor = output if isinstance(output, Tensor) else output.logits
        return logits

    def loss(self, model: nn.Module, batch: Batch, target: Tensor) -> Tensor:
        answer = self.answer(model, batch)
        if self.task == "sentence-embedding":
            return (1 - F.cosine_similarity(answer, target)).mean()
        student, teacher = (F.log_softmax(x.flatten(0, -2), -1) for x in (answer, target))
        return F.kl_div(student, teacher, reduction="batchmean", log_target=True)

    @torch.no_grad()
    def quality(self, model: nn.Module, batches: Sequence[tuple[Batch, Any]]) -> tuple[float, float]:
        """The task's metric, and the share of neighbours that stay, of sentences."""
        model.eval()
        total, count = 0.0, 0
        pairs: list[tuple[Tensor, Tensor]] = []
        for batch, labels in batches:
            answer = self.answer(model, batch)
            if self.task == "sentence-embedding":
                if id(batch) not in self.targets:
                    self.targets[id(batch)] = F.normalize(self.answer(self.model, batch), dim=-1)
                pairs.append((F.normalize(answer, dim=-1), self.targets[id(batch)]))
                total, count = total + float((pairs[-1][0] * pairs[-1][1]).sum()), count + len(answer)
            elif self.task == "causal-lm":
                ids = batch["input_ids"][:, 1:]
                total += float(F.cross_entropy(answer[:, :-1].flatten(0, 1), ids.flatten(), reduction="sum"))
                count += ids.numel()
            else:
                total, count = total + 100 * float((answer.argmax(-1) == labels).sum()), count + len(labels)
        stay = math.nan
        if pairs:
            nearest = min(10, int(count) - 2)
            student, teacher = (nearest_neighbours(torch.cat(rows), nearest) for rows in zip(*pairs, strict=True))
            stay = float((student & teacher).sum()) / (nearest * len(student))
        return total / count, stay

    def heal(self, model: nn.Module, seed: int) -> tuple[nn.Module, float]:
        """The model after equal steps towards the original's answers, at the rate that the choosing samples prefer."""
        case = self.case
        train = self.samples(self.splits.train, case.steps * case.batch, 100 + seed, case.batch)
        with torch.no_grad():
            targets = [self.answer(self.model, batch) for batch, _ in train]
        sign = -1 if self.task == "causal-lm" else 1
        best: tuple[float, float, nn.Module] | None = None
        for rate in case.rates:
            student = copy.deepcopy(model).train()
            for module in student.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
            optimiser = torch.optim.AdamW(student.parameters(), rate, weight_decay=0.0)
            for step, ((batch, _), target) in enumerate(zip(train, targets, strict=True)):
                warm = min(1.0, (step + 1) / (0.1 * case.steps))
                for group in optimiser.param_groups:
                    group["lr"] = rate * warm * 0.5 * (1 + math.cos(math.pi * step / case.steps))
                optimiser.zero_grad()
                self.loss(student, batch, target).backward()
                nn.utils.clip_grad_norm_(student.parameters(), 1.0)
                optimiser.step()
            score = sign * self.quality(student, self.choosing)[0] if len(case.rates) > 1 else 0.0
            if best is None or score > best[0]:
                best = score, rate, student
        assert best is not None
        return best[2], best[1]


# -- arms: a bench, a teacher with calibration batches, and the parameters that its blocks may keep --------------------


def free(bench: Bench, teacher: CalibratedTeacher, limit: int) -> nn.Module:
    others = parameters(teacher.model) - body_parameters(teacher.located_model)
    return transfer_free(teacher, limit + others).model


def narrow(bench: Bench, teacher: CalibratedTeacher, limit: int) -> nn.Module:
    stages = teacher.architecture.stages
    pins = {
        "depth": [stage.depth for stage in stages],
        "heads": [stage.primary and stage.primary.heads for stage in stages],
    }
    share = limit / body_parameters(teacher.located_model)
    plan = redesign(bench.source, target_params=share, count="body", **pins, **NO_BOUNDS)
    return transfer_weights(teacher, plan.chosen.architecture).model


def without(teacher: CalibratedTeacher, dropped: Sequence[int]) -> nn.Module:
    """The model without these blocks."""
    name = teacher.located_model.stages[0].name
    blocks = stage_blocks(teacher.located_model, name)
    kept = [copy_modules(block) for i, block in enumerate(blocks) if i not in dropped]
    return copy.deepcopy(replace_blocks(teacher.located_model, {name: kept}).model)


def surplus(teacher: CalibratedTeacher, limit: int) -> int:
    """How many blocks have to go; they are of one size."""
    depth = len(teacher.located_model.stages[0].blocks)
    each = body_parameters(teacher.located_model) / depth
    if limit < each:
        raise LeanifyError("less than one block would stay")
    return depth - int(limit / each + 1e-6)


def block_influence(bench: Bench, teacher: CalibratedTeacher, limit: int) -> nn.Module:
    """The blocks whose output is most like their input go."""
    blocks = stage_blocks(teacher.located_model, teacher.located_model.stages[0].name)
    calls = record(teacher.model, blocks, teacher.batches)
    assert calls is not None
    influence = torch.zeros(len(blocks))
    for batch, some in zip(teacher.batches, calls, strict=True):
        mask = batch.get("attention_mask", torch.ones(some[0].state.shape[:2])).bool()
        for i, one in enumerate(some):
            influence[i] += (1 - F.cosine_similarity(one.state[mask], one.output[mask], dim=-1)).sum()
    return without(teacher, influence.argsort()[: surplus(teacher, limit)].tolist())


def best_run(bench: Bench, teacher: CalibratedTeacher, limit: int) -> nn.Module:
    """The run of blocks goes whose loss changes the outputs least on the calibration samples."""
    count, depth = surplus(teacher, limit), len(teacher.located_model.stages[0].blocks)
    batches = [*teacher.batches, *teacher.held_out][:8]
    target = collect_outputs(teacher.model, batches)
    models = [without(teacher, range(start, start + count)) for start in range(depth - count + 1)]
    return min(models, key=lambda model: divergence(collect_outputs(model, batches), target))


def taylor(bench: Bench, teacher: CalibratedTeacher, limit: int, heads: bool = True) -> nn.Module:
    """Torch-Pruning by its first-order estimate: an equal share of heads and units of every layer, or of units alone.

    The gradient is that of the loss on answers that the original gives, drawn from its probabilities; of sentences,
    of the distance to its embeddings with dropout on them.
    """
    import torch_pruning as tp

    body, low, high = body_parameters(teacher.located_model), 0.0, 1.0
    model = None
    for _ in range(9):  # the smallest ratio that meets the budget
        ratio = (low + high) / 2
        smaller = _pruned(tp, bench, teacher, ratio, heads)
        kept = body - (parameters(teacher.model) - parameters(smaller))
        low, high, model = (low, ratio, smaller) if kept <= limit else (ratio, high, model)
    if model is None:
        raise LeanifyError("the budget is not within reach")
    return model


def _pruned(tp: Any, bench: Bench, teacher: CalibratedTeacher, ratio: float, heads: bool) -> nn.Module:
    model: Any = copy.deepcopy(teacher.model)
    roots: list[Any] = []
    number_of_heads: dict[Any, int] = {}
    for layer in locate(model).layers:
        for site in layer_sites(layer):
            projections = [weighted_part(site.module, part) for part in site.reading.rows]
            if "m" in site.sizes:
                roots += [module for module in projections if module is not None]
            elif heads:
                number_of_heads |= {module: site.sizes["h"] for module in projections if module is not None}
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    prunable = {*roots, *number_of_heads}
    ignored = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d)) and m not in prunable]
    example = {name: value[:1] for name, value in teacher.batches[0].items()}
    pruner = tp.pruner.BasePruner(
        model, example.get("x", example), tp.importance.GroupTaylorImportance(),
        pruning_ratio=ratio, ignored_layers=ignored, num_heads=number_of_heads, prune_num_heads=heads,
        prune_head_dims=False, head_pruning_ratio=ratio if heads else 0.0,
        output_transform=lambda out: out if isinstance(out, Tensor) else out[0],
    )  # fmt: skip
    for batch in teacher.batches:
        answer, target = bench.answer(model, batch), bench.answer(teacher.model, batch).detach()
        if bench.task == "sentence-embedding":
            (1 - F.cosine_similarity(F.dropout(answer, 0.1), target)).sum().backward()
        else:
            labels = torch.distributions.Categorical(logits=target.flatten(0, -2)).sample()
            F.cross_entropy(answer.flatten(0, -2), labels, reduction="sum").backward()
    pruner.step()
    model.zero_grad()
    for module in model.modules():  # what the attentions say of their heads
        projection = getattr(module, "query", getattr(module, "qkv", None))
        if projection in pruner.num_heads:
            count = pruner.num_heads[projection]
            for name in ("num_attention_heads", "num_heads"):
                if hasattr(module, name):
                    setattr(module, name, count)
            for name in ("all_head_size", "attn_dim"):
                if hasattr(module, name):
                    size = getattr(module, "attention_head_size", None) or module.head_dim
                    setattr(module, name, count * size)
    return model


def units(bench: Bench, teacher: CalibratedTeacher, limit: int) -> nn.Module:
    return taylor(bench, teacher, limit, heads=False)


@torch.no_grad()
def rotation(bench: Bench, teacher: CalibratedTeacher, limit: int) -> nn.Module:
    """The residual stream in its principal components, the smallest left out: one rotation for all blocks."""
    model: Any = copy.deepcopy(teacher.model)
    blocks = stage_blocks(locate(model), locate(model).stages[0].name)
    calls = record(model, blocks, teacher.batches)
    assert calls is not None
    if hasattr(model, "blocks"):  # timm
        norms = [(b.norm1, [b.attn.qkv]) for b in blocks] + [(b.norm2, [b.mlp.fc1]) for b in blocks]
        norms.append((model.norm, [model.head]))
        writers = [x for b in blocks for x in (b.attn.proj, b.mlp.fc2)] + [model.patch_embed.proj]
        tables = [model.pos_embed, model.cls_token]
    elif hasattr(model, "model") and hasattr(model.model, "layers"):  # Llama
        norms = [(b.input_layernorm, [b.self_attn.q_proj, b.self_attn.k_proj, b.self_attn.v_proj]) for b in blocks]
        norms += [(b.post_attention_layernorm, [b.mlp.gate_proj, b.mlp.up_proj]) for b in blocks]
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.clone())  # tied heads must be untied
        norms.append((model.model.norm, [model.lm_head]))
        writers = [x for b in blocks for x in (b.self_attn.o_proj, b.mlp.down_proj)]
        tables = [model.model.embed_tokens.weight]
    else:
        raise LeanifyError("post-norm blocks cannot be rotated exactly")
    centred = isinstance(norms[0][0], nn.LayerNorm)
    states = torch.cat([one.state.flatten(0, -2) for some in calls for one in some]).double()
    width = states.shape[1]
    if centred:
        states = states - states.mean(1, keepdim=True)
    states = F.normalize(states, dim=-1)  # a norm follows wherever they are read
    kept = max(1, int(width * limit / body_parameters(locate(model))))
    basis = torch.linalg.eigh(states.T @ states).eigenvectors.flip(1)[:, :kept].float()  # width × kept
    if centred:
        basis = basis - basis.mean(0)  # a LayerNorm's mean goes into whatever writes
    for norm, readers in norms:
        for reader in readers:
            if getattr(norm, "bias", None) is not None:
                reader.bias.data += reader.weight @ norm.bias
            reader.weight = nn.Parameter(reader.weight * norm.weight @ basis)
            if isinstance(reader, nn.Linear):
                reader.in_features = kept
    for writer in writers:
        weight = writer.weight
        writer.weight = nn.Parameter((basis.T @ weight.flatten(1)).view(kept, *weight.shape[1:]))
        if writer.bias is not None:
            writer.bias = nn.Parameter(basis.T @ writer.bias)
    for table in tables:
        table.data = table.data @ basis
    paths = {id(module): path for path, module in model.named_modules()}
    for norm, _ in norms:
        new = nn.RMSNorm(kept, eps=getattr(norm, "eps", None) or norm.variance_epsilon)
        new.weight.fill_(math.sqrt(width / kept))
        model.set_submodule(paths[id(norm)], new)
    return model


ARMS: dict[str, Callable[[Bench, CalibratedTeacher, int], nn.Module]] = {
    "leanify, free": free,
    "leanify, narrow": narrow,
    "best run of layers dropped": best_run,
    "Block Influence": block_influence,
    "Torch-Pruning, Taylor": taylor,
    "MLP widths by Taylor": units,
    "rotation": rotation,
}


# -- the table --------------------------------------------------------------------------------------------------------


def measured(file: Path) -> list[dict[str, str]]:
    if not file.is_file():
        return []
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def keep(file: Path, row: dict[str, Any]) -> None:
    is_new = not file.is_file()
    with file.open("a", newline="") as lines:
        writer = csv.DictWriter(lines, COLUMNS, lineterminator="\n")
        writer.writeheader() if is_new else None
        writer.writerow(row)
    print(row, flush=True)


def run(file: Path, name: str, bench: Bench, seeds: Sequence[int], budgets: Sequence[str], arms: Sequence[str]) -> None:
    """Measure every row that is missing."""
    located = locate(bench.model)
    body, whole = body_parameters(located), parameters(bench.model)
    known = {tuple(row[key] for key in COLUMNS[:4]) for row in measured(file)}
    if (name, "", "original", "0") not in known:
        quality, stay = bench.quality(bench.model, bench.judging)
        row = dict.fromkeys(COLUMNS, "") | {"checkpoint": name, "arm": "original", "seed": "0", "share": "1"}
        keep(file, row | {"carried": f"{quality:.4f}", "neighbours": f"{stay:.4f}"})
    for seed in seeds:
        batches = [batch for batch, _ in bench.samples(bench.splits.train, bench.case.calibration, seed, 8)]
        choosing = [batch for i, batch in enumerate(batches) if i % 4 != 1]
        for budget in budgets:
            count, share = BUDGETS[budget]
            limit = int(share * body if count == "body" else share * whole - (whole - body))
            for arm in arms:
                if (name, budget, arm, str(seed)) in known:
                    continue
                torch.manual_seed(seed)
                began, row = time.process_time(), dict.fromkeys(COLUMNS, "")
                row |= {"checkpoint": name, "budget": budget, "arm": arm, "seed": str(seed)}
                try:
                    if limit <= 0:
                        raise LeanifyError("the embeddings alone are larger")
                    # every arm gets a fresh teacher, so that none reads what another has measured
                    teacher = CalibratedTeacher(copy.deepcopy(bench.model), choosing, batches[1::4])
                    model = ARMS[arm](bench, teacher, limit)
                except LeanifyError as error:
                    keep(file, row | {"healed": f"refused: {error}"})
                    continue
                seconds = time.process_time() - began
                kept = body - (whole - parameters(model)) if arm != "rotation" else limit
                carried, _ = bench.quality(model, bench.judging)
                healed, rate = bench.heal(model, seed)
                quality, stay = bench.quality(healed, bench.judging)
                row |= {"share": f"{kept / body:.4f}", "carried": f"{carried:.4f}", "healed": f"{quality:.4f}"}
                keep(file, row | {"neighbours": f"{stay:.4f}", "rate": f"{rate:g}", "seconds": f"{seconds:.1f}"})


HEAD = """\
# `shrink` beside its peers

Checkpoints brought to a share of their blocks' parameters by leanify and by others, from the same calibration samples,
then healed by the same steps towards the original's answers:
{healing}.
Of several rates the one that other samples prefer. A seed draws the calibration samples and the order of healing;
what is shown is the mean of the seeds, and in parentheses the lowest and the highest. Every measured row is in
[`rivals.csv`](rivals.csv).

    python -m recipes.research.rivals --minilm MINILM --sentences SENTENCES --vit RUN --tiny RUN

MINILM is all-MiniLM-L6-v2, SENTENCES single sentences of IMDb of reviews, the runs are a ViT on
12,000 pictures of Fashion-MNIST (`ranking/fashion-mnist.toml`; 64 wide, 8 layers) and a BERT of 2 layers, 128 wide,
on SST-2. Shares differ where whole layers or heads go; no arm exceeds its budget. *seconds*: of the processor, to
carry. What is missing was not run: two cores were shared with much else, and the script goes on where it stopped.
Rotation is for pre-norm models. SmolLM2, and shares of all parameters, were not begun. The rows of BERT-tiny with
seed 0 were measured before the calibration sentences were ordered by length.
"""


def page(rows: Sequence[dict[str, str]]) -> list[str]:
    cases = []
    for name, case in CASES.items():
        if _of(rows, name):
            rates = " or ".join(f"{rate:g}" for rate in case.rates)
            healing = f"{case.steps} steps of {case.batch} samples at {rates}"
            cases.append(f"{name}: {healing}, judged by {case.judging:,} others")
    lines = HEAD.format(healing=";\n".join(cases)).splitlines()
    for name, case in CASES.items():
        for budget in BUDGETS:
            some = [row for row in _of(rows, name) if row["budget"] == budget and row["carried"]]
            if some:
                lines += ["", f"## {name}, {budget}, {case.unit}", "", *_table(rows, name, some)]
    return lines


def _of(rows: Sequence[dict[str, str]], name: str) -> list[dict[str, str]]:
    return [row for row in rows if row["checkpoint"] == name]


def _numbers(rows: Sequence[dict[str, str]], key: str) -> list[float]:
    return [float(row[key]) for row in rows if row[key] not in ("", "nan")]


def _table(rows: Sequence[dict[str, str]], name: str, some: Sequence[dict[str, str]]) -> list[str]:
    """A table of arms, and whether leanify's better shape is ahead of the best peer by more than the seeds' noise."""
    digits = 1 if "%" in CASES[name].unit else 4
    [original] = [row for row in _of(rows, name) if row["arm"] == "original"]
    has_neighbours = bool(_numbers(some, "neighbours"))
    lines = [
        f"| arm | share | seeds | carried | healed |{' neighbours healed |' * has_neighbours} seconds |",
        f"|---|---|---|---|---|{'---|' * has_neighbours}---|",
        f"| original | 1 | – | {float(original['carried']):.{digits}f} | – |{' – |' * has_neighbours} – |",
    ]
    arms = {arm: [row for row in some if row["arm"] == arm] for arm in ARMS}
    arms = {arm: several for arm, several in arms.items() if several}
    for arm, several in arms.items():
        cells = [arm, f"{_mean(_numbers(several, 'share')):.3f}", str(len(several))]
        cells += [_spread(_numbers(several, key), digits) for key in ("carried", "healed")]
        cells += [_spread(_numbers(several, "neighbours"), 3)] if has_neighbours else []
        lines.append(f"| {' | '.join(cells)} | {_mean(_numbers(several, 'seconds')):.1f} |")
    lines.append("")
    for key in ("carried", "healed"):
        means = {arm: _mean(_numbers(several, key)) for arm, several in arms.items()}
        ours = max((arm for arm in arms if arm.startswith("leanify")), key=means.__getitem__, default="")
        peer = max((arm for arm in arms if not arm.startswith("leanify")), key=means.__getitem__, default="")
        if ours and peer:
            gap, noise = means[ours] - means[peer], _noise(_numbers(arms[ours], key), _numbers(arms[peer], key))
            words = "no noise known, one seed" if noise is None else f"noise of the difference ± {noise:.{digits}f}"
            lines.append(f"- {key}: *{ours}* less the best peer, *{peer}*: {gap:+.{digits}f} ({words}).")
    return lines


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _spread(values: Sequence[float], digits: int) -> str:
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    return f"{_mean(values):.{digits}f} ({min(values):.{digits}f} … {max(values):.{digits}f})"


def _noise(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Half of the 95 % interval of a difference of means (Welch's, with the seeds as samples)."""
    if min(len(ours), len(theirs)) < 2:
        return None
    parts = [(statistics.variance(values) / len(values), len(values) - 1) for values in (ours, theirs)]
    total = sum(part for part, _ in parts)
    if total == 0:  # no seed changes anything
        return 0.0
    freedom = total**2 / sum(part**2 / degrees for part, degrees in parts)
    return float(student_t.ppf(0.975, freedom)) * math.sqrt(total)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("minilm", "sentences", "vit", "tiny", "smollm2", "text"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--budgets", nargs="+", default=list(BUDGETS), choices=BUDGETS)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--small", action="store_true", help="few samples and steps: whether it runs")
    parser.add_argument("--table", action="store_true", help="print the page of what is measured")
    parser.add_argument("-o", "--output", type=Path, default=CSV, help="where the rows are kept (%(default)s)")
    options = parser.parse_args()
    if options.table:
        print("\n".join(page(measured(options.output))))
        return
    benches: dict[str, tuple[str | None, str | None, list[str]]] = {
        "BERT-tiny": (options.tiny, None, []),
        "ViT": (options.vit, None, []),
        "MiniLM": (options.minilm, options.sentences, ["data.length=32"]),
        "SmolLM2": (options.smollm2, options.text, ["data.length=128"]),
    }
    for name, (source, data, settings) in benches.items():
        if source is not None:
            case = CASES[name]
            if options.small:
                case = replace(case, calibration=32, choosing=16, judging=16, steps=2, rates=case.rates[:1], batch=4)
            bench = Bench(case, source, data, settings)
            run(options.output, name, bench, options.seeds, options.budgets, options.arms)


if __name__ == "__main__":
    main()

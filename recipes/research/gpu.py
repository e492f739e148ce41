"""What a GPU makes of it, on one page.

    python -m recipes.research.gpu [-o recipes/results/gpu.md] [--timm DIRECTORY]
    python -m recipes.research.gpu --small -o FILE      tiny models on a CPU: whether it runs

ViT-B's training and inference beside a bare loop, and beside timm's own scripts where ``--timm`` names a checkout of
pytorch-image-models; lean and control beside the baseline; predicted beside measured memory; GPT-2 and BERT beside
transformers' Trainer; the κ probe beside the SVD. Data are random. Without an NVIDIA GPU: exit 2, nothing is written.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Lines = list[str]


@dataclass(frozen=True)
class Size:
    """What is measured, and how long."""

    vit: str = "vit_base_patch16_224"
    override: Mapping[str, Any] = field(default_factory=dict)
    image: int = 224
    batch: int = 128
    memory: tuple[int, ...] = (8, 32, 128)
    text: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"gpt2": {}, "bert": {}})
    tokens: int = 512
    sequences: int = 16
    product: int = 8192
    steps: int = 30
    compiled: bool = True
    probed: int = 32


SMALL = Size(
    vit="vit_tiny_patch16_224",
    override={"img_size": 32, "patch_size": 8, "depth": 8, "embed_dim": 48, "num_heads": 3},
    image=32,
    batch=4,
    memory=(2,),
    text={
        "gpt2": {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 256},
        "bert": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32},
    },
    tokens=16,
    sequences=2,
    product=64,
    steps=2,
    compiled=False,
    probed=2,
)


@dataclass(frozen=True)
class Bench:
    """Where, and how large. Products are in bfloat16 under autocast, as `leanify train` has them on a GPU."""

    device: torch.device
    size: Size
    timm: Path | None = None

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object], times: int | None = None) -> float:
        """The median of single calls, each waited for, after three that warm up."""
        found = []
        for _ in range(3 + (times or self.size.steps)):
            self.wait()
            start = time.perf_counter()
            work()
            self.wait()
            found.append(time.perf_counter() - start)
        return statistics.median(found[3:])

    def half(self) -> Any:
        return torch.autocast(self.device.type, torch.bfloat16)

    def images(self, batch: int) -> Tensor:
        return torch.randn(batch, 3, self.size.image, self.size.image, device=self.device)

    def vit(self) -> nn.Module:
        import timm

        return timm.create_model(self.size.vit, **self.size.override).to(self.device)


# -- the parts ----------------------------------------------------------------------------------------------------


def ceiling(bench: Bench) -> float:
    """FLOP/s of a large product of matrices in bfloat16: what the device gives at most."""
    n = bench.size.product
    one, other = (torch.randn(n, n, device=bench.device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * n**3 / bench.seconds(lambda: one @ other)


def trainer_of(bench: Bench, folder: Path, *settings: str) -> Any:
    """leanify's own trainer on the ViT, over a few images; the batches of the measurement are made here."""
    from PIL import Image

    from leanify.core import recipe as recipes
    from leanify.training import loop

    for name in ("a", "b"):
        (folder / "images" / name).mkdir(parents=True, exist_ok=True)
        for number in range(max(8, bench.size.batch)):
            Image.new("RGB", (8, 8), (number % 256, 0, 0)).save(folder / "images" / name / f"{number}.png")
    override = {**bench.size.override, "num_classes": 2}
    text = (
        f'[model]\nsource = "{bench.size.vit}"\n[model.override]\n'
        + "".join(f"{key} = {json.dumps(value)}\n" for key, value in override.items())
        + f'[data]\nname = "data"\ntask = "classification"\npath = "{folder / "images"}"\nholdout = 0.25\nworkers = 0\n'
        + f"[optim]\nlr = 1e-4\nweight_decay = 0.05\nclip = 1.0\n[schedule]\nsteps = 1000\n"
        f'batch_size = {bench.size.batch}\n[run]\nprecision = "bf16"\n'
    )
    return loop.Trainer(recipes.apply_settings(recipes.parse(text), list(settings)))


def ours(bench: Bench, compiled: bool) -> float:
    """Images a second of leanify's training step; the batch lies on the device already."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(bench, Path(folder), f"run.compile={str(compiled).lower()}")
        images = (
            bench.images(bench.size.batch).mul(50).add(128).byte()
        )  # as workers hand them over: scaled on the device
        targets = torch.zeros(bench.size.batch, dtype=torch.long, device=bench.device)
        steps = iter(range(10**6))
        forever = iter(lambda: (images, targets), None)
        return bench.size.batch / bench.seconds(lambda: trainer.step(next(steps), forever))


def bare(bench: Bench, compiled: bool) -> float:
    """Images a second of a loop in ten lines: timm's model, autocast, clipping, fused AdamW."""
    model = bench.vit().train()
    called: Any = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0.05, fused=True)
    images = bench.images(bench.size.batch)
    targets = torch.zeros(bench.size.batch, dtype=torch.long, device=bench.device)

    def step() -> None:
        with bench.half():
            loss = nn.functional.cross_entropy(called(images), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return bench.size.batch / bench.seconds(step)


@torch.inference_mode()
def inference(bench: Bench, model: nn.Module, compiled: bool) -> float:
    called: Any = torch.compile(model.eval()) if compiled else model.eval()
    images = bench.images(bench.size.batch)

    def forward() -> None:
        with bench.half():
            called(images)

    return bench.size.batch / bench.seconds(forward)


def timms(bench: Bench, compiled: bool) -> dict[str, float]:
    """Images a second by timm's benchmark.py, {"infer": …, "train": …}; empty without a checkout."""
    if bench.timm is None:
        return {}
    words = ["--model", bench.size.vit, "--batch-size", str(bench.size.batch), "--bench", "both", "--opt", "adamw"]
    words += [
        "--amp",
        "--amp-dtype",
        "bfloat16",
        "--num-bench-iter",
        str(bench.size.steps),
        *["--torchcompile"] * compiled,
    ]
    done = subprocess.run([sys.executable, bench.timm / "benchmark.py", *words], capture_output=True, text=True)
    text = done.stdout.partition("--result")[2]
    found = json.loads(text) if text else {}
    found = found[0] if isinstance(found, list) else found
    return {key: found[f"{key}_samples_per_sec"] for key in ("infer", "train") if f"{key}_samples_per_sec" in found}


def throughput(bench: Bench) -> Lines:
    """Training and inference of the ViT, and the share of the ceiling that they reach."""
    import leanify

    most = ceiling(bench)
    macs = leanify.profile(bench.size.vit, overrides=bench.size.override, measure=False).macs
    lines = [
        f"A product of {bench.size.product}² matrices in bfloat16: {most / 1e12:.3g} TFLOP/s, the ceiling. Images a",
        f"second at batch {bench.size.batch}; a training step counts three forward passes.",
        "",
        "| | compiled | leanify | bare loop | timm's benchmark.py | leanify / bare | of the ceiling |",
        "|---|---|---|---|---|---|---|",
    ]
    for compiled in (False, True)[: 1 + bench.size.compiled]:
        scripts = timms(bench, compiled)
        rates = {"training": (ours(bench, compiled), bare(bench, compiled), "train", 3)}
        plain = bench.vit()
        mine = leanify.load(bench.size.vit, overrides=dict(bench.size.override)).to(bench.device)
        rates["inference"] = (inference(bench, mine, compiled), inference(bench, plain, compiled), "infer", 1)
        for name, (our, their, key, passes) in rates.items():
            script = f"{scripts[key]:,.0f}" if key in scripts else "–"
            share = our * passes * 2 * macs / most
            words = "yes" if compiled else "no"
            lines.append(
                f"| {name} | {words} | {our:,.4g} | {their:,.4g} | {script} | {our / their:.3f} | {share:.1%} |"
            )
    return lines


def kernels(bench: Bench) -> Lines:
    """Which kernel of scaled_dot_product_attention runs: of the model, and of one with other heads."""
    import leanify

    model = bench.vit().train()
    lines = ["| | forward | backward |", "|---|---|---|"]
    for name, each in (("as it stands", model), ("heads grown twofold", leanify.grow(model, factor=2))):
        with torch.profiler.profile() as record, bench.half():
            each.to(bench.device)(bench.images(2)).float().square().mean().backward()
        names = sorted({event.key for event in record.key_averages() if "_scaled_dot_product" in event.key})
        back = [key for key in names if "backward" in key]
        forward = [key for key in names if key not in back]
        cells = [", ".join(f"`{key.removeprefix('aten::')}`" for key in keys) or "–" for keys in (forward, back)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def designs(bench: Bench) -> Lines:
    """Baseline, lean and control: time, and memory by torch and by NVML."""
    import leanify
    from leanify.sources import find

    plan = leanify.redesign(bench.size.vit, target_params=0.5, overrides=bench.size.override)
    shapes = {"baseline": plan.baseline, "lean": plan.chosen, "control": plan.control}
    found = find.find(bench.size.vit, overrides=dict(bench.size.override))
    head = ["design", "parameters", "GMACs", "latency", "samples/s", "forward", "training", "reserved", "NVML"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name, design in shapes.items():
        if design is None:
            continue
        source = find.ModelSource(found.origin, architecture=design.architecture)
        facts = leanify.profile(source, batch_size=bench.size.memory[-1], device=str(bench.device), dtype="bfloat16")
        held = facts.memory
        peaks = (held.forward_peak_bytes, held.train_peak_bytes, held.train_reserved_bytes, held.nvml_used_bytes)
        cells = [
            name,
            f"{facts.params / 1e6:.4g} M",
            f"{facts.macs / 1e9:.4g}",
            f"{1e3 * (facts.latency_s or 0):.3g} ms",
        ]
        cells += [f"{facts.throughput_per_s or 0:,.4g}", *(gigabytes(peak) for peak in peaks)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def gigabytes(value: float | None) -> str:
    return "–" if value is None else f"{value / 1e9:.3f} GB"


def memory(bench: Bench) -> Lines:
    """Predicted beside measured, in float32."""
    import leanify

    lines = ["| batch | predicted | torch allocated | ratio | reserved | NVML |", "|---|---|---|---|---|---|"]
    for batch in bench.size.memory:
        words: dict[str, Any] = {"overrides": bench.size.override, "repeats": 2, "device": str(bench.device)}
        held = leanify.profile(bench.size.vit, batch_size=batch, **words).memory
        said, peak = held.train_predicted_bytes or 0, held.train_peak_bytes or math.nan
        rest = f"{gigabytes(held.train_reserved_bytes)} | {gigabytes(held.nvml_used_bytes)}"
        lines.append(f"| {batch} | {gigabytes(said)} | {gigabytes(peak)} | {said / peak:.3f} | {rest} |")
    return lines


class Words(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Random tokens, each its own label, as Trainer takes them."""

    def __init__(self, number: int, tokens: int, vocabulary: int) -> None:
        self.ids = torch.randint(5, vocabulary, (number, tokens), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def trainers(bench: Bench) -> Lines:
    """GPT-2 and BERT: tokens a second of leanify's step and of transformers' Trainer, on equal batches."""
    lines = ["| model | leanify, tokens/s | Trainer, tokens/s | ratio |", "|---|---|---|---|"]
    for name, override in bench.size.text.items():
        mine, theirs = our_tokens(bench, name, override), their_tokens(bench, name, override)
        lines.append(f"| {name} | {mine:,.4g} | {theirs:,.4g} | {mine / theirs:.3f} |")
    return lines


def their_tokens(bench: Bench, name: str, override: Mapping[str, Any]) -> float:
    from transformers import Trainer, TrainingArguments

    import leanify

    size = bench.size
    model = leanify.load(name, cls=CLASSES[name], overrides=dict(override)).train()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=size.sequences, max_steps=size.steps, bf16=True, report_to="none",
            disable_tqdm=True, save_strategy="no", logging_strategy="no", use_cpu=bench.device.type == "cpu",
        )  # fmt: skip
        data = Words(size.sequences * 4, size.tokens, model.config.vocab_size)
        for _ in range(2):  # the first warms up
            done = Trainer(model, arguments, train_dataset=data).train()
    return float(done.metrics["train_samples_per_second"]) * size.tokens


def our_tokens(bench: Bench, name: str, override: Mapping[str, Any]) -> float:
    from leanify.core import recipe as recipes
    from leanify.training import loop

    size = bench.size
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "text.txt").write_text("leaner transformers take fewer layers and more heads\n" * 50 * size.tokens)
        overridden = "".join(f"{key} = {json.dumps(value)}\n" for key, value in override.items())
        task = 'masked-lm"\nmask = 0.15' if name == "bert" else 'causal-lm"'
        recipe = recipes.parse(
            f'[model]\nsource = "hf/{name}"\nclass = "{CLASSES[name]}"\n[model.override]\n{overridden}[data]\n'
            f'name = "data"\npath = "{folder}/text.txt"\nlength = {size.tokens}\nworkers = 0\ntask = "{task}\n'
            f"[optim]\nlr = 1e-5\nclip = 1.0\n[schedule]\nsteps = 1000\nbatch_size = {size.sequences}\n"
            '[run]\nprecision = "bf16"\n'
        )
        trainer = loop.Trainer(recipe)
        batches = trainer.batches(0)
        steps = iter(range(10**6))
        return size.sequences * size.tokens / bench.seconds(lambda: trainer.step(next(steps), batches))


CLASSES = {"gpt2": "AutoModelForCausalLM", "bert": "AutoModelForMaskedLM"}


def probe(bench: Bench) -> Lines:
    """The κ probe's own time beside float64 SVDs of the same matrices, on the device."""
    import leanify
    from leanify.reshaping.sites import locate

    model = bench.vit().eval()
    images = bench.images(bench.size.probed)
    few = max(1, bench.size.steps // 10)
    kept: list[Tensor] = []

    @torch.inference_mode()
    def plain() -> None:
        model(images)

    @torch.inference_mode()
    def reference() -> None:
        kept.clear()
        hooks = [
            layer.output.register_forward_pre_hook(lambda _, args: kept.append(torch.linalg.svdvals(args[0].double())))
            for layer in locate(model).layers
        ]
        model(images)
        for hook in hooks:
            hook.remove()

    forward = bench.seconds(plain, few)
    own = bench.seconds(lambda: leanify.condition(model, images), few) - forward
    svd = bench.seconds(reference, few) - forward
    found = leanify.condition(model, images)
    exact = [(values[:, 0] / values[:, -1]).mean().item() for values in kept]
    apart = max(abs(layer.kappa / kappa - 1) for layer, kappa in zip(found.layers, exact, strict=True))
    return [
        f"{bench.size.probed} images: a forward pass takes {forward:.3g} s, the probe {own:.3g} s more, SVDs {svd:.3g}"
        f" s more: {own / svd:.3f} of theirs. Mean κ of a layer differs by at most {apart:.1g}."
    ]


PARTS: dict[str, Callable[[Bench], Lines]] = {
    "ViT-B, throughput": throughput,
    "Attention's kernel": kernels,
    "Lean and control beside the baseline": designs,
    "Memory of training, predicted and measured": memory,
    "GPT-2 and BERT beside Trainer": trainers,
    "The κ probe beside the SVD": probe,
}


def page(bench: Bench) -> str:
    """All parts; one that fails says so, and the others go on."""
    name = torch.cuda.get_device_name(bench.device) if bench.device.type == "cuda" else str(bench.device)
    lines = ["# On a GPU", "", "    python -m recipes.research.gpu", "", f"{name}, torch {torch.__version__}.", ""]
    for title, measure in PARTS.items():
        print(title, file=sys.stderr, flush=True)
        try:
            found = measure(bench)
        except Exception as error:  # an hour of the others' results is worth more
            found = [f"Failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"]
        lines += [f"## {title}", "", *found, ""]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("recipes/results/gpu.md"))
    parser.add_argument("--timm", type=Path, help="a checkout of pytorch-image-models, for its benchmark.py")
    parser.add_argument("--small", action="store_true", help="tiny models on a CPU: whether it runs")
    given = parser.parse_args()
    if given.small:
        text = page(Bench(torch.device("cpu"), SMALL))
        given.output.write_text(text, encoding="utf-8")
        print(text)
        return int("Failed: " in text)
    if not torch.cuda.is_available():
        print("no NVIDIA GPU: torch sees none here, so nothing is measured and nothing is written", file=sys.stderr)
        return 2
    if given.timm is not None and not (given.timm / "benchmark.py").is_file():
        print(f"--timm {given.timm} has no benchmark.py: name a checkout of pytorch-image-models", file=sys.stderr)
        return 2
    text = page(Bench(torch.device("cuda"), Size(), given.timm))
    given.output.write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What the κ probe costs beside a forward pass, and beside float64 SVDs by plain hooks; and its memory.

    python -m recipes.research.condition_cost
    python -m recipes.research.condition_cost --small      a small model: whether it runs

Goals: the probe's own cost is at most a third of the SVDs', probe and forward pass together take at most 1.2 forward
passes, and memory does not grow with the number of samples. Exit 1 where one is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

import leanify

BATCHES = 4


@dataclass
class Clock:
    """The least processor time of every batch over all rounds: a disturbance spoils one batch of one round."""

    batch: int
    best: list[float] = field(default_factory=lambda: [float("inf")] * BATCHES)

    def images(self) -> Iterator[Tensor]:
        """Batches, each timed until the next one is asked for."""
        generator = torch.Generator().manual_seed(0)
        for index in range(BATCHES):
            batch = torch.randn(self.batch, 3, 224, 224, generator=generator)
            start = time.process_time()
            yield batch
            self.best[index] = min(self.best[index], time.process_time() - start)

    @property
    def seconds(self) -> float:
        return sum(self.best)


@torch.inference_mode()
def forward(model: nn.Module, images: Iterable[Tensor]) -> None:
    for batch in images:
        model(batch)


def svds(model: nn.Module, images: Iterable[Tensor]) -> list[list[float]]:
    """κ of every block and sample, plainly: hooks, float64 svdvals, one sample at a time."""
    kappas: list[list[float]] = [[] for _ in model.blocks]

    def hook(kappas: list[float]) -> Callable[..., None]:
        def append(_: nn.Module, args: tuple[Tensor]) -> None:
            for heads in args[0]:
                values = torch.linalg.svdvals(heads.double())
                kappas.append((values[0] / values[-1]).item())

        return append

    handles = [
        block.attn.proj.register_forward_pre_hook(hook(values))
        for block, values in zip(model.blocks, kappas, strict=True)
    ]
    forward(model, images)
    for handle in handles:
        handle.remove()
    return kappas


def time_goals(name: str, batch: int, rounds: int) -> bool:
    """Print times of all three in turn; return whether they meet the goals."""
    torch.manual_seed(0)
    model = leanify.load(name).eval()
    works = {"forward": forward, "probe": leanify.condition, "svds": svds}
    clocks = {work: Clock(batch) for work in works}
    results = {}
    once = float("inf")  # what a probe costs outside its batches: finding the layers, looking for NaN
    for _ in range(rounds):
        for work, run in works.items():
            results[work] = run(model, clocks[work].images())
        start = time.process_time()
        leanify.condition(model, torch.zeros(1, 3, 224, 224))
        middle = time.process_time()
        forward(model, [torch.zeros(1, 3, 224, 224)])
        once = min(once, max(0.0, 2 * middle - start - time.process_time()))

    for layer, kappas in zip(results["probe"].layers, results["svds"], strict=True):
        if not all(math.isclose(*pair, rel_tol=1e-6) for pair in zip(layer.kappas, kappas, strict=True)):
            raise SystemExit(f"{layer.name}: the probe's κ are not those of the SVDs")
    plain, probe, reference = (clocks[work].seconds for work in works)
    probe += once
    share = (probe - plain) / (reference - plain)
    print(f"forward {plain:.2f} s · probe {probe:.2f} s, {once:.2f} of them once · SVDs {reference:.2f} s")
    print(f"probe {probe / plain:.3f} forward passes · own cost {share:.3f} of the SVDs'")
    return share <= 1 / 3 and probe <= 1.2 * plain


MEMORY = """
import json, resource, sys, torch
import leanify
name, work, samples, batch = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
model = leanify.load(name).eval()
images = (torch.randn(batch, 3, 224, 224) for _ in range(samples // batch))
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
with torch.inference_mode():
    model(torch.randn(1, 3, 224, 224))
if work == "forward":
    with torch.inference_mode():
        for batch in images:
            model(batch)
else:
    leanify.condition(model, images)
print(json.dumps(peak()))
"""


def memory_goals(name: str, batch: int) -> bool:
    """Print peaks of resident memory, each of a process of its own; return whether they meet the goals."""
    peaks = {}
    for work, samples in (("forward", batch), ("probe", batch), ("probe", 8 * batch)):
        command = [sys.executable, "-c", MEMORY, name, work, str(samples), str(batch)]
        peaks[work, samples] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        print(f"{work} on {samples} images: peak {peaks[work, samples]:.0f} MiB")
    one, few, many = peaks.values()
    return few <= 1.5 * one and many <= 1.05 * few


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a small model, and goals are not judged")
    small = parser.parse_args().small
    name, batch, rounds = ("vit_tiny_patch16_224", 1, 1) if small else ("vit_base_patch16_224", 8, 3)
    met = [time_goals(name, batch, rounds), memory_goals(name, 2 * batch)]
    if not small and not all(met):
        raise SystemExit("a goal is missed")


if __name__ == "__main__":
    main()

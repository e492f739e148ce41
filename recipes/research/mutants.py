"""How much the tests notice: small changes to a module's source, one at a time, each against the tests that hold it.

    python -m recipes.research.mutants MODULE… [--number 40] [--seed 0] [--log FILE]

A mutant swaps a comparison, an operator, a constant, `and` for `or`, a condition for its opposite, or `min` for `max`.
The mutants of a module are sampled with a seed. A mutant is killed where a test fails or takes three times the
processor time of all of them together; survivors are printed as lines of a diff. Verdicts are kept in the log, and a
run with the same log goes on. recipes/results/mutants.md has the scores and what is to be said for the survivors.

torch, timm and transformers are imported once; every mutant is a forked process that sees the changed source.
"""

from __future__ import annotations

import argparse
import ast
import importlib.machinery
import json
import multiprocessing
import os
import random
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LENS = ["tests/test_surgery.py", "tests/test_layouts.py", "tests/test_experts.py", "tests/test_warm_shrink.py"]
SEARCH = ["tests/test_judgements.py", "tests/test_redesign.py", "tests/test_plans.py"]
WARM = ["tests/test_warm_shrink.py", "tests/test_judgements.py", "tests/test_warm_carry.py"]
TRAINING = ["tests/test_training.py", "tests/test_masked.py", "tests/test_training_engine.py",
            "tests/test_training_cli.py", "tests/test_training_distill.py", "tests/test_warm_teach.py"]  # fmt: skip
HELD_BY: dict[str, list[str]] = {  # pytest's arguments, what is nearest first
    "architecture.py": ["tests/test_values.py", "tests/test_surgery.py"],
    "lens/notation.py": ["tests/test_values.py"],
    "lens/surgery.py": LENS,
    "lens/resize.py": LENS,
    "profiling/price_list.py": [
        "tests/test_ranking.py",
        "tests/test_prices.py",
        "tests/test_judgements.py",
        "tests/test_experts.py",
    ],
    "search/search.py": SEARCH,
    "search/ranking.py": ["tests/test_ranking.py", "tests/test_ranking_evidence.py"],
    "search/limits.py": ["tests/test_limits.py"],
    "search/control.py": ["tests/test_control.py", "tests/test_judgements.py"],
    "shrinking/choose.py": ["tests/test_warm_choose.py", *WARM],
    "shrinking/narrow.py": ["tests/test_warm_choose.py", *WARM],
    "shrinking/correction.py": ["tests/test_warm_correction.py", *WARM],
    "comparison/statistics.py": ["tests/test_compare_statistics.py", "tests/test_judgements.py"],
    "comparison/results.py": ["tests/test_results.py", "tests/test_judgements.py", "tests/test_compare_page.py"],
    "training/loop.py": TRAINING,
    "training/schedule.py": ["tests/test_schedule.py"],
    "tasks/classification.py": ["tests/test_task_outcomes.py", "tests/test_training_images.py"],
    "tasks/masked_lm.py": ["tests/test_task_outcomes.py", "tests/test_masked.py", "tests/test_references.py"],
    "data/sampling.py": ["tests/test_schedule.py", "tests/test_training_processes.py"],
}
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.And: ast.Or,
    ast.Or: ast.And, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
QUIET = [  # what was imported before the fork is no fault of the tests
    "-W", "ignore::pytest.PytestAssertRewriteWarning", "-W", "ignore:Overwriting leanify in registry",
]  # fmt: skip
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
Change = Callable[[], None]
WAITS = 900  # seconds of the clock, after which a mutant hangs


def changes(tree: ast.Module) -> Iterator[tuple[int, Change]]:
    """(line, what makes the change in place) of every mutant; messages, docstrings and annotations are left alone."""
    for node in _code(tree):
        match node:
            case ast.Compare():
                for i, op in enumerate(node.ops):
                    yield node.lineno, lambda node=node, i=i, op=op: node.ops.__setitem__(i, SWAPS[type(op)]())
            case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in SWAPS:
                yield node.lineno, lambda node=node, op=op: setattr(node, "op", SWAPS[type(op)]())
            case ast.Constant(value=bool() as value):
                yield node.lineno, lambda node=node, value=value: setattr(node, "value", not value)
            case ast.Constant(value=int() | float() as value):
                yield node.lineno, lambda node=node, value=value: setattr(node, "value", value + 1)
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                negated = ast.copy_location(ast.UnaryOp(ast.Not(), test), test)
                yield node.lineno, lambda node=node, negated=negated: setattr(node, "test", negated)
            case ast.Call(func=ast.Name(id=name)) if name in CALLS:
                yield node.lineno, lambda node=node, name=name: setattr(node.func, "id", CALLS[name])


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """What a mutant may change, in the order of the source."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "exc", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, (ast.JoinedStr, ast.ImportFrom)):
                yield child
                yield from _code(child)


def mutant(source: str, number: int) -> tuple[int, str]:
    """(line, source) of one mutant."""
    tree = ast.parse(source)
    line, change = list(changes(tree))[number]
    change()
    return line, ast.unparse(ast.fix_missing_locations(tree))


def passes(module: str, source: str | None, seconds: int) -> bool:
    """Whether the module's tests pass within so many processor seconds, in a process where it has this source."""
    child = multiprocessing.get_context("fork").Process(target=_tested, args=(module, source, seconds))
    child.start()
    child.join(WAITS)
    if child.is_alive():
        child.kill()
        child.join()
    return child.exitcode == 0


def _tested(module: str, source: str | None, seconds: int) -> None:
    import pytest

    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    if source is not None:
        path, load = str(ROOT / "leanify" / module), importlib.machinery.SourceFileLoader.get_code

        def get_code(self: Any, fullname: str) -> Any:
            return compile(source, path, "exec") if self.path == path else load(self, fullname)

        importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    os._exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *QUIET, *HELD_BY[module]])))


def hunt(module: str, number: int, seed: int, log: Path) -> tuple[int, list[str]]:
    """How many mutants there were, and the survivors."""
    source = (ROOT / "leanify" / module).read_text("utf-8")
    count = len(list(changes(ast.parse(source))))
    picked = sorted(random.Random(seed).sample(range(count), min(number, count)))
    known = (
        {(r["module"], r["change"]): r for r in map(json.loads, log.read_text().splitlines())} if log.exists() else {}
    )
    began = _spent()
    if any((module, n) not in known for n in picked) and not passes(module, None, 3600):
        sys.exit(f"{module}: {' '.join(HELD_BY[module])} fails without a mutant")
    limit = 20 + int(3 * (_spent() - began))
    survivors = []
    for n in picked:
        line, changed = mutant(source, n)
        row = known.get((module, n))
        if row is None:
            row = {"module": module, "change": n, "line": line, "survived": passes(module, changed, limit)}
            with log.open("a") as file:
                file.write(json.dumps(row) + "\n")
        if row["survived"]:
            survivors.append(_shown(module, source, changed, line))
    return len(picked), survivors


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _shown(module: str, source: str, changed: str, line: int) -> str:
    """The line, and what became of it in the normal form of `ast`."""
    old, new = ast.unparse(ast.parse(source)).splitlines(), changed.splitlines()
    became = next((b.strip() for a, b in zip(old, new, strict=True) if a != b), "")
    return f"{module}:{line}  {source.splitlines()[line - 1].strip()}\n    → {became}"


def _warm() -> None:
    """Import what no mutant changes; leanify itself is forgotten again."""
    import torch

    from leanify.upstream.libraries import import_timm, import_transformers

    import_timm()
    import_transformers()
    torch.set_num_threads(1)
    for name in [name for name in sys.modules if name.partition(".")[0] == "leanify"]:
        del sys.modules[name]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("modules", nargs="*", default=list(HELD_BY))
    parser.add_argument("--number", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, default=Path("mutants.jsonl"))
    asked = parser.parse_args()
    os.chdir(ROOT)
    _warm()
    for module in asked.modules:
        number, survivors = hunt(module, asked.number, asked.seed, asked.log)
        print(f"{module}: {number - len(survivors)} of {number} killed", flush=True)
        for survivor in survivors:
            print(f"  {survivor}", flush=True)


if __name__ == "__main__":
    main()

"""Hold models against the laws, try other widths, or propose rows for their classes."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

from leanify.cli.zoo import describe
from leanify.core.errors import LeanifyError, SourceError

ANSWERS = ("read", "grow", "redesign", "control")
SIGNS = {True: "yes", False: "no", None: "–"}


def main() -> int:
    """Return the exit code: 0, 1 if a law is broken, 2 for wrong use."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here needs a checkpoint
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", nargs="+", metavar="NAME", help="hold models (phi, 'timm/davit_*', '*') to the laws")
    what.add_argument("--widths", nargs="+", metavar="NAME", help="say which models can have another residual width")
    what.add_argument("--permuted", nargs="+", metavar="NAME", help="hold models to the law of permuted channels")
    what.add_argument("--propose", metavar="NAME", help="print rows for a model's classes that have none")
    parser.add_argument("--log", type=Path, metavar="FILE", help="with --check: keep verdicts here and resume")
    options = parser.parse_args()
    try:
        if options.check:
            return check(options.check, options.log)
        if options.widths:
            return try_widths(options.widths)
        if options.permuted:
            return check_permuted(options.permuted)
        return propose(options.propose)
    except LeanifyError as error:
        print(error, file=sys.stderr)
        return 2


def check(patterns: list[str], log: Path | None) -> int:
    """Check models one by one and update the shipped table."""
    import torch

    from . import table, tiny

    models = table.matching_models(patterns)
    tiny.warm()
    torch.set_num_threads(1)
    verdicts = []
    for verdict in table.check(models, log):
        verdicts.append(verdict)
        row = verdict.to_json()
        answers = ", ".join(f"{answer} {SIGNS[row[answer]]}" for answer in ANSWERS)
        line = f"{verdict.status:9} {verdict.library}/{verdict.name}: {answers} · {describe(row, True)}"
        print(line.removesuffix(" · "), flush=True)
    table.update(verdicts, full=patterns == ["*"])
    print(f"written to {table.PATH}", file=sys.stderr)
    return int(any(verdict.status == "failing" for verdict in verdicts))


def supported(patterns: list[str]) -> list[tuple[str, str]]:
    """The models of these patterns that the shipped table calls supported, once both libraries are imported."""
    from . import table, tiny

    tiny.warm()
    known = {(library, name) for library in tiny.LIBRARIES for name in table.supported_models(library)}
    return [model for model in table.matching_models(patterns) if model in known]


def try_widths(patterns: list[str]) -> int:
    """Print for every supported model whether it can have another residual width, and how many can."""
    import warnings

    from . import widths

    warnings.simplefilter("ignore")
    counts: dict[str, list[bool]] = {}
    for library, name in supported(patterns):
        sizes, reason = widths.other_width(library, name)
        counts.setdefault(library, []).append(bool(sizes))
        print(f"{library}/{name}: {reason or 'yes, ' + ', '.join(map(str, sizes))}", flush=True)
    for library, answers in counts.items():
        print(f"{library}: {sum(answers)} of {len(answers)} can have another width", file=sys.stderr)
    return 0


def check_permuted(patterns: list[str]) -> int:
    """Print for every supported model whether its residual channels can change places, and count the answers."""
    import warnings

    from . import tiny, widths
    from .running import LawBroken

    warnings.simplefilter("ignore")
    answers: Counter[str] = Counter()
    for library, name in supported(patterns):
        try:
            holds = widths.check_permuted(*tiny.build(library, name))
            answer = "holds" if holds else "has no other width at small size"
        except LawBroken as broken:
            answer = f"broken, {broken}"
        answers[answer.partition(",")[0]] += 1
        print(f"{library}/{name}: {answer}", flush=True)
    print(", ".join(f"{count} × {answer}" for answer, count in answers.items()), file=sys.stderr)
    return int("broken" in answers)


def propose(pattern: str) -> int:
    """Print the proposed rows as TOML for a table of `leanify/lens/families`."""
    from . import propose, table, tiny

    models = table.matching_models([pattern])
    if len(models) > 1:
        raise SourceError(f"--propose needs a single model; {pattern!r} matches {len(models)}")
    tiny.warm()
    library, name = models[0]
    proposal = propose.propose(library, name)
    print(proposal.toml(), end="")
    if proposal.rows:
        file = "timm.toml" if library == "timm" else "transformers.toml"
        then = f"python -m tests.zoo --check {library}/{name}"
        print(f"# put into leanify/lens/families/{file}, then: {then}", file=sys.stderr)
    else:
        print(f"every attention and MLP found in {library}/{name} has a row already", file=sys.stderr)
    if proposal.broken_law:
        print(f"with these rows a law is broken: {proposal.broken_law}", file=sys.stderr)
    return int(bool(proposal.broken_law))


if __name__ == "__main__":
    sys.exit(main())

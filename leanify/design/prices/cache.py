"""What a model costs, remembered: a redesign whose prices are known imports no torch.

Answers of an appraiser (facts, costs of shapes, tokens) are kept as JSON in the user's cache, one file for a SOURCE
with its overrides, class, tokens, context, the contents of the local files that say its shape, leanify's own code and
the versions of the libraries. What is not among them is counted by the live model and kept too. A file that is damaged, half written or somebody else's is ignored; one is
written beside its place, then renamed. A model on the hub is not kept: its configuration may change there.

``LEANIFY_PRICES=off`` counts everything anew and keeps nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import leanify
from leanify.architecture import Architecture
from leanify.data.cache import home
from leanify.design.prices.cost import Cost
from leanify.design.prices.facts import Appraiser, Facts
from leanify.errors import LeanifyError, RecipeError, ShapeError
from leanify.runs import recipe, writing
from leanify.runs.files import read_json

if TYPE_CHECKING:
    from torch import nn

    from leanify.sources.source import ModelSource

    Source = str | Path | recipe.Recipe | ModelSource  # what `sources.find.find` takes

Value = TypeVar("Value")
FORMAT = 1
SAY_THE_SHAPE = ("config.json", "leanify.json", "recipe.toml", "modules.json")  # files of a model's directory
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
# whose code says prices
ROOMS = ("architecture.py", "design", "lens", "paper", "runs", "sources", "spectra", "upstream")


@dataclass(frozen=True)
class Asked:
    """A model as a user asks for it; ``tokens`` and ``context`` are those of `redesign`."""

    source: Source
    overrides: Mapping[str, Any] = field(default_factory=dict)
    cls: str | None = None
    tokens: int | None = None
    context: int | None = None

    def find(self) -> ModelSource:
        from leanify.sources import find

        return find.find(self.source, overrides=self.overrides, cls=self.cls)


@dataclass
class Answers:
    """What an appraiser said: facts, and costs, tokens and parameters held by what they were asked of, in words."""

    facts: Facts
    costs: dict[str, Cost] = field(default_factory=dict)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        costs = {shape: list(cost.numbers) for shape, cost in self.costs.items()}
        return {"facts": self.facts.to_json(), "costs": costs, "tokens": self.tokens, "held": self.held}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Answers:
        costs = {shape: Cost(*numbers) for shape, numbers in data["costs"].items()}
        return cls(Facts.from_json(data["facts"]), costs, dict(data["tokens"]), dict(data["held"]))


class Remembered:
    """An appraiser that asks the live model only for what it does not know.

    ``make`` gives the live model, and whether it will be the same next time; ``place`` is the file where answers are
    kept, and its key.
    """

    def __init__(
        self, known: Answers | None, make: Callable[[], tuple[Appraiser, bool]], place: tuple[Path, str] | None = None
    ) -> None:
        self.known, self._make, self._place = known, make, place
        self.learned = False

    @cached_property
    def live(self) -> Appraiser:
        """The live model. What is warned of on the way would be lost the next time, so then nothing is kept."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            made, lasting = self._make()
        if said or not lasting:
            self._place = None
        for words in said:
            warnings.warn_explicit(words.message, words.category, words.filename, words.lineno)
        return made

    @property
    def model(self) -> nn.Module:
        return self.live.model

    @property
    def facts(self) -> Facts:
        return self.answers.facts

    @cached_property
    def answers(self) -> Answers:
        self.learned = self.known is None
        return self.known or Answers(self.live.facts)

    def count(self, shape: Architecture) -> Cost:
        found: Cost = self._answer(self.answers.costs, str(shape), lambda: self.live.count(shape))
        return found

    def tokens(self, shape: Architecture) -> list[int]:
        found: list[int] = self._answer(self.answers.tokens, str(shape), lambda: self.live.tokens(shape))
        return found

    def held(self, stages: Sequence[int]) -> int:
        found: int = self._answer(self.answers.held, " ".join(map(str, stages)), lambda: self.live.held(stages))
        return found

    def _answer(self, known: dict[str, Any], asked: str, ask: Callable[[], Any]) -> Any:
        if asked not in known:
            known[asked] = ask()
            self.learned = True
        return known[asked]

    def keep(self) -> None:
        """Write what was learned; a cache that cannot be written is none."""
        if self.learned and self._place is not None:
            with contextlib.suppress(OSError):
                write(*self._place, self.answers.to_json())
        self.learned = False


def appraiser(asked: Asked) -> Remembered:
    """Who says what the asked model costs. Its answers raise what finding and building the model raises."""
    key = None if os.environ.get("LEANIFY_PRICES") == "off" else key_of(asked)
    if key is None:
        return Remembered(None, lambda: live(asked))
    file = place_of("prices", key)
    return Remembered(read(file, key, Answers.from_json), lambda: live(asked), (file, key))


def live(asked: Asked) -> tuple[Appraiser, bool]:
    """The model itself on meta, and whether it lies here. Raises ShapeError for one that cannot run."""
    from leanify.design.prices.appraisal import Live
    from leanify.sources.source import build_on_meta
    from leanify.upstream.inputs import check_tokens

    found = asked.find()
    model = build_on_meta(found)
    check_tokens(model, asked.tokens)
    made = Live(model, asked.tokens, asked.context)
    odd = next((layer for layer in made.located.architecture.layers() if layer.kv_heads > layer.heads), None)
    if odd is not None:
        raise ShapeError(
            f"{made.located.architecture.source} has {odd.heads} heads on {odd.kv_heads} key/value heads, which "
            "no attention can compute: --override the one with the other (num_attention_heads, num_key_value_heads)"
        )
    return made, not isinstance(found.weights, str)


# -- what a price depends on --------------------------------------------------------------------------------------


def key_of(asked: Asked) -> str | None:
    """All that the prices depend on, as text; None where it cannot be said without asking somebody else."""
    lies = _contents(asked.source)
    if lies is None:
        return None
    own = {name: value for name, value in vars(asked).items() if name != "source"}
    try:
        name = str(asked.source) if isinstance(asked.source, (str, Path)) else ""
        return json.dumps([FORMAT, name, lies, own, versions(), code_digest()], sort_keys=True)
    except TypeError:  # an override that is no JSON
        return None


def _contents(source: Source) -> list[Any] | None:
    """The files that say the shape of a source, with their contents: none for a name, None for a model on the hub."""
    if isinstance(source, recipe.Recipe):
        inner = _contents(source.model.source)
        return None if inner is None else [source.to_toml(), *inner]
    if not isinstance(source, (str, Path)):
        shape = source.architecture and source.architecture.to_json()
        return None if isinstance(source.weights, str) else [asdict(source.origin), shape]
    path, source = Path(source).expanduser(), str(source)
    try:
        if path.suffix == ".toml" or not path.exists():
            file = path if path.exists() else recipe.find(source)
            if file is None:
                far = "/" in source and source.split("/")[0] not in ("timm", "hf", "diffusers", "leanify")
                return None if far or source.startswith((".", "/", "~")) else []
            inner = _contents(recipe.load(file).model.source)
            return None if inner is None else [str(file), file.read_text("utf-8"), *inner]
        folder = path if path.is_dir() else path.parent
        files = [path] if path.suffix == ".json" else [folder / name for name in SAY_THE_SHAPE]
        found = [[str(file.absolute()), file.read_text("utf-8")] for file in files if file.is_file()]
        stored = [folder / name for name in WEIGHTS]
        times = [[file.name, file.stat().st_mtime_ns] for file in stored if file.is_file()]  # they decide on the head
        return found + times if found else None
    except (OSError, ValueError, RecipeError):
        return None


def versions() -> dict[str, str]:
    """Of leanify and of the libraries whose code is counted; the builds of one version of torch count alike."""
    names = ("timm", "transformers", "torch")
    return {"leanify": leanify.__version__} | {name: metadata.version(name).partition("+")[0] for name in names}


def code_digest() -> str:
    """A digest of the code that finds, builds, reads and prices a model, and of its tables."""
    package = Path(leanify.__file__).parent
    digest = hashlib.sha256()
    for room in ROOMS:
        for path in sorted([package / room] if room.endswith(".py") else (package / room).rglob("*.[pt][yo]*")):
            if path.suffix in (".py", ".toml"):
                digest.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


# -- files --------------------------------------------------------------------------------------------------------


def place_of(kind: str, key: str) -> Path:
    """The file that is kept for a key."""
    return home() / kind / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def read(file: Path, key: str, parse: Callable[[Any], Value]) -> Value | None:
    """What a file of the cache holds, parsed; None where that is anything but what was written for this key."""
    try:
        kept = read_json(file)
        ours = kept["key"] == key and kept["sum"] == _sum(kept["answers"])
        return parse(kept["answers"]) if ours else None
    except (LeanifyError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write(file: Path, key: str, answers: Any) -> None:
    """Keep a JSON value. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    writing.write(file, json.dumps({"key": key, "sum": _sum(answers), "answers": answers}), sync=False)


def _sum(answers: Any) -> str:
    return hashlib.sha256(json.dumps(answers, sort_keys=True).encode()).hexdigest()

"""Files that want code to run: pickles, modules that a configuration names, code beside a model. None of it runs.

The cases run where an attacker would like them best: in the folder that was handed over, with that folder on the path
that modules are imported from, and with yes as the answer to whatever is asked on standard input.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import shlex
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import typed
from fuzz_intact import HF, RECIPE
from runs import change_json
from safetensors.torch import save_file

import leanify
from leanify.core import recipe as recipes
from leanify.core.errors import LeanifyError
from leanify.data.texts.tokenizers import make_tokenizer
from leanify.training import start as training

pytestmark = pytest.mark.filterwarnings("default")  # what is new in a model is warned of
RAN = "RAN"  # the file that appears where code ran


class Evil:
    """A pickle of this makes a file when it is opened."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (RAN,))


class Nested:
    """The same through pickle's own words for building an object."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return (getattr, (Evil(), "x"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A BERT with its tokenizer, and a module that makes the file when it is imported; the process stands in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    model: Any = leanify.load("bert", overrides=HF["bert"] | {"max_position_embeddings": 32})
    model.save_pretrained(tmp_path)
    make_tokenizer("bytes", lambda: [], "")[0].save_pretrained(tmp_path)
    (tmp_path / "evil.py").write_text(f"import os\nos.mkdir({RAN!r})\nclass Model: pass\nclass Tokenizer: pass\n")
    (tmp_path / "rows.csv").write_text("text,label\n" + "here are cats,0\nand mice,1\n" * 20)
    yield tmp_path
    sys.modules.pop("evil", None)


def asked(*arguments: str) -> str:
    """What a command says, all of it; whatever it asks is answered with yes."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        patch.setattr(sys, "stdin", io.StringIO("y\n" * 9))
        typed(shlex.join(arguments))
    return said.getvalue()


# -- pickles ----------------------------------------------------------------------------------------------------------


WRITERS: dict[str, Callable[[Path, Any], Any]] = {
    "zipped": lambda file, value: torch.save(value, file),
    "legacy": lambda file, value: torch.save(value, file, _use_new_zipfile_serialization=False),
    "raw": lambda file, value: file.write_bytes(pickle.dumps(value)),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize("value", [{"state_dict": {"a": Evil()}}, {"a": torch.ones(2), "b": Nested()}])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "shard"])
def test_code_pickles_are_not_opened(folder: Path, name: str, value: Any, write: Callable[[Path, Any], Any]) -> None:
    (folder / "model.safetensors").unlink()
    if name == "shard":
        write(folder / "a.bin", value)
        change_json(folder / "pytorch_model.bin.index.json", weight_map={"a": "a.bin"}, metadata={})
    else:
        write(folder / name, value)
    with pytest.raises(LeanifyError) as found:
        leanify.load(folder)
    assert "\n" not in str(found.value)
    assert not (folder / RAN).exists()


# -- modules that a configuration names -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["_attn_implementation", "_experts_implementation"])
def test_config_names_no_hub_kernel(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers fetches and runs those that it is asked for, where the library kernels is installed."""
    from transformers.integrations import hub_kernels

    monkeypatch.setattr(hub_kernels, "get_kernel", lambda *_, **__: (folder / RAN).mkdir())
    change_json(folder / "config.json", **{name: "kernels-community/flash-attn2"})
    config: Any = leanify.load(folder).config
    assert (config._attn_implementation, config._experts_implementation) == ("sdpa", "eager")
    assert not (folder / RAN).exists()


CODE = {"AutoConfig": "evil.Model", "AutoModel": "evil.Model", "AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"]}
WANTING = {
    "config.json": {"auto_map": CODE, "trust_remote_code": True},
    "tokenizer_config.json": {"auto_map": CODE, "tokenizer_class": "Tokenizer", "trust_remote_code": True},
    "processor_config.json": {"auto_map": CODE, "processor_class": "Model"},
    "generation_config.json": {"custom_generate": "evil", "auto_map": CODE},
}
COMMANDS = {
    "profile": ("profile", ".", "--no-measure"),
    "condition": ("condition", ".", "--samples", "2", "--data", "rows.csv"),
    "redesign": ("redesign", ".", "--depth", "1", "--weights", ".", "-o", "out"),
    "train": ("train", ".", "--dry-run", "--set", "data.path=rows.csv", "--set", "data.holdout=0.2"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("unknown", [False, True])
def test_model_code_never_runs(folder: Path, command: str, unknown: bool) -> None:
    """Code beside a model is not run, whatever is answered."""
    for name, words in WANTING.items():
        change_json(folder / name, **words)
    if unknown:  # types of model and tokenizer that upstream does not have, so that only the code beside would do
        change_json(folder / "config.json", model_type="evil", architectures=["Model"])
        (folder / "tokenizer.json").unlink()
    for name in ("modeling_evil.py", "tokenization_evil.py", "custom_generate/generate.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(folder / "evil.py", folder / name)
    words = asked(*COMMANDS[command])
    assert not (folder / RAN).exists()
    assert "Traceback" not in words
    assert "wish to run" not in words  # nobody is asked, either


def test_tokenizer_code_never_runs(folder: Path) -> None:
    """One that upstream has no class for: with nobody's word given, transformers asks on the terminal."""
    (folder / "tok").mkdir()
    change_json(folder / "tok" / "config.json", model_type="evil", auto_map=CODE)
    change_json(folder / "tok" / "tokenizer_config.json", auto_map=CODE, tokenizer_class="Tokenizer")
    shutil.copy(folder / "evil.py", folder / "tok" / "evil.py")
    data = ("--set", "data.path=rows.csv", "--set", "data.holdout=0.2", "--set", "data.tokenizer=tok")
    words = asked("train", ".", "--dry-run", *data)
    assert not (folder / RAN).exists()
    assert "the tokenizer in tok cannot be read" in words
    assert "wish to run" not in words


@pytest.mark.parametrize("key", ["checkpoint_path", "pretrained_cfg"])
def test_options_in_files_open_nothing(folder: Path, key: str) -> None:
    torch.save(Evil(), folder / "evil.pth")
    value = {"file": "evil.pth"} if key == "pretrained_cfg" else "evil.pth"
    recipe = recipes.parse(RECIPE).to_dict()
    recipe["model"]["override"][key] = value
    with pytest.raises(LeanifyError, match=key):
        training.rehearse(recipes.from_dict(recipe))
    lean = leanify.save(leanify.load("vit_tiny", overrides=recipes.parse(RECIPE).model.override), folder / "lean")
    card = json.loads((lean / "leanify.json").read_text())
    card["origin"]["options"][key] = value
    (lean / "leanify.json").write_text(json.dumps(card))
    (lean / "config.json").unlink()
    with pytest.raises(LeanifyError, match=key):
        leanify.load(lean)
    assert not (folder / RAN).exists()


RUN_EXTRAS = ("onnx", "ray", "slurm", "tensorboard")  # beside `data`, whose newest version is installed


def test_dependency_floors_are_tested_versions() -> None:
    """.ci/oldest installs what .ci/oldest.txt says; the floors that pyproject.toml declares are the same."""
    from packaging.requirements import Requirement
    from packaging.version import Version

    root = Path(__file__).parent.parent
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    floors = {}
    for line in map(Requirement, sum((extras[name] for name in RUN_EXTRAS), project["dependencies"])):
        [floor] = [each.version for each in line.specifier if each.operator == ">="]
        floors[line.name] = Version(floor)
    lines = (root / ".ci" / "oldest.txt").read_text().splitlines()
    run = {line.name: line for line in map(Requirement, (line for line in lines if not line.startswith("#")))}
    assert run.keys() == floors.keys()
    assert {name for name, floor in floors.items() if not run[name].specifier.contains(floor)} == set()


def test_adapters_are_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a folder, as a file, beside complete weights, on the hub, and with keys that nothing could read."""
    alone, beside = tmp_path / "adapter", tmp_path / "beside"
    snapshot = tmp_path / "hub" / "models--me--tuned" / "snapshots" / "0123"
    leanify.load("bert", overrides=HF["bert"]).save_pretrained(beside)
    for folder in (alone, beside, snapshot):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "target_modules": "(x+x+)+y"')
        save_file({"a": torch.zeros(2)}, folder / "adapter_model.safetensors")
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0123")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    way = r"AutoPeftModel\.from_pretrained\(\.\.\.\)\.merge_and_unload\(\)"
    for source in (alone, alone / "adapter_model.safetensors", beside, "me/tuned"):
        with pytest.raises(leanify.SourceError, match=way):
            leanify.load(source)

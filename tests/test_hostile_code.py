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
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzz_intact import HF, RECIPE
from safetensors.torch import save_file

import leanify
from leanify.cli import main
from leanify.data.texts.vocabulary import tokenizer_of
from leanify.errors import LeanifyError
from leanify.runs import recipe as recipes
from leanify.sources import adapters
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
    tokenizer_of("bytes", lambda: [], "")[0].save_pretrained(tmp_path)
    (tmp_path / "evil.py").write_text(f"import os\nos.mkdir({RAN!r})\nclass Model: pass\nclass Tokenizer: pass\n")
    (tmp_path / "rows.csv").write_text("text,label\n" + "here are cats,0\nand mice,1\n" * 20)
    yield tmp_path
    sys.modules.pop("evil", None)


def asked(*arguments: str) -> str:
    """What a command says, all of it; whatever it asks is answered with yes."""
    said = io.StringIO()
    before, sys.argv, sys.stdin = sys.stdin, ["leanify", *arguments], io.StringIO("y\n" * 9)
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            main()
    finally:
        sys.stdin = before
    return said.getvalue()


def change(file: Path, **words: Any) -> None:
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(known | words))


# -- pickles ----------------------------------------------------------------------------------------------------------


def zipped(file: Path, value: Any) -> None:
    torch.save(value, file)


def legacy(file: Path, value: Any) -> None:
    torch.save(value, file, _use_new_zipfile_serialization=False)


def raw(file: Path, value: Any) -> None:
    file.write_bytes(pickle.dumps(value))


@pytest.mark.parametrize("write", [zipped, legacy, raw])
@pytest.mark.parametrize("value", [Evil(), {"state_dict": {"a": Evil()}}, {"a": torch.ones(2), "b": Nested()}])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pth", "shard", "adapter"])
def test_no_pickle_that_names_code_is_opened(
    folder: Path, name: str, value: Any, write: Callable[[Path, Any], None]
) -> None:
    source = folder
    (folder / "model.safetensors").unlink()
    if name == "shard":
        write(folder / "a.bin", value)
        change(folder / "pytorch_model.bin.index.json", weight_map={"a": "a.bin"}, metadata={})
    elif name == "adapter":
        source = adapter(folder)
        (source / "adapter_model.safetensors").unlink()
        write(source / "adapter_model.bin", value)
    else:
        write(folder / name, value)
    with pytest.raises(LeanifyError) as found:
        leanify.load(source)
    assert "\n" not in str(found.value)
    assert not (folder / RAN).exists()


def test_what_trainers_leave_beside_weights_is_never_opened(folder: Path) -> None:
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        raw(folder / name, Evil())
    leanify.load(folder)
    assert not (folder / RAN).exists()


def test_the_state_of_a_run_is_no_pickle_that_names_code(folder: Path) -> None:
    run = training.train(recipes.parse(RECIPE), folder / "run")
    for state in run.rglob("state.pt"):
        zipped(state, {"optimizer": Evil()})
        card = state.with_name("checkpoint.json")
        change(card, sums={})  # an attacker would have put the right ones there
    words = asked("train", "--resume", str(run))
    assert not (folder / RAN).exists()
    assert "state.pt was not opened: it is a pickle that would run code" in " ".join(words.split())


# -- modules that a configuration names -----------------------------------------------------------------------------


def adapter(folder: Path, layers: Sequence[int] = (0, 1), rank: int = 2, **words: Any) -> Path:
    """An adapter of these layers of the BERT in a folder, which has two."""
    made = folder / "adapter"
    made.mkdir()
    plain = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["query"]}
    change(made / adapters.CONFIG, **{**plain, "base_model_name_or_path": str(folder), **words})
    tensors = {}
    for layer in layers:
        name = f"base_model.model.encoder.layer.{layer}.attention.self.query"
        tensors |= {f"{name}.lora_A.weight": torch.ones(rank, 8), f"{name}.lora_B.weight": torch.ones(8, rank)}
    save_file(tensors, made / "adapter_model.safetensors")
    return made


def test_an_adapter_is_merged_and_can_be_trained_on(folder: Path) -> None:
    pytest.importorskip("peft")
    base, merged = leanify.load(folder), leanify.load(adapter(folder))
    name = "encoder.layer.0.attention.self.query.weight"
    change = merged.get_parameter(name) - base.get_parameter(name)
    torch.testing.assert_close(change, torch.full((8, 8), 2 * 4 / 2.0))  # B A, twice rank ones, times alpha / r
    assert all(parameter.requires_grad for parameter in merged.parameters())


def test_an_adapter_beside_its_bases_configuration_is_an_adapter(folder: Path) -> None:
    """The configuration alone was a model without weights: fresh ones were measured in the adapter's name."""
    pytest.importorskip("peft")
    made = adapter(folder)
    plain = leanify.load(made)
    shutil.copy(folder / "config.json", made)
    for name, tensor in leanify.load(made).state_dict().items():
        torch.testing.assert_close(tensor, plain.state_dict()[name], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"megatron_config": {"a": 1}, "megatron_core": "evil"}, "sets megatron_config"),
        ({"corda_config": {"cache_file": "evil.pt"}}, "sets corda_config"),
        ({"loftq_config": {"a": 1}}, "sets loftq_config"),
        ({"init_lora_weights": "corda"}, "sets init_lora_weights to 'corda'"),
        ({"peft_type": "XLORA", "adapters": {"1": "evil"}}, "has peft_type 'XLORA'"),
        ({"base_model_name_or_path": "adapter"}, "is itself an adapter"),
        ({"base_model_name_or_path": None}, "has no base_model_name_or_path"),
        ({"base_model_name_or_path": 7}, "has no base_model_name_or_path"),
    ],
)
def test_an_adapter_imports_nothing_and_opens_nothing_that_it_names(
    folder: Path, words: dict[str, Any], message: str
) -> None:
    made = adapter(folder)
    change(made / adapters.CONFIG, **words)
    with pytest.raises(LeanifyError, match=message):
        leanify.load(made)
    assert not (folder / RAN).exists()


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation", "_experts_implementation"])
def test_a_configuration_names_no_kernel_of_the_hub(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers fetches and runs those that it is asked for, where the library kernels is installed."""
    from transformers.integrations import hub_kernels

    monkeypatch.setattr(hub_kernels, "get_kernel", lambda *_, **__: (folder / RAN).mkdir())
    change(folder / "config.json", **{name: "kernels-community/flash-attn2"})
    config: Any = leanify.load(folder).config
    assert (config._attn_implementation, config._experts_implementation) == ("sdpa", "eager")
    assert not (folder / RAN).exists()


@pytest.mark.parametrize(
    ("words", "base", "message"),
    [
        (
            {},
            {"intermediate_size": 24},
            r"6 of another shape \(encoder.layer.0.intermediate.dense.bias \(16,\) instead",
        ),
        ({"layers": (0,)}, {}, r"2 adapted tensors of the base model are not in it \(.*layer.1"),
        ({"layers": (0, 1, 2)}, {}, r"2 of its tensors belong to no layer of the base model \(.*layer.2"),
        ({"rank": 3}, {}, r"size mismatch for .*\[3, 8\]"),
        ({"target_modules": ["q_proj"]}, {}, "q_proj"),
    ],
)
def test_an_adapter_that_does_not_fit_says_what_does_not(
    folder: Path, words: dict[str, Any], base: dict[str, Any], message: str
) -> None:
    pytest.importorskip("peft")
    made = adapter(folder, **words)
    change(folder / "config.json", **base)
    with pytest.raises(LeanifyError, match=message) as found:
        leanify.load(made)
    assert "above report" not in str(found.value)


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
def test_code_beside_a_model_is_not_run_whatever_is_answered(folder: Path, command: str, unknown: bool) -> None:
    for name, words in WANTING.items():
        change(folder / name, **words)
    if (
        unknown
    ):  # a type of model and of tokenizer that upstream does not have, so that only the code beside it would do
        change(folder / "config.json", model_type="evil", architectures=["Model"])
        (folder / "tokenizer.json").unlink()
    for name in ("modeling_evil.py", "tokenization_evil.py", "custom_generate/generate.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(folder / "evil.py", folder / name)
    words = asked(*COMMANDS[command])
    assert not (folder / RAN).exists()
    assert "Traceback" not in words
    assert "wish to run" not in words  # nobody is asked, either


def test_the_code_of_a_tokenizer_is_not_run_whatever_is_answered(folder: Path) -> None:
    """One that upstream has no class for: with nobody's word given, transformers asks on the terminal."""
    (folder / "tok").mkdir()
    change(folder / "tok" / "config.json", model_type="evil", auto_map=CODE)
    change(folder / "tok" / "tokenizer_config.json", auto_map=CODE, tokenizer_class="Tokenizer")
    shutil.copy(folder / "evil.py", folder / "tok" / "evil.py")
    data = ("--set", "data.path=rows.csv", "--set", "data.holdout=0.2", "--set", "data.tokenizer=tok")
    words = asked("train", ".", "--dry-run", *data)
    assert not (folder / RAN).exists()
    assert "the tokenizer in tok cannot be read" in words
    assert "wish to run" not in words


@pytest.mark.parametrize("key", ["checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "pretrained"])
def test_a_recipe_and_a_lean_directory_open_nothing_that_their_options_name(folder: Path, key: str) -> None:
    zipped(folder / "evil.pth", Evil())
    value = {"file": "evil.pth"} if key.startswith("pretrained_cfg") else "evil.pth"
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


@pytest.mark.parametrize("kernel", ["evil/kernel", "kernels-community/flash-attn", "evil"])
def test_an_attention_of_somewhere_else_is_not_fetched(folder: Path, kernel: str) -> None:
    change(folder / "config.json", attn_implementation=kernel, _attn_implementation=kernel)
    with contextlib.suppress(LeanifyError):
        leanify.load(folder)
    assert not (folder / RAN).exists()


def test_the_floors_of_the_dependencies_are_the_versions_that_are_run() -> None:
    """.ci/oldest installs what .ci/oldest.txt says; the floors that pyproject.toml declares are the same."""
    from packaging.requirements import Requirement
    from packaging.version import Version

    root = Path(__file__).parent.parent
    declared = tomllib.loads((root / "pyproject.toml").read_text())["project"]["dependencies"]
    floors = {}
    for line in map(Requirement, declared):
        [floor] = [each.version for each in line.specifier if each.operator == ">="]
        floors[line.name] = Version(floor)
    lines = (root / ".ci" / "oldest.txt").read_text().splitlines()
    run = {line.name: line for line in map(Requirement, (line for line in lines if not line.startswith("#")))}
    assert run.keys() == floors.keys()
    assert {name for name, floor in floors.items() if not run[name].specifier.contains(floor)} == set()

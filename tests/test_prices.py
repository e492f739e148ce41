"""Prices that are remembered: the same plans without torch, and nothing that is not leanify's own is believed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import leanify
from leanify.cli import recipe_list
from leanify.design import redesign as planning
from leanify.design.measure import profiling
from leanify.design.options import Options
from leanify.design.prices import counting
from leanify.design.prices.cache import key_of
from leanify.design.redesign import costs_of
from leanify.runs import recipe

TEXT = {"hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 256}
GPT2 = {"n_embd": 64, "n_layer": 6, "n_head": 4, "vocab_size": 100, "n_positions": 128}
FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "vit": ("vit_tiny", {"depth": 6, "img_size": 32}, {"target_params": 0.6}),
    "stages": ("swin_tiny", {"num_classes": 10}, {"target_params": 0.8, "max_macs": 0.9}),
    "bert": ("bert", {**TEXT, "vocab_size": 100}, {"target_params": 0.7, "count": "body"}),
    "decoder": ("gpt2", GPT2, {"target_params": 0.8, "max_kv": 1.0, "context": 64}),
    "grouped": ("llama", {**TEXT, "vocab_size": 100, "num_key_value_heads": 2}, {"target_params": 0.8}),
    "mixture": ("mixtral", {**TEXT, "vocab_size": 100, "num_key_value_heads": 2}, {"max_active": 0.8}),
    "towers": (
        "t5",
        {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 5, "num_heads": 4, "vocab_size": 100},
        {"target_params": "encoder=0.8,decoder=0.9"},
    ),
    "pins": ("vit_tiny", {"depth": 6}, {"depth": 4, "heads": 5}),
}
LONG = {"grouped", "pins"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache of its own, in use."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("LEANIFY_PRICES")
    return tmp_path / "leanify" / "prices"


@pytest.fixture
def without_models(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on no model is found or built."""

    def forbid() -> None:
        def refuse(source: str, options: Options) -> None:
            raise AssertionError(f"{source} was built")

        monkeypatch.setattr(planning, "live_model", refuse)

    return forbid


def planned(family: str) -> dict[str, Any]:
    source, overrides, asked = FAMILIES[family]
    plan = leanify.redesign(source, overrides=overrides, **asked).to_json()
    plan.pop("seconds")
    return plan


@pytest.mark.parametrize("family", [pytest.param(f, marks=pytest.mark.long) if f in LONG else f for f in FAMILIES])
def test_a_remembered_plan_is_the_counted_one(
    family: str, home: Path, monkeypatch: pytest.MonkeyPatch, without_models: Callable[[], None]
) -> None:
    monkeypatch.setenv("LEANIFY_PRICES", "off")
    counted = planned(family)
    assert not home.exists()
    monkeypatch.delenv("LEANIFY_PRICES")
    assert planned(family) == counted
    without_models()
    assert planned(family) == counted


def test_another_question_counts_what_is_missing_and_keeps_it(home: Path, without_models: Callable[[], None]) -> None:
    source, overrides, _ = FAMILIES["decoder"]
    leanify.redesign(source, overrides=overrides, target_params=0.8)
    split = leanify.redesign(source, overrides=overrides, depth=4, heads=8, heads_mode="split").chosen
    without_models()
    assert leanify.redesign(source, overrides=overrides, depth=4, heads=8, heads_mode="split").chosen == split
    assert len(list(home.iterdir())) == 1


def test_a_file_that_is_not_ours_is_ignored(home: Path) -> None:
    counted = planned("vit")
    (file,) = home.iterdir()
    source, overrides, _ = FAMILIES["vit"]
    options, text = Options(overrides=overrides), file.read_text()
    number, key = json.loads(text), json.loads(text)
    number["answers"]["facts"]["params"] += 1
    key["key"] += " "
    damaged = [text[: len(text) // 2], "", "\0\xff", "[1]", '{"key": 1}', json.dumps(number), json.dumps(key)]
    for words in damaged:
        file.write_text(words)
        assert not costs_of(source, options).is_known, words[:40]
    assert planned("vit") == counted
    assert file.read_text() == text  # mended
    assert costs_of(source, options).is_known
    file.unlink()
    file.mkdir()
    assert not costs_of(source, options).is_known


def test_a_cache_that_cannot_be_written_is_none(home: Path) -> None:
    home.parent.mkdir(parents=True)
    home.write_text("a file where the folder should be")
    assert planned("vit")["chosen"]


def test_a_remembered_redesign_imports_no_torch(home: Path) -> None:
    source, overrides, _ = FAMILIES["vit"]
    arguments = ["redesign", source, "--target-params", "0.6"]
    for key, value in overrides.items():
        arguments += ["--override", f"{key}={value}"]
    script = (
        "import sys; from leanify.cli import main; sys.argv[0] = 'leanify'\n"
        "try: main()\n"
        "finally: print(sorted({'torch', 'timm', 'transformers'} & set(sys.modules)), file=sys.stderr)"
    )
    runs = [
        subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    tables = [run.stdout.partition("\n\n")[2] for run in runs]  # behind the line with the seconds
    assert tables[0] == tables[1]
    assert "lean" in tables[0]
    assert runs[0].stderr.splitlines()[-1] == "['timm', 'torch']"
    assert runs[1].stderr.splitlines()[-1] == "[]"


def test_the_list_says_what_the_recipes_say(capsys: pytest.CaptureFixture[str]) -> None:
    recipe_list.show("json")
    listed = {row["recipe"]: (row["source"], row["data"]) for row in json.loads(capsys.readouterr().out)["recipes"]}
    values = {name: recipe.load(path) for name, path in recipe.built_in().items()}
    assert listed == {name: (one.model.source, one.data and one.data.name) for name, one in values.items()}


@pytest.mark.parametrize(
    "arguments", ["recipes", "recipes digits", "recipes --keys", "train --list", "zoo --json", "redesign --help"]
)
def test_lists_and_help_import_no_torch(arguments: str) -> None:
    script = (
        "import sys; from leanify.cli import main; sys.argv[0] = 'leanify'\n"
        "try: main()\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)"
    )
    command = [sys.executable, "-c", script, *arguments.split()]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout
    assert run.stderr.splitlines()[-1] == "False"


def test_a_key_says_all_that_a_price_depends_on(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "bert", **TEXT}))
    asked = [
        ("vit_tiny", Options()),
        ("vit_tiny", Options(overrides={"depth": 6})),
        ("vit_tiny", Options(overrides={"depth": 7})),
        ("bert", Options()),
        ("bert", Options(cls="BertForMaskedLM")),
        ("bert", Options(tokens=64)),
        ("bert", Options(context=64)),
        (recipe.load("digits"), Options()),
        ("digits", Options()),
        (str(tmp_path), Options()),
    ]
    keys = [key_of(source, options) for source, options in asked]
    assert None not in keys
    assert len({*keys}) == len(keys)
    config.write_text(json.dumps({"model_type": "bert", **TEXT, "hidden_size": 128}))
    assert key_of(str(tmp_path), Options()) != keys[-1]
    for elsewhere in ("org/model", str(tmp_path / "nothing"), "./nothing"):
        assert key_of(elsewhere, Options()) is None


def test_what_is_warned_of_is_not_remembered(home: Path, tmp_path: Path) -> None:
    """The second plan would say it no more."""
    config = {"model_type": "bert", **TEXT, "vocab_size": 100, "quantization_config": {"quant_method": "gptq"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for _ in range(2):
        with pytest.warns(UserWarning, match="is quantised"):
            leanify.redesign(tmp_path, target_params=0.7)
    assert not home.exists()


def test_a_remembered_plan_is_built_as_a_counted_one(home: Path) -> None:
    source, overrides, asked = FAMILIES["vit"]
    first, second = (leanify.redesign(source, overrides=overrides, **asked) for _ in range(2))
    one, other = first.build().state_dict(), second.build().state_dict()
    assert one.keys() == other.keys()
    assert all((one[name] == other[name]).all() for name in one)


# -- counts -------------------------------------------------------------------------------------------------------


def test_multiply_adds_are_those_of_torch_s_counter() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = leanify.load("hf/t5", overrides={"num_layers": 2, "vocab_size": 50}, device="meta")
    inputs = counting.unmasked_inputs(model, 16)
    with counting.plain(model), counting.Countable(), FlopCounterMode(display=False) as counter:
        counting.call(model, inputs)
    found = counter.get_flop_counts()
    names = {name.partition(".")[2] if name != "Global" else "": sum(by.values()) // 2 for name, by in found.items()}
    assert counting.macs_by_module(model, inputs) == names


def test_shared_weights_stay_shared_where_a_model_is_brought_into_memory() -> None:
    small = {"d_model": 16, "d_ff": 32, "num_layers": 1, "num_heads": 2, "d_kv": 8, "vocab_size": 50}
    model = leanify.load("hf/t5", overrides=small, device="meta")
    real = profiling.fresh(model, torch.device("cpu"))
    assert counting.parameters(real) == counting.parameters(model)
    assert len(list(real.named_parameters(remove_duplicate=False))) > len(list(real.parameters()))

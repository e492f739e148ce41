"""Prices that are remembered: the same plans without torch, and nothing that is not leanify's own is believed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leanify
from leanify.core import recipe
from leanify.profiling import counting, measuring
from leanify.profiling.cost_model import price_file
from leanify.profiling.forward import Countable, call, disable_gradients, unmasked_inputs
from leanify.search import redesign as planning
from leanify.search.options import Options
from leanify.search.redesign import model_costs

TEXT = {"hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 256}
GPT2 = {"n_embd": 64, "n_layer": 6, "n_head": 4, "vocab_size": 100, "n_positions": 128}
FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "vit": ("vit_tiny", {"depth": 9, "img_size": 32}, {"target_params": 0.6}),
    "stages": ("swin_tiny", {"num_classes": 10}, {"target_params": 0.8, "max_macs": 0.9}),
    "bert": ("bert", {**TEXT, "vocab_size": 100}, {"target_params": 0.7, "count": "body"}),
    "decoder": ("gpt2", GPT2, {"target_params": 0.8, "max_kv": 1.0, "context": 64}),
    "grouped": ("llama", {**TEXT, "vocab_size": 100, "num_key_value_heads": 2}, {"target_params": 0.8}),
    "mixture": ("mixtral", {**TEXT, "vocab_size": 100, "num_key_value_heads": 2}, {"max_macs": 0.8}),
    "towers": (
        "t5",
        {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 5, "num_heads": 4, "vocab_size": 100},
        {"target_params": "encoder=0.85,decoder=0.9"},
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


def forbid_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on no model is found or built."""
    monkeypatch.setattr(planning, "live_model", lambda source, options: pytest.fail(f"{source} was built"))


def planned(family: str) -> dict[str, Any]:
    source, overrides, asked = FAMILIES[family]
    plan = leanify.redesign(source, overrides=overrides, **asked).to_json()
    plan.pop("seconds")
    return plan


@pytest.mark.parametrize("family", [pytest.param(f, marks=pytest.mark.long) if f in LONG else f for f in FAMILIES])
def test_cached_plan_equals_counted(family: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEANIFY_PRICES", "off")
    counted = planned(family)
    assert not home.exists()
    monkeypatch.delenv("LEANIFY_PRICES")
    assert planned(family) == counted
    forbid_models(monkeypatch)
    assert planned(family) == counted


def test_new_question_reuses_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another question counts what is missing and keeps it."""
    source, overrides, _ = FAMILIES["decoder"]
    leanify.redesign(source, overrides=overrides, target_params=0.8)
    split = leanify.redesign(source, overrides=overrides, depth=4, heads=8, heads_mode="split").chosen
    forbid_models(monkeypatch)
    assert leanify.redesign(source, overrides=overrides, depth=4, heads=8, heads_mode="split").chosen == split
    assert len(list(home.iterdir())) == 1


def test_foreign_file_is_ignored(home: Path) -> None:
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
        assert not model_costs(source, options).is_known, words[:40]
    assert planned("vit") == counted
    assert file.read_text() == text  # mended
    assert model_costs(source, options).is_known
    file.unlink()
    file.mkdir()
    assert not model_costs(source, options).is_known


def test_unwritable_cache_is_skipped(home: Path) -> None:
    home.parent.mkdir(parents=True)
    home.write_text("a file where the folder should be")
    assert planned("vit")["chosen"]


def test_cached_redesign_imports_no_torch(home: Path) -> None:
    source, overrides, _ = FAMILIES["vit"]
    shape = [word for key, value in overrides.items() for word in ("--override", f"{key}={value}")]
    arguments = ["redesign", source, "--target-params", "0.6", *shape]
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


def test_key_covers_price_inputs(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key holds all that prices depend on."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "bert", **TEXT}))

    def key_of(source: Any, options: Options = Options()) -> str | None:  # noqa: B008
        file = price_file(source, options.overrides, options.tokens, options.context)
        return file and file[1]

    asked: list[tuple[Any, Options]] = [
        ("vit_tiny", Options()),
        ("vit_tiny", Options(overrides={"depth": 6})),
        ("vit_tiny", Options(overrides={"depth": 7})),
        ("bert", Options()),
        ("bert", Options(overrides={"class": "BertForMaskedLM"})),
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
    keys.append(key_of(str(tmp_path)))
    (tmp_path / "model.safetensors").write_bytes(b"weights, which decide on the head")
    keys.append(key_of(str(tmp_path)))
    monkeypatch.setattr("leanify.profiling.cost_model.metadata.version", lambda library: f"9.9 of {library}")
    keys.append(key_of("vit_tiny"))
    assert len({*keys}) == len(keys)
    for elsewhere in ("org/model", str(tmp_path / "nothing"), "./nothing", "model.py:make"):
        assert key_of(elsewhere) is None


def test_warnings_are_not_cached(home: Path, tmp_path: Path) -> None:
    """The second plan would say it no more."""
    config = {"model_type": "bert", **TEXT, "vocab_size": 100, "quantization_config": {"quant_method": "gptq"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for _ in range(2):
        with pytest.warns(UserWarning, match="is quantised"):
            leanify.redesign(tmp_path, depth=4)
    assert not home.exists()


def test_cached_plan_builds_equal_model(home: Path) -> None:
    source, overrides, asked = FAMILIES["vit"]
    first, second = (leanify.redesign(source, overrides=overrides, **asked) for _ in range(2))
    one, other = first.build().state_dict(), second.build().state_dict()
    assert one.keys() == other.keys()
    assert all((one[name] == other[name]).all() for name in one)


# -- counts -------------------------------------------------------------------------------------------------------


def test_macs_match_torchs_counter() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = leanify.load("hf/t5", overrides={"num_layers": 2, "vocab_size": 50}, device="meta")
    inputs = unmasked_inputs(model, 16)
    with disable_gradients(model), Countable(), FlopCounterMode(display=False) as counter:
        call(model, inputs)
    found = counter.get_flop_counts()
    names = {name.partition(".")[2] if name != "Global" else "": sum(by.values()) // 2 for name, by in found.items()}
    assert counting.module_macs_by_path(model, inputs) == names


def test_module_that_calls_itself_counts_once() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map = nn.Linear(4, 4, device="meta")

        def forward(self, x: Tensor, again: bool = True) -> Tensor:
            y: Tensor = self.map(x)
            return self(y, again=False) if again else y

    model = nn.Sequential(Twice())
    found = counting.module_macs_by_path(model, {"x": torch.zeros(2, 4, device="meta")})
    assert found == {"": 64, "0": 64, "0.map": 64}


def test_shared_weights_stay_shared() -> None:
    """Where a model is brought into memory."""
    small = {"d_model": 16, "d_ff": 32, "num_layers": 1, "num_heads": 2, "d_kv": 8, "vocab_size": 50}
    model = leanify.load("hf/t5", overrides=small, device="meta")
    real = measuring.materialise(model, torch.device("cpu"))
    assert counting.parameters(real) == counting.parameters(model)
    assert len(list(real.named_parameters(remove_duplicate=False))) > len(list(real.parameters()))

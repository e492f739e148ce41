"""Recipes are strict values; the paper's rows come out at the counts that their shapes have."""

from __future__ import annotations

import json
import math
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import leanify
from leanify.cli import app
from leanify.cli.recipes import audit_rows
from leanify.core import recipe, recipe_code, strict_toml
from leanify.core.errors import RecipeError
from leanify.core.recipe import ModelSection, PaperSection, ScheduleSection, apply_settings
from leanify.sources import find

SYSTEMS = (
    "vit-base", "deit-base", "vit-large", "deit-large", "xcit-medium", "xcit-large", "tnt-base", "volo-d3", "volo-d4",
    "davit-base", "davit-large", "crammed-bert", "gpt2-tinystories", "lra-listops", "lra-text", "lra-retrieval",
    "lra-image", "lra-pathfinder",
)  # fmt: skip
FIGURE_3 = ["vit-base-8x14", "vit-base-8x16", "vit-base-8x18"]
ROWS = [*FIGURE_3, *(f"{system}{role}" for system in SYSTEMS for role in ("", "-lean", "-control"))]
NAMES = [f"leaner-transformers/{name}" for name in ROWS]
MISPRINTED = (  # rows that are printed with another shape, or another number of parameters
    *FIGURE_3, "vit-large", "deit-large", "tnt-base-lean", "volo-d3", "volo-d4", "volo-d4-lean", "davit-base-lean",
    *(f"lra-{task}{role}" for task in ("text", "retrieval", "image", "pathfinder") for role in ("", "-lean")),
)  # fmt: skip


def command(*arguments: str) -> str:
    result = CliRunner().invoke(app("recipes"), list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


# -- the audit ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def audited() -> dict[str, dict[str, Any]]:
    """Every row by the last part of its name, as the command gives it."""
    rows = json.loads(command("--audit", "--json"))["rows"]
    return {row["recipe"].rpartition("/")[2]: row for row in rows}


def test_paper_rows_are_rebuilt(audited: dict[str, dict[str, Any]]) -> None:
    """Each has as many parameters as its recipe says, and its verdict says where the print is another."""
    assert sorted(audited) == sorted(ROWS)
    for name, row in audited.items():
        if row["role"] != "control":
            assert row["rebuilt"] == row["params"], name
            assert (row["verdict"] == "match") == (name not in MISPRINTED), name
        if row["printed"] is not None:
            assert row["error"] == pytest.approx(row["printed"] / row["params"] - 1, abs=1e-5), name


def test_controls_match_lean_and_baseline(audited: dict[str, dict[str, Any]]) -> None:
    """Controls have lean's depth and parameters, and the baseline's heads."""
    for system in SYSTEMS:
        control, lean, base = (recipe.load(f"{system}{role}").model for role in ("-control", "-lean", ""))
        assert control.depth == lean.depth
        assert (control.heads, control.head_dim) == (None, None) == (base.heads, base.head_dim)
        row, other = audited[f"{system}-control"], audited[f"{system}-lean"]
        assert (row["printed"], row["error"]) == (None, None)
        assert row["params"] == pytest.approx(other["params"], rel=5e-4)


def test_audit_names_unbuildable_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    params = sum(parameter.numel() for parameter in leanify.load("lra-image-lean").parameters())
    for rebuilt, verdict in ((params, "match"), (1000, f"not rebuilt: the model has {params:,} parameters")):
        paper = PaperSection("Table 4", "lean", "match", printed_params=params // 2, rebuilt_params=rebuilt)
        monkeypatch.setattr("leanify.cli.recipes._paper_sections", lambda paper=paper: [("lra-image-lean", paper)])
        (row,) = audit_rows()
        assert row["verdict"].startswith(verdict)
        assert row["error"] == pytest.approx(-0.5, abs=1e-4)


# -- what the recipes hold ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(recipe.built_in_recipes()))
def test_recipe_round_trips(name: str) -> None:
    """It says how to launch the training, too."""
    path = recipe.built_in_recipes()[name]
    value = recipe.load(name)
    assert recipe.parse(value.to_toml()) == value
    assert json.loads(json.dumps(value.to_dict())) == value.to_dict()
    comments = [line for line in path.read_text().split("\n\n")[0].splitlines() if line.startswith("# ")]
    command = re.compile(rf"leanify train {path.stem} (--set [\w.]+=\w+ )*-o runs/{path.stem}$")
    assert any(command.search(line) for line in comments[:4])
    assert None not in (value.data, value.optim, value.schedule)


@pytest.mark.parametrize("name", ["own-text", "own-sentences", "chars", "enwik8"])
def test_folder_named_like_a_kind_is_not_taken(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    """A built-in recipe means transformers' kind of model, whatever lies in the folder that one stands in."""
    monkeypatch.chdir(tmp_path)
    for kind in ("bert", "gpt2"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "config.json").write_text('{"model_type": "llama"}')
    section = recipe.load(name).model
    assert section.source == f"hf/{find.section_source(section).origin.name}"


@pytest.mark.parametrize("name", [name for name in NAMES if not any(w in name for w in ("bert", "gpt2", "lra"))])
def test_vision_follows_table_6(name: str) -> None:
    value = recipe.load(name)
    assert (value.data.mixup, value.data.cutmix, value.data.rand_augment) == (0.8, 1.0, "rand-m9-mstd0.5")
    assert (value.optim.lr, value.optim.weight_decay, value.optim.label_smoothing) == (3e-3, 0.3, 0.1)
    large = any(word in name for word in ("large", "d4"))
    assert value.schedule == ScheduleSection(512 if large else 1024, epochs=300, warmup=20, warmup_lr=1e-5)
    assert value.model.override["drop_path_rate"] == 0.1


@pytest.mark.parametrize(
    ("task", "length", "batch", "steps", "warmup"),
    [
        ("listops", 2048, 32, 5_000, 1_000),
        ("text", 4096, 32, 20_000, 8_000),
        ("retrieval", 4096, 32, 30_000, 800),
        ("image", 1024, 256, 35_000, 175),
        ("pathfinder", 1024, 256, 62_400, 312),
    ],
)
def test_lra_follows_its_table(task: str, length: int, batch: int, steps: int, warmup: int) -> None:
    value = recipe.load(f"lra-{task}-lean")
    assert value.schedule == ScheduleSection(batch, steps=steps, warmup=warmup, kind="one-cycle")
    assert value.data.length == value.model.override["length"] == length


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("volo-d3-lean", ["4 × [16×16, mlp 768", "4 × [32×16, mlp 1536", "8 × [32×16", "2 × [32×16", "2 × [16×32"]),
        ("xcit-large-lean", ["12 × [24×32, mlp 3072", "2 × [16×48, mlp 3072"]),
        ("tnt-base-lean", ["8 × [4×10, mlp 160, width 40, 16×40, mlp 1280, width 640]"]),
        ("davit-base-lean", ["1 × [4×32", "1 × [8×32", "5 × [32×16, mlp 2048", "1 × [32×32, mlp 4096"]),
        ("volo-d4-lean", ["4 × [24×16, mlp 1152", "4 × [32×24, mlp 2304", "8 × [32×24", "2 × [32×24", "2 × [16×48"]),
        ("davit-large-lean", ["1 × [6×32", "1 × [12×32", "5 × [48×16, mlp 3072", "1 × [48×32, mlp 6144"]),
        ("crammed-bert-lean", ["10 × [24×32, mlp 1536, width 768]"]),
        ("gpt2-tinystories-lean", ["4 × [16×32, mlp 2048, width 512]"]),
    ],
)
def test_lean_splits_keep_count(name: str, words: list[str]) -> None:
    """Lean shapes where a split leaves the count as it is."""
    text = str(leanify.read(leanify.load(name, device="meta")))
    for word in words:
        assert word in text, text


# -- a recipe is a SOURCE -----------------------------------------------------------------------------------------


def test_recipe_is_a_source(tmp_path: Any) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        '[model]\nsource = "nystromformer.py:Nystromformer"\ndepth = 1\nheads = 3\n[model.override]\nlength = 64\n'
    )
    model = leanify.load(file)
    assert model(torch.zeros(2, 64, dtype=torch.long)).shape == (2, 10)
    assert "1 × [3×32, mlp 128, width 64]" in str(leanify.read(model))
    short, full = (leanify.load(name, device="meta") for name in ("vit-base-lean", "leaner-transformers/vit-base-lean"))
    assert leanify.read(short) == leanify.read(full)
    ten = leanify.load("vit-base-lean", overrides={"num_classes": 10}, device="meta")
    assert ten.num_classes == 10
    assert leanify.read(ten) == leanify.read(short)


def test_recipe_shape_saves_and_loads(tmp_path: Any) -> None:
    lean = leanify.load("lra-image-lean")
    again = leanify.load(leanify.save(lean, tmp_path / "lean"))
    ids = torch.randint(512, (2, 1024))
    with torch.no_grad():
        assert torch.equal(lean(ids), again(ids))


def test_non_recipes_are_refused(tmp_path: Any) -> None:
    circle = tmp_path / "circle.toml"
    circle.write_text(f'[model]\nsource = "{circle}"\n')
    with pytest.raises(leanify.SourceError, match="is another recipe"):
        leanify.load(circle)
    with pytest.raises(leanify.SourceError, match=r"nothere\.toml"):
        leanify.load("nothere.toml")
    with pytest.raises(leanify.SourceError, match="pretrained"):
        leanify.load("vit-base-lean", pretrained=True)
    with pytest.raises(leanify.SourceError, match=r"nearest: .*vit-base-lean"):
        leanify.load("vit-base-leen")
    with pytest.raises(leanify.LeanifyError, match="nearest: volo-d3-lean"):
        recipe.load("volo-d3-leen")


@pytest.mark.parametrize(("depth", "count"), [((4, 4, 8, 2), [4, 4, 8, 2, 2]), ((4, 4, 8, 2, 1), [4, 4, 8, 2, 1])])
def test_list_names_all_or_turned_stages(depth: tuple[int, ...], count: list[int]) -> None:
    """A list names every stage, or those that a redesign turns."""
    old = leanify.read(leanify.load("volo_d3_224", device="meta"))
    assert [stage.depth for stage in ModelSection("volo_d3_224", depth=depth).shape(old).stages] == count
    with pytest.raises(leanify.ShapeError, match="depth was given 3 values"):
        ModelSection("volo_d3_224", depth=(1, 2, 3)).shape(old)
    with pytest.raises(leanify.ShapeError, match=r"256 .* 7 heads"):
        ModelSection("volo_d3_224", heads=7, heads_mode="split").shape(old)


# -- strictness ---------------------------------------------------------------------------------------------------

SOURCE = '[model]\nsource = "vit_base"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[modl]\n", "a recipe has no key 'modl'; nearest: model; known: model, data,"),
        (SOURCE + "head = 3\n", r"\[model\] has no key 'head'; nearest: heads"),
        (SOURCE + "cls = 'x'\n", r"\[model\] has no key 'cls'; nearest: class"),
        (SOURCE + "[optim]\nlr = 1\nweight_decy = 0.1\n", "nearest: weight_decay"),
        (SOURCE + "depth = 'deep'\n", 'model.depth is "deep"; it must be an integer or a list of numbers'),
        (SOURCE + "depth = true\n", "model.depth is true"),
        (SOURCE + "depth = [1, 2.5]\n", r"model.depth is \[1, 2.5\]; it must be an integer or a list of numbers"),
        (SOURCE + "depth = 1979-05-27\n", 'model.depth is "1979-05-27"; it must be an integer'),
        (SOURCE + "override = [1]\n", r"model.override is \[1\]; it must be a table"),
        (SOURCE + "heads_mode = 'widen'\n", 'model.heads_mode is "widen"; it must be one of grow, split'),
        (SOURCE + "[optim]\nlr = 'high'\n", 'optim.lr is "high"; it must be a number'),
        (SOURCE + "[optim]\n", r"\[optim\] lacks lr"),
        (SOURCE + "[schedule]\nbatch_size = 2\n", "one of epochs, steps and tokens; it has none of them"),
        (SOURCE + "[schedule]\nbatch_size = 2\nsteps = 1\nepochs = 1\n", "it has epochs and steps"),
        ("model = 3\n", r"\[model\] must be a table of keys, not 3"),
        ("", "a recipe lacks model"),
        ("[model\n", "this is not TOML"),
    ],
)
def test_unknown_names_are_errors(text: str, message: str) -> None:
    with pytest.raises(leanify.LeanifyError, match=message):
        recipe.parse(text)


def test_keys_take_or_refuse_values() -> None:
    """A value of any kind is taken or refused by every key."""
    kinds: list[Any] = [math.nan, math.inf, 10**400, -1, True, "x", "nan", [], [math.nan], [[]], {}, {"a": math.nan}]
    digits = recipe.load("digits").to_dict()
    refused = []
    for key in [*recipe.all_keys(), *recipe.SECTIONS]:
        section, _, name = key.partition(".")
        for value in kinds:
            try:
                recipe.from_dict(digits | {section: digits.get(section, {}) | {name: value} if name else value})
            except RecipeError as error:
                refused.append((key, str(error)))
    assert len(refused) > 5 * len(recipe.all_keys())
    assert all(message.startswith((key, f"[{key.partition('.')[0]}]")) for key, message in refused)


def test_errors_name_the_file(tmp_path: Any) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[model]\n")
    with pytest.raises(leanify.LeanifyError, match=r"mine\.toml: \[model\] .*source"):
        recipe.load(file)


def test_settings_change_a_recipe() -> None:
    old = recipe.load("vit-base-lean")
    new = apply_settings(old, ["optim.lr=1e-3", "model.depth=[4]", "model.override.img_size=32", "data.path=~/images"])
    assert old.optim is not None
    assert new.optim == replace(old.optim, lr=1e-3)
    assert new.model.depth == (4,)
    assert new.model.override == {"drop_path_rate": 0.1, "img_size": 32}
    assert new.data.path == "~/images"
    shorter = apply_settings(old, ["schedule.steps=100", "schedule.epochs="])
    assert (shorter.schedule.steps, shorter.schedule.epochs) == (100, None)
    with pytest.raises(leanify.LeanifyError, match=r"section\.key=value.*'lr'"):
        apply_settings(old, ["lr"])
    with pytest.raises(leanify.LeanifyError, match=r"\[optim\] .*'lrr'.* lr"):
        apply_settings(old, ["optim.lrr=1"])
    with pytest.raises(leanify.LeanifyError, match="depth"):
        apply_settings(old, ["model.depth.x=1"])
    assert old == recipe.load("vit-base-lean")


# -- the command --------------------------------------------------------------------------------------------------


def test_listing_shows_every_recipe() -> None:
    lines = command().splitlines()
    for name in NAMES:
        assert any(line.split()[:1] == [name.rpartition("/")[2]] for line in lines), name
    entries = json.loads(command("--json"))["recipes"]
    assert [entry["recipe"] for entry in entries] == list(recipe.built_in_recipes())
    for entry in entries:
        value = recipe.load(entry["recipe"])
        assert (entry["source"], entry["data"]) == (value.model.source, value.data and value.data.name)
        assert entry["minutes"] is None or "imagenet" not in entry["data"]


def test_audit_prints_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    paper = recipe.load("volo-d4").paper
    row = {"printed": 193_000_000, "verdict": paper.verdict}
    found = [
        {"recipe": "leaner-transformers/volo-d4", "params": 192_962_000, "error": 193 / 192.962 - 1, **row},
        {"recipe": "x/small", "params": 1234, "error": 0.0, **row},
    ]
    monkeypatch.setattr("leanify.cli.recipes.audit_rows", lambda: iter(found))
    text = command("--audit")
    assert max(map(len, text.splitlines())) <= 100
    assert "193.000 M" in text
    assert "192.962 M" in text
    assert "+0.02%" in text
    assert "1.234 k" in text


def test_recipe_prints_as_stored() -> None:
    text = command("digits")
    assert text == recipe.built_in_recipes()["digits"].read_text(encoding="utf-8")
    assert recipe.from_dict(json.loads(command("digits", "--json"))) == recipe.load("digits")


@pytest.mark.parametrize("section", recipe.SECTIONS)
def test_keys_have_documented_types(section: str) -> None:
    """And defaults."""
    keys = strict_toml.describe_keys(recipe.SECTIONS[section])
    assert keys
    for key in keys:
        assert key.about
        assert key.type
        if key.default is not None:
            assert tomllib.loads(f"value = {key.default}")


def test_keys_are_listed_with_help() -> None:
    listed = {row["key"]: row for row in json.loads(command("--keys", "--json"))["keys"]}
    assert listed["schedule.batch_size"]["default"] is None
    assert listed["schedule.batch_size"]["required"]
    assert listed["optim.betas"]["default"] == "[0.9, 0.999]"


def test_short_schedule_keeps_proportions() -> None:
    """A shorter schedule keeps the shares of what does not fit."""
    digits = recipe.load("digits")  # 40 epochs, 3 of them warm-up
    assert apply_settings(digits, ["schedule.epochs=1"]).schedule.warmup == 3 / 40
    assert apply_settings(digits, ["schedule.epochs=10"]).schedule.warmup == 3
    assert apply_settings(digits, ["schedule.epochs=1", "schedule.warmup=0.5"]).schedule.warmup == 0.5


def test_recipe_sizes_match_models() -> None:
    """All of them are written by recipes.research.recipe_costs."""
    costs = json.loads((recipe_code.home() / "costs.json").read_text(encoding="utf-8"))
    assert list(costs) == list(recipe.built_in_recipes())
    for name in ("digits", "leaner-transformers/vit-base-lean"):
        model = find.build_on_meta(find.find(name))
        assert costs[name]["params"] == sum(parameter.numel() for parameter in model.parameters())

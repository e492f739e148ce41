"""Names that are nothing are told before a library is imported; hub ids keep their revision."""

from __future__ import annotations

from typing import Any

import pytest

import leanify
from leanify.cli.usage import apply_revision
from leanify.core.errors import LeanifyError
from leanify.sources import find, names
from leanify.upstream.libraries import import_timm, import_transformers


def test_names_are_the_libraries_own() -> None:
    """Read from their files: timm's register as it is, and the types of transformers but a few that it adds in code."""
    timm, types = import_timm(), set(import_transformers().CONFIG_MAPPING)
    assert names._registered() == set(timm.list_models()) - {"leanify"}
    assert len(types - set(names.model_types())) < 10


def test_known_names_pass() -> None:
    known = ["vit_base", "deit_small", "bert", "clip_text_model", "digits", "vit_tiny_patch16_224"]
    assert names.check_names(known) == known


def test_revision_stays_with_its_id() -> None:
    for line, expected in {
        "redesign org/name --revision v1 -o out/new": "redesign org/name@v1 -o out/new",
        "profile --revision=main a/b c/d vit_base": "profile a/b@main c/d@main vit_base",
        "redesign vit_base --weights a/b --revision 0a1b": "redesign vit_base --weights a/b@0a1b",
    }.items():
        assert apply_revision(line.split()) == expected.split()


def test_revision_without_an_id_is_refused() -> None:
    for line in ("redesign vit_base --revision v1", "redesign timm/vit_base --revision v1"):
        with pytest.raises(LeanifyError, match="none was named; org/name@v1 is one"):
            apply_revision(line.split())
    with pytest.raises(LeanifyError, match="takes a branch, a tag or a commit"):
        apply_revision(["redesign", "a/b", "--revision"])


def test_revision_reaches_the_hub_and_the_record(monkeypatch: Any) -> None:
    asked = []

    def get(name: str, **options: object) -> tuple[dict[str, object], dict[str, object]]:
        asked.append((name, options["revision"]))
        return {"model_type": "bert", "num_hidden_layers": 2}, {}

    monkeypatch.setattr(import_transformers().PreTrainedConfig, "get_config_dict", get)
    monkeypatch.setattr(names, "download_file", lambda name, file: asked.append((name, file)))
    source = find.find("org/name@v1.2")
    assert asked[1] == ("org/name", "v1.2")
    assert (source.weights, source.origin.options["_name_or_path"]) == ("org/name@v1.2", "org/name@v1.2")
    assert leanify.read(find.build_on_meta(source)).stages[0].depth == 2

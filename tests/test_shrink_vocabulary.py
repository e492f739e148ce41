"""The vocabulary as a part of shrink's budget, judged against the original on its own tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import vocabularies

import leanify
from leanify.core.errors import LeanifyError
from leanify.core.files.reading import read_json
from leanify.shrinking import shrink as shrinking
from leanify.shrinking.resolve import resolve
from leanify.shrinking.tokens import price_blocks


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny sentence encoder."""
    folder = tmp_path_factory.mktemp("encoder")
    vocabularies.checkpoint(folder, "bert", "BertModel", vocabularies.tokenizer("WordPiece"))
    return folder


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("sentences") / "texts.txt"
    file.write_text("\n".join(vocabularies.texts(400)), "utf-8")
    return file


def parameters(folder: Path) -> int:
    return sum(parameter.numel() for parameter in leanify.load(folder).parameters())


def test_vocabulary_alone(encoder: Path, sentences: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A number of tokens without a budget, in a folder that transformers opens; the report says what it costs."""
    from transformers import AutoModel, AutoTokenizer

    out = tmp_path / "out"
    shrunk = leanify.shrink(encoder, sentences, vocabulary=250, designs=["vocabulary"], minutes=0, output=out)
    assert "healing" not in capsys.readouterr().err
    report = shrunk.to_json()
    facts = report["vocabulary"]
    assert report["chosen"] == "vocabulary"
    assert facts["tokens"] == 250 == report["candidates"][0]["tokens"]
    assert 0 < facts["texts_split_as_before"] < 1 < facts["length_ratio"]
    assert facts["dropped"]
    width = AutoModel.from_pretrained(out).config.hidden_size
    assert report["original"]["params"] - parameters(out) == (report["original"]["tokens"] - 250) * width
    assert report["candidates"][0]["params_embeddings"] == 250 * width
    assert len(AutoTokenizer.from_pretrained(out)) == 250
    assert read_json(out / "report.json") == report
    # texts that are split otherwise differ from the original, which is the measure
    assert 0.3 < report["quality"] < 1


@pytest.mark.slow
def test_all_texts_as_before_is_all_of_the_quality(encoder: Path, tmp_path: Path) -> None:
    """Where the texts keep their tokens, the cosine to the original is 1."""
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(f"ba {text}" for text in 60 * ["ko so.", "so nu.", "nu ko.", "so so ba."]), "utf-8")
    options: dict[str, Any] = {"designs": ["vocabulary"], "minutes": 0, "output": tmp_path / "out"}
    report = leanify.shrink(encoder, file, vocabulary=250, **options).to_json()
    assert report["vocabulary"]["texts_split_as_before"] == 1
    assert report["quality"] == pytest.approx(1, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("share", "tokens"), [(0.9, "auto"), (0.5, "auto"), (0.6, 300)])
def test_budget_counts_every_parameter(
    share: float, tokens: int | str, encoder: Path, sentences: Path, tmp_path: Path
) -> None:
    """By default rows of the vocabulary, blocks, or both save what the budget asks for; healing goes on from there."""
    settings = ["schedule.steps=6", "schedule.batch_size=16"]
    options: dict[str, Any] = {"minutes": 2, "output": tmp_path / "out", "settings": settings, "rates": [1e-3]}
    options["designs"] = ["vocabulary", "narrow", "dropped"]
    report = leanify.shrink(encoder, sentences, share, vocabulary=tokens, **options).to_json()
    assert parameters(tmp_path / "out") <= share * report["original"]["params"]
    if tokens != "auto":
        assert report["vocabulary"]["tokens"] == tokens


@pytest.mark.slow
def test_vocabulary_is_kept_where_it_does_not_count(encoder: Path, sentences: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"designs": ["narrow"], "minutes": 0}
    report = leanify.shrink(encoder, sentences, 0.9, count="body", output=tmp_path / "body", **options).to_json()
    assert report["vocabulary"] is None
    assert report["candidates"][0]["tokens"] == report["original"]["tokens"]


@pytest.mark.slow
def test_continues_with_the_same_tokens(
    encoder: Path, sentences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill behind the choice of the vocabulary: another start takes the same one, and does not choose again."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    options: dict[str, Any] = {"designs": ["vocabulary"], "minutes": 0, "output": tmp_path / "out"}
    with monkeypatch.context() as patch:
        patch.setattr(shrinking, "_carry_all", stop)
        with pytest.raises(KeyboardInterrupt):
            leanify.shrink(encoder, sentences, 0.95, **options)
    count = json.loads((tmp_path / "out" / "shrink.json").read_text())["found"]["tokens"]["count"]
    monkeypatch.setattr("leanify.shrinking.tokens._choose_count", stop)
    report = leanify.shrink(encoder, sentences, 0.95, **options).to_json()
    assert report["vocabulary"]["tokens"] == count


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "cls", "kind"),
    [("llama", "LlamaForCausalLM", "byte-level BPE"), ("bert", "BertForMaskedLM", "WordPiece")],
)
def test_language_model_heals_with_fewer_tokens(family: str, cls: str, kind: str, tmp_path: Path) -> None:
    """It is its own teacher where texts are split as before, so that only the others teach it anything.

    The loss is told per token of the original, so that both compare.
    """
    vocabularies.checkpoint(tmp_path / "model", family, cls, vocabularies.tokenizer(kind))
    (tmp_path / "data.txt").write_text("\n".join(vocabularies.texts(1500)), "utf-8")
    options: dict[str, Any] = {"designs": ["vocabulary"], "minutes": 2, "output": tmp_path / "out", "rates": [1e-2]}
    settings, tokens = ["data.length=32", "schedule.steps=30"], 350 if family == "llama" else 250
    report = leanify.shrink(tmp_path / "model", tmp_path / "data.txt", vocabulary=tokens, settings=settings, **options)
    facts = report.to_json()
    candidate = facts["candidates"][0]
    assert candidate["healed"]["quality"] < candidate["carried"]["quality"] - 0.03
    assert family == "bert" or facts["vocabulary"]["length_ratio"] > 1  # windows of masked words have none
    assert candidate["carried"]["quality"] == pytest.approx(facts["original"]["quality"], rel=0.2)


@pytest.mark.parametrize(("vocabulary", "budget", "designs"), [("250", 0.6, ["vocabulary"]), ("auto", 0.4, [])])
def test_dry_run_trains_fewer_tokens(
    vocabulary: str, budget: float, designs: list[str], encoder: Path, sentences: Path, tmp_path: Path
) -> None:
    """Also of a model that was a teacher when its tokens were chosen, so that its parameters are frozen."""
    options: dict[str, Any] = {"minutes": 2, "dry_run": True, "output": tmp_path / "out", "designs": designs}
    report = leanify.shrink(encoder, sentences, budget, vocabulary=vocabulary, **options).to_json()
    assert report["candidates"][0]["tokens"] == report["vocabulary"]["tokens"] < 421
    assert report["steps_predicted"] > 0
    assert not (tmp_path / "out").exists()


def test_pricing_blocks_leaves_the_original(tmp_path: Path) -> None:
    """A decoder whose blocks had another's number would read another's cache."""
    words = vocabularies.tokenizer("byte-level BPE")
    vocabularies.checkpoint(tmp_path / "model", "llama", "LlamaForCausalLM", words)
    (tmp_path / "data.txt").write_text("\n".join(vocabularies.texts(300)), "utf-8")
    original = resolve(tmp_path / "model", tmp_path / "data.txt", ["data.length=32"])
    numbers = [layer.self_attn.layer_idx for layer in original.module.model.layers]  # type: ignore[union-attr]
    price_blocks(original)
    assert [layer.self_attn.layer_idx for layer in original.module.model.layers] == numbers  # type: ignore[union-attr]


@pytest.mark.parametrize("asked", ["many", "0", "-3", "1.5", "1__0", "²"])
def test_vocabulary_option_is_checked(asked: str, encoder: Path, sentences: Path, tmp_path: Path) -> None:
    with pytest.raises(LeanifyError, match="is not auto, keep or a number of tokens"):
        leanify.shrink(encoder, sentences, vocabulary=asked, output=tmp_path / "out")

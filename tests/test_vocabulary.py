"""Fewer tokens: texts of kept tokens are split and computed as before, and every id follows."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import vocabularies
from flows import missing_schemas
from runs import add_pooling
from torch import nn
from vocabularies import KINDS

from leanify.core.errors import BudgetError, DataError, UnsupportedModel
from leanify.core.files.reading import read_json
from leanify.upstream.libraries import import_transformers
from leanify.upstream.on_disk import on_disk
from leanify.vocabulary.closure import KeptTokens, RankedTokens
from leanify.vocabulary.cut_model import cut_model, named_ids, vocabulary_rows
from leanify.vocabulary.cut_tokenizer import cut_state, cut_tokenizer
from leanify.vocabulary.kinds import Vocabulary, read_vocabulary
from leanify.vocabulary.ranking import prior_probabilities, rank_by_damage, rank_tokens, split_into_pieces
from recipes.research.vocabulary_law import save_cut

FAMILIES = {
    "bert": "BertForMaskedLM",
    "roberta": "RobertaForMaskedLM",
    "mpnet": "MPNetForMaskedLM",
    "distilbert": "DistilBertForMaskedLM",
    "albert": "AlbertForMaskedLM",
    "xlm-roberta": "XLMRobertaForMaskedLM",
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "t5": "T5ForConditionalGeneration",
    "bart": "BartForConditionalGeneration",
    "clip": "CLIPModel",
}
# each family once in the default suite, each kind at least twice
CORE = (
    ("bert", "WordPiece"), ("mpnet", "WordPiece"), ("roberta", "byte-level BPE"), ("gpt2", "byte-level BPE"),
    ("llama", "BPE with byte fallback"), ("gemma", "BPE with byte fallback"), ("t5", "Unigram"), ("clip", "Unigram"),
)  # fmt: skip
CASES = [
    pytest.param(family, kind, marks=[] if (family, kind) in CORE else pytest.mark.slow)
    for family in FAMILIES
    for kind in KINDS
]
COUNTED, NEW = vocabularies.texts(60), vocabularies.texts(300, seed=3)
STRANGE = ["Ünïcode 漢字 🙂", "zzz qqq", "7 7 7", "baLiné日 xx"]


@functools.cache
def tokenizer(kind: str) -> Any:
    return vocabularies.tokenizer(kind)


def split(words: Any, texts: list[str]) -> list[list[int]]:
    result: list[list[int]] = words(texts)["input_ids"]
    return result


def choose(words: Any, folder: Path, model: nn.Module | None = None, size: int = 0) -> tuple[Vocabulary, KeptTokens]:
    """The tokens that stay, by default half of those that may go."""
    vocabulary = read_vocabulary(folder)
    counts = Counter(number for ids in split(words, COUNTED) for number in ids)
    others = set() if model is None else named_ids(model)
    ranked = RankedTokens.of(vocabulary, rank_tokens(vocabulary, counts), others)
    size = size or (len(ranked.required_ids) + ranked.total) // 2
    return vocabulary, ranked.keep(size)


@pytest.fixture(params=KINDS)
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Path]:
    """A tokenizer of each kind, and its folder."""
    words = tokenizer(request.param)
    words.save_pretrained(tmp_path)
    return words, tmp_path


def check_splits(old: Any, new: Any, kept: KeptTokens) -> list[tuple[list[int], list[int]]]:
    """Check that kept texts are split as before, and no text has a new unknown; returns the kept texts' ids."""
    texts = [*COUNTED, *NEW, *STRANGE]
    pairs = [*zip(split(old, texts), split(new, texts), strict=True)]
    same = [(before, after) for before, after in pairs if all(number in kept.new_ids for number in before)]
    assert len(same) > 20
    for before, after in same:
        assert [kept.new_ids[number] for number in before] == after
    for before, after in pairs:
        assert (new.unk_token_id in after) <= (old.unk_token_id in before)
    return same


def outputs(model: nn.Module, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """A text's hidden states, and its logits where the model has a head."""
    inputs = torch.tensor([ids])
    with torch.no_grad():
        if hasattr(model, "text_model"):
            result = model.text_model(inputs)
            return result.last_hidden_state, result.pooler_output
        more = {"decoder_input_ids": inputs} if model.config.is_encoder_decoder else {}
        result = model(inputs, output_hidden_states=True, **more)
    states = result.decoder_hidden_states if more else result.hidden_states
    return states[-1], result.logits


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_kept_texts_compute_as_before(family: str, kind: str, tmp_path: Path) -> None:
    """In a folder that transformers opens: the same splits, hidden states and logits, and no higher causal loss."""
    library = import_transformers()
    old = vocabularies.checkpoint(tmp_path / "old", family, FAMILIES[family], tokenizer(kind))
    words = library.AutoTokenizer.from_pretrained(tmp_path / "old")
    vocabulary, kept = choose(words, tmp_path / "old", old)
    save_cut(old, vocabulary, kept, tmp_path / "new")
    new = getattr(library, FAMILIES[family]).from_pretrained(tmp_path / "new")
    new_words = library.AutoTokenizer.from_pretrained(tmp_path / "new")

    rows = len(kept.ids)
    assert vocabulary_rows(new) == rows == len(new_words)
    sizes = {size for parameter in new.parameters() for size in parameter.shape}
    assert rows in sizes
    assert vocabulary_rows(old) not in sizes
    same = check_splits(words, new_words, kept)
    for before, after in same[:12]:
        (states, logits), (new_states, new_logits) = outputs(old, before), outputs(new, after)
        assert torch.equal(states, new_states)
        if family == "clip":
            assert torch.equal(logits, new_logits)
            continue
        assert torch.allclose(logits[..., list(kept.ids)], new_logits, atol=1e-6)
        losses = []
        for ids, scores in ((before, logits), (after, new_logits)):
            losses.append(nn.functional.cross_entropy(scores[0, :-1], torch.tensor(ids[1:])))
        assert losses[1] <= losses[0] + 1e-5

    # what users do with it
    if old.can_generate():
        new.generate(torch.tensor([same[0][1]]), max_new_tokens=3, do_sample=False)
    elif family != "clip" and (family, kind) not in CORE:
        filled = library.pipeline("fill-mask", model=new, tokenizer=new_words)(f"ba {new_words.mask_token} ko")
        assert filled[0]["token_str"]
    if family != "clip":
        new.resize_token_embeddings(rows + 7)
        assert outputs(new, same[0][1])[1].shape[-1] == rows + 7


def test_splits_by_tokenizers_alone(saved: tuple[Any, Path]) -> None:
    """The tokenizers library reads the cut file as transformers does, whatever the size."""
    from tokenizers import Tokenizer

    words, folder = saved
    fewest = len(RankedTokens.of(read_vocabulary(folder), rank_tokens(read_vocabulary(folder), {})).required_ids)
    for size in (fewest + 30, 0):
        vocabulary, kept = choose(words, folder, size=size)
        new = Tokenizer.from_str(json.dumps(cut_state(vocabulary, kept)))
        assert not {number for ids in split(words, NEW) for number in ids} <= set(kept.ids)
        for before, text in zip(split(words, NEW), NEW, strict=True):
            after = new.encode(text).ids
            if all(number in kept.new_ids for number in before):
                assert [kept.new_ids[number] for number in before] == after
            assert new.decode(after) == words.decode(before, skip_special_tokens=True)


def test_all_tokens_change_nothing(saved: tuple[Any, Path], tmp_path: Path) -> None:
    words, folder = saved
    old = vocabularies.checkpoint(tmp_path / "old", "bert", "BertForMaskedLM", words)
    _, kept = choose(words, folder, old, size=10_000)
    new = cut_model(old, kept)
    assert kept.is_all
    assert new.config.to_dict() == old.config.to_dict()
    tensors = new.state_dict()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in old.state_dict().items())


def test_special_tokens_stay(saved: tuple[Any, Path]) -> None:
    """Also an unknown or a mask token that is no token of the model's, only an added one."""
    words, folder = saved
    _, kept = choose(words, folder)
    assert {words.convert_tokens_to_ids(token) for token in words.all_special_tokens} <= set(kept.ids)


def test_too_few_tokens_are_refused(saved: tuple[Any, Path]) -> None:
    words, folder = saved
    fewest = len(RankedTokens.of(read_vocabulary(folder), rank_tokens(read_vocabulary(folder), {})).required_ids)
    with pytest.raises(BudgetError, match=f"the smallest vocabulary has {fewest:,}"):
        choose(words, folder, size=fewest - 1)
    assert len(choose(words, folder, size=fewest)[1].ids) == fewest


def test_multiple_is_filled_with_tokens(saved: tuple[Any, Path]) -> None:
    vocabulary = read_vocabulary(saved[1])
    total = len(vocabulary.tokens)
    kept = RankedTokens.of(vocabulary, rank_tokens(vocabulary, {})).keep(total - 1, multiple=16)
    assert len(kept.ids) == (total - 1) // 16 * 16


def test_prior_is_a_distribution(saved: tuple[Any, Path]) -> None:
    """It ranks what texts have not shown; counts of many texts outweigh it."""
    vocabulary = read_vocabulary(saved[1])
    prior = prior_probabilities(vocabulary)
    assert sum(prior.values()) == pytest.approx(1)
    ranking = rank_tokens(vocabulary, {})
    assert sorted(ranking) == sorted(vocabulary.ids.values())
    assert rank_tokens(vocabulary, {ranking[-1]: 10_000})[0] == ranking[-1]


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"tokenizer_config.json": {"tokenizer_class": "CanineTokenizer"}}, "CanineTokenizer makes none"),
        ({"tokenizer_config.json": {"tokenizer_class": "ByT5Tokenizer"}}, "ByT5Tokenizer makes none"),
        ({"tokenizer.json": {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}}, "is a WordLevel"),
    ],
)
def test_refused_vocabularies(files: dict[str, Any], reason: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(UnsupportedModel, match=reason):
        read_vocabulary(tmp_path)


@pytest.mark.parametrize(("family", "name"), [("bert", "vocab.txt"), ("gpt2", "vocab.json")])
def test_folders_without_tokenizer_json(family: str, name: str, tmp_path: Path) -> None:
    """A list of words, or a table with merges: what transformers makes of them is cut, and has a tokenizer.json.

    Either reads the kept texts without the other; a SentencePiece model is left out.
    """
    library = import_transformers()
    kind = "WordPiece" if family == "bert" else "byte-level BPE"
    vocabularies.checkpoint(tmp_path / "old", family, FAMILIES[family], tokenizer(kind))
    state = read_json(tmp_path / "old" / "tokenizer.json")["model"]
    for file in (tmp_path / "old").glob("tokenizer*"):
        file.unlink()
    if family == "bert":
        roles = {"unk": "<unk>", "pad": "<pad>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
        lines = [*sorted(state["vocab"], key=state["vocab"].get), "<mask>"]
        (tmp_path / "old" / "vocab.txt").write_text("".join(f"{word}\n" for word in lines), "utf-8")
    else:
        roles = {"unk": "<unk>", "bos": "<s>", "eos": "</s>", "pad": "<pad>"}
        (tmp_path / "old" / "vocab.json").write_text(json.dumps(state["vocab"]))
        lines = ["#version: 0.2", *(" ".join(merge) for merge in state["merges"])]
        (tmp_path / "old" / "merges.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    settings = {f"{role}_token": word for role, word in roles.items()} | {"do_lower_case": False}
    (tmp_path / "old" / "tokenizer_config.json").write_text(json.dumps(settings))

    old = getattr(library, FAMILIES[family]).from_pretrained(tmp_path / "old")
    words = library.AutoTokenizer.from_pretrained(tmp_path / "old")
    vocabulary, kept = choose(words, tmp_path / "old", old)
    assert len(kept.ids) < len(words)
    (tmp_path / "old" / "tokenizer.model").write_text("of SentencePiece")
    new = save_cut(old, vocabulary, kept, tmp_path / "new")
    assert not (new / "tokenizer.model").exists()
    check_splits(words, library.AutoTokenizer.from_pretrained(new), kept)
    for gone in ("tokenizer.json", name):
        (new / gone).rename(tmp_path / gone)
        check_splits(words, library.AutoTokenizer.from_pretrained(new), kept)
        (tmp_path / gone).rename(new / gone)


def test_lists_of_added_tokens_follow(tmp_path: Path) -> None:
    """Beside tokenizer.json, their ids stand in two more files."""
    words = vocabularies.tokenizer("byte-level BPE")
    words.add_tokens(["<mark>"])
    words.save_pretrained(tmp_path)
    added, config = words.get_added_vocab(), read_json(tmp_path / "tokenizer_config.json")
    config["added_tokens_decoder"] = {str(number): {"content": word} for word, number in added.items()}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    vocabulary, kept = choose(words, tmp_path)
    cut_tokenizer(tmp_path, vocabulary, kept)
    expected = {token["content"]: token["id"] for token in read_json(tmp_path / "tokenizer.json")["added_tokens"]}
    assert expected["<mark>"] < added["<mark>"]
    assert read_json(tmp_path / "added_tokens.json") == expected
    decoder = read_json(tmp_path / "tokenizer_config.json")["added_tokens_decoder"]
    assert {token["content"]: int(number) for number, token in decoder.items()} == expected


@pytest.mark.parametrize("ids", [{"a": {}}, {"a": "0"}, {"a": -1}, {"a": 10**12}])
def test_odd_ids_are_refused(ids: dict[str, Any], tmp_path: Path) -> None:
    """What the tokenizers library does not read, is not read here."""
    content = {"model": {"type": "WordPiece", "vocab": ids, "unk_token": "a", "max_input_chars_per_word": 9}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"tokenizer\.json cannot be read"):
        read_vocabulary(tmp_path)


def test_ids_of_configurations_follow(tmp_path: Path) -> None:
    """Nested ones and that of generation; tokens to avoid leave their lists where they went."""
    words = tokenizer("WordPiece")
    old = vocabularies.checkpoint(tmp_path / "old", "gpt2", "GPT2LMHeadModel", words)
    end, avoided = words.vocab_size - 1, 300
    old.config.eos_token_id = old.generation_config.eos_token_id = [2, end]
    old.generation_config.suppress_tokens = [avoided, end]
    old.generation_config.bad_words_ids = [[end, 4], [avoided]]
    old.generation_config.forced_decoder_ids = [[1, end]]
    _, kept = choose(words, tmp_path / "old", old)
    if avoided in kept.ids:
        kept = KeptTokens(tuple(number for number in kept.ids if number != avoided), kept.old_count)
    new: Any = cut_model(old, kept)
    new_end = kept.new_ids[end]
    assert new.config.eos_token_id == new.generation_config.eos_token_id == [2, new_end]
    assert new.generation_config.suppress_tokens == [new_end]
    assert new.generation_config.bad_words_ids == [[new_end, kept.new_ids[4]]]
    assert new.generation_config.forced_decoder_ids == [[1, new_end]]
    assert old.config.eos_token_id == [2, end]


def test_cuts_on_meta_and_from_disk(tmp_path: Path) -> None:
    words = tokenizer("byte-level BPE")
    old = vocabularies.checkpoint(tmp_path / "old", "llama", "LlamaForCausalLM", words)
    _, kept = choose(words, tmp_path / "old", old)
    with on_disk(tmp_path):
        new = cut_model(old, kept)
    shapes = {name: tensor.shape for name, tensor in new.state_dict().items()}
    with torch.device("meta"):
        shell = type(old)(old.config)
    cut_shell = cut_model(shell, kept)
    assert {name: tensor.shape for name, tensor in cut_shell.state_dict().items()} == shapes
    assert torch.equal(new.get_input_embeddings().weight, old.get_input_embeddings().weight[list(kept.ids)])  # type: ignore[operator]


def test_padding_with_positions_behind_it_stays(tmp_path: Path) -> None:
    """RoBERTa counts positions from the padding's id on: no id below it goes."""
    old = vocabularies.checkpoint(tmp_path, "roberta", "RobertaForMaskedLM", tokenizer("Unigram"))
    assert {0, 1} <= named_ids(old)


OPEN = """
import sys, torch, transformers, tokenizers
model, words = (library.from_pretrained("new") for library in (transformers.AutoModel, transformers.AutoTokenizer))
ids = words("ba ko Li")["input_ids"]
assert ids == tokenizers.Tokenizer.from_file("new/tokenizer.json").encode("ba ko Li").ids
model(torch.tensor([ids]))
try:
    from sentence_transformers import SentenceTransformer
except ImportError:
    pass
else:
    assert SentenceTransformer("./new", device="cpu").encode(["ba ko"]).shape[0] == 1
assert "leanify" not in sys.modules
"""


@pytest.mark.slow
def test_opens_without_leanify(tmp_path: Path) -> None:
    """In transformers, tokenizers and sentence-transformers, which have never heard of leanify."""
    words = tokenizer("WordPiece")
    old = vocabularies.checkpoint(tmp_path / "old", "bert", "BertModel", words)
    add_pooling(tmp_path / "old", word_embedding_dimension=old.config.hidden_size, pooling_mode_mean_tokens=True)
    vocabulary, kept = choose(words, tmp_path / "old", old)
    save_cut(old, vocabulary, kept, tmp_path / "new")
    subprocess.run([sys.executable, "-c", missing_schemas() + OPEN], check=True, cwd=tmp_path)


def test_tokens_that_their_pieces_stand_for_go_first(saved: tuple[Any, Path]) -> None:
    """Of tokens that texts need as often, those stay whose pieces have other embeddings."""
    vocabulary = read_vocabulary(saved[1])
    words = vocabulary.tokens
    longer = [number for number in rank_tokens(vocabulary, {}) if len(words[number].removeprefix("##")) > 2]
    counts = dict.fromkeys([number for number in longer if not words[number].startswith("<")][-40:], 100)
    ranking = rank_tokens(vocabulary, counts)
    places = {number: place for place, number in enumerate(ranking)}
    parts = {number: split_into_pieces(vocabulary, number, places) for number in ranking}
    some = [number for number in counts if parts[number]]
    assert len(some) > 20
    for number in some:
        pieces = "".join(words[piece].removeprefix("##") for piece in parts[number])
        assert pieces == words[number].removeprefix("##")

    # embeddings: those of every other token are the mean of its pieces', the rest are opposite to it
    table = nn.Embedding(len(words), 8)
    model = nn.Module()
    model.get_input_embeddings = lambda: table  # type: ignore[assignment]
    alike, different = some[::2], some[1::2]
    with torch.no_grad():
        for number in ranking:  # characters have random ones, pieces come before the tokens that they spell
            if parts[number]:
                table.weight[number] = table.weight[parts[number]].mean(0) * (-1 if number in different else 1)
    for is_language_model in (False, True):
        result = rank_by_damage(vocabulary, counts, model, is_language_model)
        assert sorted(result) == sorted(ranking)
        order = {number: place for place, number in enumerate(result)}
        assert max(order[number] for number in different) < min(order[number] for number in alike)
    # without a table the frequencies decide
    model.get_input_embeddings = lambda: None  # type: ignore[assignment]
    assert rank_by_damage(vocabulary, counts, model, False) == ranking

"""Tiny tokenizers of four kinds, and tiny models of transformers that read them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from zoo.tiny_transformers import tiny_config

from leanify.upstream.libraries import import_transformers

KINDS = ("WordPiece", "byte-level BPE", "BPE with byte fallback", "Unigram")
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
BYTES = [f"<0x{number:02X}>" for number in range(256)]
PADDING_ROWS = 5  # of a table behind the tokenizer's last token


def texts(count: int, seed: int = 0) -> list[str]:
    """Texts of words that are frequent after Zipf's law, each of few syllables."""
    syllables = ["ba", "ko", "Li", "mé", "nu", "ra", "so", "ti", "ve", "x", "qu", "st", "ing", "er", "7", "日"]
    shuffle = random.Random(1)
    words = ["".join(shuffle.choices(syllables, k=shuffle.randint(1, 4))) for _ in range(300)]
    weights = [1 / (rank + 2) for rank in range(len(words))]
    draw = random.Random(seed)
    return [" ".join(draw.choices(words, weights, k=draw.randint(2, 12))) + "." for _ in range(count)]


def tokenizer(kind: str, size: int = 420) -> Any:
    """A transformers tokenizer of a kind, trained here; <mask> is only an added token, behind the others."""
    options = {"vocab_size": size, "special_tokens": SPECIAL, "show_progress": False}
    if kind == "WordPiece":
        made = Tokenizer(models.WordPiece(unk_token="<unk>"))
        made.pre_tokenizer, made.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
        trainer: Any = trainers.WordPieceTrainer(**options)
    elif kind == "byte-level BPE":
        made = Tokenizer(models.BPE())
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
        trainer = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **options)
    elif kind == "BPE with byte fallback":
        made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        special = [*SPECIAL, *BYTES]
        trainer = trainers.BpeTrainer(**{**options, "special_tokens": special, "vocab_size": size + 256})
    else:
        made = Tokenizer(models.Unigram())
        made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(unk_token="<unk>", **options)
    made.train_from_iterator(texts(2000, seed=2), trainer)
    if kind == "BPE with byte fallback":  # its bytes are tokens of the model, and not special
        state = json.loads(made.to_str())
        state["added_tokens"] = [added for added in state["added_tokens"] if added["content"] not in BYTES]
        made = Tokenizer.from_str(json.dumps(state))
    ends = [("<s>", 0), ("</s>", 2)]
    made.post_processor = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> $B </s>", ends)
    roles = {"bos_token": "<s>", "cls_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "sep_token": "</s>"}
    return import_transformers().PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", mask_token="<mask>", model_max_length=60, **roles
    )


def checkpoint(folder: Path, family: str, cls: str, words: Any) -> Any:
    """Save a tiny model of a family with drawn weights beside a tokenizer, and return it as it is loaded again."""
    config = tiny_config(family)
    text = config.get_text_config()
    text.vocab_size = len(words) + PADDING_ROWS
    for one in {id(config): config, id(text): text}.values():
        one.pad_token_id, one.bos_token_id, one.eos_token_id = 1, 0, 2
        if getattr(one, "is_encoder_decoder", False):
            one.decoder_start_token_id = 2
    torch.manual_seed(0)
    library = import_transformers()
    model = getattr(library, cls)(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1 and len(parameter) == text.vocab_size:  # a bias of the head, zero at first
            torch.nn.init.normal_(parameter)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return getattr(library, cls).from_pretrained(folder)

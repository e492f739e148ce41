"""What people do with a lean model in its own library: every flow on every family, at a tiny size.

Shapes are grown past what the width holds (heads × head_dim ≠ width). A flow returns nothing where it is right to the
last bit, and raises where it is not.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import leanify
from leanify.upstream.inputs import example_inputs

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "dog", "sat", "ran", "on", "a", "mat", "road"]
TEXT = {"vocab_size": len(WORDS), "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 3}
TEXT |= {"intermediate_size": 64, "max_position_embeddings": 40, "pad_token_id": 0}
CAUSAL = {**TEXT, "num_key_value_heads": 3, "bos_token_id": 2, "eos_token_id": 3}
GPT2 = {"vocab_size": len(WORDS), "n_embd": 48, "n_layer": 3, "n_head": 3, "n_positions": 40}
T5 = {"vocab_size": len(WORDS), "d_model": 48, "d_ff": 64, "d_kv": 16, "num_layers": 3, "num_heads": 3}
WHISPER = {"vocab_size": 40, "d_model": 48, "encoder_layers": 3, "decoder_layers": 3, "encoder_attention_heads": 3}
WHISPER |= {"decoder_attention_heads": 3, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_mel_bins": 8}
WHISPER |= {"max_source_positions": 20, "max_target_positions": 20, "pad_token_id": 0, "bos_token_id": 1}
WHISPER |= {"eos_token_id": 2, "decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None}
TOWER = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 64}
CLIP = {
    "text_config": {**TOWER, "vocab_size": len(WORDS), "max_position_embeddings": 40, "eos_token_id": 3},
    "vision_config": {**TOWER, "image_size": 32, "patch_size": 8},
    "projection_dim": 24,
}
IMAGE = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 3, "num_classes": 5}
SWIN = {"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 24, "depths": [2, 2], "num_heads": [3, 3]}


@dataclass(frozen=True)
class Family:
    """A model by its library: a transformers class and configuration, or a timm name and arguments."""

    kind: str
    options: dict[str, Any]
    cls: str = ""
    task: str = ""

    def source(self, folder: Path) -> Path:
        """A directory as upstream itself leaves it, with a tokenizer where the model reads text."""
        torch.manual_seed(0)
        if not self.cls:
            import timm
            from timm.models._hub import save_for_hf

            save_for_hf(timm.create_model(self.kind, **self.options), str(folder), safe_serialization=True)
            return folder
        import transformers

        config = transformers.AutoConfig.for_model(self.kind, **self.options)
        getattr(transformers, self.cls)(config).save_pretrained(folder)
        if self.task:
            save_tokenizer(folder)
        return folder

    def lean(self, folder: Path) -> Path:
        """The lean directory: two of three blocks, five heads."""
        model = leanify.load(self.source(folder / "source"))
        shape = leanify.read(model)
        stages = list(shape.stages)
        for i in shape.variable_stages:
            stages[i] = stages[i].reshape(depth=2, heads=5)
        return leanify.save(leanify.write(model, replace(shape, stages=tuple(stages))), folder / "lean")


FAMILIES = {
    "ViT (timm)": Family("vit_tiny_patch16_224", IMAGE),
    "DeiT3 (timm)": Family("deit3_small_patch16_224", IMAGE),
    "Swin (timm)": Family("swin_tiny_patch4_window7_224", {**SWIN, "num_classes": 5}),
    "BERT": Family("bert", TEXT, "BertForSequenceClassification", "text-classification"),
    "MPNet": Family("mpnet", TEXT, "MPNetForSequenceClassification", "text-classification"),
    "GPT-2": Family("gpt2", {**GPT2, "pad_token_id": 0}, "GPT2LMHeadModel", "text-generation"),
    "Llama": Family("llama", CAUSAL, "LlamaForCausalLM", "text-generation"),
    "Qwen3": Family("qwen3", {**CAUSAL, "head_dim": 16}, "Qwen3ForCausalLM", "text-generation"),
    "T5": Family("t5", {**T5, "decoder_start_token_id": 0}, "T5ForConditionalGeneration", "seq2seq"),
    "Whisper": Family("whisper", WHISPER, "WhisperForConditionalGeneration"),
    "CLIP": Family("clip", CLIP, "CLIPModel"),
}


def save_tokenizer(folder: Path) -> None:
    """A tokenizer of whole words, saved as transformers saves it."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    rules = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    rules.pre_tokenizer = pre_tokenizers.Whitespace()
    rules.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    names |= {"mask_token": "[MASK]", "eos_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=rules, model_max_length=16, **names).save_pretrained(folder)


def outputs(model: Any) -> Tensor:
    """The model's first output on a fixed input."""
    torch.manual_seed(1)
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    inputs = example_inputs(inner, 2, 8 if hasattr(model, "config") else None)
    with torch.no_grad():
        result = model.eval()(**inputs)
    if isinstance(result, Tensor):
        return result
    found = (result.get("logits"), result.get("logits_per_image"), result[0])
    return next(value for value in found if value is not None)


def assert_same_model(model: Any, other: Any) -> None:
    torch.testing.assert_close(outputs(other), outputs(model), rtol=0, atol=0)
    assert leanify.read(model).stages == leanify.read(other).stages


# -- flows of transformers ----------------------------------------------------------------------------------------


def auto(family: Family, lean: Path, folder: Path) -> None:
    """AutoModel… and the class by name."""
    import transformers

    for cls in (getattr(transformers, family.cls), transformers.AutoModel):
        model = cls.from_pretrained(lean)
        assert leanify.read(model).depth == leanify.read(leanify.load(lean)).depth
    assert_same_model(leanify.load(lean), getattr(transformers, family.cls).from_pretrained(lean))


def save_pretrained(family: Family, lean: Path, folder: Path) -> None:
    import transformers

    cls: Any = getattr(transformers, family.cls)
    first = cls.from_pretrained(lean)
    first.save_pretrained(folder / "again", max_shard_size="20KB")
    assert_same_model(first, cls.from_pretrained(folder / "again"))
    assert_same_model(first, leanify.load(folder / "again"))


def trainer(family: Family, lean: Path, folder: Path) -> None:
    """Train, keep the best, resume, and read what was saved."""
    import transformers

    cls: Any = getattr(transformers, family.cls)

    def collate(samples: list[dict[str, Tensor]]) -> dict[str, Any]:
        batch: dict[str, Any] = {key: torch.stack([sample[key] for sample in samples]) for key in samples[0]}
        return batch | ({"return_loss": True} if family.kind == "clip" else {})

    def train(steps: int, resume: bool) -> Any:
        torch.manual_seed(0)
        model = cls.from_pretrained(lean)
        inputs = {key: value[0] for key, value in example_inputs(model, 1, 8).items()}
        if family.task == "text-classification":
            inputs["labels"] = torch.tensor(1)
        elif family.kind == "whisper" or family.task == "seq2seq":
            inputs["labels"] = inputs.pop("decoder_input_ids")
        elif family.kind != "clip":
            inputs["labels"] = inputs["input_ids"]
        arguments = transformers.TrainingArguments(
            folder / "out", max_steps=steps, per_device_train_batch_size=2, save_steps=2, eval_steps=2, seed=0,
            eval_strategy="steps", load_best_model_at_end=True, report_to=[], use_cpu=True, disable_tqdm=True,
            label_names=["labels"] if family.kind != "clip" else ["return_loss"], remove_unused_columns=False,
        )  # fmt: skip
        data = {"train_dataset": [inputs] * 8, "eval_dataset": [inputs] * 2}
        hf_trainer = transformers.Trainer(model, arguments, data_collator=collate, **data)
        hf_trainer.train(resume_from_checkpoint=resume or None)
        return hf_trainer

    train(2, resume=False)
    resumed_trainer = train(4, resume=True)
    assert resumed_trainer.state.global_step == 4
    resumed_trainer.save_model(folder / "final")
    assert (folder / "final" / "training_args.bin").is_file()
    assert_same_model(resumed_trainer.model, leanify.load(folder / "final"))
    assert_same_model(resumed_trainer.model, cls.from_pretrained(folder / "final"))
    leanify.load(folder / "out" / "checkpoint-4")


def pipeline(family: Family, lean: Path, folder: Path) -> None:
    """The lean directory alone: upstream's own tokenizer and model on a text give the lean model's outputs."""
    import transformers

    model = leanify.load(lean)
    text_tokenizer = transformers.AutoTokenizer.from_pretrained(lean)
    ids = text_tokenizer("the cat sat on a mat", return_tensors="pt", return_token_type_ids=False)
    assert ids["input_ids"][0].tolist() == [2, 5, 6, 8, 10, 11, 12, 3]
    if family.task == "text-classification":
        with torch.no_grad():
            expected = model(**ids).logits[0].tolist()
        run = transformers.pipeline(family.task, model=str(lean), function_to_apply="none", top_k=None)
        assert sorted(answer["score"] for answer in run(["the cat sat on a mat"])[0]) == sorted(expected)
    elif family.task == "text-generation":
        options = {"max_new_tokens": 4, "do_sample": False}
        expected = model.generate(**ids, **options)[0, ids["input_ids"].shape[1] :]
        run = transformers.pipeline(family.task, model=str(lean))
        found = run("the cat sat on a mat", return_tensors=True, **options)[0]["generated_token_ids"]
        assert list(found)[-len(expected) :] == expected.tolist()
    else:
        again = transformers.AutoModelForSeq2SeqLM.from_pretrained(lean).generate(**ids, max_new_tokens=4)
        assert torch.equal(again, model.generate(**ids, max_new_tokens=4))


def sentences(family: Family, lean: Path, folder: Path) -> None:
    """A sentence-transformers folder in, a lean one out: the mean over tokens that the lean model gives."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    body = Transformer(str(family.source(folder / "body")))
    size = body.auto_model.config.hidden_size
    SentenceTransformer(modules=[body, Pooling(size)], device="cpu").save(str(folder / "st"))
    grown = leanify.save(leanify.grow(leanify.load(folder / "st"), heads=5), folder / "st-lean")
    texts = ["the cat sat", "a dog ran on the road"]
    old, new = (SentenceTransformer(str(place), device="cpu").encode(texts) for place in (folder / "st", grown))
    assert abs(old - new).max() < 1e-5  # growth keeps the outputs


def peft(family: Family, lean: Path, folder: Path) -> None:
    """LoRA on a lean model: save, reload, merge, save."""
    import transformers
    from peft import LoraConfig, PeftModel, get_peft_model

    cls: Any = getattr(transformers, family.cls)
    torch.manual_seed(0)
    lora = LoraConfig(r=2, init_lora_weights=False, target_modules="all-linear")
    lora_model = get_peft_model(cls.from_pretrained(lean), lora)
    lora_model.save_pretrained(folder / "adapter")
    again = PeftModel.from_pretrained(cls.from_pretrained(lean), folder / "adapter")
    assert torch.equal(outputs(lora_model), outputs(again))
    merged_model = again.merge_and_unload()
    merged_model.save_pretrained(folder / "merged")
    assert_same_model(merged_model, cls.from_pretrained(folder / "merged"))
    assert_same_model(merged_model, leanify.load(folder / "merged", cls=family.cls))


def heads(family: Family, lean: Path, folder: Path) -> None:
    """A head of another size, and another head: saved and loaded."""
    model: Any = leanify.load(lean)
    if family.task:
        model.resize_token_embeddings(len(WORDS) + 2)
        leanify.save(model, folder / "resized")
        assert_same_model(model, leanify.load(folder / "resized"))
    if family.kind in ("bert", "mpnet", "gpt2", "llama", "qwen3"):
        with warnings.catch_warnings(record=True) as caught_warnings:
            warnings.simplefilter("always")
            classifier = leanify.load(lean, cls="AutoModelForSequenceClassification", overrides={"num_labels": 3})
        assert any("re-initialised" in str(warning.message) for warning in caught_warnings)
        assert classifier.config.num_labels == 3
        leanify.save(classifier, folder / "three")
        assert_same_model(classifier, leanify.load(folder / "three"))


# -- flows of timm ------------------------------------------------------------------------------------------------


def local_dir(family: Family, lean: Path, folder: Path) -> None:
    import timm

    assert_same_model(leanify.load(lean), timm.create_model(f"local-dir:{lean}", pretrained=True))
    assert timm.create_model(f"local-dir:{lean}", pretrained=True, num_classes=3).num_classes == 3


def save_for_hf(family: Family, lean: Path, folder: Path) -> None:
    import timm
    from timm.models._hub import save_for_hf as save

    model = leanify.load(lean)
    save(model, str(folder / "hf"), safe_serialization=True)
    assert_same_model(model, timm.create_model(f"local-dir:{folder / 'hf'}", pretrained=True))
    assert_same_model(model, leanify.load(folder / "hf"))


def load_checkpoint(family: Family, lean: Path, folder: Path) -> None:
    import timm
    from timm.models import load_checkpoint as read

    model = timm.create_model(f"local-dir:{lean}")
    read(model, str(lean / "model.safetensors"))
    assert_same_model(leanify.load(lean), model)


def reset_classifier(family: Family, lean: Path, folder: Path) -> None:
    model: Any = leanify.load(lean)
    model.reset_classifier(7)
    leanify.save(model, folder / "seven")
    assert_same_model(model, leanify.load(folder / "seven"))


# -- which of them a family has ---------------------------------------------------------------------------------------

Flow = Callable[[Family, Path, Path], None]
TIMM: dict[str, Flow] = {
    "load": local_dir, "save": save_for_hf, "load_checkpoint": load_checkpoint, "new head": reset_classifier,
}  # fmt: skip
TRANSFORMERS: dict[str, Flow] = {
    "load": auto, "save": save_pretrained, "Trainer": trainer, "tokenizer, pipeline": pipeline,
    "SentenceTransformer": sentences, "PEFT": peft, "new head": heads,
}  # fmt: skip


def applicable_flows(name: str) -> dict[str, Flow]:
    family = FAMILIES[name]
    if not family.cls:
        return TIMM
    excluded = set() if family.task else {"tokenizer, pipeline", "new head"}
    if family.task != "text-classification":
        excluded |= {"SentenceTransformer"}
    return {key: flow for key, flow in TRANSFORMERS.items() if key not in excluded}


SCHEMAS = """
import torch
torchvision_schemas = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    torchvision_schemas.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


@cache
def missing_schemas() -> str:
    """torchvision's missing schemas, declared by hand, where this torch does not fit it."""
    process = subprocess.run([sys.executable, "-c", "import timm"], capture_output=True, text=True)
    return SCHEMAS if "torchvision::nms" in process.stderr else ""


LOAD_WITHOUT_LEANIFY = """
import sys
import timm, transformers
transformers.logging.set_verbosity_error()
for cls, folder in {asked}:
    try:
        if cls:
            getattr(transformers, cls).from_pretrained(folder)
        else:
            timm.create_model("local-dir:" + folder, pretrained=True)
        print("\\nanswer: loads")
    except Exception as error:  # upstream may have printed a question, whether code may run
        print("\\nanswer: refused: " + " ".join(str(error).split())[:300])
assert not any(name.partition(".")[0] == "leanify" for name in sys.modules)
"""


def load_without_leanify(folders: list[tuple[str, str]]) -> list[str]:
    """What upstream answers in a process that never imports leanify: ``loads``, or why not."""
    code = missing_schemas() + LOAD_WITHOUT_LEANIFY.format(asked=folders)
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    return [line.removeprefix("answer: ") for line in lines if line.startswith("answer: ")]

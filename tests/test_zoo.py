"""Both zoos against the laws: one small model of every kind of attention here, all of them with ``-m long``."""

# ruff: noqa: E501

from __future__ import annotations

import json
from importlib import resources

import pytest
import small
import zoo

TIMM = [
    "vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "eva02_tiny_patch14_224", "beit_base_patch16_224", "xcit_nano_12_p16_224",
    "cait_xxs24_224", "tnt_b_patch16_224", "volo_d1_224", "davit_tiny", "convit_tiny", "crossvit_tiny_240", "swin_tiny_patch4_window7_224",
    "swinv2_tiny_window8_256", "swinv2_cr_tiny_224", "pvt_v2_b0", "twins_svt_small", "twins_pcpvt_small", "hiera_tiny_224", "levit_128s",
    "tiny_vit_5m_224", "coatnet_rmlp_nano_rw_224", "vit_relpos_small_patch16_224", "vit_base_patch16_siglip_224", "vit_dwee_patch16_reg1_gap_256",
    "vit_tiny_r_s16_p8_224",
]  # fmt: skip
HF = [
    "bert", "roberta", "gpt2", "llama", "qwen3", "vit", "bart", "t5", "albert", "mixtral", "gpt_neox", "distilbert", "nystromformer",
    "deberta-v2", "phi3", "gpt_bigcode", "gemma2", "longformer", "wavlm", "gemma3n_text", "layoutlmv3",
    "whisper", "funnel", "qwen3_next", "deepseek_v3", "mimi", "git", "pegasus_x", "zamba", "minicpmv4_7_vision",
]  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    import torch

    torch.set_num_threads(1)
    small.warm()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TIMM)
def test_timm(name: str) -> None:
    result = zoo.check("timm", name)
    assert result["status"] == "supported", result["reason"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", HF)
def test_transformers(name: str) -> None:
    result = zoo.check("hf", name)
    assert result["status"] == "supported", result["reason"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("library", "name", "reason"),
    [
        ("timm", "coat_tiny", "groups of heads"),
        ("timm", "halonet26t", "without an output projection"),
        ("hf", "olmo2", "a norm over all heads"),
        ("hf", "bloom", "ALiBi"),
        ("hf", "informer", "tokens are merged on the way"),
    ],
)
def test_what_cannot_be_redesigned_is_refused_with_its_reason(library: str, name: str, reason: str) -> None:
    result = zoo.check(library, name)
    assert result["status"] == "refused"
    assert reason in result["reason"]


def test_the_shipped_table_says_a_reason_wherever_a_model_is_not_supported() -> None:
    table = json.loads(resources.files("leanify.lens.families").joinpath("zoo.json").read_text("utf-8"))
    assert {model["status"] for model in table["models"]} <= {"supported", "refused", "failing"}
    assert all(bool(model["reason"]) == (model["status"] != "supported") for model in table["models"])


def _shipped(library: str) -> list[str]:
    table = json.loads(resources.files("leanify.lens.families").joinpath("zoo.json").read_text("utf-8"))
    return [m["name"] for m in table["models"] if m["library"] == library and m["status"] == "supported"]


@pytest.mark.long
@pytest.mark.parametrize("library", ["timm", "hf"])
def test_every_model_that_the_table_calls_supported(library: str) -> None:
    results = dict(zoo.check_all(library, _shipped(library)))
    assert {name: result["reason"] for name, result in results.items() if result["status"] != "supported"} == {}

"""Both zoos against the laws: small models here, one of every kind of attention with ``-m slow``, all with ``-m long``."""

# ruff: noqa: E501

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from leanify.errors import DirectoryError, SourceError
from leanify.zoo import laws, table, tiny
from leanify.zoo.verdict import FourAnswers, ModelVerdict, answers_of, verdict, verdicts

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
    "siglip2", "t5gemma", "florence2",
]  # fmt: skip
DEAR = {  # seconds each
    "volo_d1_224", "levit_128s", "coatnet_rmlp_nano_rw_224", "tiny_vit_5m_224", "crossvit_tiny_240", "davit_tiny", "swinv2_cr_tiny_224",
    "swinv2_tiny_window8_256", "twins_pcpvt_small", "hiera_tiny_224", "twins_svt_small", "tnt_b_patch16_224", "pvt_v2_b0",
    "pegasus_x", "mimi", "qwen3_next", "wavlm", "t5", "whisper", "funnel", "zamba", "gemma3n_text", "bart",
    "siglip2", "t5gemma", "florence2",
}  # fmt: skip
slow = pytest.mark.slow


def cheap_first(names: list[str]) -> list[Any]:
    return [pytest.param(name, marks=[slow] if name in DEAR else []) for name in names]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    import torch

    torch.set_num_threads(1)
    tiny.warm()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", cheap_first(TIMM))
def test_the_laws_hold_for_timm(name: str) -> None:
    assert laws.hold_all(*tiny.build("timm", name))["grown"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", cheap_first(HF))
def test_the_laws_hold_for_transformers(name: str) -> None:
    assert laws.hold_all(*tiny.build("hf", name))["grown"]


@pytest.mark.filterwarnings("ignore")
def test_a_law_with_nothing_to_test_does_not_apply() -> None:
    assert [
        law for law, applied in laws.hold_all(*tiny.build("timm", "vit_tiny_patch16_224")).items() if not applied
    ] == ["cached"]
    assert [law for law, applied in laws.hold_all(*tiny.build("hf", "gpt2")).items() if not applied] == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("library", "name", "answers", "reason"),
    [
        ("timm", "vit_tiny_patch16_224", (True, True, True, True), ""),
        ("timm", "coat_tiny", (False, False, False, None), "groups of heads"),
        ("timm", "halonet26t", (False, False, False, None), "without an output projection"),
        pytest.param("hf", "olmo2", (True, True, True, True), "", marks=slow),
        ("hf", "bloom", (False, False, False, None), "ALiBi"),
        ("hf", "xlm", (True, True, False, None), "nothing to trade for heads"),
        pytest.param("timm", "visformer_tiny", (True, True, True, True), "", marks=slow),
        pytest.param("timm", "cpubone_nano", (True, True, True, True), "", marks=slow),
        pytest.param("timm", "edgenext_xx_small", (True, True, True, True), "", marks=slow),
    ],
)
def test_four_answers_at_the_default_configuration(
    library: str, name: str, answers: tuple[bool | None, ...], reason: str
) -> None:
    found = verdict(library, name)
    assert (found.read, found.grow, found.redesign, found.control) == answers
    assert found.status == ("supported" if all(answers) else "refused")
    assert reason in found.reason
    assert bool(reason) == bool(found.reason)


@pytest.mark.filterwarnings("ignore")
def test_a_shallow_model_is_redesigned_by_the_rules_as_they_are() -> None:
    assert answers_of("hf/distilbert") == FourAnswers(True, True, True, True)


def test_the_shipped_table_holds_what_it_says() -> None:
    models = table.shipped()["models"]
    assert {model["status"] for model in models} <= {"supported", "refused", "failing"}
    for model in models:
        assert bool(model["reason"]) == (model["status"] != "supported"), model
        if "read" in model:
            every = all(model[answer] for answer in ("read", "grow", "redesign", "control"))
            law_broken = model["status"] == "failing"
            assert (model["status"] == "supported") == (every and not law_broken), model


def test_names_are_patterns_and_an_unknown_one_is_refused() -> None:
    assert table.named(["phi"]) == [("hf", "phi")]
    assert ("timm", "davit_tiny") in table.named(["timm/davit_*"])
    assert len(table.named(["*"])) > 1500
    with pytest.raises(SourceError, match="davit_tiny"):
        table.named(["davit_tinny"])


def test_a_log_is_gone_on_with_and_one_of_other_code_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    first = ModelVerdict("hf", "phi", "refused", reason="as the log has it")
    log.write_text("\n".join((json.dumps(table.made_with()), json.dumps(first.to_json()), '{"library": "hf", "na')))
    assert list(table.checked([("hf", "phi")], log)) == [first]
    log.write_text('{"timm": "0.1"}\n')
    with pytest.raises(DirectoryError, match="other code"):
        list(table.checked([("hf", "phi")], log))


def test_a_verdict_replaces_its_own_row_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "zoo").mkdir()
    monkeypatch.setattr(table, "PACKAGE", tmp_path)
    before = table.shipped()["models"]
    one = ModelVerdict("hf", before[-1]["name"], "failing", reason="tried")
    written = json.loads(table.update([one], whole=False).read_text("utf-8"))
    assert [row["name"] for row in written["models"]] == [row["name"] for row in before]
    assert [row for row in written["models"] if row not in before] == [written["models"][-1]]
    assert written["models"][-1]["reason"] == "tried"


@pytest.mark.long
@pytest.mark.parametrize("library", ["timm", "hf"])
def test_every_model_that_the_table_calls_supported(library: str) -> None:
    made = verdicts([(library, name) for name in table.supported(library)])
    assert {one.name: one.reason for one in made if one.status != "supported"} == {}

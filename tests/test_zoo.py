"""Both zoos against the laws: small models here, one of every kind of attention with ``-m slow``, all with ``-m long``."""

# ruff: noqa: E501

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from zoo import laws, table, tiny
from zoo.__main__ import main
from zoo.running import LawBroken, outputs, randomise
from zoo.verdict import FourAnswers, ModelVerdict, answer_questions, verdict, verdicts

from leanify.core.errors import DirectoryError, SourceError
from leanify.lens import families
from leanify.reshaping.sites import find_sites

TIMM = [
    "vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "eva02_tiny_patch14_224", "beit_base_patch16_224", "xcit_nano_12_p16_224",
    "cait_xxs24_224", "tnt_b_patch16_224", "volo_d1_224", "davit_tiny", "convit_tiny", "crossvit_tiny_240", "swin_tiny_patch4_window7_224",
    "swinv2_tiny_window8_256", "swinv2_cr_tiny_224", "pvt_v2_b0", "twins_svt_small", "twins_pcpvt_small", "hiera_tiny_224", "levit_128s",
    "tiny_vit_5m_224", "coatnet_rmlp_nano_rw_224", "vit_relpos_small_patch16_224", "vit_base_patch16_siglip_224", "vit_dwee_patch16_reg1_gap_256",
    "vit_tiny_r_s16_p8_224", "qwen3_vit_88m_enc",
]  # fmt: skip
HF = [
    "bert", "roberta", "gpt2", "llama", "qwen3", "vit", "bart", "t5", "albert", "mixtral", "gpt_neox", "distilbert", "nystromformer",
    "deberta-v2", "phi3", "gpt_bigcode", "gemma2", "longformer", "wavlm", "gemma3n_text", "layoutlmv3",
    "whisper", "funnel", "qwen3_next", "deepseek_v3", "mimi", "git", "pegasus_x", "zamba", "minicpmv4_7_vision",
    "siglip2", "t5gemma", "florence2", "bigbird_pegasus", "idefics", "neucodec",
]  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True, scope="module")
def warmed() -> None:
    tiny.warm()


@pytest.mark.parametrize("name", TIMM)
def test_laws_hold_for_timm(name: str) -> None:
    assert laws.hold_all(*tiny.build("timm", name))["grown"]


@pytest.mark.parametrize("name", HF)
def test_laws_hold_for_transformers(name: str) -> None:
    assert laws.hold_all(*tiny.build("hf", name))["grown"]


def test_wrong_layout_breaks_the_order_of_heads() -> None:
    model, call = tiny.build("hf", "bert")
    reference = outputs(randomise(model), call)
    assert laws.check_reordered(model, call, reference)
    site = next(site for site in find_sites(model) if site.reading.is_attention)
    families.attach(site.module, replace(site.reading, rows={**site.reading.rows, "self.query": "d h"}))
    with pytest.raises(LawBroken, match="reordered"):
        laws.check_reordered(model, call, reference)


def test_inapplicable_law_is_skipped() -> None:
    for library, name, skipped in (("timm", "vit_tiny_patch16_224", ["cached"]), ("hf", "gpt2", [])):
        applied = laws.hold_all(*tiny.build(library, name))
        assert [law for law in applied if not applied[law]] == skipped


@pytest.mark.parametrize(
    ("library", "name", "answers", "reason"),
    [
        ("timm", "vit_tiny_patch16_224", (True, True, True, True), ""),
        ("timm", "coat_tiny", (False, False, False, None), "groups of heads"),
        ("timm", "halonet26t", (False, False, False, None), "without an output projection"),
        ("hf", "olmo2", (True, True, True, True), ""),
        ("hf", "bloom", (False, False, False, None), "ALiBi"),
        ("hf", "xlm", (True, True, False, None), "nothing to trade for heads"),
        ("timm", "visformer_tiny", (True, True, True, True), ""),
        ("timm", "cpubone_nano", (True, True, True, True), ""),
        ("timm", "edgenext_xx_small", (True, True, True, True), ""),
    ],
)
def test_defaults_give_four_answers(library: str, name: str, answers: tuple[bool | None, ...], reason: str) -> None:
    found = verdict(library, name)
    assert (found.read, found.grow, found.redesign, found.control) == answers
    assert found.status == ("supported" if all(answers) else "refused")
    assert reason in found.reason
    assert bool(reason) == bool(found.reason)


def test_shallow_model_notes_its_flag() -> None:
    """Its 6 layers are fewer than log3 of its width, so that the published floor leaves none to trade."""
    assert answer_questions("hf/distilbert") == FourAnswers(True, True, True, True, flags="--min-depth 1")


def test_shipped_table_is_true() -> None:
    models = table.load_table()["models"]
    assert {model["status"] for model in models} <= {"supported", "refused", "failing"}
    for model in models:
        assert bool(model["reason"]) == (model["status"] != "supported"), model
        if "read" in model:
            every = all(model[answer] for answer in ("read", "grow", "redesign", "control"))
            law_broken = model["status"] == "failing"
            assert (model["status"] == "supported") == (every and not law_broken), model


def test_model_names_are_patterns() -> None:
    assert table.matching_models(["phi"]) == [("hf", "phi")]
    assert ("timm", "davit_tiny") in table.matching_models(["timm/davit_*"])
    assert len(table.matching_models(["*"])) > 1500
    with pytest.raises(SourceError, match="davit_tiny"):
        table.matching_models(["davit_tinny"])


def test_log_resumes_and_checks_code(tmp_path: Path) -> None:
    """It refuses the log of other code."""
    log = tmp_path / "log.jsonl"
    first = ModelVerdict("hf", "phi", "refused", reason="as the log has it")
    log.write_text("\n".join((json.dumps(table.versions()), json.dumps(first.to_json()), '{"library": "hf", "na')))
    assert list(table.check([("hf", "phi")], log)) == [first]
    log.write_text('{"timm": "0.1"}\n')
    with pytest.raises(DirectoryError, match="other code"):
        list(table.check([("hf", "phi")], log))


@pytest.mark.slow
def test_check_replaces_only_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = table.load_table()["models"]
    monkeypatch.setattr(table, "PATH", tmp_path / "zoo.json")  # instead of the shipped table
    monkeypatch.setattr("sys.argv", ["zoo", "--check", "hf/gpt2"])
    assert main() == 0
    assert capsys.readouterr().out == "supported hf/gpt2: read yes, grow yes, redesign yes, control yes\n"
    written = json.loads((tmp_path / "zoo.json").read_text("utf-8"))["models"]
    assert [row["name"] for row in written] == [row["name"] for row in before]
    (row,) = [row for row in written if row not in before]
    assert (row["name"], row["status"], row["checked_with"]) == ("gpt2", "supported", table.versions())


@pytest.mark.slow
def test_module_runs_from_repository() -> None:
    words = [sys.executable, "-m", "tests.zoo", "--propose", "gpt2"]
    known = subprocess.run(words, cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert (known.returncode, known.stdout) == (0, "")
    assert "every attention and MLP found in hf/gpt2 has a row already" in known.stderr


@pytest.mark.long
@pytest.mark.parametrize("library", ["timm", "hf"])
def test_supported_models_stay_supported(library: str) -> None:
    made = verdicts([(library, name) for name in table.supported_models(library)])
    assert {one.name: one.reason for one in made if one.status != "supported"} == {}

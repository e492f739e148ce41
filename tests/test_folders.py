"""Real folders, as the libraries themselves leave them: folder in → lean folder out → upstream's own loader."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import flows
import pytest
import torch
from cases import CASES
from flows import FAMILIES
from runs import change_json
from test_disk import lean_of, mixed_bert

import leanify
from leanify.core.files import writing
from leanify.sources import find, tensors
from leanify.upstream.libraries import import_transformers

transformers = import_transformers()

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
QUICK = {("BERT", flow) for flow in flows.applicable_flows("BERT")} | {("Swin (timm)", flow) for flow in flows.TIMM}
QUICK |= {
    ("ViT (timm)", "save"), ("GPT-2", "new head"), ("GPT-2", "tokenizer, pipeline"), ("Llama", "save"), ("T5", "save"),
}  # fmt: skip
EVERY = [(name, flow) for name in FAMILIES for flow in flows.applicable_flows(name)]


@pytest.fixture(scope="module")
def lean(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The lean directory of a family, made once."""
    made: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in made:
            made[name] = FAMILIES[name].lean(tmp_path_factory.mktemp("family"))
        return made[name]

    return of


@pytest.mark.parametrize(
    ("name", "flow"), [pytest.param(*case, marks=() if case in QUICK else pytest.mark.long) for case in EVERY]
)
def test_lean_model_belongs_to_library(name: str, flow: str, lean: Any, tmp_path: Path) -> None:
    if flow in ("PEFT", "SentenceTransformer"):
        pytest.importorskip({"PEFT": "peft"}.get(flow, "sentence_transformers"))
    flows.applicable_flows(name)[flow](FAMILIES[name], lean(name), tmp_path)


@pytest.mark.slow
def test_upstream_loads_or_refuses(tmp_path: Path) -> None:
    """Auto class and class by name, in a process that never imports leanify."""
    asked: list[tuple[str, str]] = []
    expected: list[str] = []
    cases = ("deit", "vit, pooling head", "bert", "gpt2", "llama", "qwen2")
    saved = [leanify.save(lean_of(CASES[name]), tmp_path / name) for name in cases]
    for folder in (*saved, mixed_bert(tmp_path)[1]):
        card = json.loads((folder / "leanify.json").read_text())
        if card["origin"]["library"] == "timm":
            asked.append(("", str(folder)))
            strings = "attn_layer" in (folder / "config.json").read_text()
            foreign = "Unknown attn_layer" if strings else "Unknown model (leanify)"
            expected.append(foreign if strings or not card["upstream"] else "loads")
            continue
        for loader, foreign in (("AutoModel", "contains custom code"), (card["origin"]["cls"], "import leanify")):
            asked.append((loader, str(folder)))
            expected.append("loads" if card["upstream"] else foreign)
    for case, found, words in zip(asked, flows.load_without_leanify(asked), expected, strict=True):
        assert words in found, (case, found)


# -- folders as others leave them ---------------------------------------------------------------------------------


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return FAMILIES["BERT"].source(tmp_path / "bert")


def regrown(source: Path, folder: Path) -> Path:
    """Folder in, lean folder out: more heads, the same outputs but for rounding."""
    old = leanify.load(source)
    lean = leanify.save(leanify.grow(old, heads=5), folder)
    assert torch.allclose(flows.outputs(old), flows.outputs(leanify.load(lean)), atol=1e-5)
    return lean


def test_trainer_files_stay_unopened(bert: Path, tmp_path: Path) -> None:
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "scaler.pt"):
        (bert / name).write_bytes(b"not even a pickle")
    names = {path.name for path in regrown(bert, tmp_path / "lean").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "leanify.json"} <= names
    assert not any(name.endswith((".bin", ".pt", ".pth")) for name in names)


@pytest.mark.parametrize("kind", ["sharded", "bf16", "old", "old and sharded"])
def test_every_weight_format_loads(kind: str, bert: Path, tmp_path: Path) -> None:
    model = transformers.BertForSequenceClassification.from_pretrained(bert)
    if kind == "bf16":
        model = model.bfloat16()
    (bert / "model.safetensors").unlink()
    if kind in ("sharded", "bf16"):
        model.save_pretrained(bert, max_shard_size="20KB" if kind == "sharded" else "1GB")
    elif kind == "old":
        torch.save(model.state_dict(), bert / "pytorch_model.bin")
    else:
        names = list(model.state_dict())
        shards = {name: f"pytorch_model-0000{1 + 2 * i // len(names)}-of-00002.bin" for i, name in enumerate(names)}
        for shard in set(shards.values()):
            torch.save({n: t for n, t in model.state_dict().items() if shards[n] == shard}, bert / shard)
        (bert / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    loaded = leanify.load(bert)
    assert next(loaded.parameters()).dtype == next(model.parameters()).dtype
    flows.assert_same_model(model, loaded)
    for index in bert.glob("*.index.json"):
        flows.assert_same_model(model, leanify.load(index))
    if kind != "bf16":
        regrown(bert, tmp_path / "lean")


def test_old_config_without_type_loads(bert: Path) -> None:
    wanted = leanify.load(bert)
    change_json(bert / "config.json", model_type=None)
    flows.assert_same_model(wanted, leanify.load(bert))  # by its architectures
    change_json(bert / "config.json", architectures=None)
    flows.assert_same_model(wanted, leanify.load(bert, cls="BertForSequenceClassification"))
    assert type(leanify.load(bert, overrides={"model_type": "bert"})).__name__ == "BertModel"
    with pytest.raises(leanify.SourceError, match=r"{'class': 'BertForMaskedLM'} or overrides={'model_type': 'bert'}"):
        leanify.load(bert)


def test_missing_tokenizer_is_not_invented(bert: Path, tmp_path: Path) -> None:
    """No loader builds an empty tokenizer for a text model without one."""
    for file in bert.glob("tokenizer*"):
        file.unlink()
    lean = leanify.save(leanify.load(bert), tmp_path / "lean")
    for loader in (transformers.AutoTokenizer, transformers.BertTokenizer):
        with pytest.raises(Exception, match=r"."):
            loader.from_pretrained(lean)
    flows.save_tokenizer(lean)
    assert len(transformers.AutoTokenizer.from_pretrained(lean)) == len(flows.WORDS)


def test_tokenizer_vocabulary_must_match(bert: Path, tmp_path: Path) -> None:
    words = json.loads((bert / "tokenizer.json").read_text())
    words["model"]["vocab"] |= {f"w{i}": i + 100 for i in range(3)}
    (bert / "tokenizer.json").write_text(json.dumps(words))
    with pytest.raises(leanify.SourceError, match=r"102.* 14 "):
        leanify.save(leanify.load(bert), tmp_path / "lean")
    assert not (tmp_path / "lean").exists()


def test_body_gets_head_from_source(bert: Path, tmp_path: Path) -> None:
    """A checkpoint of a body, with --weights, under another class: upstream's own rules of prefixes."""
    transformers.BertModel.from_pretrained(bert).save_pretrained(tmp_path / "body")
    plan = leanify.redesign(
        tmp_path / "body", depth=2, heads=5, overrides={"class": "AutoModelForSequenceClassification", "num_labels": 3}
    )
    for weights in (tmp_path / "body", tmp_path / "body" / "model.safetensors"):
        with pytest.warns(UserWarning, match=r" 2 .*classifier\.bias, classifier\.weight"):
            built = plan.build(weights=weights)
        assert type(built).__name__ == "BertForSequenceClassification"
        assert built.classifier.out_features == 3


# -- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "words", "message"),
    [
        ("timm", {"checkpoint_path": "evil.pth"}, "no such argument"),
        ("timm", {"pretrained_cfg": {"file": "evil.pth"}}, "no such argument"),
        ("architecture", "hf-hub:org/name", "has no model"),
        ("wrapper", {"pretrained_cfg": {"file": "evil.pth"}}, "no such argument"),
    ],
)
def test_file_keys_open_nothing(file: str, words: Any, message: str, tmp_path: Path) -> None:
    config: dict[str, Any] = {"architecture": "vit_tiny_patch16_224", "model_args": words}
    if file == "architecture":
        config = {"architecture": words}
    if file == "wrapper":
        config |= {"model_type": "timm_wrapper", "architectures": ["TimmWrapperModel"]}
        config["timm_wrapper"] = {**config}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.pth").write_bytes(b"never read")
    with pytest.raises(leanify.SourceError, match=message):
        leanify.load(tmp_path, device="meta")


def test_quantised_checkpoint_is_refused(bert: Path) -> None:
    change_json(bert / "config.json", quantization_config={"quant_method": "gptq"})
    with pytest.warns(UserWarning, match=r"quantised.*gptq"):
        assert leanify.load(bert, device="meta") is not None
    with pytest.raises(leanify.SourceError, match=r"quantised.*gptq"):
        leanify.load(bert)


def test_checksum_reveals_flipped_bit(bert: Path, tmp_path: Path) -> None:
    lean = leanify.save(leanify.load(bert), tmp_path / "lean")
    file = lean / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    with pytest.raises(leanify.SourceError, match="changed"):
        leanify.load(lean)


def test_saving_replaces_old_card(bert: Path, tmp_path: Path) -> None:
    lean = leanify.save(leanify.load(bert), tmp_path / "lean")
    model: Any = leanify.load(lean)
    with torch.no_grad():
        model.classifier.bias += 1
    model.save_pretrained(lean)
    flows.assert_same_model(model, leanify.load(lean))


@pytest.mark.parametrize(("name", "words"), [("\udcff", "is not UTF-8"), ("x" * 300, "name too long")])
def test_unwritable_name_is_refused_first(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(leanify.DirectoryError, match=words):
        leanify.save(leanify.load("vit_tiny_patch16_224", overrides={"depth": 1}), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_non_pickle_error_is_plain(tmp_path: Path) -> None:
    for data in (b"", b"{}", b"\x80\x02]q\x00.", b"PK\x03\x04"):
        (tmp_path / "a.pt").write_bytes(data)
        with pytest.raises(leanify.SourceError) as found:
            tensors.read_tensors(tmp_path / "a.pt")
        assert "weights_only" not in str(found.value)


@pytest.mark.parametrize("shard", ["../outside.safetensors", "/outside.safetensors", "", "\0"])
def test_index_names_local_files_only(bert: Path, tmp_path: Path, shard: str) -> None:
    (bert / "model.safetensors").rename(tmp_path / "outside.safetensors")
    shard = str(tmp_path / shard[1:]) if shard.startswith("/") else shard
    (bert / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(leanify.SourceError, match="beside"):
        leanify.load(bert)


@pytest.mark.parametrize("kind", ["fifo", "device", "deep", "latin", "huge"])
def test_oversized_text_files_are_refused(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    elif kind == "huge":
        with file.open("wb") as sparse:
            sparse.truncate(1 << 31)
    else:
        file.write_bytes(b"[" * 100_000 if kind == "deep" else "é".encode("latin-1"))
    for source in (file, tmp_path):
        with pytest.raises(leanify.SourceError, match=r"regular file|a device, not|too deep|UTF-8|at most 64 MB"):
            leanify.load(source)


@pytest.mark.parametrize(
    ("source", "overrides"),
    [
        ("vit_tiny_patch16_224", {"patch_size": 0}),
        ("vit_base.augreg_in21k.x", {}),
        ("bert", {"hidden_size": "wide"}),
        ("vit", {"image_size": [32]}),
        ("x" * 5000, {}),
    ],
)
def test_upstream_errors_are_one_message(source: str, overrides: dict[str, Any]) -> None:
    with pytest.raises(leanify.SourceError) as found:
        leanify.load(source, overrides=overrides, device="meta")
    assert len(str(found.value)) < 1000


def test_requested_head_dim_survives_width() -> None:
    sizes = {"hidden_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    for keys in (list(sizes), list(reversed(sizes))):
        found = find.find("qwen3", overrides={key: sizes[key] for key in keys})
        assert {key: found.origin.options[key] for key in sizes} == sizes


def test_derived_head_dim_loads_back(tmp_path: Path) -> None:
    """Falcon's configuration has head_dim = hidden_size / heads, from which loading computes rotary tables again."""
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
    model = leanify.grow(leanify.load("hf/falcon", overrides=shape), factor=2).eval()
    leanify.save(model, tmp_path / "lean")
    inputs = torch.arange(12)[None]
    again = leanify.load(tmp_path / "lean").eval()
    assert torch.equal(again(inputs).last_hidden_state, model(inputs).last_hidden_state)


def test_infinite_config_value_is_kept(tmp_path: Path) -> None:
    """transformers writes it as an object (Bamba's and Nemotron-H's time_step_limit)."""
    change_json(tmp_path / "config.json", model_type="llama", limit=[0.0, {"__float__": "Infinity"}])
    assert leanify.load(tmp_path, device="meta").config.limit == [0.0, float("inf")]


# -- litter -------------------------------------------------------------------------------------------------------


def test_next_process_cleans_up(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom leanify.core.files.writing import new_directory\n"
        "with new_directory(sys.argv[1]) as folder:\n"
        "    (folder / 'model.safetensors').write_bytes(b'x')\n    print('begun', flush=True)\n    time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "a")], stdout=subprocess.PIPE, text=True) as one:
        one.stdout.readline()
        [folder] = tmp_path.iterdir()
        writing.remove_litter(tmp_path)
        assert folder.is_dir()  # its process lives
        one.kill()
    with writing.new_directory(tmp_path / "b"):
        assert not folder.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_sweeps_take_nothing_that_is_written(tmp_path: Path) -> None:
    """Another process may look for litter between the making of a file and its lock."""

    def write() -> None:
        for number in range(200):
            writing.write(tmp_path / "file", "x", sync=False)
            with writing.new_directory(tmp_path / str(number)) as folder:
                (folder / "file").write_text("x")

    with ThreadPoolExecutor(1) as thread:
        written = thread.submit(write)
        while not written.done():
            writing.remove_litter(tmp_path)
    written.result()
    assert len(list(tmp_path.glob("*/file"))) == 200
    assert list(tmp_path.glob(".*")) == []


def test_files_follow_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        lean = leanify.save(CASES["vit"].load(), tmp_path / "lean")
    finally:
        os.umask(old)
    assert stat.S_IMODE(lean.stat().st_mode) == 0o750
    assert {stat.S_IMODE(file.stat().st_mode) for file in lean.iterdir()} == {0o640}


@pytest.mark.slow
def test_llama_passes_as_mistral(tmp_path: Path) -> None:
    """The words of its configuration changed; then upstream's own class opens it in a process without leanify."""
    source = FAMILIES["Llama"].source(tmp_path / "source")
    leanify.redesign(source, heads=5).save(tmp_path / "llama", pretrained=True)
    mistral = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None}
    change_json(source / "config.json", **mistral)
    leanify.redesign(source, heads=5).save(tmp_path / "mistral", pretrained=True)
    assert flows.load_without_leanify([("AutoModelForCausalLM", str(tmp_path / "mistral"))]) == ["loads"]
    first, second = (flows.outputs(leanify.load(tmp_path / name)) for name in ("llama", "mistral"))
    assert torch.equal(first, second)

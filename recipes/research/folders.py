"""What people do with a lean model in its own library, and in llama.cpp: every flow on every family, as a table.

python -m recipes.research.folders > recipes/results/folders.md
python -m recipes.research.folders Swin      the families that have this in their names
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

import leanify

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))  # the flows
from flows import CAUSAL, FAMILIES, TIMM, TRANSFORMERS, WORDS, Family, Flow, applicable_flows, load_without_leanify


def main() -> None:
    import transformers

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", default="", help="a part of the families' names; all without one")
    part = parser.parse_args().name

    transformers.logging.set_verbosity_error()
    columns = list(dict.fromkeys([*TRANSFORMERS, *TIMM]))
    rows, folders = [], []
    with tempfile.TemporaryDirectory() as place:
        for name, family in FAMILIES.items():
            if part not in name:
                continue
            lean = family.lean(Path(place, family.kind))
            folders.append((family.cls, str(lean)))
            cells = []
            for column in columns:
                flow = applicable_flows(name).get(column)
                folder = Path(place, f"{family.kind}-{column}".replace(" ", ""))
                cells.append("–" if flow is None else _run_flow(flow, family, lean, folder))
            native = json.loads((lean / "leanify.json").read_text())["upstream"]
            rows.append((name, str(leanify.read(leanify.load(lean))), native, cells))
            print(name, cells, file=sys.stderr)
        answers = load_without_leanify(folders)
    print("# Lean models in their own libraries\n")
    print("Each shape is grown past its width, at a tiny size. *ok* is equal to the last bit; for")
    print("SentenceTransformer, embeddings of a grown model within 1e-5 of the source's. Made by\n")
    print("    python -m recipes.research.folders > recipes/results/folders.md\n")
    print("| model | " + " | ".join(columns) + " | upstream without `import leanify` |")
    print("|---" * (len(columns) + 2) + "|")
    for (name, _, _, cells), answer in zip(rows, answers, strict=True):
        print(f"| {name} | " + " | ".join(cells) + f" | {answer} |")
    if "LLAMA_CPP" in os.environ:
        print("\n".join(["", *_llama_cpp_table()]))


def _run_flow(flow: Flow, family: Family, lean: Path, folder: Path) -> str:
    folder.mkdir()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            flow(family, lean, folder)
    except Exception as error:
        return f"**{type(error).__name__}**: {' '.join(str(error).split())[:160]}"
    return "ok"


# -- llama.cpp ----------------------------------------------------------------------------------------------------

RUN_GGUF = """
import json, sys, llama_cpp
model = llama_cpp.Llama(sys.argv[1], logits_all=True, verbose=False, n_ctx=32)
ids = json.loads(sys.argv[2])
model.eval(ids)
print(json.dumps([[float(x) for x in row] for row in model.scores[: len(ids)]]))
"""


def llama_cpp(kind: str, folder: Path) -> float:
    """A lean model through llama.cpp's own converter and runtime, and how far its logits are from leanify's.

    ``LLAMA_CPP`` is a source tree of llama.cpp, ``LLAMA_CPP_PYTHON`` an interpreter that has llama_cpp; the converter
    runs in this one and needs gguf and sentencepiece. The tokenizer is a sentencepiece model trained on the spot.
    """
    import sentencepiece
    import transformers

    source = folder / "source"
    source.mkdir(parents=True)
    texts = iter([" ".join(WORDS[5:]), "the cat sat on a mat", "a dog ran on the road"] * 20)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=texts, model_prefix=str(source / "tokenizer"), vocab_size=40, model_type="bpe",
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    processor = sentencepiece.SentencePieceProcessor(model_file=str(source / "tokenizer.model"))
    (source / "tokenizer.vocab").unlink()
    shape = {
        **CAUSAL,
        "vocab_size": processor.vocab_size(),
        "hidden_size": 64,
        "head_dim": 32,
        "num_attention_heads": 2,
    }
    shape |= {"num_key_value_heads": 1, "intermediate_size": 96, "bos_token_id": 1, "eos_token_id": 2}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **shape)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(source)
    plan = leanify.redesign(source, depth=2, heads=5)
    lean = folder / "lean"
    plan.save(lean, pretrained=True)
    script = Path(os.environ["LLAMA_CPP"], "convert_hf_to_gguf.py")
    file = folder / "lean.gguf"
    conversion = [sys.executable, str(script), str(lean), "--outfile", str(file), "--outtype", "f32"]
    subprocess.run(conversion, check=True, capture_output=True)
    ids = processor.encode("the cat sat on a mat")
    python = os.environ.get("LLAMA_CPP_PYTHON", sys.executable)
    evaluation = [python, "-c", RUN_GGUF, str(file), json.dumps(ids)]
    logits = torch.tensor(json.loads(subprocess.run(evaluation, check=True, capture_output=True, text=True).stdout))
    with torch.no_grad():
        expected = leanify.load(lean)(torch.tensor([ids])).logits[0]
    assert expected.argmax(-1).equal(logits.argmax(-1))
    return float((expected - logits).abs().max() / expected.abs().max())


def _llama_cpp_table() -> Iterator[str]:
    """What llama.cpp makes of lean models: a table."""
    yield "## llama.cpp"
    yield ""
    yield "Lean models of five heads of 32 channels at a width of 64, with weights, converted by its own"
    yield "`convert_hf_to_gguf.py` (float32) and run by llama-cpp-python, which keeps keys and values in 16 bits. The"
    yield "difference is the largest of all logits, as a share of the largest logit; the likeliest token is the same"
    yield "at every place. Made with `LLAMA_CPP=SOURCE_TREE LLAMA_CPP_PYTHON=PYTHON` before the command above."
    yield ""
    yield "| source | difference |"
    yield "|---|---|"
    for kind in ("mistral", "qwen3", "llama"):
        with tempfile.TemporaryDirectory() as place:
            try:
                difference = f"{llama_cpp(kind, Path(place)):.1e}"
            except subprocess.CalledProcessError as error:
                stderr = error.stderr if isinstance(error.stderr, str) else error.stderr.decode()
                difference = f"refused: {stderr.strip().splitlines()[-1][:100]}"
            yield f"| {kind} | {difference} |"


if __name__ == "__main__":
    main()

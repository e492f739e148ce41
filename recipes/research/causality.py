"""Whether attention is causal, tower by tower: what upstream's attributes say, and what is measured.

python -m recipes.research.causality > recipes/results/causality.md
python -m recipes.research.causality bert gpt2                            these alone
"""

from __future__ import annotations

import argparse
from pathlib import Path

import leanify
from leanify.lens.sites import locate
from leanify.profiling.causality import causal_stages
from leanify.upstream.caches import looks_back

OWN_GPT = Path(__file__).parents[2] / "docs" / "examples" / "own_gpt.py"
SOURCES = (
    "bert", "roberta", "modernbert", "gpt2", "llama", "gemma3_text", "gemma4_text", "gpt_oss", "qwen3_next",
    "hf/clip", "hf/owlvit", "hf/siglip", "hf/git", "hf/paligemma", "t5", "bart", "hf/whisper", "wav2vec2",
    f"{OWN_GPT}:make", "vit_base",
)  # fmt: skip
HEAD = """# Is attention causal?

    python -m recipes.research.causality > recipes/results/causality.md

A late token is changed, and the outputs of early ones are looked at, in each tower by itself; the model is shortened
first. *said*: by the attributes of upstream's attention (`is_causal`, `is_decoder`). Models of images alone are not
measured. Of prefix models, GIT reads its text causally, and PaliGemma its prompt in both directions.

| model | tower | said | measured | |
|---|---|---|---|---|"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", metavar="SOURCE")
    print(HEAD, flush=True)
    for source in parser.parse_args().sources or SOURCES:
        name = "own_gpt.py:make" if source.startswith(str(OWN_GPT)) else source.removeprefix("hf/")
        try:
            located = locate(leanify.load(source, device="meta"))
        except leanify.LeanifyError as refused:
            print(f"| {name} | | | | refused: {str(refused).replace('|', '/')[:120]} |", flush=True)
            continue
        for stage, measured in zip(located.stages, causal_stages(located), strict=True):
            said = any(looks_back(layer.attention.module) for block in stage.blocks for layer in block)
            words = ["both directions", "causal"]
            differs = "" if said == measured else "differs"
            print(f"| {name} | {stage.name} | {words[said]} | {words[measured]} | {differs} |", flush=True)


if __name__ == "__main__":
    main()

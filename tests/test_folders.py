"""Real folders, as the libraries themselves leave them: folder in → lean folder out → upstream's own loader."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from cases import CASES
from test_disk import _needed, lean_of, mixed_bert

import leanify

ALONE = """
import sys, torch
{mend}
import timm, transformers
transformers.logging.set_verbosity_error()
for name, library, folder in {folders}:
    try:
        if library == "timm":
            timm.create_model("local-dir:" + folder, pretrained=True)
        else:
            getattr(transformers, name).from_pretrained(folder)
        print("loaded")
    except Exception as error:
        print(str(error).replace("\\n", " ") or type(error).__name__)
assert not any("leanify" in module for module in sys.modules)
"""
MEND = (
    "library = torch.library.Library('torchvision', 'DEF')\n"
    "for name in ('nms', 'qnms'):\n"
    "    library.define(name + '(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')\n"
)


def test_without_leanify_upstream_loads_what_it_can_express_and_refuses_the_rest(tmp_path: Path) -> None:
    """Auto class and class by name, in a process that never imports leanify."""
    asked: list[tuple[str, str, str]] = []
    expected: list[tuple[str, ...]] = []
    for name in ("deit", "vit, pooling head", "bert", "gpt2", "llama", "qwen2"):
        folder = leanify.save(lean_of(CASES[name]), tmp_path / name)
        card = json.loads((folder / "leanify.json").read_text())
        native = card["upstream"]
        if card["origin"]["library"] == "timm":
            asked.append(("", "timm", str(folder)))
            strings = "attn_layer" in (folder / "config.json").read_text()
            alone = "Unknown attn_layer" if strings else "loaded" if native else "Unknown model (leanify)"
            expected.append((alone,))
            continue
        for loader in ("AutoModel", card["origin"]["cls"]):
            asked.append((loader, "hf", str(folder)))
            expected.append(("loaded",) if native else ("leanify_", "import leanify"))
    mixed = str(mixed_bert(tmp_path)[1])
    for loader in ("AutoModel", "BertModel"):
        asked.append((loader, "hf", mixed))
        expected.append(("leanify_bert", "import leanify"))
    code = ALONE.format(mend=_needed(MEND), folders=asked)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    said = done.stdout.splitlines()
    assert len(said) == len(asked), done.stderr
    for case, line, words in zip(asked, said, expected, strict=True):
        assert any(word in line for word in words), (case, line)

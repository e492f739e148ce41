"""What `import leanify` changes in timm and transformers, and that LEANIFY_HOOKS=0 changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import leanify


def changed() -> list[bool]:
    """Whether each of the changes is there."""
    import timm.models._hub
    from timm.models import vision_transformer
    from transformers import BertModel, PreTrainedConfig, PreTrainedModel

    return [
        timm.is_model("leanify"),
        any("leanify" in name for name in getattr(vision_transformer, "ATTN_LAYERS", {})),
        "__wrapped__" in vars(timm.models._hub.save_config_for_hf),
        "__wrapped__" in vars(PreTrainedConfig.to_json_file),
        "__wrapped__" in vars(PreTrainedConfig.save_pretrained),
        "__wrapped__" in vars(PreTrainedModel.save_pretrained),
        "builds_lean" in vars(BertModel.__init__),
    ]


SWITCHED_OFF = """
import json, sys, leanify, test_hooks
print(json.dumps(test_hooks.changed()))
leanify.load("hf/bert", overrides={"num_hidden_layers": 1}, device="meta")
leanify.load(sys.argv[1])
"""


def test_disabled_hooks_change_nothing(tmp_path: Path) -> None:
    """A shape that needs them is then refused."""
    assert changed() == [True] * 7
    model = leanify.load("hf/bert", overrides={"num_hidden_layers": 1, "vocab_size": 99})
    leanify.save(leanify.grow(model, factor=2), tmp_path / "lean")
    leanify.load(tmp_path / "lean")
    environment = {**os.environ, "LEANIFY_HOOKS": "0", "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-W", "ignore", "-c", SWITCHED_OFF, str(tmp_path / "lean")]
    off = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert json.loads(off.stdout) == [False] * 7, off.stderr
    assert "leanify.core.errors.SourceError" in off.stderr
    assert "LEANIFY_HOOKS=0" in off.stderr

"""What leanify 0.1.0 wrote still opens: lean directories compute what plain upstream does, and a run goes on.

The directories in ``fixtures/older`` are kept as they were written. Nothing computed then is compared with what is
computed now, because another processor rounds otherwise. Both sides of every comparison are computed here.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import leanify
from leanify.upstream.inputs import example_inputs

OLDER = Path(__file__).parent / "fixtures" / "older"


def plain_vit(folder: Path) -> nn.Module:
    """timm's own vision transformer, put together by hand: 5 heads of 12 beside a width of 24."""
    from timm.layers import Attention
    from timm.models.vision_transformer import VisionTransformer

    class Heads(Attention):
        def __init__(self, dim: int, num_heads: int, **more: Any) -> None:
            super().__init__(dim, num_heads, **{**more, "attn_head_dim": 12})

    return VisionTransformer(
        img_size=16,
        patch_size=4,
        embed_dim=24,
        depth=2,
        num_heads=5,
        mlp_ratio=40 / 24,
        num_classes=5,
        attn_layer=Heads,
    )


def plain_t5(folder: Path) -> nn.Module:
    import transformers

    return transformers.T5Model(transformers.T5Config.from_json_file(folder / "config.json"))


def surgery_on_bert(folder: Path) -> nn.Module:
    """transformers cannot build 5 heads of 8 in a BERT of width 24: the oracle is surgery on one that it builds."""
    import transformers

    options = json.loads((folder / "leanify.json").read_text())["origin"]["options"]
    model = transformers.BertModel(transformers.BertConfig(**options))
    (stage,) = leanify.read(model).stages
    architecture = leanify.read(model)
    return leanify.write(model, type(architecture)(architecture.source, (stage.reshape(depth=2, heads=5, mlp=24),)))


OTHERWISE: dict[str, Callable[[Path], nn.Module]] = {"vit": plain_vit, "t5": plain_t5, "bert": surgery_on_bert}


def weights_of(folder: Path) -> dict[str, Tensor]:
    (file,) = folder.glob("*.safetensors")
    return load_file(file)


@torch.no_grad()
def output(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    given = model.eval()(*inputs.values()) if "x" in inputs else model.eval()(**inputs)
    return given if isinstance(given, Tensor) else given.last_hidden_state


@pytest.mark.parametrize("name", OTHERWISE)
def test_old_directory_matches_upstream(name: str) -> None:
    """It computes what plain upstream does with its tensors."""
    opened, other = leanify.load(OLDER / name), OTHERWISE[name](OLDER / name)
    lacking = other.load_state_dict(weights_of(OLDER / name), strict=False)
    assert not lacking.unexpected_keys
    assert all("embed_tokens" in key for key in lacking.missing_keys), "but what is tied"
    torch.manual_seed(0)
    inputs = example_inputs(opened, 2)
    found = output(opened, inputs)
    assert found.std() > 0
    assert torch.equal(found, output(other, inputs))


@pytest.mark.parametrize("name", [*OTHERWISE, "crammed-bert"])
def test_old_directory_is_rewritten_equal(name: str, tmp_path: Path) -> None:
    model = leanify.load(OLDER / name)
    again = leanify.save(model, tmp_path / name)
    old, new = (json.loads((folder / "leanify.json").read_text()) for folder in (OLDER / name, again))
    assert (new["architecture"]["stages"], new["upstream"]) == (old["architecture"]["stages"], old["upstream"])
    assert leanify.read(model).to_json()["stages"] == old["architecture"]["stages"]
    before, after = weights_of(OLDER / name), weights_of(again)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_old_run_resumes_identically(tmp_path: Path) -> None:
    ends = []
    for name in ("one", "two"):
        run = Path(shutil.copytree(OLDER / "run", tmp_path / name))
        begun = (run / "metrics.jsonl").read_text()
        leanify.train(resume=run)
        assert (run / "metrics.jsonl").read_text().startswith(begun)
        ends.append(runs.final_state(run))
    assert ends[0] == ends[1]
    assert ends[0]["step"] == 27, "three epochs of 270 samples in batches of 32"

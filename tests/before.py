"""What leanify did before its files moved: the figures, models and runs in ``fixtures/before``, and how they were made.

    python tests/before.py FOLDER    writes all of it anew, into a folder that is not there yet

Only the public API is used, so that this reads the same whatever the modules are called. What ``fixtures/before`` holds
was written by the code as it was: it is remade where a change is meant to change it, and for no other reason.

    golden.json               sources with their shapes, prices, plans and profiles; digests of seeded weights
    NAME/                     a lean directory
    NAME.expected.safetensors inputs, and the outputs of that model in float64
    runs/NAME/                a run that was interrupted; NAME.json and NAME.safetensors what it came to when it went on
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import leanify

HERE = Path(__file__).parent / "fixtures" / "before"

IMAGE = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 5}
TEXT = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 32,
    "vocab_size": 41,
    "max_position_embeddings": 32,
}
LLAMA = {**TEXT, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
GPT2 = {"n_embd": 24, "n_layer": 3, "n_head": 3, "vocab_size": 41, "n_positions": 32}
T5 = {"d_model": 24, "d_kv": 8, "d_ff": 32, "num_layers": 3, "num_decoder_layers": 3, "num_heads": 3, "vocab_size": 41}
SWIN = {"img_size": 32, "embed_dim": 8, "depths": [2, 3], "num_heads": [2, 4], "window_size": 4, "num_classes": 5}
CRAMMED = {"vocab": 41, "length": 16, "width": 24, "depth": 3, "heads": 3, "head_dim": 8, "mlp": 16}
DEEP = {**LLAMA, "hidden_size": 64, "num_hidden_layers": 12, "intermediate_size": 128}
MIXTRAL = {**DEEP, "num_local_experts": 2, "num_experts_per_tok": 1}

# source, overrides, class, and the shape that it is brought to
MODELS: dict[str, tuple[str, dict[str, Any], str | None, dict[str, Any]]] = {
    "vit": ("vit_tiny_patch16_224", IMAGE, None, {"depth": 2, "heads": 5, "head_dim": 12, "mlp": 40}),
    "deit3": ("deit3_small_patch16_224", IMAGE, None, {"depth": 2, "heads": 5, "mlp": 40}),
    "swin": ("swin_tiny_patch4_window7_224", SWIN, None, {"depth": 2, "heads": [4, 6], "mlp": [24, 40]}),
    "bert": ("bert", TEXT, None, {"depth": 2, "heads": 5, "mlp": 24}),
    "gpt2": ("gpt2", GPT2, "AutoModelForCausalLM", {"depth": 2, "heads": 5, "mlp": 40}),
    "llama": ("llama", LLAMA, "AutoModelForCausalLM", {"depth": 2, "heads": 6, "mlp": 24}),
    "t5": ("t5", T5, None, {"depth": 2, "heads": 5, "mlp": 24}),
    "crammed-bert": ("leanify/crammed-bert", CRAMMED, None, {"depth": 2, "heads": 5, "mlp": 12}),
}

# source, overrides, class, budget
SOURCES: dict[str, tuple[str, dict[str, Any], str | None, float]] = {
    "vit": ("vit_base", {}, None, 0.5),
    "deit": ("deit_base", {}, None, 0.6),
    "deit3": ("deit3_base_patch16_224", {}, None, 0.6),
    "swin": ("swin_tiny_patch4_window7_224", {}, None, 0.85),
    "davit": ("davit_base", {}, None, 0.7),
    "xcit": ("xcit_medium_24_p16_224", {}, None, 0.6),
    "tnt": ("tnt_b_patch16_224", {}, None, 0.6),
    "volo": ("volo_d3_224", {}, None, 0.7),
    "vit, pooling head": ("vit_base_patch16_siglip_224", {}, None, 0.6),
    "bert": ("bert", {}, None, 0.6),
    "roberta": ("roberta", {}, None, 0.6),
    "distilbert": ("distilbert", {}, None, 0.7),
    "gpt2": ("gpt2", {}, "AutoModelForCausalLM", 0.7),
    "llama": ("llama", DEEP, "AutoModelForCausalLM", 0.6),
    "qwen2": ("qwen2", DEEP, "AutoModelForCausalLM", 0.6),
    "mixtral": ("mixtral", MIXTRAL, "AutoModelForCausalLM", 0.6),
    "t5": ("t5", {"num_layers": 12, "num_decoder_layers": 12}, None, 0.6),
    "bart": ("bart", {}, None, 0.7),
    "nystromformer": ("nystromformer", {}, None, 0.6),
    "crammed-bert": ("leanify/crammed-bert", {}, None, 0.6),
}

# shapes that no budget finds, to be priced, too: heads that are split, a deeper model
SHAPES: dict[str, dict[str, Any]] = {
    "vit": {"depth": 14, "heads": 24, "head_dim": 32, "mlp": 1000},
    "bert": {"depth": 5, "heads": 24, "head_dim": 32, "mlp": 2049},
    "gpt2": {"depth": 13, "heads": 13, "head_dim": 48, "mlp": 3072},
    "llama": {"depth": 13, "heads": 10, "head_dim": 8, "mlp": 77},
    "crammed-bert": {"depth": 17, "heads": 6, "head_dim": 128, "mlp": 1536},
}

PROFILED: dict[str, tuple[str, dict[str, Any], str | None, int | None]] = {
    "vit": ("vit_base", {}, None, None),
    "swin": ("swin_tiny_patch4_window7_224", {}, None, None),
    "bert": ("bert", {}, None, 64),
    "gpt2": ("gpt2", {}, "AutoModelForCausalLM", 64),
    "llama": ("llama", LLAMA, "AutoModelForCausalLM", 16),
    "crammed-bert": ("leanify/crammed-bert", {}, None, None),
}

DIGITS = """
[model]
source = "vit_tiny_patch16_224"
[model.override]
img_size = 8
patch_size = 2
in_chans = 1
num_classes = 10
embed_dim = 16
depth = 2
num_heads = 2
drop_path_rate = 0.1
proj_drop_rate = 0.1
[data]
name = "digits"
task = "classification"
samples = 300
holdout = 0.1
mixup = 0.8
cutmix = 1.0
workers = 0
[optim]
lr = 2e-3
weight_decay = 0.05
clip = 1.0
ema = 0.9
[schedule]
epochs = 3
batch_size = 32
warmup = 1
[run]
seed = 3
precision = "fp32"
log_every = 3
eval_every = 5
checkpoint_every = 2
keep = 1
"""

CHARS = """
[model]
source = "gpt2"
class = "AutoModelForCausalLM"
heads = 3
mlp = 40
[model.override]
vocab_size = 256
n_positions = 32
n_embd = 16
n_layer = 2
n_head = 2
bos_token_id = 0
eos_token_id = 0
[data]
name = "python"
path = "text.txt"
task = "causal-lm"
length = 32
workers = 0
[optim]
lr = 5e-3
weight_decay = 0.1
betas = [0.9, 0.99]
clip = 1.0
[schedule]
steps = 20
batch_size = 8
warmup = 4
[run]
seed = 5
precision = "fp32"
log_every = 3
eval_every = 7
checkpoint_every = 4
keep = 1
"""

RUNS = {"digits": (DIGITS, 13), "chars": (CHARS, 10)}  # the recipe, and the step after which it is interrupted


# -- what is held against what it was -----------------------------------------------------------------------------


def digest(tensors: dict[str, Tensor]) -> str:
    """One sum over names, kinds, shapes and bytes."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def weights_of(model: nn.Module) -> dict[str, Any]:
    """A model's tensors as a digest, and by what another processor gives, too: their sums, to many figures."""
    tensors = {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
    size = sum(tensor.double().abs().sum().item() for tensor in tensors.values())
    return {"sha256": digest(model.state_dict()), "names": len(model.state_dict()), "size": size}


def shape_of(architecture: Any) -> dict[str, str]:
    text = json.dumps(architecture.to_json(), sort_keys=True)
    return {"words": str(architecture), "sha256": hashlib.sha256(text.encode()).hexdigest()}


def source_of(name: str, device: str = "cpu", seed: int = 0) -> nn.Module:
    source, overrides, cls, _ = MODELS[name]
    torch.manual_seed(seed)
    return leanify.load(source, overrides=overrides, cls=cls, device=device)


def plan_of(name: str) -> Any:
    source, overrides, cls, pins = MODELS[name]
    return leanify.redesign(source, overrides=overrides, cls=cls, **pins)


def seeded(name: str) -> dict[str, Any]:
    """What a seed draws: the source, a plan's model, and the shapes that write and grow make of it."""
    source, plan = source_of(name), plan_of(name)
    found = {"load": weights_of(source), "plan": weights_of(plan.build(seed=3))}
    for weights in ("keep", "fresh"):
        torch.manual_seed(1)
        found[weights] = weights_of(leanify.write(source, plan.chosen.architecture, weights))
    torch.manual_seed(2)
    found["grow"] = weights_of(leanify.grow(source, factor=2))
    return found


def inputs_of(name: str) -> dict[str, Tensor]:
    torch.manual_seed(4)
    if name in ("vit", "deit3", "swin"):
        size = MODELS[name][1]["img_size"]
        return {"x": torch.randn(2, 3, size, size, dtype=torch.float64)}
    ids = torch.randint(1, 41, (2, 9))
    return {"input_ids": ids} | ({"decoder_input_ids": ids.flip(1)[:, :6].contiguous()} if name == "t5" else {})


@torch.no_grad()
def outputs(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every floating-point tensor that a forward gives, by where it is in the output."""
    given = [inputs["x"]] if "x" in inputs else []
    named = {} if "x" in inputs else inputs
    return dict(_tensors("output", model.eval().double()(*given, **named)))


def _tensors(name: str, value: Any) -> list[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        return [(name, value.contiguous())]
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    return [pair for key, part in parts for pair in _tensors(f"{name}.{key}", part)]


COSTS = ("params", "params_body", "macs", "kappa_predicted")
SHAPE = ("depth", "heads", "head_dim", "inner", "mlp")


def design_of(design: Any) -> dict[str, Any]:
    """A design's numbers; JSON has no infinity."""
    return {name: value for name, value in design.to_json().items() if name in (*SHAPE, *COSTS)}


def pins_of(design: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in design.items() if name in ("depth", "heads", "head_dim", "mlp")}


def priced(name: str, shapes: list[dict[str, Any]]) -> dict[str, Any]:
    """The source's price, and those of given shapes: where all is pinned, nothing is left to choose."""
    source, overrides, cls, _ = SOURCES[name]
    plans = [leanify.redesign(source, overrides=overrides, cls=cls, top=1, **shape) for shape in shapes]
    return {
        "tokens": plans[0].tokens,
        "baseline": _price_of(plans[0].baseline),
        "given": [{"pins": shape, **_price_of(plan.chosen)} for shape, plan in zip(shapes, plans, strict=True)],
    }


def _price_of(design: Any) -> dict[str, Any]:
    return {"design": design_of(design), "shape": shape_of(design.architecture)}


def planned(name: str) -> dict[str, Any]:
    """What the search chose: a choice that may change, while prices may not."""
    source, overrides, cls, budget = SOURCES[name]
    plan = leanify.redesign(source, overrides=overrides, cls=cls, target_params=budget)
    return {
        "target_params": budget,
        "chosen": design_of(plan.chosen),
        "control": plan.control and design_of(plan.control),
        "candidates": [design_of(candidate) for candidate in plan.candidates],
        "searched": plan.searched,
        "warnings": plan.warnings,
    }


def profiled(name: str) -> dict[str, Any]:
    source, overrides, cls, tokens = PROFILED[name]
    facts = leanify.profile(
        source, overrides=overrides, cls=cls, tokens=tokens, batch_size=4, device="cpu", measure=False
    ).to_json()
    # The prediction of training memory is another since: tests/test_profile.py holds it to what torch allocates.
    kept = ("architecture", "params", "params_body", "macs", "flops", "fvcore_macs", "cross_check", "uncounted")
    return {name: facts[name] for name in (*kept, "weights_bytes")}


def resume(run: Path) -> None:
    """Go on with a run in a process of its own: on the CPU, in one thread, in the folder that its text lies in."""
    code = "import sys, leanify; leanify.train(resume=sys.argv[1])"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(run)], capture_output=True, text=True, env=env, cwd=run.parent
    )
    assert done.returncode == 0, done.stderr


def rows_of(run: Path) -> list[dict[str, Any]]:
    """Rows of the log without what a clock gave."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in row.items() if key != "samples_per_s"} for row in rows]


def last_weights(run: Path) -> dict[str, Tensor]:
    return load_file(max((run / "checkpoints").iterdir()) / "model.safetensors")


def draws() -> str:
    """How this processor draws: torch's own, by which weights may differ in their last bits, and nothing of ours."""
    torch.manual_seed(0)
    drawn = {"normal": torch.randn(1000), "uniform": torch.rand(1000), "few": torch.randn(7)}
    return digest({**drawn, "truncated": nn.init.trunc_normal_(torch.empty(1000), std=0.02)})


def machine() -> dict[str, str]:
    """What bits of a sum over many products depend on: the processor and torch."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = ("vendor_id", "cpu family", "model", "model name")
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return {name: facts.get(name, "") for name in names} | {
        "torch": torch.__version__.partition("+")[0],
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


# -- how it was made --------------------------------------------------------------------------------------------------


def _write(folder: Path) -> None:
    torch.set_num_threads(1)
    folder.mkdir(parents=True)
    for name in MODELS:
        _write_model(folder, name)
    (folder / "runs").mkdir()
    (folder / "runs" / "text.txt").write_text(_text())
    for name in RUNS:
        _write_run(folder / "runs", name)
    plans = {name: planned(name) for name in SOURCES}
    golden = {
        "versions": {name: metadata.version(name) for name in ("torch", "timm", "transformers")},
        "machine": machine(),
        "draws": draws(),
        "weights": {name: seeded(name) for name in MODELS},
        "prices": {
            name: priced(name, [pins_of(plan["chosen"]), *([SHAPES[name]] if name in SHAPES else [])])
            for name, plan in plans.items()
        },
        "profiles": {name: profiled(name) for name in PROFILED},
        "plans": plans,
    }
    (folder / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")


def _write_model(folder: Path, name: str) -> None:
    """A lean directory; no weight of it is what an initialiser sets it to, so that every one tells in the outputs."""
    model = plan_of(name).build(seed=3)
    torch.manual_seed(6)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    leanify.save(model, folder / name)
    inputs = inputs_of(name)
    found = outputs(leanify.load(folder / name), inputs)
    save_file({f"input:{key}": value for key, value in inputs.items()} | found, folder / f"{name}.expected.safetensors")


def _write_run(folder: Path, name: str) -> None:
    recipe, stop = RUNS[name]
    run = folder / name
    file = folder / f"{name}.toml"
    file.write_text(recipe)
    code = f"""
import os, signal, sys, leanify
class Watcher:
    began = warned = logged = lambda *_: None
    def stepped(self, step):
        if step == {stop}:
            os.kill(os.getpid(), signal.SIGINT)
leanify.train(sys.argv[1], sys.argv[2], watcher=Watcher())
"""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        [sys.executable, "-c", code, file.name, name], capture_output=True, text=True, env=env, cwd=folder
    )
    assert "KeyboardInterrupt" in done.stderr, done.stderr
    file.unlink()
    entries = json.loads((run / "environment.json").read_text())
    kept = [{**entry, "command": ["train"], "git": None, "platform": "Linux"} for entry in entries]
    (run / "environment.json").write_text(json.dumps(kept, indent=2) + "\n")
    for old in sorted((run / "checkpoints").iterdir())[:-1]:
        for part in old.iterdir():
            part.unlink()
        old.rmdir()
    copy = folder / "copy"
    subprocess.run(["cp", "-r", str(run), str(copy)], check=True)
    resume(copy)
    save_file(last_weights(copy), folder / f"{name}.safetensors")
    came_to = {"sha256": digest(last_weights(copy)), "rows": rows_of(copy)}
    (folder / f"{name}.json").write_text(json.dumps(came_to, indent=1) + "\n")
    subprocess.run(["rm", "-r", str(copy)], check=True)


def _text() -> str:
    words = (
        "a",
        "the",
        "lean",
        "wide",
        "head",
        "heads",
        "layer",
        "model",
        "reads",
        "writes",
        "grows",
        "turns",
        "while",
    )
    draw = random.Random(0)
    return " ".join(draw.choice(words) for _ in range(900)) + "\n"


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    _write(Path(sys.argv[1]).absolute())

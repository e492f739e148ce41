"""The same job in several tools: half of ViT-S, of a Llama or of a BERT, from a library's own model without weights.

    python -m recipes.research.beside > table.md
    python -m recipes.research.beside leanify      this tool alone

Each tool runs in a process of its own, on one thread; processor seconds include its imports. torch-pruning, mergekit
and nvidia-modelopt must be installed beside leanify. What fails is said with its message.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

JOBS = {
    "leanify, half of ViT-S": """
import leanify
plan = leanify.redesign("vit_small_patch16_224", target_params=0.5)
plan.save("out")
model = leanify.load("out")
say(model, heads=plan.chosen.heads, depth=plan.chosen.depth, loads="leanify.load, timm.create_model")
""",
    "Torch-Pruning, half of ViT-S": """
import timm, torch, torch_pruning as tp
model = timm.create_model("vit_small_patch16_224").eval()
for block in model.blocks:
    block.attn.fused_attn = False
images = torch.randn(1, 3, 224, 224)
heads = {block.attn.qkv: block.attn.num_heads for block in model.blocks}
pruner = tp.pruner.MagnitudePruner(
    model, images, importance=tp.importance.GroupMagnitudeImportance(), pruning_ratio=0.3, num_heads=heads,
    prune_num_heads=False, prune_head_dims=True, ignored_layers=[model.head])
pruner.step()
for block in model.blocks:
    block.attn.num_heads = pruner.num_heads[block.attn.qkv]
    block.attn.head_dim = block.attn.qkv.out_features // 3 // block.attn.num_heads
    block.attn.attn_dim = block.attn.num_heads * block.attn.head_dim
model(images)
say(model, heads=model.blocks[0].attn.num_heads, depth=len(model.blocks), loads="torch.load of a pickle")
""",
    "mergekit, half of a Llama's layers": """
import subprocess, sys, transformers
shape = {"vocab_size": 2000, "hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4}
config = transformers.LlamaConfig(**shape, num_hidden_layers=12)
transformers.LlamaForCausalLM(config).save_pretrained("llama")
open("recipe.yml", "w").write('''
slices:
- sources: [{model: ./llama, layer_range: [0, 3]}]
- sources: [{model: ./llama, layer_range: [9, 12]}]
merge_method: passthrough
dtype: float32
''')
line = "import leanify; from mergekit.scripts.run_yaml import main; main()"
subprocess.run([sys.executable, "-c", line, "recipe.yml", "out", "--no-copy-tokenizer"], check=True)
model = transformers.AutoModelForCausalLM.from_pretrained("out")
say(model, heads=4, depth=model.config.num_hidden_layers, loads="transformers")
""",
    "ModelOpt, half of a BERT": """
import torch, transformers, modelopt.torch.prune as mtp
model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=2000))
batch = {"input_ids": torch.randint(0, 2000, (2, 16)), "labels": torch.tensor([0, 1])}
model, _ = mtp.prune(model, mode="gradnas", constraints={"params": "50%"}, dummy_input=batch["input_ids"], config={
    "data_loader": [batch] * 4, "loss_func": lambda out, _: out.loss, "collect_func": lambda b: b,
    "max_iter_data_loader": 4})
say(model, heads="–", depth=len(model.bert.encoder.layer), loads="modelopt.torch.opt.restore")
""",
}
SAY = """
import json
import leanify  # as torchvision may not match a torch for the CPU
def say(model, **words):
    print("FOUND" + json.dumps({"params": sum(p.numel() for p in model.parameters()), **words}))
"""


def run(code: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as place:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-W", "ignore", "-c", SAY + code]
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=900)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        size = sum(file.stat().st_size for file in Path(place, "out").rglob("*")) if Path(place, "out").exists() else 0
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = next((line for line in done.stdout.splitlines() if line.startswith("FOUND")), None)
    if found is None:
        return {"seconds": seconds, "error": done.stderr.strip().splitlines()[-1:] or ["no output"]}
    return {"seconds": seconds, "bytes": size, **json.loads(found.removeprefix("FOUND"))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tools", nargs="*", metavar="TOOL", help="leanify, Torch-Pruning, mergekit, ModelOpt")
    tools = parser.parse_args().tools
    print("| tool | processor s | parameters left | depth | heads | loads back by |\n|---|---|---|---|---|---|")
    for name, code in JOBS.items():
        if tools and name.partition(",")[0] not in tools:
            continue
        found = run(code)
        if "error" in found:
            print(f"| {name} | {found['seconds']:.0f} | did not run: {found['error'][0][:140]} | | | |", flush=True)
            continue
        cells = [f"{found['seconds']:.0f}", f"{found['params']:,}", found["depth"], found["heads"], found["loads"]]
        print(f"| {name} | {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()

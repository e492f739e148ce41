"""Find how unknown attentions and MLPs of transformers are laid out, by the laws; print rows for ``transformers.toml``.

    python tests/discover.py rows.toml llama bert …      these model types (all without arguments)

A tiny model is built with distinct sizes (6 heads on 3 key/value heads of 8 channels, 48 wide, 40 hidden units), the
names and the lengths of an attention's tensors suggest readings, and the first one under which the laws hold is kept.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))

import apart
import laws
import small

from leanify.errors import LeanifyError
from leanify.lens import families
from leanify.lens.families import Reading
from leanify.lens.resize import features_of

H, G, D, W = small.HEADS, small.KV_HEADS, small.HEAD_DIM, small.WIDTH
QUERY = re.compile(
    r"^(q_proj|query|q|q_lin|wq|to_q|linear_q|query_proj|q_proj\.linear|query_layer|q_attn|in_proj_q|queries)$"
)
KEY_VALUE = re.compile(
    r"^(k_proj|v_proj|Wk|Wv|project_k|project_v|q_pos_proj|k_content_proj|k_pos_proj|key|value|k|v|k_lin|v_lin|wk|wv|to_k|to_v|linear_k|linear_v|key_proj|value_proj|[kv]_proj\.linear"
    r"|relative_k_proj|linear_pos|pos_proj|key_global|value_global|query_global|pos_key_proj|pos_query_proj|keys|values)$"
)
FUSED = re.compile(r"^(qkv|qkv_proj|Wqkv|c_attn|query_key_value|in_proj|att_proj|W_pack|wqkv|qkv_linear)$")
OUT = re.compile(
    r"^(o_proj|out_proj|output\.dense|dense|proj|c_proj|out_lin|linear_out|wo|output_proj|o|post\.linear|Wo|o_proj\.linear"
    r"|output|projection|linear|out|attention_out|to_out(\.0)?|dense_output|o_net|out_layer)$"
)
GATE = re.compile(r"^(g_proj|gate_proj|gate)$")
NORM = re.compile(r"(norm|layernorm|ln)", re.IGNORECASE)


def weights(module: nn.Module) -> dict[str, nn.Module]:
    return {
        path: part
        for path, part in module.named_modules()
        if path and isinstance(getattr(part, "weight", None), Tensor) and part.weight.dim() in (1, 2, 3, 4)
    }


def attentions(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules that hold queries and an output projection, smallest first."""
    for path, module in model.named_modules():
        names = [name for name, _ in module.named_children()]
        if any(QUERY.match(n) or FUSED.match(n) or n in ("q_a_proj", "q_b_proj") for n in names):
            for up in range(3):
                owner_path = ".".join(path.split(".")[: len(path.split(".")) - up])
                owner = model.get_submodule(owner_path)
                inside = weights(owner)
                prefix = path[len(owner_path) :].strip(".")
                if any(OUT.match(part) and not part.startswith(f"{prefix}." if prefix else "\0") for part in inside):
                    yield owner_path, owner
                    break


def name_of(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def proposals(module: nn.Module) -> list[Reading]:
    """Readings of an attention that its names and lengths allow, likeliest first."""
    if re.search(r"Delta|Lightning|Mamba|Mixer|ShortConv|LinearAttention|Recurrent|RgLru|Lru", type(module).__name__):
        return [Reading(name_of(module), kept="linear attention, which has no heads to trade")]
    rows: dict[str, str] = {}
    columns: dict[str, str] = {}
    tensors: dict[str, tuple[str, ...]] = {}
    mixing: list[str] = []
    embedded: dict[str, str] = {}
    fused: list[str] = []
    inside = weights(module)
    latent = any(path.rpartition(".")[2].startswith("kv_b_proj") for path in inside)
    for path, part in inside.items():
        leaf = path if path.endswith(".linear") else path.rpartition(".")[2]
        if isinstance(part, nn.Embedding):  # a table of relative positions
            if part.embedding_dim == H:
                tensors[f"{path}.weight"] = ("1", "h")
                embedded[f"{path}.embedding_dim"] = "h"
            continue
        found = features_of(part)
        if NORM.search(leaf):
            if part.weight.dim() == 1 and found.outputs in (D, H * D, G * D):
                rows[path] = {D: "d", H * D: "h d", G * D: "g d"}[found.outputs]
                if found.outputs != D:
                    if not re.match(r"^(q|k|query|key|g)_?(layer)?_?(norm|layernorm|ln)", leaf):
                        del rows[path]  # a norm over the residual stream
                        continue
                    mixing.append(path)
        elif latent and leaf in ("q_b_proj", "q_proj"):
            rows[path] = "h e"
        elif latent and leaf == "kv_b_proj":
            rows[path] = "h (n+d)"
        elif FUSED.match(leaf):
            fused.append(path)
        elif QUERY.match(leaf):
            rows[path] = "h 2 d" if found.outputs == 2 * H * D else "h d"
        elif KEY_VALUE.match(leaf):
            rows[path] = "h d" if found.outputs == H * D else "g d" if found.outputs in (G * D, D) else ""
            if "relative" in leaf or "pos" in leaf or "content" in leaf or "global" in leaf:
                rows[path] = "h d"
        elif GATE.match(leaf):
            rows[path] = "h d" if found.outputs == H * D else "h" if found.outputs == H else ""
        elif OUT.match(leaf) or OUT.match(path):
            columns[path] = "h d"
        elif found.outputs == H and part.weight.dim() == 2:
            rows[path] = "h"
    rows = {path: how for path, how in rows.items() if how}
    for path, value in (*module.named_parameters(), *module.named_buffers()):
        owner = path.rpartition(".")[0]
        if owner in inside or not value.dim():
            continue
        axes = tuple({H: "h", G: "g", D: "d"}.get(length, "1") for length in value.shape)
        if "h" in axes:
            tensors[path] = axes
    attributes = {**_attributes(module, latent), **embedded}
    if not any("g" in how.split() for how in (*rows.values(), *("h g" for _ in fused))):
        attributes = {name: how for name, how in attributes.items() if "g" not in how}
    base = Reading(
        name_of(module),
        rows=rows,
        columns=columns,
        tensors=tensors,
        attributes=attributes,
        mixing=tuple(mixing),
        constant=("d",) if latent else (),
    )
    layouts = ["3 h d", "h 3 d", "h d | g d | g d", "g (2+1+1) d"] if fused else [""]
    result = []
    for layout in layouts:
        with_fused = replace(base, rows={**rows, **dict.fromkeys(fused, layout)}) if layout else base
        wide = dict.fromkeys(_wide(module), "h d")
        result += [with_fused] + ([replace(with_fused, attributes={**attributes, **wide})] if wide else [])
    return result


def _attributes(module: nn.Module, latent: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    for owner_path, owner in module.named_modules():
        if isinstance(owner, (nn.Linear, nn.LayerNorm, nn.Dropout, nn.Embedding, nn.Conv1d, nn.Conv2d)):
            continue
        for name, value in vars(owner).items():
            path = f"{owner_path}.{name}".strip(".")
            if isinstance(value, bool) or not isinstance(value, (int, float)) or name.startswith("_"):
                continue
            how = _meaning(name, value, latent)
            if how:
                found[path] = how
        config = getattr(owner, "config", None)
        source = _source(owner)
        for name in re.findall(r"self\.config\.(\w+)", source) if config is not None else ():
            how = _meaning(name, getattr(config, name, None), latent)
            if how and how in ("h", "g"):
                found[f"{owner_path}.config.{name}".strip(".")] = how
    return found


def _meaning(name: str, value: Any, latent: bool) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return ""
    if latent and name in ("v_head_dim", "qk_nope_head_dim", "qk_head_dim"):
        return {"v_head_dim": "d", "qk_nope_head_dim": "n", "qk_head_dim": "e"}[name]
    if isinstance(value, float):
        return "d^-0.5" if abs(value - D**-0.5) < 1e-6 and not latent else ""
    if "group" in name:
        return "h /g" if value == H // G else ""
    if value == H and "head" in name and "dim" not in name:
        return "h"
    if value == G and "head" in name and ("kv" in name or "key_value" in name):
        return "g"
    if latent:
        return ""
    if value == D and re.search(
        r"head_dim|head_size|d_k|d_kv|dim_per_head|key_value_proj_dim|d_head|depth|dim_head", name
    ):
        return "d"
    if value == H * D and re.search(
        r"all_head_size|inner_dim|split_size|q_dim|qkv_dim|attention_dim|attn_dim|embed_dim_per|total", name
    ):
        return "h d"
    if value == G * D and re.search(r"kv_dim|kv_hidden|key_value", name):
        return "g d"
    return ""


def _wide(module: nn.Module) -> list[str]:
    """Numbers that may mean the inner width or the residual one."""
    return [
        f"{path}.{name}".strip(".")
        for path, owner in module.named_modules()
        if not weights(owner) or path in ("", "self", "attention", "attn")
        for name, value in vars(owner).items()
        if type(value) is int
        and value == H * D
        and re.search(r"embed_dim|hidden_size|^dim$|d_model|hidden_dim|n_embd", name)
    ]


def _source(module: nn.Module) -> str:
    import inspect

    try:
        return inspect.getsource(type(module).forward)
    except (OSError, TypeError):
        return ""


def mlps(model: nn.Module, known: set[str]) -> Iterator[Reading]:
    """Modules with a map to hidden units and a map back, the smallest of each kind."""
    candidates: dict[str, Reading] = {}
    for path, module in model.named_modules():
        if name_of(module).startswith("torch.") or any(path == at or path.startswith(f"{at}.") for at in known):
            continue
        parts = {
            name: part
            for name, part in weights(module).items()
            if part.weight.dim() == 2
            and name.count(".") < 2
            and not any(f"{path}.{name}".strip(".").startswith(f"{at}.") for at in known)
            and not isinstance(part, nn.Embedding)
        }
        shapes = {name: features_of(part) for name, part in parts.items()}
        back = [n for n, f in shapes.items() if f.outputs == W and f.inputs not in (W,)]
        if len(back) != 1 or any(
            c for c, m in module.named_children() if isinstance(m, (nn.ModuleList, nn.Sequential)) and weights(m)
        ):
            continue
        hidden = shapes[back[0]].inputs
        up = {
            n: "m" if f.outputs == hidden else "2 m"
            for n, f in shapes.items()
            if f.inputs == W and f.outputs in (hidden, 2 * hidden)
        }
        if up and hidden > 8:
            candidates[path] = Reading(name_of(module), rows=up, columns={back[0]: "m"})
    smallest = [r for at, r in candidates.items() if not any(other.startswith(f"{at}.") for other in candidates)]
    yield from {reading.name: reading for reading in smallest}.values()


def discover(kind: str) -> tuple[str, list[Reading]]:
    """What was found about one model type: a verdict, and the new rows if the laws hold."""
    model, call = small.build_hf(kind)
    try:
        outputs_ok = laws.outputs(laws.randomised(model), call)
        del outputs_ok
    except Exception as error:
        return f"example: {type(error).__name__}: {' '.join(str(error).split())[:200]}", []
    table: Any = families.known()
    unknown: dict[str, list[Reading]] = {}
    for _, module in attentions(model):
        if name_of(module) not in table and name_of(module) not in unknown:
            unknown[name_of(module)] = proposals(module)
    paths = {path for path, _ in attentions(model)}
    hidden = [r for r in mlps(model, paths) if r.name not in table]
    verdict = "nothing to try"
    for with_mlps in (True, False):
        for combination in itertools.islice(itertools.product(*unknown.values()), 24):
            rows = [*combination, *(hidden if with_mlps else [])]
            for row in rows:
                table[row.name] = [row]
            try:
                laws.hold(model, call)
                return "holds", rows
            except LeanifyError as error:
                found = f"refused: {' '.join(str(error).split())[:250]}"
                if "norm over all heads" in found:
                    return found, rows
            except laws.LawBroken as error:
                found = f"broken: {error}"
                if found.startswith("broken: split"):
                    return f"holds but for {found[8:]}", [
                        replace(row, constant=("d",)) if row.is_attention else row for row in rows
                    ]
            except Exception as error:
                found = f"{type(error).__name__}: {' '.join(str(error).split())[:250]}"
            verdict = found if verdict == "nothing to try" or found.startswith("broken") else verdict
            for row in rows:
                table.pop(row.name, None)
        if not hidden:
            break
    return verdict, []


def attempt(kind: str) -> tuple[str, list[Reading]]:
    try:
        return discover(kind)
    except Exception as error:
        return f"build: {type(error).__name__}: {' '.join(str(error).split())[:250]}", []


def short(name: str) -> str:
    match = re.fullmatch(r"transformers\.models\.(\w+)\.modeling_\1\.(\w+)", name)
    return f"{match[1]}.{match[2]}" if match else name


def toml(found: list[Reading]) -> str:
    """Rows for the table; classes that are read alike share one."""
    groups: dict[str, list[str]] = {}
    for row in found:
        lines = [_line(f.name, getattr(row, f.name)) for f in fields(row) if f.name not in ("name", "methods")]
        groups.setdefault("".join(lines), []).append(short(row.name))
    return "".join(f"[[reading]]\nclasses = [{_names(names)}]\n{body}\n" for body, names in groups.items())


def _names(names: list[str]) -> str:
    quoted = [f'"{name}"' for name in sorted(names)]
    one = ", ".join(quoted)
    return (
        one
        if len(one) < 100
        else "\n" + textwrap.fill(one, 116, initial_indent="    ", subsequent_indent="    ") + ",\n"
    )


def _line(name: str, value: Any) -> str:
    if not value:
        return ""
    if isinstance(value, (str, tuple)):
        return f"{name} = {json.dumps(value)}\n"
    pairs = [f"{k if re.fullmatch(r'[A-Za-z0-9_]+', k) else json.dumps(k)} = {json.dumps(v)}" for k, v in value.items()]
    return f"{name} = {{ {', '.join(pairs)} }}\n"


def main() -> None:
    warnings.simplefilter("ignore")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(1)
    small.warm()
    out = Path(sys.argv[1])
    rows: list[Reading] = []
    table: Any = families.known()
    for kind, (verdict, found) in apart.each(attempt, sys.argv[2:] or small.hf_names(), 90, lambda why: (why, [])):
        print(kind, verdict, [short(row.name) for row in found], flush=True)
        rows += [row for row in found if row.name not in table]
        table.update({row.name: [row] for row in found})
        out.write_text(toml(rows))


if __name__ == "__main__":
    main()

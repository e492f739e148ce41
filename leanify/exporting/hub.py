"""Push a lean directory to the Hugging Face hub, with a model card that says how it was made and what it keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from leanify.errors import DirectoryError
from leanify.runs.files import read_json, read_text
from leanify.runs.places import CARD
from leanify.units import digits, gigas, millions
from leanify.upstream.wall import wall

LIBRARIES = {"hf": "transformers", "timm": "timm", "diffusers": "diffusers"}  # by an origin's name
REPORT = "report.json"  # of `leanify shrink`: what the original and the model were measured at
LEFT_OUT = (".", "work")  # how names begin of what is not pushed


def push_to_hub(directory: str | Path, repo: str, private: bool = True) -> str:
    """Push a lean directory as the model ``repo`` (``"me/vit-lean"``) and return its address.

    The repository is made where there is none, ``private`` unless asked otherwise. Its card, README.md, tells
    budget, original, damage by carrying weights over, and evaluation, as far as the directory says. The token
    is that of ``hf auth login``.

    Raises DirectoryError for a folder without a model, SourceError where the hub refuses.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    folder = Path(directory)
    if not (folder / CARD).is_file():
        raise DirectoryError(f"{folder} is no lean directory: leanify redesign -o DIR and leanify shrink write one")
    parts = []
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        place = file.relative_to(folder)
        if place.name != "README.md" and not any(part.startswith(LEFT_OUT) for part in place.parts):
            parts.append(CommitOperationAdd(place.as_posix(), str(file)))
    parts.append(CommitOperationAdd("README.md", model_card(folder, repo).encode()))
    api = HfApi()
    with wall(f"{repo} was not pushed; it is called USER/NAME, and `hf auth login` keeps a token that may write"):
        address = api.create_repo(repo, private=private, exist_ok=True)
        api.create_commit(address.repo_id, parts, commit_message="A lean model, by leanify")
    return str(address)


def model_card(directory: str | Path, repo: str) -> str:
    """The README of a lean directory as that of ``repo``: with what the hub reads at its head, and how the
    model was made at its end.
    """
    folder = Path(directory)
    card = read_json(folder / CARD, DirectoryError)
    report = read_json(folder / REPORT, DirectoryError) if (folder / REPORT).is_file() else {}
    readme = folder / "README.md"
    own = read_text(readme, DirectoryError) if readme.is_file() else f"# {folder.name}\n"
    origin, made = card["origin"], card.get("made") or {}
    if origin["library"] == "hf":
        own = own.replace(f'"{folder.name}"', f'"{repo}"')
    else:  # leanify.load asks the hub for models of transformers alone
        fetched = f'leanify.load(huggingface_hub.snapshot_download("{repo}"))'
        own = own.replace(f'leanify.load("{folder.name}")', fetched)
        own = own.replace("import leanify\n", "import huggingface_hub\nimport leanify\n", 1)
        own = own.replace(f"local-dir:{folder.name}", f"hf-hub:{repo}")
    lines = ["---"]
    if origin["library"] in LIBRARIES:
        lines.append(f"library_name: {LIBRARIES[origin['library']]}")
    base = str(origin["options"].get("_name_or_path") or made.get("source") or "")
    if base.count("/") == 1 and not base.startswith((".", "/")) and not Path(base).exists():
        lines.append(f"base_model: {base}")
    lines += ["tags:\n- leanify\n- pruning\n---", own.rstrip(), "", "## How it was made", "", *_made(made)]
    return "\n".join([*lines, *_measured(report), ""])


def _made(made: Mapping[str, Any]) -> Iterator[str]:
    """A table of the original and this model."""
    if not made:
        yield "Nothing is kept of how it was made."
        return
    old, new = made["original"], made["this"]
    yield "| | original | this model |\n|---|---|---|"
    yield f"| model | {made['source']} | {made['role']} |"
    for name in ("depth", "heads", "head_dim", "mlp"):
        cells = [", ".join(map(str, size)) if isinstance(size, list) else size for size in (old[name], new[name])]
        yield f"| {name} | {cells[0]} | {cells[1]} |"
    yield f"| parameters | {millions(old['params'])} | {millions(new['params'])} |"
    yield f"| GMACs | {gigas(old['macs'])} | {gigas(new['macs'])} |"
    yield f"\nBudget: {made['budget']}."
    if made.get("damage"):
        yield f"Weights carried over; damage against the original, before training: {made['damage']}."
    elif made.get("weights"):
        yield "Weights of the original in new shapes; it has not been trained since."
    else:
        yield "New weights: it has not been trained."


def _measured(report: Mapping[str, Any]) -> Iterator[str]:
    """What `leanify shrink` measured: the metric of a trivial model, the original and this one."""
    chosen: Mapping[str, Any] = {}
    for one in report.get("candidates", []):
        if one.get("name") == report.get("chosen"):
            chosen = one
            break
    found = {"trivial model": report.get("reference"), "original": report.get("original")}
    found["this model"] = report if "quality" in report else chosen.get("healed") or chosen.get("carried")
    rows = []
    for name, each in found.items():
        if isinstance(each, Mapping):
            value = each.get("quality", each.get("value"))
            value = value.get("mean") if isinstance(value, Mapping) else value
            if isinstance(value, (int, float)):
                rows.append(f"| {name} | {digits(value)} |")
    if len(rows) > 1:
        yield "\n## Evaluation\n\nOn held-out data of the user's own.\n"
        yield f"| | {report.get('metric', 'quality')} |\n|---|---|"
        yield from rows

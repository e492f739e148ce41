"""Remove what leanify wrote, and nothing else.

A folder is removed only if it has a name that leanify gives and holds nothing but files that leanify writes
into such a folder. Anything else may be the user's: ``best-for-paper``, ``notes.txt``, a link.
"""

from __future__ import annotations

import re
import secrets
import shutil
from pathlib import Path

from leanify.runs import writing
from leanify.runs.checkpoints import CARD, SHARDS, STATE, WEIGHTS

# names of files in a checkpoint, in its folder of shards, and in a run (with a tokenizer that was trained for it)
CHECKPOINT = re.compile(rf"{re.escape(WEIGHTS)}|{re.escape(STATE)}|{re.escape(CARD)}")
SHARD = re.compile(r"shard-.+\.safetensors|\.metadata")
RUN = re.compile(
    r"recipe\.toml|leanify\.json|data\.json|environment\.json|metrics\.jsonl|skipped\.json|kappa\.json|"
    r"outcomes\.safetensors|"
    r"tokenizer.*\.json|special_tokens_map\.json|added_tokens\.json|vocab\.(txt|json)|merges\.txt"
)


def _holds_only(folder: Path, names: re.Pattern[str], *folders: Path) -> bool:
    """Whether a folder, no link, holds nothing but (half written) files of these names, and these folders."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    for path in folder.iterdir():
        own = names.fullmatch(path.name) is not None or writing.is_beside(path)
        if path not in folders and not (own and path.is_file() and not path.is_symlink()):
            return False
    return True


def is_step(name: str) -> bool:
    """Whether a folder's name is a checkpoint's: ``00000100``, not ``2024`` and not ``best-for-paper``."""
    return re.fullmatch("[0-9]{8,}", name) is not None and f"{int(name):08d}" == name


def is_unfinished(name: str) -> bool:
    """Whether a folder's name is of one half written or half removed: ``.00000100``, ``.….old``."""
    return name.startswith(".") and is_step(name[1:].removesuffix(".old"))


def is_own(folder: Path) -> bool:
    """Whether a folder holds nothing but what leanify writes into a checkpoint. Links are not leanify's."""
    parts = folder / SHARDS
    return _holds_only(folder, CHECKPOINT, parts) and (not parts.exists() or _holds_only(parts, SHARD))


def remove(folder: Path) -> None:
    """Rename a folder of leanify's own files away, then delete it, so that no half-deleted one is seen."""
    aside = folder.with_name(f".{folder.name}.old")
    if is_own(folder) and (is_own(aside) or not aside.exists()):
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
        shutil.rmtree(aside)


def take_away(folder: Path) -> str | None:
    """Remove a checkpoint. One that holds files of the user's is renamed, and a message returned."""
    if is_own(folder):
        remove(folder)
        return None
    kept = folder.with_name(f"{folder.name}.kept-{secrets.token_hex(4)}")
    folder.rename(kept)
    return f"{folder} holds files that leanify did not write, so it was not removed but renamed to {kept.name}"


def remove_run(path: Path) -> None:
    """Remove a run; with other files than leanify's it is renamed to ``NAME.kept-…``. Raises OSError."""
    saved = path / "checkpoints"
    if _holds_only(path, RUN, saved) and not saved.is_symlink() and all(map(is_own, saved.iterdir())):
        aside = writing.name_beside(path)
        path.rename(aside)
        shutil.rmtree(aside)
    else:
        path.rename(path.with_name(f"{path.name}.kept-{secrets.token_hex(4)}"))

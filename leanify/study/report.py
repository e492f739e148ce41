"""A study as one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leanify.study.results import Study


def write(study: Study, path: Path) -> Path:
    raise NotImplementedError

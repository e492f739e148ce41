"""What the columns of a table are called, and which hold texts, labels, images or tags. Knows no torch."""

from __future__ import annotations

from collections.abc import Sequence

TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
IMAGES = (".png", ".jpg", ".jpeg")  # what timm reads from folders
TEXTS = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("question", "answer"),
    ("text",), ("sentence",), ("review",), ("content",), ("question",), ("title",), ("body",), ("comment",),
)  # fmt: skip
LABELS = ("label", "labels", "class", "category", "target", "score", "rating", "sentiment", "stars", "intent", "topic")
PICTURES = ("image", "path", "file", "filename", "file_name", "image_path", "filepath", "img")
SPLITS = {"validation": ("validation", "valid", "val", "dev", "test")}  # in the order they are looked for


def one_of(names: Sequence[str], found: Sequence[str]) -> str | None:
    """The first of these names among the columns, as the file writes it."""
    known = {name.lower(): name for name in found}
    return next((known[name] for name in names if name in known), None)


def texts_in(found: Sequence[str]) -> tuple[str, ...]:
    """The columns of texts, guessed by name; none where no name is known."""
    known = {name.lower(): name for name in found}
    return tuple(known[name] for name in next((some for some in TEXTS if all(each in known for each in some)), ()))

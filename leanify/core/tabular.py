"""Results that show themselves: as text, as a table in a notebook, as a data frame. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

MAX_ROWS = 12  # rows that a repr shows
STYLE = "border-collapse:collapse;color:inherit;font-variant-numeric:tabular-nums"
CELL = "text-align:{side};padding:.2em .8em;border-bottom:1px solid rgba(128,128,128,.35)"


class Tabular:
    """A result with a table. A subclass has ``headline``, ``cells`` and ``rows``, and perhaps ``notes``."""

    def headline(self) -> str:
        """Describe the object in one line."""
        raise NotImplementedError

    def cells(self) -> Sequence[Mapping[str, str]]:
        """The table for people: for each row a mapping from column to text, the first column a name."""
        raise NotImplementedError

    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The table with its numbers in full."""
        raise NotImplementedError

    def notes(self) -> Sequence[str]:
        """Sentences below the table."""
        return ()

    def to_frame(self) -> pandas.DataFrame:
        """The table as a pandas data frame, with numbers in full. Raises ImportError without pandas."""
        import pandas

        return pandas.DataFrame([dict(row) for row in self.rows()])

    def __repr__(self) -> str:
        cells = self.cells()
        lines = [self.headline()]
        if cells:
            names = list(cells[0])
            # the header and the first rows, each column as wide as its longest cell
            rows = [names, *(list(row.values()) for row in cells[:MAX_ROWS])]
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            lines.append("")
            for first, *others in rows:
                cells_right = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
                lines.append("  ".join([first.ljust(widths[0]), *cells_right]).rstrip())
        # name the rows that are not shown
        if len(cells) > MAX_ROWS:
            lines.append(f"… and {len(cells) - MAX_ROWS} more; to_frame() has all of them")
        return "\n".join([*lines, *self.notes()])

    def _repr_html_(self) -> str:
        """The table for a notebook, in the page's own colours, for light and dark pages."""
        cells = self.cells()
        table = ""
        if cells:
            head = _row("th", list(cells[0]))
            body = "".join(_row("td", [*row.values()]) for row in cells)
            table = f'<table style="{STYLE}"><thead>{head}</thead><tbody>{body}</tbody></table>'
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes())
        return f'<div class="leanify"><p><b>{escape(self.headline())}</b></p>{table}{notes}</div>'


def _row(tag: str, texts: Sequence[str]) -> str:
    """A row of a table, its first cell to the left and the others to the right."""
    cells = []
    for place, text in enumerate(texts):
        style = CELL.format(side="right" if place else "left")
        cells.append(f'<{tag} style="{style}">{escape(text)}</{tag}>')
    return f"<tr>{''.join(cells)}</tr>"

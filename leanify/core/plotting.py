"""matplotlib with leanify's settings alone, and figures whose texts are shown as they are.

matplotlib reads a file ``matplotlibrc`` from the current folder, which may have come with a model: its
``text.usetex`` starts LaTeX with a preamble of that file. A text between two ``$`` is a formula to matplotlib, and
the names of folders, models and layers go into titles and legends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leanify.core.terminal import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@contextlib.contextmanager
def plot_settings(settings: Mapping[Any, Any]) -> Iterator[None]:
    """Draw with matplotlib's defaults and these settings, whatever a ``matplotlibrc`` says."""
    # the file is read by the first import, from the current folder first: it may be a pipe that never ends
    package = find_spec("matplotlib")
    with contextlib.chdir(Path(str(package.origin)).parent) if package else contextlib.nullcontext():
        import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.hashsalt": "leanify", **settings})  # without it, no two drawings are equal
        yield


def show_texts_literally(figure: Figure) -> None:
    """Let no title, label or legend of a figure be a formula or hold characters that its file cannot.

    Ticks keep their formulas: matplotlib writes them as powers of ten.
    """
    from matplotlib.text import Text

    ticks: set[Any] = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            ticks.update(artist for artist in axis.findobj(Text) if artist is not axis.label)
    for text in figure.findobj(Text):
        if text not in ticks:
            text.set_parse_math(False)
            text.set_text(visible(text.get_text()).encode(errors="replace").decode())

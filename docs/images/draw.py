"""Draw the pictures of the documentation: python docs/images/draw.py"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch, Rectangle

from leanify.spectra.results import gaussian_kappa

HERE = Path(__file__).parent
BLUE, ORANGE, GREEN, INK = "#0072B2", "#D55E00", "#009E73", "#222222"  # Okabe and Ito's palette
plt.rcParams.update({"font.size": 11, "svg.fonttype": "none", "svg.hashsalt": "leanify", "font.family": "sans-serif"})


def canvas(width: float, height: float):
    """Axes in inches that fill the picture; 6 inches are legible on a telephone."""
    figure, axes = plt.subplots(figsize=(width, height))
    figure.subplots_adjust(0, 0, 1, 1)
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    return figure, axes


def box(axes, x: float, y: float, text: str, colour: str, width: float = 1.7, height: float = 0.8) -> None:
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0.04", fc=colour, ec=colour, alpha=0.16))
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", color=INK)


def arrow(axes, x: float, y: float, to_x: float, to_y: float, text: str = "") -> None:
    axes.annotate("", (to_x, to_y), (x, y), arrowprops={"arrowstyle": "->", "color": INK, "lw": 1.3})
    axes.text((x + to_x) / 2, (y + to_y) / 2 + 0.12, text, ha="center", color=INK, fontsize=10)


def lens() -> None:
    figure, axes = canvas(6.2, 2.2)
    for x, layers, heads, colour in ((0.1, 12, 12, BLUE), (4.05, 7, 18, ORANGE)):
        for layer in range(layers):
            for head in range(heads):
                spot = (x + head * 0.09, 0.15 + layer * 0.13)
                axes.add_patch(Rectangle(spot, 0.07, 0.1, fc=colour, ec="none", alpha=0.75))
        axes.text(x, 0.3 + layers * 0.13, f"{layers} layers × {heads} heads", color=INK)
    box(axes, 1.95, 0.98, "Architecture\n(a value)", GREEN, 1.4, 0.62)
    box(axes, 1.95, 0.15, "one row a class:\nwhere heads lie", GREEN, 1.4, 0.62)
    arrow(axes, 1.3, 1.29, 1.9, 1.29, "read")
    arrow(axes, 3.4, 1.29, 4.0, 1.29, "write")
    figure.savefig(HERE / "lens.svg", facecolor="white", metadata={"Date": None})


def prices() -> None:
    figure, axes = canvas(6.2, 1.7)
    for x, text, colour in (
        (0.1, "a few models\non meta,\ncounted", BLUE),
        (1.68, "coefficients\nof every\nblock", BLUE),
        (3.26, "thousands\nof designs\npriced", ORANGE),
        (4.84, "the chosen\none built,\nrecounted", GREEN),
    ):
        box(axes, x, 0.65, text, colour, 1.24, 0.9)
    for x in (1.38, 2.96, 4.54):
        arrow(axes, x, 1.1, x + 0.28, 1.1)
    bend = {"arrowstyle": "-", "color": INK, "connectionstyle": "arc3,rad=-0.2"}
    axes.annotate("", (3.9, 0.6), (5.5, 0.6), arrowprops=bend)
    axes.text(4.7, 0.12, "equal to the last unit", ha="center", color=INK, fontsize=10)
    figure.savefig(HERE / "prices.svg", facecolor="white", metadata={"Date": None})


def kappa() -> None:
    figure, axes = plt.subplots(figsize=(6.4, 3))
    heads = range(1, 33)
    for dim, colour in ((64, BLUE), (32, ORANGE)):
        line = [min(gaussian_kappa(h * dim, 197), 400) for h in heads]
        axes.plot(heads, line, "o-", ms=3, color=colour, label=f"head_dim {dim}")
    axes.set(
        yscale="log",
        xlabel="heads",
        ylabel="κ, Gaussian (Theorem 3.2)",
        title="197 tokens: κ peaks where inner ≈ tokens",
    )
    axes.legend(frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(HERE / "kappa.svg", bbox_inches="tight", facecolor="white", metadata={"Date": None})


if __name__ == "__main__":
    lens()
    prices()
    kappa()

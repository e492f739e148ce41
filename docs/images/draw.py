"""Draw the pictures of the documentation: python docs/images/draw.py"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch, Rectangle

from leanify.spectra.theory import gaussian_kappa

HERE = Path(__file__).parent
BLUE, ORANGE, GREEN, INK = "#0072B2", "#D55E00", "#009E73", "#222222"  # Okabe and Ito's palette
plt.rcParams.update({"font.size": 11, "svg.fonttype": "none", "svg.hashsalt": "leanify", "font.family": "sans-serif"})


def canvas(width: float, height: float):
    figure, axes = plt.subplots(figsize=(width, height))
    axes.set(xlim=(0, width), ylim=(-0.3, height))
    axes.axis("off")
    return figure, axes


def box(axes, x: float, y: float, text: str, colour: str, width: float = 1.7, height: float = 0.8) -> None:
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0.04", fc=colour, ec=colour, alpha=0.16))
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", color=INK)


def arrow(axes, x: float, y: float, to_x: float, to_y: float, text: str = "") -> None:
    axes.annotate("", (to_x, to_y), (x, y), arrowprops={"arrowstyle": "->", "color": INK, "lw": 1.3})
    axes.text((x + to_x) / 2, (y + to_y) / 2 + 0.12, text, ha="center", color=INK, fontsize=10)


def lens() -> None:
    figure, axes = canvas(9, 2.6)
    for row, (name, layers, heads, colour) in enumerate(
        (("12 layers × 12 heads", 12, 12, BLUE), ("7 × 18", 7, 18, ORANGE))
    ):
        x = 0.2 + row * 6.2
        for layer in range(layers):
            for head in range(heads):
                spot = (x + head * 0.125, 0.25 + layer * 0.16)
                axes.add_patch(Rectangle(spot, 0.1, 0.12, fc=colour, ec="none", alpha=0.75))
        axes.text(x, 2.35, name, color=INK)
    box(axes, 3.2, 1.35, "Architecture\n(a value)", GREEN, 1.7)
    box(axes, 3.2, 0.3, "one row a class:\nwhere heads lie", GREEN, 1.7)
    arrow(axes, 1.85, 1.75, 3.15, 1.75, "read")
    arrow(axes, 5.0, 1.75, 6.3, 1.75, "write")
    figure.savefig(HERE / "lens.svg", bbox_inches="tight", facecolor="white", metadata={"Date": None})


def prices() -> None:
    figure, axes = canvas(9, 1.6)
    box(axes, 0.1, 0.4, "a few models\non meta, counted", BLUE, 1.9)
    box(axes, 2.6, 0.4, "coefficients of\nevery block", BLUE, 1.6)
    box(axes, 4.9, 0.4, "thousands of\ndesigns priced", ORANGE, 1.6)
    box(axes, 7.1, 0.4, "the chosen one,\nbuilt, recounted", GREEN, 1.8)
    arrow(axes, 1.98, 0.8, 2.52, 0.8)
    arrow(axes, 4.28, 0.8, 4.82, 0.8)
    arrow(axes, 6.58, 0.8, 7.02, 0.8)
    axes.annotate(
        "", (5.7, 0.32), (8.0, 0.32), arrowprops={"arrowstyle": "-", "color": INK, "connectionstyle": "arc3,rad=-0.2"}
    )
    axes.text(6.85, -0.2, "equal to the last unit", ha="center", color=INK, fontsize=10)
    figure.savefig(HERE / "prices.svg", bbox_inches="tight", facecolor="white", metadata={"Date": None})


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

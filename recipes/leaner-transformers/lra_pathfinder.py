"""Pathfinder at 32 × 32 pixels (Linsley et al. 2018; Tay et al. 2020): are two discs on the same dashed path?

A picture has two paths of ``contour`` dashes that start near each other, shorter distractor paths, and two
discs: one at the start of the first path, the other at its end (class 1) or at the end of the second path
(class 0). Implemented from the published description: a dash is 2 pixels long and 1 pixel from the next; its
turn θ, |θ| ≤ π/2, is drawn with density ∝ cos²θ among the free positions, which keeps paths separate and
inside the picture.

Pictures are generated once, many at a time, from data.options.seed rather than the run's seed, and cached in
a file; or they are read from an image folder. Each split is balanced between the two classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
from torch import nn

import lra_image
from leanify.core.errors import DataError, RecipeError
from leanify.core.files.cache import load_or_make
from leanify.core.recipe import DataSection
from leanify.data.common import data_path
from leanify.data.samples import Splits
from lra_sequences import Sequences, only_sequences, parse_options, sequence_splits

SIDE = 32
DASH, GAP, HALF_WIDTH, DISC = 2.0, 1.0, 0.5, 1.5  # pixels: length, distance to the next, half the width, radius
APART = 7.0  # pixels between the starts of the two paths
CLEARANCE = 2.25  # minimum pixels between the centre lines of dashes that are not neighbours on a path
BORDER = 2.0  # pixels left free around the picture
GREY, WHITE = 191, 255  # of a dash (three quarters of white) and of a disc
FINE = 2  # supersampling: points per pixel in each direction
TRIES = 24  # turns tried for a dash before its path fails
STARTS = 24  # starting points tried for a distractor
PICTURES = 4096  # pictures started at a time; some fail and are dropped


@dataclass(frozen=True)
class PathfinderOptions:
    """[data.options]: dashes per path (published: 14 (hard), 9 or 6), pictures per split, and the seed."""

    contour: int = 14
    train: int = 160_000
    validation: int = 20_000
    test: int = 20_000
    seed: int = 0

    def __post_init__(self) -> None:
        if not 3 <= self.contour <= 14:
            raise RecipeError(f"data.options.contour is {self.contour}; it must be 3 to 14 dashes to fit the picture")
        for key in ("train", "validation", "test"):
            if getattr(self, key) < 2 or getattr(self, key) % 2:
                raise RecipeError(
                    f"data.options.{key} is {getattr(self, key)}; it must be even and at least 2, for two equal classes"
                )


class Canvas:
    """Many unfinished pictures: the dashes of each as (start, end) in pixels, and a mask of blocked points.

    A dash blocks its surroundings only once its path's next dash is placed, because neighbours on a path are
    closer to each other than CLEARANCE.
    """

    def __init__(self, rng: np.random.Generator, pictures: int, dashes: int) -> None:
        self.rng = rng
        self.dashes = np.zeros((pictures, dashes, 2, 2))  # picture, dash, start or end, x or y
        self.count = 0
        edge = (np.arange(SIDE * FINE) + 0.5) / FINE
        outside = (edge < BORDER) | (edge > SIDE - BORDER)
        self.barred = np.repeat((outside[:, None] | outside).astype(np.uint8)[None], pictures, 0)  # picture, y, x

    def keep(self, whole: np.ndarray) -> None:
        """Keep only the pictures where ``whole`` is True."""
        self.dashes, self.barred = self.dashes[whole], self.barred[whole]

    def put(self, dashes: np.ndarray) -> None:
        """Add one dash to every picture, without blocking its surroundings yet. dashes P, 2, 2"""
        self.dashes[:, self.count] = dashes
        self.count += 1

    def bar(self, pictures: np.ndarray, dashes: np.ndarray) -> None:
        """Block the surroundings of these dashes, one per picture. dashes P, 2, 2"""
        stamp(self.barred, dashes[:, None, 0], dashes[:, None, 1], CLEARANCE, 1, pictures)

    def step(
        self, pictures: np.ndarray, tips: np.ndarray, angles: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw the next dash after each tip: the first free try. → (P, 2, 2), angles, whether one was free"""
        turned = angles[:, None] + turns(self.rng, (len(tips), TRIES))
        ways = np.stack((np.cos(turned), np.sin(turned)), -1)
        found = tips[:, None, None] + np.array((GAP, GAP + DASH / 2, GAP + DASH))[:, None] * ways[:, :, None]
        spots = np.clip((found * FINE).astype(int), 0, SIDE * FINE - 1)  # P, tries, 3, 2
        free = ~self.barred[pictures[:, None, None], spots[..., 1], spots[..., 0]].any(-1)
        rows, chosen = np.arange(len(tips)), free.argmax(1)
        return found[rows, chosen][:, (0, 2)], turned[rows, chosen], free.any(1)


def turns(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw angles θ in ±π/2 with density ∝ cos²θ, by inverting a table of its integral θ/2 + sin(2θ)/4."""
    grid = np.linspace(-math.pi / 2, math.pi / 2, 257)
    share = 0.5 + grid / math.pi + np.sin(2 * grid) / (2 * math.pi)
    return np.interp(rng.random(shape), share, grid)


def two_paths(canvas: Canvas, contour: int) -> None:
    """Draw both paths, alternating dashes; drop pictures where a path cannot be continued."""
    pictures, rng = len(canvas.dashes), canvas.rng
    first, where = rng.uniform(BORDER, SIDE - BORDER, (pictures, 2)), rng.uniform(0, 2 * math.pi, pictures)
    tips = np.stack((first, first + APART * np.stack((np.cos(where), np.sin(where)), -1)))  # path, picture, 2
    angles = rng.uniform(0, 2 * math.pi, (2, pictures))
    for place in range(contour):
        for path in (0, 1):
            every = np.arange(tips.shape[1])
            dash, angle, found = canvas.step(every, tips[path], angles[path])
            if place:  # block the path's previous dash only now that its neighbour is chosen
                canvas.bar(every, canvas.dashes[:, canvas.count - 2])
            canvas.put(dash)
            tips[path], angles[path] = dash[:, 1], angle
            found &= are_clear(dash, canvas.dashes[:, canvas.count - 2]) if canvas.count > 1 else True
            canvas.keep(found)
            tips, angles = tips[:, found], angles[:, found]
    for path in (2, 1):
        canvas.bar(np.arange(len(canvas.dashes)), canvas.dashes[:, canvas.count - path])


def are_clear(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Whether two dashes per picture are more than CLEARANCE apart. P, 2, 2 twice → P"""
    places = np.linspace(0, 1, 3)[:, None]
    a, b = (dash[:, None, 0] + places * (dash[:, None, 1] - dash[:, None, 0]) for dash in (one, other))
    near: np.ndarray = ((a[:, :, None] - b[:, None]) ** 2).sum(-1).min((1, 2))
    return near > CLEARANCE**2


def distractor(canvas: Canvas, dashes: int) -> None:
    """Add a short path at a random position to every picture; drop pictures that have no room for it."""
    rng, pictures = canvas.rng, len(canvas.dashes)
    path, left = np.zeros((pictures, dashes, 2, 2)), np.arange(pictures)
    for _ in range(STARTS):
        tips, angles = rng.uniform(BORDER, SIDE - BORDER, (len(left), 2)), rng.uniform(0, 2 * math.pi, len(left))
        good = np.ones(len(left), dtype=bool)
        for place in range(dashes):
            dash, angles, found = canvas.step(left, tips, angles)
            path[left, place], tips, good = dash, dash[:, 1], good & found
        left = left[~good]
    for place in range(dashes):
        canvas.put(path[:, place])
        canvas.bar(np.arange(pictures), path[:, place])
    canvas.keep(~np.isin(np.arange(pictures), left))


def painted(canvas: Canvas, discs: np.ndarray) -> np.ndarray:
    """Render the pictures, each pixel as the mean of 2 × 2 points. discs P, 2, 2 → P, 32, 32 uint8"""
    pictures = len(canvas.dashes)
    fine = np.zeros((pictures, SIDE * FINE, SIDE * FINE), dtype=np.uint8)
    starts, ends = canvas.dashes[:, : canvas.count, 0], canvas.dashes[:, : canvas.count, 1]
    inset = (ends - starts) * HALF_WIDTH / DASH  # `stamp` rounds the ends, which adds half a width at each
    stamp(fine, starts + inset, ends - inset, HALF_WIDTH, GREY)
    stamp(fine, discs, discs, DISC, WHITE)
    parts = fine.reshape(pictures, SIDE, FINE, SIDE, FINE).astype(np.uint16)
    grey: np.ndarray = (parts.sum((2, 4)) // FINE**2).astype(np.uint8)
    return grey


def stamp(
    fine: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    radius: float,
    value: int,
    pictures: np.ndarray | None = None,
) -> None:
    """Set every point within ``radius`` pixels of the lines from start to end to ``value``. P, K, 2 twice"""
    reach = math.ceil((DASH / 2 + radius) * FINE)
    steps = np.arange(-reach, reach + 1)
    middle = np.floor((starts + ends) / 2 * FINE).astype(int)
    columns, rows = middle[..., 0, None] + steps, middle[..., 1, None] + steps  # P, K, points of an edge
    line = ends - starts
    x = ((columns + 0.5) / FINE - starts[..., :1])[..., None, :]
    y = ((rows + 0.5) / FINE - starts[..., 1:])[..., :, None]
    dx, dy = line[..., 0, None, None], line[..., 1, None, None]
    along = np.clip((x * dx + y * dy) / np.maximum(dx**2 + dy**2, 1e-12), 0, 1)
    hit = (x - along * dx) ** 2 + (y - along * dy) ** 2 <= radius**2  # P, K, rows, columns
    picture, dash, row, column = np.nonzero(hit)
    r, c = rows[picture, dash, row], columns[picture, dash, column]
    seen = (r >= 0) & (r < SIDE * FINE) & (c >= 0) & (c < SIDE * FINE)
    whole = picture if pictures is None else pictures[picture]
    fine[whole[seen], r[seen], c[seen]] = value


def finished(rng: np.random.Generator, options: PathfinderOptions) -> Canvas:
    """Pictures without their discs: the dashes of both paths in turn, then those of the distractors."""
    dashes = max(options.contour // 3, 1)
    number = min(20 // dashes, 10)  # shorter ones are more
    canvas = Canvas(rng, PICTURES, 2 * options.contour + dashes * number)
    two_paths(canvas, options.contour)
    for _ in range(number):
        distractor(canvas, dashes)
    return canvas


def samples_drawn(options: PathfinderOptions) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield pictures without end, each in two versions (class 0, 1) by the second disc. 32, 32 twice"""
    rng, last = np.random.default_rng(options.seed), 2 * options.contour
    while True:
        canvas = finished(rng, options)
        start, *ends = canvas.dashes[:, 0, 0], canvas.dashes[:, last - 1, 1], canvas.dashes[:, last - 2, 1]
        yield from zip(*(painted(canvas, np.stack((start, end), 1)) for end in ends), strict=True)


def generated(options: PathfinderOptions) -> dict[str, np.ndarray]:
    """Generate the pictures of all three splits, concatenated, and their classes."""
    from leanify.core.terminal import track

    rng = np.random.default_rng((options.seed, 1))
    sizes = (options.train, options.validation, options.test)
    labels = np.concatenate([rng.permutation(np.arange(size) % 2) for size in sizes])
    images = np.empty((len(labels), SIDE, SIDE), dtype=np.uint8)
    source = samples_drawn(options)
    for place in track(range(len(labels)), "drawing Pathfinder"):
        images[place] = next(source)[labels[place]]
    return {"images": images, "labels": labels}


def splits(data: DataSection, model: nn.Module) -> Splits:
    """Training, validation and test pictures: from an image folder if data.path has one, else generated."""
    only_sequences(data, model, "pixels", vocabulary=lra_image.VOCABULARY)
    options = parse_options(PathfinderOptions, data.options)
    folder = None if data.path is None else data_path(data)
    if folder is not None and any(entry.is_dir() for entry in folder.iterdir()):
        return lra_image.from_folder(data, model, folder)
    if lra_image.side_of(data, model) != SIDE:
        raise DataError(f"generated Pathfinder pictures have {SIDE} × {SIDE} pixels: set data.length={SIDE**2}")
    whole, place = load_or_make("pathfinder", asdict(options), lambda: generated(options), folder)
    ends = np.arange(1, len(whole["labels"]) + 1) * SIDE**2
    every = Sequences(whole["images"].reshape(-1), ends, whole["labels"])
    parts = every.parts(options.train, options.validation, options.test)
    description = f"Pathfinder generated with seed {options.seed} in {place}"
    return sequence_splits(data, model, *parts, description=description, classes=2, cut=False)

"""What the built-in recipes cost: parameters of their models, and processor minutes of training on one thread.

    python -m recipes.research.recipe_costs             writes recipes/costs.json
    python -m recipes.research.recipe_costs NAME…       these alone; the others stay as they are
    … -o FILE                                           writes there

Minutes are those of two steps, times the steps: of the recipes whose data come with leanify or with Python, and of the
three for own data on made-up data of the size that is given with them. The others need downloads, most of them GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import torch
from PIL import Image

from leanify.core import recipe as recipes
from leanify.core.errors import SourceError
from leanify.core.recipe_code import built_in_recipes, home
from leanify.sources import find
from leanify.training.loop import Trainer

AT_HAND = ("chars", "digits", "digits-study", "farthest-point", "listops-small", "masked-small")
WORDS = ("one", "two", "three", "good", "bad", "film", "plot", "actor", "scene", "quite", "very", "never")
SAMPLES = 500


def own_data(folder: Path) -> dict[str, str]:
    """500 pictures, 500 sentences and a text of 1 MB, by the recipe that takes them."""
    draw = random.Random(0)
    for number in range(SAMPLES):
        place = folder / "pictures" / f"class{number % 4}"
        place.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((64, 64), 20 + number % 4).convert("RGB").save(place / f"{number}.png")
    sentences = [" ".join(draw.choices(WORDS, k=12)) for _ in range(SAMPLES)]
    (folder / "mails").mkdir()
    rows = [f"{sentence},{number % 2}" for number, sentence in enumerate(sentences)]
    (folder / "mails" / "train.csv").write_text("\n".join(["text,label", *rows]))
    (folder / "book.txt").write_text("\n".join(" ".join(draw.choices(WORDS, k=12)) for _ in range(20_000)))
    return {"own-images": "pictures", "own-sentences": "mails", "own-text": "book.txt"}


def minutes(name: str, settings: list[str]) -> float:
    """Processor minutes of all steps, from the second of two."""
    trainer = Trainer(recipes.apply_settings(recipes.load(name), settings))
    batches = trainer.batches(0)
    trainer.step(0, batches)
    began = time.process_time()
    trainer.step(1, batches)
    return (time.process_time() - began) * trainer.steps / 60


def params(name: str) -> int | None:
    """None where the model lies on the hub and the hub cannot be asked."""
    try:
        model = find.build_on_meta(find.find(name))
    except SourceError:
        return None
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="recipes as `leanify recipes` names them")
    parser.add_argument("-o", "--output", type=Path, default=home() / "costs.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = options.names or list(built_in_recipes())
    costs: dict[str, dict[str, float | None]] = json.loads((home() / "costs.json").read_text(encoding="utf-8"))
    for name in names:
        costs[name] = {"params": params(name), "minutes": None}
    with tempfile.TemporaryDirectory() as place:
        own = own_data(Path(place))
        for name in [name for name in (*AT_HAND, *own) if name in names]:
            settings = ["data.workers=0"]
            if name in own:
                settings += [f"data.path={place}/{own[name]}", *(["data.holdout=0.2"] if name != "own-text" else [])]
            if name == "own-images":
                settings.append("model.override.num_classes=4")
            costs[name]["minutes"] = round(minutes(name, settings), 1)
            print(name, costs[name], flush=True)
    costs = {name: costs[name] for name in built_in_recipes()}
    options.output.write_text(json.dumps(costs, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

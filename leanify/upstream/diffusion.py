"""diffusers' transformers that denoise images: built, described and given inputs. Needs the extra ``diffusers``.

Their configuration says the width as heads × head_dim, so a width that is not their product has no words
there: such a shape is leanify's to load.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any

from leanify.architecture import Architecture
from leanify.errors import SourceError
from leanify.upstream.libraries import nearest
from leanify.upstream.wall import wall

if TYPE_CHECKING:  # the prices of a name are read again without torch
    from torch import Tensor, nn

CLASSES = ("DiTTransformer2DModel", "PixArtTransformer2DModel")
WEIGHTS = "diffusion_pytorch_model.safetensors"
CAPTION = 120  # tokens of a caption (PixArt-α, §2.3)
ADDED = ("resolution", "aspect_ratio")  # what PixArt at 1024 pixels takes beside the time step, in one dictionary


def model_class(name: str) -> Any:
    """A class of diffusers by its name or its first letters (``dit``, ``pixart``). Raises SourceError."""
    found = [one for one in CLASSES if one.lower().startswith(name.lower())] if name else []
    if len(found) != 1:
        near = difflib.get_close_matches(name, CLASSES)
        raise SourceError(
            f"{name!r} is none of the models of diffusers that leanify knows: {', '.join(near or CLASSES)}"
        )
    try:
        metadata.version("diffusers")
    except metadata.PackageNotFoundError:
        raise SourceError(
            f"{found[0]} is a model of diffusers, which is not here: pip install 'leanify[diffusers]'"
        ) from None
    with wall("diffusers does not import"):
        library = importlib.import_module("diffusers")
        library.logging.set_verbosity_error()
        return getattr(library, found[0])


def is_diffusers(model: nn.Module) -> bool:
    return type(model).__module__.startswith("diffusers.") and "diffusers" in sys.modules


def build(name: str, options: Mapping[str, Any]) -> nn.Module:
    """The model that diffusers' constructor gives; options are its arguments alone, whatever a file says."""
    cls = model_class(name)
    known = inspect.signature(cls.__init__).parameters
    for key in options:
        if key not in known:
            raise SourceError(f"{cls.__name__} has no argument {key!r}{nearest(key, known)}")
    with wall(f"diffusers does not build {cls.__name__} with {dict(options)}"):
        model: nn.Module = cls(**options)
    return model


def options_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The constructor's arguments in a configuration; ``_class_name`` and the like are no arguments."""
    return {key: value for key, value in config.items() if not key.startswith("_")}


def file_words(name: str) -> dict[str, Any]:
    """What diffusers writes first into a configuration's file."""
    return {"_class_name": name, "_diffusers_version": metadata.version("diffusers")}


def words_of(old: Architecture, new: Architecture) -> Iterator[dict[str, Any]]:
    """The arguments that a new shape changes, if there are any: depth, or the width cut into other heads."""
    (before, *more), (after, *others) = old.stages, new.stages
    if more or others or len(set(after.blocks)) > 1 or before.primary is None or after.primary is None:
        return
    if after.primary.inner == after.primary.width and after.primary.mlp == before.primary.mlp:
        sizes = {"num_attention_heads": after.primary.heads, "attention_head_dim": after.primary.head_dim}
        yield {"num_layers": after.depth, **sizes}


def example_inputs(model: Any, batch: int) -> dict[str, Tensor]:
    """Noisy latents, time steps, and classes or captions; flat, as `arguments` takes them apart."""
    import torch

    config = model.config
    size = config["sample_size"]
    found = {
        "hidden_states": torch.randn(batch, config["in_channels"], size, size),
        "timestep": torch.randint(1000, (batch,)),
    }
    if "cross_attention_dim" not in config:
        return {**found, "class_labels": torch.randint(config["num_embeds_ada_norm"], (batch,))}
    width = config["caption_channels"] or config["cross_attention_dim"]
    found["encoder_hidden_states"] = torch.randn(batch, CAPTION, width)
    if model.use_additional_conditions:
        found |= {"resolution": torch.full((batch, 2), 8.0 * size), "aspect_ratio": torch.ones(batch, 1)}
    return found


def arguments(inputs: Mapping[str, Tensor]) -> dict[str, Any]:
    """The arguments of a forward pass: PixArt takes its added conditions in one dictionary."""
    added = {name: inputs[name] for name in ADDED if name in inputs}
    rest: dict[str, Any] = {name: value for name, value in inputs.items() if name not in added}
    return {**rest, "added_cond_kwargs": added} if added else rest

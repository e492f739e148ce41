"""Make a random batch of a model's kind of input, without its processor."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from leanify.core.errors import ShapeError, UnsupportedModel
from leanify.upstream.build import NothingToDraw
from leanify.upstream.example_inputs import Given, named_tensors, resize_batch
from leanify.upstream.inputs_of_type import IMAGE_SIZES, OF_TYPE, side, text_behind
from leanify.upstream.origin import get_example, get_origin, is_hf, text_config
from leanify.upstream.spelling import longest_context

if TYPE_CHECKING:
    from transformers import PretrainedConfig

MAX_VOCABULARY = 1_000_000
IMAGE_TOKENS = ("mm_tokens_per_image", "vision_soft_tokens_per_image", "num_image_tokens", "image_seq_length")
FURTHER = re.compile(r"(pixel|image|video|audio|patch|box|point|grid|ratio|type|longer|feature|input_ids)(?!_l|_sel)")
GRIDS = ("grid_thw", "spatial_shapes")


def example_inputs(
    model: nn.Module, batch: int | None = None, tokens: int | None = None, device: str | torch.device = "cpu"
) -> dict[str, Tensor]:
    """Return a random batch by argument name: images, sound, or token ids (by default 512, or as many as fit).

    transformers models get their main input, their forward's required arguments, and decoder tokens.
    Floating-point inputs have the model's dtype. Without ``batch`` it is one sample, or the unchanged example of a
    user's module.

    Raises UnsupportedModel for a module of unknown input without an example of it.
    """
    kind = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)

    def move(x: Tensor) -> Tensor:
        return x.to(device, kind) if x.is_floating_point() else x.to(device)

    # a user's example, whose containers keep their type
    example = get_example(model)
    if example is not None:
        batch_inputs = example if batch is None else resize_batch(model, example, batch)
        return Given({name: tree_map_only(Tensor, move, value) for name, value in batch_inputs.items()})

    # random tensors
    meta = str(device) == "meta"
    with torch.device("meta") if meta else nullcontext(), NothingToDraw(device):  # 10⁹ pixels cost nothing there
        inputs = _examples(model, batch or 1, tokens, device)
    dtype = kind or torch.float32
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}


def knows_input(model: nn.Module) -> bool:
    """Whether the model has an example input, or leanify can make one."""
    has_own_rule = callable(getattr(model, "example_inputs", None)) or is_hf(model) or get_example(model) is not None
    return has_own_rule or bool(getattr(model, "pretrained_cfg", None))


def describe_made(model: nn.Module, error: BaseException | None = None) -> str:
    """The inputs that are made up for a model of transformers, and others that its forward takes, for a refusal."""
    made = [name for name in _arguments(model) if name in _MAKERS]
    others = [name for name in inspect.signature(model.forward).parameters if FURTHER.search(name) and name not in made]
    rest = f", and its processor may make more ({', '.join(others[:4])})" if others else ""
    message = " ".join(str(error or "").split())[:140]
    # upstream's message to users; a line of Python's own only if no other input could be lacking
    is_said = message and ((isinstance(error, ValueError) and not message[:1].islower()) or not others)
    said = f"; upstream says: {message.rstrip('.')}" if is_said else ""
    return f"the {', '.join(made) or 'inputs'} that leanify makes up{rest}{said}"


def takes_chosen(model: nn.Module) -> bool:
    """Whether a module predicts only masked tokens: its forward takes ``chosen``, positions of the flattened B · N."""
    forward = getattr(model, "forward", None)  # trivial references, such as bigram counts, have no forward
    return not is_hf(model) and forward is not None and "chosen" in inspect.signature(forward).parameters


def _examples(model: nn.Module, batch: int, tokens: int | None, device: str | torch.device) -> dict[str, Tensor]:
    # a module that makes its own examples by argument name, and a timm model
    if not is_hf(model):
        make: Any = getattr(model, "example_inputs", None)
        if callable(make):
            return {name: value.to(device) for name, value in make(batch, tokens).items()}
        channels, *size = _timm_input_size(model)
        return {"x": torch.randn(batch, channels, *size).to(device)}

    # transformers: a tensor for each argument, by its name
    config: Any = model.config
    length = _length(model, tokens)
    inputs = {name: _MAKERS[name](config, batch, length) for name in _arguments(model) if name in _MAKERS}

    # images of any shape are flattened into patches: (patches, channels) with a grid, (B, patches, channels) without
    if "pixel_values" in inputs and ("grid_thw" in inputs or "image_grid_thw" in inputs):
        inputs["pixel_values"] = _patches(config, batch, length)
    if "spatial_shapes" in inputs:
        patches = _patches(config, batch, length)
        inputs["pixel_values"] = patches.view(batch, -1, patches.shape[-1])

    # text after an image, if the number of the image's tokens is known
    if {"input_ids", "pixel_values"} <= inputs.keys():
        images = _get(config, *IMAGE_TOKENS)
        word = _get(config, "image_token_id", "image_token_index")
        if images is not None and word is not None:
            inputs |= text_behind(word, batch, images, length)

    # a model that begins with a convolution takes the channels of a spectrogram before time
    if "input_features" in inputs:
        maps = (module for module in model.modules() if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)))
        first = next(maps, None)
        if isinstance(first, nn.Conv1d) and first.in_channels == inputs["input_features"].shape[-1]:
            inputs["input_features"] = inputs["input_features"].transpose(1, 2)

    # types that need more than names; grids keep their values on meta
    if config.model_type in OF_TYPE:
        inputs |= OF_TYPE[config.model_type](config, batch, length)
    # texts end as a tokenizer ends them: a classifier like BART's reads the state of that token
    end = getattr(config, "eos_token_id", None)
    if config.is_encoder_decoder and isinstance(end, int) and "input_ids" in inputs:
        inputs["input_ids"][:, -1] = end
    if type(model).__name__.endswith("ForMultipleChoice"):  # (B, choices, N), of one choice
        inputs = {name: value[:, None] for name, value in inputs.items()}
    on_meta = str(device) == "meta"
    return {name: value if on_meta and name.endswith(GRIDS) else value.to(device) for name, value in inputs.items()}


def _timm_input_size(model: nn.Module) -> tuple[int, ...]:
    default: Any = getattr(model, "pretrained_cfg", None) or {}
    if "input_size" not in default:
        raise UnsupportedModel(
            f"{type(model).__name__} comes from neither timm nor transformers, so its input is not known: give an "
            "example input, leanify.read(model, inputs=batch) (a tensor, a tuple or a dictionary); so for write, grow, "
            "redesign, profile and save"
        )

    # the size that the model was built with, or the default
    origin = get_origin(model)
    channels = getattr(model, "in_chans", None) or default["input_size"][0]
    requested_size = origin.options.get("img_size") if origin else None
    size = requested_size or getattr(getattr(model, "patch_embed", None), "img_size", None) or default["input_size"][1:]
    return (channels, size, size) if isinstance(size, int) else (channels, *size)


def _arguments(model: nn.Module) -> list[str]:
    """Names of the inputs to make: main input, required arguments of forward, attention mask, decoder tokens."""
    parameters = inspect.signature(model.forward).parameters
    main: Any = model.main_input_name
    config: Any = model.config
    names = list(main) if isinstance(main, (list, tuple)) else [main]
    names += [name for name, p in parameters.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]

    # tokens, and the arguments that come with them
    if "input_ids" in parameters and not any(name in _MAKERS for name in names):
        names.append("input_ids")
    if "input_ids" in names:
        names += ["attention_mask", "bbox"]
    if "states" in parameters:  # trajectories
        names += ["states", "actions", "rewards", "returns_to_go", "timesteps", "attention_mask"]

    # images and sound
    names += ["visual_feats", "visual_pos", "input_features_mask", "target_sizes"]
    if hasattr(config, "vision_config") and "input_ids" in names:
        names.append("pixel_values")
    if "spatial_shapes" in parameters and "pixel_values" in names:  # images of any shape, as patches
        names += ["pixel_attention_mask", "spatial_shapes"]

    # the inputs of a decoder
    if "query_embeds" in names:
        names.append("encoder_hidden_states")
    if config.is_encoder_decoder or "decoder_input_ids" in names:
        names.append("decoder_input_ids")
    return [name for name in dict.fromkeys(names) if name in parameters]


def _length(model: Any, tokens: int | None) -> int:
    """The sequence length: ``tokens``, by default 512 (10 s of sound) or the number of positions if that is smaller."""
    config = text_config(model.config)
    limits = [getattr(config, name, None) or 0 for name in ("max_position_embeddings", "max_target_positions")]
    longest = min((limit for limit in limits if limit > 0), default=512)  # XLNet says -1: no limit

    # some models reserve the first positions for padding
    tables = (module for path, module in model.named_modules() if path.endswith("position_embeddings"))
    padding_ids = [table.padding_idx for table in tables if getattr(table, "padding_idx", None) is not None]
    usual = {"input_values": 499, "input_features": 125}.get(str(model.main_input_name), 512)
    if padding_ids:
        longest -= padding_ids[0] + 1
    return tokens or min(usual, longest)


def _get(config: PretrainedConfig, *names: str, default: Any = None) -> Any:
    """The first of several keys that exists in a configuration or a nested one."""
    for part in _nested_configs(config):
        for name in names:
            value = getattr(part, name, None)
            if value is not None:
                return value
    return default


def _nested_configs(config: PretrainedConfig) -> list[Any]:
    return [config, *(value for value in vars(config).values() if hasattr(value, "model_type"))]


def _ids(config: PretrainedConfig, batch: int, length: int) -> Tensor:
    """Random ids of ordinary tokens: not the first few, nor special ones (padding, images)."""
    vocabulary = _get(config, "vocab_size", default=100)
    special = set()
    for part in _nested_configs(config):
        for name, value in vars(part).items():
            if name.endswith(("_token_id", "_token_index")) and isinstance(value, int):
                special.add(value)
    id_limit = min(vocabulary, MAX_VOCABULARY)  # a vocabulary of billions costs no memory here
    ordinary = [word for word in range(min(5, id_limit - 1), id_limit) if word not in special]
    return torch.tensor(ordinary)[torch.randint(len(ordinary), (batch, length))]


def _pixels(config: PretrainedConfig, batch: int, length: int) -> Tensor:
    """Images, or flattened patches if the model also takes their grid."""
    if getattr(config, "temporal_patch_size", None) and getattr(config, "spatial_merge_size", None):
        return _patches(config, batch, length)
    if hasattr(config, "num_frames"):
        return _frames(config, batch, length)
    return _images(config, batch, length)


def _images(config: PretrainedConfig, batch: int, length: int) -> Tensor:
    """Images of the configured or the processor's size, by default 224 × 224; 64 × 64 for short inputs."""
    usual = IMAGE_SIZES.get(getattr(config, "model_type", "")) if length > 64 else None
    size = usual or _get(config, "image_size", "input_size", default=224 if length > 64 else 64)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return torch.randn(batch, _get(config, "num_channels", "in_channels", "in_chans", default=3), height, width)


def _frames(config: PretrainedConfig, batch: int, length: int) -> Tensor:
    """Video: batch, frames, channels, height, width."""
    frames = _get(config, "num_frames", "frames_per_clip", default=4)
    return torch.stack([_images(config, batch, length) for _ in range(frames)], 1)


def _features(config: PretrainedConfig, batch: int, length: int) -> Tensor:
    """A mel spectrogram (batch, time, channels); for Whisper, as long as its positions require."""
    channels = _get(
        config, "feature_projection_input_dim", "num_mel_bins", "input_feat_per_channel", "input_channels", default=80
    )
    positions = getattr(config, "max_source_positions", None) if hasattr(config, "num_mel_bins") else None
    frames = 2 * positions if positions else 8 * length
    return torch.randn(batch, frames, channels)


def _sound(config: PretrainedConfig, batch: int, length: int) -> Tensor:
    """A waveform; for the Audio Spectrogram Transformer, a spectrogram."""
    bins = getattr(config, "num_mel_bins", None)
    if bins and hasattr(config, "max_length"):
        return torch.randn(batch, config.max_length, bins)
    channels = _get(config, "audio_channels")
    samples = 320 * length + 80
    return torch.randn(batch, channels, samples) if channels else torch.randn(batch, samples)


def _grid(config: PretrainedConfig, batch: int, length: int) -> Tensor:
    """Grids of patches (time, height, width). Upstream reads them, so they have values even with meta tensors."""
    return torch.tensor([[1, side(length), side(length)]] * batch, device="cpu")


def _patches(config: PretrainedConfig, batch: int, length: int) -> Tensor:
    """The flattened patches of `_grid`'s images, concatenated."""
    channels = _get(config, "in_channels", "num_channels", default=3)
    area = _get(config, "patch_size") ** 2 * (getattr(config, "temporal_patch_size", None) or 1)
    return torch.randn(side(length) ** 2 * batch, channels * area)


def _history_length(config: PretrainedConfig) -> int:
    """Time steps before a forecast: the context and the longest lag."""
    return int(config.context_length + max(getattr(config, "lags_sequence", None) or [0]))


def _channels(config: PretrainedConfig) -> tuple[int, ...]:
    channels = getattr(config, "num_input_channels", None) or getattr(config, "input_size", None)
    return (channels,) if channels not in (None, 1) else ()


def check_tokens(model: nn.Module, tokens: int | None) -> None:
    """Raise ShapeError for a length that has no effect, or for which the model has too few positions."""
    if tokens is None:
        return

    # inputs without a length: a user's example, or shapes that do not change with it
    if get_example(model) is not None:
        raise ShapeError(f"--tokens {tokens}: the input of this module is the example that was given; give another")
    inputs, other = (example_inputs(model, 1, n, "meta") for n in (tokens, tokens + 1))
    if all(inputs[name].shape == other[name].shape for name in inputs):
        raise ShapeError(
            f"--tokens {tokens}: this model's input has no length to choose; it is {describe_inputs(inputs)}"
        )

    # a table of positions has as many rows, and a few more for padding
    longest = longest_context(model)
    tables = {module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)}
    if longest is not None and tokens > longest and not tables.isdisjoint(range(longest, longest + 3)):
        raise ShapeError(f"--tokens {tokens}: this model has positions for {longest} tokens")


def describe_inputs(inputs: dict[str, Tensor]) -> str:
    """Describe one sample, such as "224 × 224 image" or "512 token ids"; masks and grids are not mentioned."""
    if isinstance(inputs, Given):
        parts = [f"{name} {' × '.join(map(str, x.shape)) or 'a number'}" for name, x in named_tensors(inputs)]
        return f"{', '.join(parts)}, as given"
    in_patches = any(name.endswith(GRIDS) for name in inputs)
    silent = ("mask", "masks", "type_ids", "position_ids", *GRIDS)
    parts = []
    for name, x in inputs.items():
        shape = x.shape[1:]
        sizes = " × ".join(map(str, shape))
        if name.endswith(silent) or x.dim() < 2:
            continue
        if in_patches and name in ("pixel_values", "hidden_states") and x.dim() < 4:
            parts.append(f"{x.shape[-2]:,} patches")
        elif name == "hidden_states" and len(shape) == 3:
            parts.append(f"{sizes} latents")
        elif name in ("x", "pixel_values") and len(shape) == 3:
            parts.append(f"{shape[1]} × {shape[2]} image")
        elif name in ("input_ids", "decoder_input_ids") and len(shape) == 1:
            parts.append(f"{sizes}{' decoder' if name.startswith('decoder') else ''} token ids")
        elif name == "input_values" and len(shape) == 1:
            parts.append(f"{shape[0]:,} samples of sound")
        else:
            parts.append(f"{name.replace('_', ' ')} {sizes}".strip())
    return ", ".join(parts)


_MAKERS: dict[str, Callable[[Any, int, int], Tensor]] = {
    "input_ids": _ids,
    "decoder_input_ids": _ids,
    "attention_mask": lambda config, batch, length: torch.ones(batch, length, dtype=torch.long),
    "bbox": lambda config, batch, length: torch.tensor([1, 2, 5, 7]).expand(batch, length, 4).clone(),
    "pixel_values": _pixels,
    "pixel_values_videos": _frames,
    "input_features": _features,
    "input_values": _sound,
    "input_features_mask": lambda config, batch, length: torch.ones(batch, 8 * length, dtype=torch.long),
    "pixel_attention_mask": lambda config, batch, length: torch.ones(batch, side(length) ** 2, dtype=torch.long),
    "spatial_shapes": lambda config, batch, length: torch.tensor([[side(length)] * 2] * batch, device="cpu"),
    "prompt_pixel_values": _pixels,
    "prompt_masks": _pixels,
    "encoder_hidden_states": lambda config, batch, length: torch.randn(
        batch, length, getattr(config, "encoder_hidden_size", None) or config.hidden_size
    ),
    "query_embeds": lambda config, batch, length: torch.randn(batch, length, config.hidden_size),
    "inputs_embeds": lambda config, batch, length: torch.randn(batch, length, config.hidden_size),
    "hidden_states": _patches,
    "grid_thw": _grid,
    "image_grid_thw": _grid,
    "past_values": lambda config, batch, length: torch.randn(batch, _history_length(config), *_channels(config)),
    "past_time_features": lambda config, batch, length: torch.randn(
        batch, _history_length(config), config.num_time_features
    ),
    "past_observed_mask": lambda config, batch, length: torch.ones(batch, _history_length(config), *_channels(config)),
    # detected regions of an image: 36 (LXMERT, §4.1), or a few for short inputs
    "visual_feats": lambda config, batch, length: torch.randn(batch, 36 if length > 64 else 5, config.visual_feat_dim),
    "visual_pos": lambda config, batch, length: torch.rand(batch, 36 if length > 64 else 5, config.visual_pos_dim),
    "states": lambda config, batch, length: torch.randn(batch, length, config.state_dim),
    "actions": lambda config, batch, length: torch.randn(batch, length, config.act_dim),
    "rewards": lambda config, batch, length: torch.randn(batch, length, 1),
    "returns_to_go": lambda config, batch, length: torch.randn(batch, length, 1),
    "timesteps": lambda config, batch, length: torch.arange(length).expand(batch, length),
    "target_sizes": lambda config, batch, length: torch.tensor([[side(length)] * 2] * batch),
}

"""Count a model's parameters, multiply-adds and caches: its own forward runs, and torch counts."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from leanify.core.errors import UnsupportedModel
from leanify.discovery.flow import iterate_tensors
from leanify.lens.located import LocatedLayer, LocatedModel
from leanify.profiling.cost import Cost
from leanify.profiling.forward import Countable, call, disable_gradients, observe_forward, observe_on_meta
from leanify.reshaping.sites import locate
from leanify.upstream.origin import get_example, is_hf, remove_on_exit, text_config
from leanify.upstream.spelling import cache_size

CACHED_BYTES = 2  # a number: bfloat16 or float16


def parameters(module: nn.Module) -> int:
    """The number of parameters, shared ones once."""
    return sum(parameter.numel() for parameter in module.parameters())


def weights_bytes(model: nn.Module) -> int:
    """The size of the parameters and saved buffers, shared ones once."""
    tensors = {id(tensor): tensor for tensor in model.state_dict(keep_vars=True).values()}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def body_parameters(located_model: LocatedModel) -> int:
    """The parameters of the blocks: everything but embeddings, final norms and classifier."""
    return parameters(nn.ModuleList(located_model.blocks))


def embedding_parameters(model: nn.Module) -> int | None:
    """The parameters of tables and biases with a row for each token, a tied one once; None without a vocabulary."""
    if not is_hf(model):
        return None
    config: Any = model.config
    rows = getattr(text_config(config), "vocab_size", None)
    if type(rows) is not int:
        return None
    # a numbered block may have a matrix of as many rows by chance; a table in a list (lm_heads.0.weight) is outside
    outer_parameters = [tensor for name, tensor in model.named_parameters() if not re.search(r"\.\d+\.\w+\.", name)]
    return sum(parameter.numel() for parameter in outer_parameters if parameter.shape[:1] == (rows,))


class Flops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts FLOPs by torch's own formulas in ``total``; a composite operator is counted by its parts.

    torch's `FlopCounterMode` gives a total at the end only; here it can be read between two modules.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _is_made_of_others(func):
            with self:
                return func.decompose(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=result)
        return result


@cache
def _is_made_of_others(operator: Any) -> bool:
    return bool(operator._can_decompose())


def macs(model: nn.Module, inputs: dict[str, Tensor]) -> int:
    """Multiply-adds of one forward pass (half of its FLOPs), by torch's formulas; exact if nothing is fused."""
    with disable_gradients(model), Countable(), Flops() as flops:
        call(model, inputs)
    return int(flops.total) // 2


def module_macs_by_path(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, int]:
    """Multiply-adds of one forward pass in each module that has any, by its path; the model's are at ``""``."""
    # the counter's total at the end of a module's call less its total at the beginning
    flops = Flops()
    before: dict[str, list[int]] = {}
    module_macs: dict[str, int] = {}
    hooks = []
    for path, module in model.named_modules():

        def enter(_: nn.Module, args: Any, path: str = path) -> None:
            before.setdefault(path, []).append(flops.total)

        def leave(_: nn.Module, args: Any, result: Any, path: str = path) -> None:
            start_total = before[path].pop()
            if not before[path]:  # not in a call of itself
                module_macs[path] = module_macs.get(path, 0) + flops.total - start_total

        hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    with remove_on_exit(hooks), disable_gradients(model), Countable(), flops:
        call(model, inputs)
    return {**{path: count // 2 for path, count in module_macs.items() if count}, "": flops.total // 2}


def count(model: nn.Module, tokens: int | None = None, context: int = 0) -> Cost:
    """The cost of a model on ``meta``; of a user's module that cannot be read, without its blocks.

    Raises UnsupportedModel if its forward does not run.
    """
    try:
        located_model = locate(model)
    except UnsupportedModel:
        if get_example(model) is None:
            raise
        located_model = LocatedModel(model, [], [])
    return count_located(located_model, tokens, context)


def count_located(located_model: LocatedModel, tokens: int | None = None, context: int = 0) -> Cost:
    """`count` for a model that is located already."""
    params = parameters(located_model.model)
    forward = observe_forward(located_model.model, tokens, macs)
    prefill, decode = generation(located_model, context)
    kv, active = cache_bytes(located_model, context), params - idle_parameters(located_model)
    embeddings = embedding_parameters(located_model.model) or 0
    return Cost(params, body_parameters(located_model), forward, active, kv, prefill, decode, embeddings)


def idle_parameters(located_model: LocatedModel) -> int:
    """The parameters of the experts that a token is not sent to, also in blocks without attention."""
    # (idle experts, experts) by the class of mixtures; 0 active experts mean that the configuration has no number
    idle: dict[type, tuple[int, int]] = {}
    for layer in located_model.layers:
        shape = layer.read()
        if shape.experts and shape.active and layer.mlp is not None:
            idle[type(layer.mlp.module)] = (shape.experts - shape.active, shape.experts)
    total = 0
    for module in {module for module in located_model.model.modules() if type(module) in idle}:
        idle_experts, experts = idle[type(module)]
        total += parameters(module) * idle_experts // experts
    return total


def cache_bytes(located_model: LocatedModel, context: int) -> int:
    """Bytes of the key/value caches after ``context`` tokens of one sequence, as servers keep them.

    Keys and values of every key/value head, up to the layer's window; under latent attention the latent and the rotary
    part only (DeepSeek-V2, §2.1). Cross-attention does not count: its cache does not grow with the context.
    """
    numbers = 0
    for layer in located_model.layers:
        cache = cache_size(located_model.model, layer.attention.module) if context else None
        if cache is not None:
            shape = layer.read()
            numbers += cache.cached_tokens(context) * (cache.latent or 2 * shape.kv_heads * shape.head_dim)
    return CACHED_BYTES * numbers


def generation(located_model: LocatedModel, context: int) -> tuple[int, int]:
    """(prefill, decode) of an encoder-decoder in multiply-adds; zeros for other models, or if it does not run on meta.

    prefill  the encoder reads ``context`` tokens (or its sound or image), the decoder its first token
    decode   one more token of the decoder, with ``context`` cached ones

    They follow from two forward passes, with one and with two decoder tokens: keys and values of the encoder's output
    are computed once and cancel; the decoder's own attention maps have one entry for one token and four for two.
    """
    model: Any = located_model.model
    if not context or not is_hf(model) or not getattr(model.config, "is_encoder_decoder", False):
        return 0, 0

    def decoder_macs(number: int) -> int | None:
        def observe(model: nn.Module, inputs: dict[str, Tensor]) -> int:
            return macs(model, {**inputs, "decoder_input_ids": inputs["decoder_input_ids"][:, :number]})

        return observe_on_meta(model, context, observe)

    # passes with one and with two tokens: their difference is the work of one more token
    one_token, two_tokens = decoder_macs(1), decoder_macs(2)
    if one_token is None or two_tokens is None:
        return 0, 0

    # attention to the cache: MACs of a query with one key and its value, and with all tokens that its layer keeps
    row = rows = 0
    for layer in located_model.layers:
        cache = cache_size(model, layer.attention.module)
        if cache is not None:
            shape = layer.read()
            pair = shape.heads * (cache.pair or 2 * shape.head_dim)
            row, rows = row + pair, rows + pair * cache.cached_tokens(context)
    return one_token, two_tokens - one_token - 3 * row + rows


def token_counts(located_model: LocatedModel, tokens: int | None = None) -> list[int]:
    """The number of tokens N of A in each stage: the rows of the input of its primary output projection."""
    # the widest layer of a block represents its stage
    layers: dict[str, LocatedLayer] = {}
    for stage in located_model.stages:
        block = next(block for block in stage.blocks if block)
        layers[stage.name] = max(block, key=lambda layer: layer.read().width)

    def layer_rows(model: nn.Module, inputs: dict[str, Tensor]) -> list[int]:
        rows_by_path: dict[str, int] = {}
        # hooks on the output projection's input, or behind an attention that never calls it
        hooks = []
        for stage, layer in layers.items():

            def note(_: nn.Module, args: tuple[Tensor, ...], name: str = stage) -> None:
                rows_by_path[name] = _rows(args[0])

            def note_behind(_: nn.Module, args: Any, result: Any, name: str = stage) -> None:
                for tensor in iterate_tensors(result):
                    if tensor.dim() > 1:
                        rows_by_path.setdefault(name, _rows(tensor))  # torch's own attention takes the weights alone

            if layer.is_observable:
                hooks.append(model.get_submodule(layer.output_path).register_forward_pre_hook(note))
            hooks.append(model.get_submodule(layer.attention.path).register_forward_hook(note_behind))
        with remove_on_exit(hooks), disable_gradients(model), Countable():
            call(model, inputs)
        return [rows_by_path.get(stage, 1) for stage in layers]

    return observe_forward(located_model.model, tokens, layer_rows)


def _rows(tensor: Tensor) -> int:
    """The tokens of one sample: (…, N, C), (…, H, W, C), or (N, 1, C)."""
    shape = tensor.shape
    tokens_first = len(shape) == 3 and shape[-2] == 1
    return shape[-2] * shape[-3] if len(shape) > 3 or tokens_first else shape[-2]

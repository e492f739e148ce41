"""The costs of a SOURCE: from the cache, and from the model itself once something else is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leanify.design.options import Options
from leanify.design.prices import cache
from leanify.design.prices.costs import ModelCosts
from leanify.errors import ShapeError

if TYPE_CHECKING:
    from leanify.design.prices.cache import Source
    from leanify.design.prices.live import LiveModel


def costs_of(source: Source, options: Options) -> ModelCosts:
    """The costs of a source under the options that change its model. Asking raises what finding and building raise."""
    return ModelCosts(lambda: live_model(source, options), cache.file_of("prices", source, options))


def live_model(source: Source, options: Options) -> tuple[LiveModel, bool]:
    """The model itself on meta, and whether it is on this machine. Raises ShapeError for one that cannot run."""
    from leanify.design.prices.live import LiveModel
    from leanify.sources import find
    from leanify.upstream.inputs import check_tokens

    found = find.find(source, overrides=options.overrides, cls=options.cls)
    model = find.build_on_meta(found)
    check_tokens(model, options.tokens)
    live = LiveModel(model, options.tokens, options.context)
    for layer in live.located.architecture.layers():
        if layer.kv_heads > layer.heads:
            raise ShapeError(
                f"{found.origin.name} has {layer.heads} heads on {layer.kv_heads} key/value heads, which no attention "
                "can compute: --override one of them (num_attention_heads, num_key_value_heads)"
            )
    return live, not isinstance(found.weights, str)

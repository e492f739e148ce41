"""Group the MLPs of a block: experts, equal feed-forwards, and others that keep their shape.

experts   equal MLPs in one list, each of which processes all or some of the tokens; they change together
twins     equal MLPs elsewhere in the block (the two feed-forwards of a conformer), which also change together
others    narrower ones (adapters, squeeze-excite, a gated convolution): they keep their shape
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from leanify.core.errors import UnsupportedModel
from leanify.lens import families
from leanify.lens.located import LocatedLayer, Site, ancestors, is_inside
from leanify.lens.resize import get_attribute, map_parameters, solve_sizes, weighted_parts
from leanify.upstream.origin import remove_on_exit

ACTIVE_KEY = "_leanify_active"  # set on a list of experts: how many process each token; 0 if they are not experts
LEADS_KEY = "_leanify_leads"  # set on an MLP of a user's model that a redesign changes
MINOR_SHARE = 0.25  # an MLP with a smaller share of the largest one's parameters is an adapter or a gate


# -- experts -------------


def copy_rows_to_siblings(model: nn.Module) -> None:
    """Attach the row of a read expert to the experts of its list that received no token in the example, in place."""
    for path, module in list(model.named_modules()):
        row = families.attached_row(module)
        place = list_place(model, path)
        if row is None or not row.is_mlp or row.is_attention or place is None:
            continue
        container, index, rest = place
        for child, sibling in model.get_submodule(container).named_children():
            twin = get_attribute(sibling, rest)
            if twin is None or child == index or type(twin) is not type(module) or families.find_row(twin) is not None:
                continue
            try:
                if "m" in solve_sizes("", twin, row):
                    families.attach(twin, row)
            except UnsupportedModel:
                continue


def list_place(model: nn.Module, path: str) -> tuple[str, str, str] | None:
    """Return (list, index, rest) of a path below the nearest enclosing list of modules; None if there is none."""
    parts = path.split(".")
    for end in range(len(parts) - 1, -1, -1):
        container = ".".join(parts[:end])
        module = model.get_submodule(container)
        if type(module) is nn.ModuleList and len(module) > 1:
            return container, parts[end], ".".join(parts[end + 1 :])
        if type(module) in (nn.Sequential, nn.ModuleDict):
            return None
    return None


def expert_lists(model: nn.Module, attentions: Sequence[str], mlps: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return {list: paths of its experts}: equal MLPs, one per entry, in a block with an attention outside the list.

    ``mlps`` maps the path of each MLP to a value that is equal for equal MLPs.
    """
    # MLPs by list and by entry of the list
    lists: dict[str, dict[str, list[str]]] = {}
    for path in mlps:
        place = list_place(model, path)
        if place is not None:
            lists.setdefault(place[0], {}).setdefault(place[1], []).append(path)
    # lists with exactly one MLP per entry, all of them equal
    experts = {}
    for container, entries in lists.items():
        paths = [*chain(*entries.values())]
        complete = len(entries) == len(paths) == len(list(model.get_submodule(container).children()))
        equal = all(mlps[path] == mlps[paths[0]] for path in paths)
        # parallel lists of attentions and MLPs are several blocks, not experts
        in_block: list[str] = []
        for path in ancestors(container):  # the nearest module with attentions
            in_block = [one for one in attentions if is_inside(one, path)]
            if in_block:
                break
        if complete and equal and len(in_block) < len(paths) and not any(is_inside(one, container) for one in in_block):
            experts[container] = paths
    return experts


def measure_active(model: nn.Module, lists: Mapping[str, list[str]], run: Callable[[nn.Module], Any]) -> dict[str, int]:
    """Return {list: number of experts per token} from one run; 0 for MLPs that run one after another."""
    inputs: dict[str, list[Tensor]] = {}
    tokens: dict[str, int] = {}
    handles = []
    # record the numbers of entries that the parent and the experts receive
    for container, paths in lists.items():

        def see_parent(module: nn.Module, args: Any, container: str = container) -> None:
            tokens[container] = args[0].numel() if args and isinstance(args[0], Tensor) else 0

        def see_expert(module: nn.Module, args: Any, container: str = container) -> None:
            if args and isinstance(args[0], Tensor):
                inputs.setdefault(container, []).append(args[0])

        parent = model.get_submodule(container.rpartition(".")[0])
        handles.append(parent.register_forward_pre_hook(see_parent))
        handles += [model.get_submodule(path).register_forward_pre_hook(see_expert) for path in paths]
    with remove_on_exit(handles):
        run(model)
    # experts per token = entries that all experts received / entries that the parent received
    counts = {}
    for container, paths in lists.items():
        calls, numbers = inputs.get(container, []), tokens.get(container, 0)
        routed_tokens = sum(call.numel() for call in calls)
        counts[container] = min(len(paths), max(1, round(routed_tokens / numbers))) if numbers else len(paths)
        # experts that process all tokens get equal inputs; in a chain, each MLP gets the output of the previous one
        sees_all = len(calls) == len(paths) and all(call.numel() == numbers for call in calls)
        if sees_all and not all(torch.equal(call, calls[0]) for call in calls):
            counts[container] = 0
    return counts


def mark_experts(model: nn.Module, sites: list[Site]) -> list[Site]:
    """Return the sites with the number of experts (x) and of active ones (a) added for each expert of a list."""
    mlps = {}
    for site in sites:
        if site.reading.is_mlp and not site.reading.is_attention and "x" not in site.sizes:
            mlps[site.path] = signature(site)
    attentions = [site.path for site in sites if site.reading.is_attention]
    expert_marks = {}
    for container, paths in expert_lists(model, attentions, mlps).items():
        active = vars(model.get_submodule(container)).get(ACTIVE_KEY)
        if active:
            expert_marks.update({path: {"x": len(paths), "a": active} for path in paths})
    return [replace(site, sizes={**site.sizes, **expert_marks.get(site.path, {})}) for site in sites]


# -- one block -------------


def signature(site: Site) -> tuple[Any, ...]:
    """Return the properties that MLPs which change together must share: class, layout and hidden units."""
    return site.reading.name, tuple(site.reading.rows.items()), tuple(site.reading.columns.items()), site.sizes["m"]


def pair_layers(attentions: list[Site], mlps: list[Site], of_user: bool) -> list[LocatedLayer]:
    """Pair a block's attentions with its MLPs, one to one; a single MLP goes to the last attention.

    A mixture of experts is the block's MLP if it is at least as large as every dense MLP and shared expert. If there
    are more MLPs than attentions, the largest leads, and MLPs equal to it change with it.
    """
    if not attentions:
        return []
    # those that led before a redesign lead again; a convolution leads only without another MLP
    leading = [mlp for mlp in mlps if LEADS_KEY in vars(mlp.module)] if of_user else []
    plain = [mlp for mlp in mlps if not _convolves(mlp)] if of_user else []
    mlps = leading or plain or mlps
    # mixtures or dense MLPs, whichever lead
    mixtures = [mlp for mlp in mlps if "x" in mlp.sizes]
    dense = [mlp for mlp in mlps if "x" not in mlp.sizes]
    if mixtures and (not of_user or sum(map(_parameters, mixtures)) >= max(map(_parameters, dense), default=0)):
        mlps = mixtures
    elif of_user:
        mlps = dense
    if of_user and mlps:  # drop adapters and gates
        largest = max(map(_parameters, mlps))
        mlps = [mlp for mlp in mlps if _parameters(mlp) >= MINOR_SHARE * largest or _width(mlp) != _width(mlps[0])]
    # more MLPs than attentions: the largest leads
    twins: list[Site] = []
    if len(mlps) > len(attentions):
        lead = max(mlps, key=_parameters)
        equal = [mlp for mlp in mlps if signature(mlp) == signature(lead)]
        if len(equal) == len(attentions):
            mlps = equal
        elif len(attentions) == 1 or len(equal) > len(attentions):
            mlps, twins = equal[-1:], equal[:-1]
        else:
            mlps = mlps[-len(attentions) :]
    # pairs from the end of the block; attentions before them have no MLP
    mlp_per_attention: list[Site | None] = [None] * (len(attentions) - len(mlps)) + list(mlps)
    layers = [LocatedLayer(attention, mlp) for attention, mlp in zip(attentions, mlp_per_attention, strict=True)]
    return [*layers[:-1], replace(layers[-1], twins=tuple(twins))]


def remember_leading(layers: Iterable[LocatedLayer]) -> None:
    """Record in the MLPs of a user's model that they lead: after a redesign another one may be larger."""
    for layer in layers:
        for site in (layer.mlp, *layer.twins):
            if site is not None:
                site.module.__dict__[LEADS_KEY] = True


def _convolves(mlp: Site) -> bool:
    """Whether an MLP mixes tokens between its maps, like the convolution of a conformer."""
    parts = weighted_parts(mlp.module, mlp.reading.rows).values()
    return any(isinstance(part, nn.modules.conv._ConvNd) and part.groups > 1 for part in parts)


def _parameters(site: Site) -> int:
    return sum(parameter.numel() for parameter in map_parameters(site.module, site.reading))


def _width(mlp: Site) -> int:
    return LocatedLayer(mlp, mlp).output_width

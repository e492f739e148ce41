"""Propose edits for a forward that confuses the width with the inner width of the heads, based on its source.

    B, T, C = x.size()                                  C is the width
        q = q.view(B, T, self.n_head, C // self.n_head)     should be the inner width
        y = y.transpose(1, 2).contiguous().view(B, T, C)    should be the inner width

The inner width is the number of inputs of the output projection, in every shape: it replaces each use of C.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

MOST_USES = 5  # up to this many uses of one name are tried in all combinations
INSTANCE = "@"  # placeholder for a method's first argument, usually ``self``


Rewrite = tuple[dict[str, str], tuple[str, ...]]  # the fields ``edits`` and ``methods`` of a row


def rewrites(upstream: type[nn.Module], inner: str, size: int, maps: Sequence[str], last: str) -> Iterator[Rewrite]:
    """Yield edits that replace the width in a forward by ``inner``, an expression with INSTANCE; most likely first.

    ``maps`` are the projections of queries, keys and values in the module, and ``last`` is the one of the output.
    Functions that the forward calls have no access to the module. In them, the width divided by the number of heads
    becomes ``size``, the channels of a head, and the width as an argument of a view becomes -1.
    """
    sources = dict(_methods(upstream))
    forward = sources.get("forward", "")
    first = _first_argument(forward)
    yield from _function_edits(upstream, forward, size)
    # the usual phrases in the forward itself, which do not mention a projection: ``C // self.heads`` and ``, C)``
    short: dict[str, str] = {}
    for width in dict.fromkeys(re.findall(r"^\s*[\w, ]*\b(\w+) = \w+\.(?:shape|size\(\))", forward, re.MULTILINE)):
        short |= dict.fromkeys(re.findall(rf"\b{width} // {first}\.\w+", forward), "-1")
        short |= dict.fromkeys(re.findall(rf", {width}\)", forward), ", -1)")
    if short:
        yield short, ("forward",)
    uses_by_method = {name: list(_uses(ast.parse(text))) for name, text in sources.items()}
    names = list(dict.fromkeys(use.word for use in itertools.chain(*uses_by_method.values())))
    # uses of a name for the heads: elsewhere it is the width, as where windows are cut out, or keys are made fewer
    of_heads = [use for use in uses_by_method.get("forward", []) if _is_of_heads(forward, use, maps, last)]
    for word in names:
        uses = [use for use in of_heads if use.word == word]
        if uses and len(uses) < sum(use.word == word for use in uses_by_method["forward"]):
            yield _make_edits(forward, uses, inner.replace(INSTANCE, first)), ("forward",)
    # uses of all names that hold lengths, then of each name alone
    for words in (names, *([name] for name in names if len(names) > 1)):
        chosen: list[tuple[str, ShapeUse]] = []
        for method, uses in uses_by_method.items():
            chosen += [(method, use) for use in uses if use.word in words]
        for part in _subsets(chosen):
            edits: dict[str, str] = {}
            for method in dict.fromkeys(method for method, _ in part):
                method_inner = inner.replace(INSTANCE, _first_argument(sources[method]))
                edits |= _make_edits(sources[method], [use for m, use in part if m == method], method_inner)
            if edits:
                yield edits, tuple(dict.fromkeys(method for method, _ in part))


def _is_of_heads(source: str, use: ShapeUse, maps: Sequence[str], last: str) -> bool:
    """Whether a use is divided, or lies between the attention and the end of the call of ``last``, its output."""
    if re.match(r" *//? *", source.splitlines()[use.line - 1].encode()[use.end :].decode()):
        return True
    ends: dict[str, tuple[int, int]] = {}  # of the last call, by the name that is called
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            end = node.end_lineno or 0, node.end_col_offset or 0
            name = ast.unparse(node.func).removeprefix(f"{_first_argument(source)}.")
            ends[name] = max(end, ends.get(name, end))
    attentions = [end for name, end in ends.items() if name.endswith(("softmax", "attention"))]
    starts = attentions or [end for name, end in ends.items() if name in maps]
    return bool(starts) and max(starts) < (use.line, use.start) < ends.get(last, (0, 0))


def _first_argument(source: str) -> str:
    match = re.search(r"def \w+\(\s*(\w+)", source)
    return match[1] if match else "self"


def _subsets(chosen: list[tuple[str, ShapeUse]]) -> Iterator[list[tuple[str, ShapeUse]]]:
    """Yield all uses, then only the uses in reshapes and divisions, then each combination of a few."""
    yield chosen
    plain = [pair for pair in chosen if pair[1].likely]
    if plain != chosen:
        yield plain
    if len(chosen) <= MOST_USES:
        for size in range(len(chosen) - 1, 0, -1):
            yield from (list(part) for part in itertools.combinations(chosen, size))


def _methods(upstream: Any) -> Iterator[tuple[str, str]]:
    """Yield (name, source) of the methods that the class and its bases define, except constructors."""
    for kind in upstream.__mro__:
        if kind.__module__.startswith("torch.nn.modules") or kind is object:
            continue
        for name, method in vars(kind).items():
            if inspect.isfunction(method) and not name.startswith("__") and getattr(upstream, name, None) is method:
                try:
                    plain: Any = inspect.unwrap(method)  # type: ignore[arg-type]
                    text = textwrap.dedent(inspect.getsource(plain))
                    ast.parse(text)
                except (OSError, TypeError, SyntaxError):  # no source: typed into a shell, or compiled
                    continue
                yield name, text


def _function_edits(upstream: type[nn.Module], forward: str, size: int) -> Iterator[Rewrite]:
    """Yield edits of the functions in the class's module that its forward calls by name."""
    namespace = vars(sys.modules.get(upstream.__module__, sys))
    for name in dict.fromkeys(re.findall(r"\b([A-Za-z_]\w*)\(", forward)):
        function = namespace.get(name)
        if not inspect.isfunction(function) or function.__module__ != upstream.__module__:
            continue
        try:
            text = textwrap.dedent(inspect.getsource(function))
        except (OSError, TypeError):
            continue
        edits: dict[str, str] = {}
        for length in _length_names(ast.parse(text)):
            divisions = re.findall(rf"\b{length} // \w*heads?\b", text)
            edits |= dict.fromkeys(divisions, str(size))
            if divisions and f", {length})" in text:
                edits[f", {length})"] = ", -1)"
        if edits:
            yield edits, (name,)


@dataclass(frozen=True)
class ShapeUse:
    """One use of a name that holds a length, or of a tensor's entire shape, in a method's source."""

    word: str
    line: int
    start: int
    end: int
    likely: bool
    is_full_shape: bool = False  # the entire shape: only its last entry is the width


def _uses(tree: ast.Module) -> Iterator[ShapeUse]:
    """Yield uses of names assigned from a tensor's shape, and of ``x.shape`` itself as the shape of a view."""
    # names that hold lengths, and the parent of each node
    names = _length_names(tree)
    parents: dict[ast.AST, ast.AST] = {}
    for node in ast.walk(tree):
        parents |= dict.fromkeys(ast.iter_child_nodes(node), node)
    for node in ast.walk(tree):
        word, likely, is_full_shape = "", _is_likely(node, parents), False
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
            word = node.id
        elif _is_shape(node):
            parent = parents.get(node)
            if isinstance(parent, ast.Call) and node in parent.args and _function_name(parent) in _VIEWS:
                word, likely, is_full_shape = "shape", True, True
        elif likely and _is_length(node) and ast.unparse(node).endswith(("[-1]", "(-1)", "[2]", "(2)")):
            word = "shape[-1]"
        if word:
            place: Any = node
            end = place.end_col_offset if place.lineno == place.end_lineno else -1
            yield ShapeUse(word, place.lineno, place.col_offset, end, likely, is_full_shape)


_VIEWS = frozenset({"view", "reshape", "expand", "contiguous_view", "split"})


def _length_names(tree: ast.Module) -> set[str]:
    """Return names assigned from a tensor's lengths: ``B, T, C = x.shape`` (all but the first), ``C = x.size(-1)``."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Tuple):
                values = node.value.elts if isinstance(node.value, ast.Tuple) else None
                named_targets = [(i, one) for i, one in enumerate(target.elts) if isinstance(one, ast.Name)]
                if values is None and (_is_shape(node.value) or isinstance(node.value, ast.Subscript)):
                    names.update(one.id for i, one in named_targets if i > 0)
                elif values is not None and len(values) == len(target.elts):
                    names.update(one.id for i, one in named_targets if _is_length(values[i]))
            elif isinstance(target, ast.Name) and _is_length(node.value):
                names.add(target.id)
    return names


def _is_shape(node: ast.AST) -> bool:
    """``x.shape`` or ``x.size()``."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "size" and not node.args
    return isinstance(node, ast.Attribute) and node.attr == "shape"


def _is_length(node: ast.AST) -> bool:
    """``x.shape[2]`` or ``x.size(-1)``."""
    if isinstance(node, ast.Subscript):
        return _is_shape(node.value)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return node.func.attr == "size" and len(node.args) == 1


def _is_likely(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether a length is divided, or is an argument of a view."""
    parent = parents.get(node)
    if isinstance(parent, ast.BinOp) and isinstance(parent.op, (ast.FloorDiv, ast.Div)) and parent.left is node:
        return True
    while isinstance(parent, (ast.Tuple, ast.List)):
        parent = parents.get(parent)
    return isinstance(parent, ast.Call) and _function_name(parent) in _VIEWS


def _function_name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _make_edits(text: str, uses: list[ShapeUse], inner: str) -> dict[str, str]:
    """Return {line: edited line}, with ``inner`` in place of each use."""
    lines = text.splitlines()
    edits: dict[str, str] = {}
    by_line: dict[int, list[ShapeUse]] = {}
    for use in uses:
        if use.end > 0:
            by_line.setdefault(use.line, []).append(use)
    # replace from the right, so that the offsets of earlier uses stay valid; offsets count bytes
    for number, several in by_line.items():
        line = lines[number - 1].encode()
        new = line
        for use in sorted(several, key=lambda use: -use.start):
            expression = line[use.start : use.end].decode()
            replacement = f"(*{expression}[:-1], {inner})" if use.is_full_shape else inner
            new = new[: use.start] + replacement.encode() + new[use.end :]
        edits[line.decode().strip()] = new.decode().strip()
    return edits

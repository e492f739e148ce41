"""Edits for a forward that takes the width for the heads' inner width, proposed from its source.

    B, T, C = x.size()                                  C is the width
    q = q.view(B, T, self.n_head, C // self.n_head)     meant is the inner width
    y = y.transpose(1, 2).contiguous().view(B, T, C)    meant is the inner width

The inner width is the number of inputs of the output projection, whatever the shape: each use of C is replaced by it.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

MOST_USES = 5  # uses of one name that are tried one by one


@dataclass(frozen=True)
class Rewrite:
    """Replacements in the source of these methods, as the fields ``edits`` and ``methods`` of a row."""

    edits: dict[str, str]
    methods: tuple[str, ...]


def rewrites(upstream: type[nn.Module], inner: str, size: int) -> Iterator[Rewrite]:
    """Yield edits that let the width of a forward be ``inner``, an expression; the most likely first.

    In functions that the forward calls, which do not know the module, a division of the width by the heads is
    ``size``, the channels of a head, and the width where a view takes it is -1.
    """
    sources = dict(_methods(upstream))
    for name, text in _functions(upstream, sources.get("forward", "")):
        inside = _in_a_function(text, size)
        if inside:
            yield Rewrite(inside, (name,))
    short = _short_edits(sources.get("forward", ""))
    if short:
        yield Rewrite(short, ("forward",))
    every = {name: list(_uses(ast.parse(text), text)) for name, text in sources.items()}
    names = list(dict.fromkeys(use.word for uses in every.values() for use in uses))
    for picked in (names, *([name] for name in names if len(names) > 1)):
        chosen = [(method, use) for method, uses in every.items() for use in uses if use.word in picked]
        for part in _subsets(chosen):
            edits: dict[str, str] = {}
            for method in dict.fromkeys(method for method, _ in part):
                edits |= _as_edits(sources[method], [use for m, use in part if m == method], inner)
            if edits:
                yield Rewrite(edits, tuple(dict.fromkeys(method for method, _ in part)))


def _short_edits(source: str) -> dict[str, str]:
    """Edits of what most forwards say, which need no name of a projection: ``C // self.heads`` and ``, C)``."""
    edits: dict[str, str] = {}
    for width in dict.fromkeys(re.findall(r"^\s*[\w, ]*\b(\w+) = \w+\.(?:shape|size\(\))", source, re.MULTILINE)):
        edits |= dict.fromkeys(re.findall(rf"\b{width} // self\.\w+", source), "-1")
        edits |= dict.fromkeys(re.findall(rf", {width}\)", source), ", -1)")
    return edits


def _subsets(chosen: list[tuple[str, Use]]) -> Iterator[list[tuple[str, Use]]]:
    """All uses, those in reshapes and divisions, then each choice of a few."""
    yield chosen
    plain = [pair for pair in chosen if pair[1].likely]
    if plain != chosen:
        yield plain
    if len(chosen) <= MOST_USES:
        for size in range(len(chosen) - 1, 0, -1):
            yield from (list(part) for part in itertools.combinations(chosen, size))


def _methods(upstream: Any) -> Iterator[tuple[str, str]]:
    """(name, source) of the methods that the class and its bases define, except constructors."""
    for kind in upstream.__mro__:
        if kind.__module__.startswith("torch.nn.modules") or kind is object:
            continue
        for name, method in vars(kind).items():
            if inspect.isfunction(method) and not name.startswith("__") and getattr(upstream, name, None) is method:
                try:
                    plain: Any = inspect.unwrap(method)  # type: ignore[arg-type]
                    text = textwrap.dedent(inspect.getsource(plain))
                    ast.parse(text)
                except (OSError, TypeError, SyntaxError):  # typed into a shell, compiled, or otherwise without source
                    continue
                yield name, text


def _functions(upstream: type[nn.Module], forward: str) -> Iterator[tuple[str, str]]:
    """(name, source) of the functions of the class's own module that its forward calls by name."""
    around = vars(sys.modules.get(upstream.__module__, sys))
    for name in dict.fromkeys(re.findall(r"\b([A-Za-z_]\w*)\(", forward)):
        called = around.get(name)
        if inspect.isfunction(called) and called.__module__ == upstream.__module__:
            try:
                yield name, textwrap.dedent(inspect.getsource(called))
            except (OSError, TypeError):
                continue


def _in_a_function(text: str, size: int) -> dict[str, str]:
    tree = ast.parse(text)
    edits: dict[str, str] = {}
    for name in {name for node in ast.walk(tree) if isinstance(node, ast.Assign) for name in _lengths(node)}:
        divided = re.findall(rf"\b{name} // \w*heads?\b", text)
        if divided:
            edits |= dict.fromkeys(divided, str(size))
            edits |= {f", {name})": ", -1)"} if f", {name})" in text else {}
    return edits


@dataclass(frozen=True)
class Use:
    """One use of a name that holds a length, or of a tensor's whole shape, in a method's source."""

    word: str
    line: int
    start: int
    end: int
    likely: bool
    whole: bool = False  # all of a tensor's shape: only its last entry is the width


def _uses(tree: ast.Module, text: str) -> Iterator[Use]:
    """Uses of names that are taken from a tensor's shape, and of ``x.shape`` itself as the shape of a view."""
    names = {name for node in ast.walk(tree) if isinstance(node, ast.Assign) for name in _lengths(node)}
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        word, likely, whole = "", _is_likely(node, parents), False
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
            word = node.id
        elif _is_shape(node):
            around = parents.get(node)
            if isinstance(around, ast.Call) and node in around.args and _called(around) in _VIEWS:
                word, likely, whole = "shape", True, True
        elif likely and _is_length(node) and ast.unparse(node).endswith(("[-1]", "(-1)", "[2]", "(2)")):
            word = "shape[-1]"
        if word:
            place: Any = node
            end = place.end_col_offset if place.lineno == place.end_lineno else -1
            yield Use(word, place.lineno, place.col_offset, end, likely, whole)


_VIEWS = frozenset({"view", "reshape", "expand", "contiguous_view", "split"})


def _lengths(node: ast.Assign) -> Iterator[str]:
    """Names bound to a tensor's lengths: ``B, T, C = x.shape`` (all but the first), ``C = x.size(-1)``."""
    for target in node.targets:
        if isinstance(target, ast.Tuple):
            values = node.value.elts if isinstance(node.value, ast.Tuple) else None
            named = [(i, one) for i, one in enumerate(target.elts) if isinstance(one, ast.Name)]
            if values is None and (_is_shape(node.value) or isinstance(node.value, ast.Subscript)):
                yield from (one.id for i, one in named if i > 0)
            elif values is not None and len(values) == len(target.elts):
                yield from (one.id for i, one in named if _is_length(values[i]))
        elif isinstance(target, ast.Name) and _is_length(node.value):
            yield target.id


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
    """Whether a length is divided, or an argument of a view."""
    around = parents.get(node)
    if isinstance(around, ast.BinOp) and isinstance(around.op, (ast.FloorDiv, ast.Div)) and around.left is node:
        return True
    while isinstance(around, (ast.Tuple, ast.List)):
        around = parents.get(around)
    return isinstance(around, ast.Call) and _called(around) in _VIEWS


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _as_edits(text: str, uses: list[Use], inner: str) -> dict[str, str]:
    """The lines of the uses, as they stand and with ``inner`` in their place."""
    lines = text.splitlines()
    edits: dict[str, str] = {}
    by_line: dict[int, list[Use]] = {}
    for use in uses:
        if use.end > 0:
            by_line.setdefault(use.line, []).append(use)
    for number, several in by_line.items():
        line = lines[number - 1].encode()
        new = line
        for use in sorted(several, key=lambda use: -use.start):
            taken = line[use.start : use.end].decode()
            put = f"(*{taken}[:-1], {inner})" if use.whole else inner
            new = new[: use.start] + put.encode() + new[use.end :]
        edits[line.decode().strip()] = new.decode().strip()
    return edits

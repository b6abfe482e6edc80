"""Values of a Python module, read and never run.

A settings module may do anything when it is imported, so its source is parsed and what is written out is
taken: literals, arithmetic of numbers and lengths of time, names of the module that are bound once to such a
value, and calls of a few known functions, which become `Call`. Whatever else a value is made of can't be told
without running it, and is `Unclear`, with its line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from horarium.errors import InvalidInput, Problem, shown

_LARGEST = 2_000_000
"""Characters of a module; a settings file is a thousandth of it."""


_MOST_VALUES = 20_000
"""In one value; a few names could stand for terabytes."""


class Unclear(Exception):
    """A value that the source alone doesn't tell. `line` is 1-based."""

    def __init__(self, why: str, line: int) -> None:
        self.line = line
        super().__init__(f"{why} (line {line})")


@dataclass(frozen=True)
class Call:
    """A call that is known by name: `celery.schedules.crontab(hour=7)`."""

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    line: int


@dataclass
class Module:
    """A module's tree, its imports and the values that its names are bound to at its top level."""

    tree: ast.Module
    imports: dict[str, str] = field(default_factory=dict)
    """A local name to what it is outside: `dt` → `datetime`, `crontab` → `celery.schedules.crontab`."""
    names: dict[str, ast.expr] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    """Names whose value is changed in place somewhere, so that what they are bound to is not all of it."""

    name: str | None = None
    """What it is imported as, and `package` what its relative imports begin at, where that is known."""
    package: str = ""
    left: int = 0
    """Values that may still be read for the one that is asked for."""

    def dotted(self, node: ast.expr) -> str | None:
        """What a name or an attribute of one is outside, or None for another expression."""
        if isinstance(node, ast.Name):
            return self.imports.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            inner = self.dotted(node.value)
            return None if inner is None else f"{inner}.{node.attr}"
        return None

    def value(self, node: ast.expr, _seen: frozenset[str] = frozenset()) -> Any:
        """What `node` says. Raises `Unclear`."""
        if not _seen:
            self.left = _MOST_VALUES
        try:
            return _Reader(self, _seen).value(node)
        except RecursionError:
            raise Unclear("a value nests too deep", node.lineno) from None

    def entries(self, node: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
        """Keys and values of a mapping, unread: `{...}`, `{**NAME}`, `dict(...)`, or a name of one.

        Raises `Unclear` for what is none.
        """
        yield from self._entries(node, frozenset())

    def _entries(self, node: ast.expr, seen: frozenset[str]) -> Iterator[tuple[ast.expr, ast.expr]]:
        match node:
            case ast.Dict():
                for key, inner in zip(node.keys, node.values, strict=True):
                    if key is None:
                        yield from self._entries(inner, seen)
                    else:
                        yield key, inner
            case ast.Call(func=ast.Name(id="dict"), args=[]):
                for keyword in node.keywords:
                    if keyword.arg is None:
                        yield from self._entries(keyword.value, seen)
                    else:
                        yield ast.copy_location(ast.Constant(keyword.arg), keyword), keyword.value
            case ast.BinOp(op=ast.BitOr()):
                yield from self._entries(node.left, seen)
                yield from self._entries(node.right, seen)
            case ast.Name() if node.id in self.changed:
                raise Unclear(f"{node.id} is changed in other places", node.lineno)
            case ast.Name() if node.id in self.names and node.id not in seen:
                yield from self._entries(self.names[node.id], seen | {node.id})
            case _:
                raise Unclear(f"{shown_source(node)} is no mapping that is written out", node.lineno)


def read_module(text: str) -> Module:
    """The module `text`. Raises `InvalidInput` where it is no Python."""
    if len(text) > _LARGEST:
        raise InvalidInput(
            Problem("", f"{len(text):,} characters", f"a module has at most {_LARGEST:,}", code="size")
        )
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        line = error.lineno or 1
        raise InvalidInput(
            Problem(
                "", shown(error.text or ""), f"this is not Python ({error.msg})", code="syntax", line=line
            )
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise InvalidInput(Problem("", "the file", f"this is not Python ({error})", code="syntax")) from error
    module = Module(tree)
    bound: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                module.imports[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                module.imports[alias.asname or alias.name] = (
                    f"{'.' * node.level}{node.module or ''}.{alias.name}"
                )
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            bound[node.id] = bound.get(node.id, 0) + 1
        elif (changed := changed_in_place(node)) is not None and isinstance(changed, ast.Name):
            module.changed.add(changed.id)
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if bound[name] == 1:
                module.names[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if bound[name] == 1:
                module.names[name] = value
    return module


def changed_in_place(node: ast.AST) -> ast.expr | None:
    """The list or mapping that `x[...] = ...`, `del x[...]` or `x.update(...)` changes; else None."""
    match node:
        case ast.Subscript(value=inner, ctx=ast.Store() | ast.Del()):
            return inner
        case ast.Call(func=ast.Attribute(value=inner, attr=method)) if method in _CHANGE:
            return inner
    return None


# fmt: off
_CHANGE = frozenset({
    "add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "setdefault",
    "update",
})
# fmt: on


class _Reader:
    def __init__(self, module: Module, seen: frozenset[str]) -> None:
        self._module, self._seen = module, seen

    def value(self, node: ast.expr) -> Any:
        self._module.left -= 1
        if self._module.left < 0:
            raise Unclear(f"a value holds more than {_MOST_VALUES:,} others", node.lineno)
        match node:
            case ast.Constant(value=None | bool() | int() | float() | str() as value):
                return value
            case ast.List() | ast.Set():
                return [self.value(item) for item in node.elts]
            case ast.Tuple():
                return tuple(self.value(item) for item in node.elts)
            case ast.Dict():
                return {self._key(key): self.value(inner) for key, inner in self._module.entries(node)}
            case ast.UnaryOp(op=ast.USub()):
                inner = self.value(node.operand)
                if isinstance(inner, int | float | timedelta) and not isinstance(inner, bool):
                    return -inner
            case ast.BinOp():
                return self._arithmetic(node)
            case ast.Name() if node.id in self._module.changed:
                raise Unclear(f"{node.id} is changed in other places", node.lineno)
            case ast.Name() if node.id in self._module.names and node.id not in self._seen:
                return self._module.value(self._module.names[node.id], self._seen | {node.id})
            case ast.Call():
                return self._call(node)
        raise Unclear(f"{shown_source(node)} is not written out", node.lineno)

    def _key(self, node: ast.expr) -> Any:
        key = self.value(node)
        if not isinstance(key, str | int | float):
            raise Unclear(f"{shown_source(node)} is no plain key", node.lineno)
        return key

    def _arithmetic(self, node: ast.BinOp) -> Any:
        left, right = self.value(node.left), self.value(node.right)
        for side in (left, right):
            if isinstance(side, bool) or not isinstance(side, int | float | timedelta):
                raise Unclear(f"{shown_source(node)} is not written out", node.lineno)
            if isinstance(side, int) and abs(side) >= 2**63:
                raise Unclear(f"{shown_source(node)} is beyond 64 bits", node.lineno)
        try:
            match node.op:
                case ast.Add():
                    return left + right
                case ast.Sub():
                    return left - right
                case ast.Mult():
                    return left * right
                case ast.Div():
                    return left / right
                case ast.FloorDiv():
                    return left // right
        except (ArithmeticError, TypeError) as error:
            raise Unclear(f"{shown_source(node)}: {error}", node.lineno) from error
        raise Unclear(f"{shown_source(node)} is not written out", node.lineno)

    def _call(self, node: ast.Call) -> Any:
        name = self._module.dotted(node.func)
        if name is None:
            raise Unclear(f"{shown_source(node)} is not written out", node.lineno)
        if any(isinstance(arg, ast.Starred) for arg in node.args):
            raise Unclear(f"{shown_source(node)} is not written out", node.lineno)
        args = tuple(self.value(arg) for arg in node.args)
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                kwargs |= {str(self._key(k)): self.value(v) for k, v in self._module.entries(keyword.value)}
            else:
                kwargs[keyword.arg] = self.value(keyword.value)
        match name:
            case "datetime.timedelta" | "timedelta":
                try:
                    return timedelta(*args, **kwargs)
                except (TypeError, OverflowError) as error:
                    raise Unclear(f"{shown_source(node)}: {error}", node.lineno) from error
            case "dict" if not args:
                return kwargs
            case "set" | "frozenset" | "list" | "tuple" if len(args) <= 1 and not kwargs:
                inner = args[0] if args else []
                if isinstance(inner, list | tuple):
                    return list(inner)
            case "range" if 1 <= len(args) <= 3 and all(type(arg) is int for arg in args):
                try:
                    found = range(*args)
                except ValueError as error:
                    raise Unclear(f"{shown_source(node)}: {error}", node.lineno) from error
                if len(found) <= 1_000:
                    return list(found)
            case _ if "." in name:
                return Call(name, args, kwargs, node.lineno)
        raise Unclear(f"{shown_source(node)} is not written out", node.lineno)


def shown_source(node: ast.expr) -> str:
    try:
        text = ast.unparse(node)
    except RecursionError:
        text = "a value that nests too deep"
    return text if len(text) <= 80 else text[:79] + "…"

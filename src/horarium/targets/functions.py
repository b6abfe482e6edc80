"""Checking a `module:function` and its keyword arguments without importing anything.

A module that is imported runs, and stays in the process that imported it; a file of triggers must do
neither to a server that checks it every 30 seconds. So the source is found and read. Where that can't tell
(no source here, a decorated or computed function), nothing is refused: the call itself will show.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from horarium.errors import InvalidInput, Problem, shown

REFERENCE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")

_LARGEST_SOURCE = 2_000_000
"""Bytes; a generated module beyond this is not worth a pause of seconds."""


def check_function(
    reference: str, parameters: Mapping[str, object], pointer: str, parameters_pointer: str, cwd: str | None
) -> None:
    """Raise `InvalidInput` if `reference` surely can't be called with `parameters` as keyword arguments.

    `cwd` is where the child will run (the present directory unless given); modules are looked for there
    first, then where this interpreter looks.
    """
    if not REFERENCE.fullmatch(reference):
        raise InvalidInput(
            Problem(
                pointer,
                shown(reference),
                "a function is package.module:function",
                _reference_hint(reference),
                code="python",
            )
        )
    module, _, name = reference.partition(":")
    source = _source_of(module, cwd)
    if source is None:
        return
    path, stamp, size = source
    names = _names_in(path, stamp, size)
    if names is None or name in names.unclear or "." in name:
        return
    if name not in names.functions:
        if names.open_ended:
            return
        known = ", ".join(sorted(item for item in names.functions if not item.startswith("_"))[:8])
        raise InvalidInput(
            Problem(
                pointer,
                shown(reference),
                f"module {module} ({path}) has no {name}",
                f"one of its functions: {known}" if known else "the name of a function in it",
                code="python",
            )
        )
    problems = list(_argument_problems(reference, names.functions[name], parameters, parameters_pointer))
    if problems:
        raise InvalidInput(problems)


class _Names:
    """What a module's source binds at its top level."""

    def __init__(self, tree: ast.Module) -> None:
        self.functions: dict[str, ast.arguments] = {}
        self.unclear: set[str] = set()
        self.open_ended = False
        for node in tree.body:
            self._take(node)

    def _take(self, node: ast.stmt) -> None:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                self.functions.pop(name, None)
                self.unclear.discard(name)
                if node.decorator_list:
                    self.unclear.add(name)
                else:
                    self.functions[name] = node.args
                # A module's own __getattr__ can answer for any name.
                self.open_ended = self.open_ended or name == "__getattr__"
            case ast.ImportFrom(names=names) if any(item.name == "*" for item in names):
                self.open_ended = True
            case _:
                # Classes, imports, assignments, and whatever is under an `if` or a `try`.
                for inner in ast.walk(node):
                    self._take_unclear(inner)

    def _take_unclear(self, node: ast.AST) -> None:
        match node:
            case ast.ImportFrom(names=names) | ast.Import(names=names):
                for item in names:
                    self.open_ended = self.open_ended or item.name == "*"
                    self._unclear((item.asname or item.name).partition(".")[0])
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                self._unclear(name)
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                self._unclear(name)
            case ast.Name(id="globals" | "exec" | "setattr" | "vars"):
                self.open_ended = True
            case _:
                pass

    def _unclear(self, name: str) -> None:
        self.functions.pop(name, None)
        self.unclear.add(name)


def _argument_problems(
    reference: str, arguments: ast.arguments, parameters: Mapping[str, object], pointer: str
) -> Iterable[Problem]:
    positional = [item.arg for item in arguments.args]
    required = [
        *positional[: len(positional) - min(len(positional), len(arguments.defaults))],
        *(
            item.arg
            for item, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if default is None
        ),
    ]
    accepted = {*positional, *(item.arg for item in arguments.kwonlyargs)}
    only_positional = len(arguments.posonlyargs) - max(0, len(arguments.defaults) - len(positional))
    if only_positional > 0:
        yield Problem(
            pointer,
            shown(list(parameters)),
            f"{reference} takes {arguments.posonlyargs[0].arg!r} by position only, and parameters go by name",
            "take the '/' out of its signature",
            code="python-arguments",
        )
    for name in required:
        if name not in parameters:
            yield Problem(
                pointer,
                shown(list(parameters)),
                f"{reference} needs an argument {name!r}",
                f"parameters: {{{name}: ...}}, or a default in the function",
                code="python-arguments",
            )
    if arguments.kwarg is None:
        for name in parameters:
            if name not in accepted:
                yield Problem(
                    f"{pointer}/{str(name).replace('~', '~0').replace('/', '~1')}",
                    shown(name),
                    f"{reference} takes no argument {name!r}",
                    f"one of {', '.join(sorted(accepted))}" if accepted else "no parameters",
                    code="python-arguments",
                )


def _source_of(module: str, cwd: str | None) -> tuple[str, int, int] | None:
    """The file of a module with its time and size, found part by part; None if it isn't found as source."""
    path: Sequence[str] = [cwd or str(Path.cwd()), *(item for item in sys.path if item)]
    spec: ModuleSpec | None = None
    parts = module.split(".")
    try:
        for index in range(len(parts)):
            # PathFinder looks and does not import, unlike importlib.util.find_spec on a dotted name.
            spec = PathFinder.find_spec(".".join(parts[: index + 1]), path)
            if spec is None:
                return None
            path = list(spec.submodule_search_locations or ())
        origin = None if spec is None else spec.origin
        if origin is None or not origin.endswith(".py"):
            return None
        stat = os.stat(origin)
    except (OSError, ImportError, ValueError):
        return None
    return (origin, stat.st_mtime_ns, stat.st_size) if stat.st_size <= _LARGEST_SOURCE else None


@lru_cache(maxsize=512)
def _names_in(path: str, stamp: int, size: int) -> _Names | None:
    """The names of a source, read anew when its time or size changes; None where it can't be read."""
    try:
        return _Names(ast.parse(Path(path).read_bytes(), path))
    except (OSError, SyntaxError, ValueError, RecursionError):
        # A syntax error may be the syntax of another Python, the one that will run it.
        return None


def _reference_hint(reference: str) -> str:
    if ":" not in reference and "." in reference:
        module, _, name = reference.rpartition(".")
        return f"{module}:{name}"
    if "(" in reference:
        return "the name alone; arguments go into parameters"
    return "ml.jobs:train"

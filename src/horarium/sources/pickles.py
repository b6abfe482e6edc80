"""Pickles, read and never run.

A pickle is a program: `pickle.loads` calls whatever it names, so a pickle of somebody else's is code of
somebody else's. This machine walks its opcodes (as `pickletools` lists them) and builds plain data alone.
Where the program names something, the name is kept; where it calls something, the call is kept, as a `Made`
with its arguments and state. Nothing is imported, nothing called.
"""

from __future__ import annotations

import pickletools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

LARGEST = 1_000_000
"""Bytes; the state of a job is a thousandth of it."""


class PickleRefused(Exception):
    """Why a pickle can't be read."""


@dataclass(frozen=True)
class Global:
    """Something that a pickle names: `datetime.timedelta`."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False)
class Made:
    """What calling `what` with `args` would make, with the `state` that it would then be given."""

    what: Any
    args: tuple[Any, ...]
    state: Any = field(default=None)

    @property
    def name(self) -> str:
        """The dotted name of what would be called; empty where it is no name."""
        return str(self.what) if isinstance(self.what, Global) else ""

    def __repr__(self) -> str:
        return f"<{self.name or 'an object'}>"


def read_pickle(data: bytes) -> Any:
    """The value of the pickle `data`. Raises `PickleRefused`."""
    if len(data) > LARGEST:
        raise PickleRefused(f"a pickle of {len(data):,} bytes; at most {LARGEST:,} are read")
    try:
        with warnings.catch_warnings():
            # Text of protocol 0 is read as a literal of Python, which may warn of an escape in it.
            warnings.simplefilter("ignore")
            return _Machine().run(pickletools.genops(data))
    except PickleRefused:
        raise
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        raise PickleRefused(f"the pickle is broken ({error})") from error


_MARK = object()

# fmt: off
_VALUES = frozenset({
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING",
    "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "UNICODE",
    "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
})
# fmt: on
"""Opcodes whose argument is the value."""


class _Machine:
    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, operations: Iterator[tuple[Any, Any, int | None]]) -> Any:
        for opcode, arg, _ in operations:
            if opcode.name == "STOP":
                return self._stack.pop()
            self._step(opcode.name, arg)
        raise PickleRefused("the pickle has no end")

    def _step(self, name: str, arg: Any) -> None:
        stack = self._stack
        match name:
            case "PROTO" | "FRAME":
                pass
            case _ if name in _VALUES:
                stack.append(arg)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
            case "EMPTY_LIST" | "EMPTY_DICT" | "EMPTY_SET":
                stack.append({"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": set}[name]())
            case "MARK":
                stack.append(_MARK)
            case "POP" | "POP_MARK":
                self._marked() if name == "POP_MARK" else stack.pop()
            case "DUP":
                stack.append(stack[-1])
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(self._last(int(name[-1])))
            case "TUPLE" | "LIST" | "FROZENSET":
                items = self._marked()
                if name == "FROZENSET":
                    items = [*map(_key, items)]
                stack.append({"TUPLE": tuple, "LIST": list, "FROZENSET": frozenset}[name](items))
            case "DICT":
                items = self._marked()
                stack.append(dict(_pairs(items)))
            case "APPEND" | "APPENDS":
                items = [stack.pop()] if name == "APPEND" else self._marked()
                self._top(list).extend(items)
            case "SETITEM" | "SETITEMS":
                items = list(self._last(2)) if name == "SETITEM" else self._marked()
                self._top(dict).update(_pairs(items))
            case "ADDITEMS":
                items = self._marked()
                self._top(set).update(map(_key, items))
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self._memo[arg] = stack[-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(self._memo[arg])
            case "GLOBAL":
                stack.append(Global(*arg.split(" ", 1)))
            case "STACK_GLOBAL":
                module, named = self._last(2)
                stack.append(Global(_text(module), _text(named)))
            case "REDUCE" | "NEWOBJ":
                what, args = self._last(2)
                stack.append(Made(what, _tuple(args)))
            case "NEWOBJ_EX":
                what, args, kwargs = self._last(3)
                if kwargs:
                    raise PickleRefused("it makes an object by keyword arguments")
                stack.append(Made(what, _tuple(args)))
            case "BUILD":
                state = stack.pop()
                self._top(Made).state = state
            case _:
                raise PickleRefused(f"it uses {name}, which nothing that is read here needs")

    def _last(self, count: int) -> tuple[Any, ...]:
        if len(self._stack) < count:
            raise PickleRefused("the pickle is broken (its stack is empty)")
        items = tuple(self._stack[-count:])
        del self._stack[-count:]
        return items

    def _marked(self) -> list[Any]:
        items: list[Any] = []
        while (item := self._stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]

    def _top(self, kind: type[Any]) -> Any:
        top = self._stack[-1]
        if type(top) is not kind:
            raise PickleRefused(f"the pickle is broken (a {kind.__name__} is changed that is none)")
        return top


def _pairs(items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(map(_key, items[::2]), items[1::2], strict=True)


def _key(value: Any) -> Any:
    """A key of a mapping, or an element of a set. A few tuples of tuples can take for ever to hash."""
    if isinstance(value, tuple) and any(isinstance(item, tuple) for item in value):
        raise PickleRefused("a key in it is a tuple of tuples")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise PickleRefused("the pickle is broken (a name is no text)")
    return value


def _tuple(value: Any) -> tuple[Any, ...]:
    if type(value) is not tuple:
        raise PickleRefused("the pickle is broken (arguments are no tuple)")
    return value

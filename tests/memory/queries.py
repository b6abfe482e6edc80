"""From a tree to a function: how a statement reads, locks and writes.

Every expression becomes a Python function of an environment: a list with the parameters, the reader, and one
row for each source of the statement (nested loops put them there). Truth has three values, None is the third.

Locks come where PostgreSQL takes them: a select's after its rows are in order and before they are counted off
by LIMIT, an UPDATE's and a DELETE's on each row that the snapshot says is meant. A row that is another
version now than the statement saw is judged again, by all conditions, beside what the snapshot says of the
other tables (`EvalPlanQual` there), and dropped if it no longer fits.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, TypeAlias

from tests.memory import parser as p
from tests.memory.server import (
    NO_KEY_UPDATE,
    STRENGTHS,
    UPDATE,
    Json,
    Key,
    Reader,
    Row,
    Server,
    Table,
)

Env: TypeAlias = list[Any]
Value: TypeAlias = Callable[[Env], Any]
Rows: TypeAlias = Callable[[Env], Iterator[Row]]
Runs: TypeAlias = "tuple[tuple[str, ...] | None, Callable[[Env], Result]]"

PARAMETERS, READER = 0, 1
"""Places of an environment that every statement has."""

AGGREGATES = ("count", "min", "max", "sum")


@dataclass(frozen=True, slots=True)
class Result:
    """`names` of the columns; None: none are returned. `count`: how many rows were read or written."""

    names: tuple[str, ...] | None
    rows: list[Row]
    count: int
    verb: str


@dataclass(frozen=True, slots=True)
class Compiled:
    """`names` as in `Result`. `run` may raise `MustWait`, and then be run again by the same reader."""

    names: tuple[str, ...] | None
    run: Callable[[Reader, Sequence[Any]], Result]


def compile_statement(text: str, server: Server) -> Compiled:
    """A statement of one server. Raises `NotSpoken`."""
    tree = p.parse(text)
    made = _Compiler(server)
    scope = Scope(None)
    for name, query in tree.common:
        made.common[name] = made.materialized(query, scope)
    body = tree.body
    names: tuple[str, ...] | None
    if isinstance(body, p.Insert):
        names, run = made.insert(body, scope)
    elif isinstance(body, p.Update):
        names, run = made.update(body, scope)
    elif isinstance(body, p.Delete):
        names, run = made.delete(body, scope)
    else:
        names, run = made.select(body, scope)
    size = made.size

    def statement(reader: Reader, parameters: Sequence[Any]) -> Result:
        env: Env = [None] * size
        env[PARAMETERS], env[READER] = parameters, reader
        return run(env)

    return Compiled(names, statement)


def compile_condition(text: str, table: Table) -> Callable[[Row], Any]:
    """A function of a row of `table`: a CHECK, a partial index's WHERE, or a column's DEFAULT."""
    made = _Compiler(None)
    tree = p.parse(f"select {text}").body
    assert isinstance(tree, p.Select)
    scope = Scope(None)
    slot = made.slot()
    scope.add(table.name, slot, table.columns)
    value = made.value(tree.items[0].value, scope)
    size = made.size

    def of(row: Row) -> Any:
        env: Env = [None] * size
        env[slot] = row
        return value(env)

    return of


@dataclass
class Named:
    """A source of a scope: where its row is, and its columns."""

    slot: int
    columns: tuple[str, ...]


class Scope:
    """The names of one query, and those around it."""

    def __init__(self, outer: Scope | None) -> None:
        self.outer = outer
        self.names: dict[str, Named] = {}
        self.aggregates: list[tuple[str, Value | None]] | None = None
        self.aggregate_slot = -1

    def add(self, alias: str, slot: int, columns: tuple[str, ...]) -> None:
        self.names[alias] = Named(slot, columns)

    def find(self, source: str | None, name: str) -> tuple[int, int]:
        """The place of a column: its source's slot and its number there."""
        for alias, named in self.names.items():
            if source in (None, alias) and name in named.columns:
                return named.slot, named.columns.index(name)
        if self.outer is None:
            raise p.NotSpoken(f"column {source or ''}.{name} is not there")
        return self.outer.find(source, name)


@dataclass(eq=False)
class Condition:
    """One of those that AND joins. `read`: the slots it reads. `of`: the left join that it belongs to."""

    tree: p.Expression
    value: Value
    read: frozenset[int]
    of: Step | None


@dataclass(eq=False)
class Step:
    """One loop of a join. `needs`: slots that `rows` reads. `filters` are checked once its row is there."""

    slot: int
    rows: Rows
    width: int
    table: Table | None
    alias: str
    left: bool = False
    needs: frozenset[int] = frozenset()
    found_by: list[Condition] = field(default_factory=list)
    """Conditions that the index sees to."""
    filters: list[Value] = field(default_factory=list)


@dataclass
class Common:
    """A query of WITH, worked out once a statement; `slot` has its rows."""

    slot: int
    names: tuple[str, ...]
    rows: Rows

    def read(self, env: Env) -> Iterator[Row]:
        if env[self.slot] is None:
            env[self.slot] = list(self.rows(env))
        return iter(env[self.slot])


class _Compiler:
    def __init__(self, server: Server | None) -> None:
        self.server = server
        self.size = 2
        self.common: dict[str, Common] = {}
        self._read: set[int] = set()
        """Slots that were named by the expressions compiled since it was emptied last."""

    def slot(self) -> int:
        self.size += 1
        return self.size - 1

    def table(self, name: str) -> Table:
        if self.server is None or name not in self.server.tables:
            raise p.NotSpoken(f"table {name} is not there")
        return self.server.tables[name]

    def materialized(self, query: p.Query, scope: Scope) -> Common:
        names, rows = self.query(query, scope)
        return Common(self.slot(), names, rows)

    # queries

    def select(self, tree: p.Query, scope: Scope) -> Runs:
        names, rows = self.query(tree, scope)

        def run(env: Env) -> Result:
            found = list(rows(env))
            return Result(names, found, len(found), "SELECT")

        return names, run

    def query(self, tree: p.Query, scope: Scope) -> tuple[tuple[str, ...], Rows]:
        """The names of its columns, and what yields its rows, lazily."""
        match tree:
            case p.Values(rows):
                values = [[self.value(item, scope) for item in row] for row in rows]
                names = tuple(f"column{number + 1}" for number in range(len(rows[0])))
                return names, lambda env: iter([tuple([item(env) for item in row]) for row in values])
            case p.UnionAll():
                return self._union(tree, scope)
        return self._select(tree, scope)

    def _union(self, tree: p.UnionAll, scope: Scope) -> tuple[tuple[str, ...], Rows]:
        parts = [self.query(part, scope) for part in tree.parts]
        names = parts[0][0]

        def rows(env: Env) -> Iterator[Row]:
            for _, part in parts:
                yield from part(env)

        found: Rows = rows
        if tree.order:
            inner = Scope(scope)
            slot = self.slot()
            inner.add("", slot, names)
            keys = [(self.value(item.value, inner), item) for item in tree.order]

            def ordered(env: Env) -> Iterator[Row]:
                kept = list(rows(env))
                for value, item in reversed(keys):
                    kept.sort(key=_sort_key(value, slot, env, item), reverse=item.down)
                return iter(kept)

            found = ordered
        return names, self._limited(found, tree.limit, tree.offset, scope)

    def _select(self, tree: p.Select, scope: Scope) -> tuple[tuple[str, ...], Rows]:
        inner = Scope(scope)
        steps, conditions = self._steps(tree.sources, tree.where, inner)
        slots = [step.slot for step in steps]
        joined = _loops(steps)
        if tree.group or any(_aggregates(item.value) for item in tree.items):
            joined = self._grouped(tree, inner, joined, slots)
        names, output = self._output(tree.items, inner)
        if tree.order:
            aliases = {item.name: item.value for item in tree.items}
            keys = [(self.value(_resolved(item.value, aliases, inner), inner), item) for item in tree.order]
            joined = _ordered(joined, slots, keys, inner.aggregate_slot)
        if tree.lock is not None:
            joined = _locked(joined, steps, conditions, tree.lock)

        def rows(env: Env) -> Iterator[Row]:
            for _ in joined(env):
                yield output(env)

        found: Rows = rows
        if tree.distinct:

            def distinct(env: Env) -> Iterator[Row]:
                return iter(dict.fromkeys(rows(env)))

            found = distinct
        return names, self._limited(found, tree.limit, tree.offset, scope)

    def _limited(
        self, rows: Rows, limit: p.Expression | None, offset: p.Expression | None, scope: Scope
    ) -> Rows:
        if limit is None and offset is None:
            return rows
        most = self.value(limit or p.Literal(None), scope)
        first = self.value(offset or p.Literal(None), scope)

        def limited(env: Env) -> Iterator[Row]:
            left, passed = most(env), first(env) or 0
            if left is not None and left <= 0:
                return
            for row in rows(env):
                if passed:
                    passed -= 1
                    continue
                yield row
                if left is not None:
                    left -= 1
                    if left <= 0:
                        return

        return limited

    def _output(self, items: Sequence[p.Item], scope: Scope) -> tuple[tuple[str, ...], Callable[[Env], Row]]:
        names: list[str] = []
        values: list[Value] = []
        for item in items:
            if isinstance(item.value, p.ColumnName) and item.value.name == "*":
                for alias, named in scope.names.items():
                    if item.value.source in (None, alias):
                        for number, name in enumerate(named.columns):
                            names.append(name)
                            values.append(_column(named.slot, number))
            else:
                names.append(item.name)
                values.append(self.value(item.value, scope))
        return tuple(names), lambda env: tuple([value(env) for value in values])

    def _grouped(self, tree: p.Select, scope: Scope, joined: Rows, slots: Sequence[int]) -> Rows:
        """One row for each group; the aggregates' values stand in a slot of their own."""
        keys = [self.value(item, scope) for item in tree.group]
        scope.aggregates = []
        scope.aggregate_slot = place = self.slot()
        aggregates = scope.aggregates

        def grouped(env: Env) -> Iterator[Row]:
            groups: dict[Key, tuple[list[Any], list[list[Any]]]] = {}
            if not keys:
                groups[()] = [env[slot] for slot in slots], [[] for _ in aggregates]
            for _ in joined(env):
                key = tuple([value(env) for value in keys])
                there = groups.get(key)
                if there is None:
                    lists: list[list[Any]] = [[] for _ in aggregates]
                    there = groups[key] = [env[slot] for slot in slots], lists
                for (_, value), kept in zip(aggregates, there[1], strict=True):
                    found = 1 if value is None else value(env)
                    if found is not None:
                        kept.append(found)
            for saved, columns in groups.values():
                for slot, row in zip(slots, saved, strict=True):
                    env[slot] = row
                env[place] = [
                    _aggregated(name, kept) for (name, _), kept in zip(aggregates, columns, strict=True)
                ]
                yield ()

        return grouped

    # sources and joins

    def _steps(
        self, joins: Sequence[p.Joined], where: p.Expression | None, scope: Scope, first: Step | None = None
    ) -> tuple[list[Step], list[Value]]:
        """The loops of a join, each as soon as what it needs is there; and every condition."""
        written: list[tuple[p.Expression, Step | None]] = []
        steps = [] if first is None else [first]
        for join in joins:
            step = self._step(join.source, scope)
            step.left = join.left
            steps.append(step)
            if join.on is not None:
                written += [(part, step if join.left else None) for part in _conjuncts(join.on)]
            for name in join.using:
                (one,) = [item for item in steps[:-1] if name in scope.names[item.alias].columns][:1]
                sides = p.ColumnName(one.alias, name), p.ColumnName(step.alias, name)
                written.append((p.Call("=", sides), step if join.left else None))
        if where is not None:
            written += [(part, None) for part in _conjuncts(where)]
        compiled: list[Condition] = []
        for part, of in written:
            value, read = self._reading(part, scope)
            compiled.append(Condition(part, value, read, of))
        mine = frozenset(step.slot for step in steps)
        ordered = steps
        for step in steps:
            if step.table is not None:
                self._index(step, [item for item in compiled if item.of in (None, step)], scope)
        if not any(step.left for step in steps):
            ordered = _in_order(steps, mine)
        bound: set[int] = set()
        rest = compiled
        for step in ordered:
            bound.add(step.slot)
            ready = [item for item in rest if item.read & mine <= bound and item.of in (None, step)]
            if step.left:
                ready = [item for item in ready if item.of is step]
            rest = [item for item in rest if item not in ready]
            step.filters += [item.value for item in ready if item not in step.found_by]
        if rest:
            # Conditions of WHERE that were ready at a left join wait for its end.
            ordered = [*ordered, Step(self.slot(), lambda env: iter([()]), 0, None, "")]
            ordered[-1].filters += [item.value for item in rest]
        return ordered, [item.value for item in compiled]

    def _step(self, source: p.Source, scope: Scope) -> Step:
        self._read, kept = set(), self._read
        step = self._made(source, scope)
        step.needs = frozenset(self._read)
        self._read |= kept
        return step

    def _made(self, source: p.Source, scope: Scope) -> Step:
        slot = self.slot()
        if isinstance(source, p.TableSource) and source.table in self.common:
            common = self.common[source.table]
            scope.add(source.alias, slot, common.names)
            return Step(slot, common.read, len(common.names), None, source.alias)
        if isinstance(source, p.TableSource):
            table = self.table(source.table)
            scope.add(source.alias, slot, table.columns)
            return Step(slot, lambda env: env[READER].rows(table), len(table.columns), table, source.alias)
        if isinstance(source, p.UnnestSource):
            arrays = [self.value(item, scope) for item in source.arrays]
            width = len(arrays) + source.ordinality
            names = source.columns or tuple([source.alias] * width)
            scope.add(source.alias, slot, names)

            def unnested(env: Env) -> Iterator[Row]:
                for number, row in enumerate(zip(*[array(env) for array in arrays], strict=True), start=1):
                    yield (*row, number) if source.ordinality else row

            return Step(slot, unnested, width, None, source.alias)
        names, rows = self.query(source.query, scope)
        if source.columns:
            names = (*source.columns, *names[len(source.columns) :])
        scope.add(source.alias, slot, names)
        return Step(slot, rows, len(names), None, source.alias)

    def _index(self, step: Step, conditions: Sequence[Condition], scope: Scope) -> None:
        """Find a table's rows by an index where equalities give its columns. Only speed depends on it."""
        table, own = step.table, step.slot
        assert table is not None
        single: dict[int, Value] = {}
        many: dict[int, Callable[[Env], Iterable[Any] | None]] = {}
        needs: dict[int, frozenset[int]] = {}
        from_where: dict[int, Condition] = {}
        for condition in conditions:
            for column, other, kind in _equalities(condition.tree):
                slot, number = scope.find(column.source, column.name)
                if slot != own or number in needs:
                    continue
                values = [self._reading(item, scope) for item in other]
                read = frozenset[int]().union(*(item[1] for item in values))
                if own in read:
                    continue
                needs[number], from_where[number] = read, condition
                if kind == "=":
                    single[number] = values[0][0]
                elif kind == "any":
                    many[number] = values[0][0]
                else:
                    many[number] = _each([item[0] for item in values])
        usable = [
            columns
            for columns in table.indexes
            if all(column in single for column in columns) or (len(columns) == 1 and columns[0] in many)
        ]
        if not usable:
            return
        used = max(usable, key=len)
        step.found_by = [from_where[column] for column in used]
        step.needs = step.needs.union(*(needs[column] for column in used))
        if all(column in single for column in used):
            found = [single[column] for column in used]
            step.rows = lambda env: env[READER].rows(table, used, [tuple([item(env) for item in found])])
        else:
            several = many[used[0]]
            step.rows = lambda env: env[READER].rows(table, used, [(item,) for item in several(env) or ()])

    # writing

    def insert(self, tree: p.Insert, scope: Scope) -> Runs:
        table = self.table(tree.table)
        columns = [table.at[name] for name in tree.columns]
        _, source = self.query(tree.query, scope)
        inner = Scope(scope)
        slot = self.slot()
        inner.add(table.name, slot, table.columns)
        names, output = self._output(tree.returning, inner)

        def run(env: Env) -> Result:
            made = [table.filled(columns, given) for given in source(env)]
            reader: Reader = env[READER]
            new = reader.server.insert(reader, table, made, ignore=tree.ignore_conflicts)
            returned: list[Row] = []
            for item in new if tree.returning else ():
                env[slot] = item
                returned.append(output(env))
            return Result(names if tree.returning else None, returned, len(new), "INSERT 0")

        return names if tree.returning else None, run

    def update(self, tree: p.Update, scope: Scope) -> Runs:
        table, inner, slot, joined, conditions, slots = self._meant(
            tree.target, tree.sources, tree.where, scope
        )
        columns = [table.at[name] for name, _ in tree.values]
        values = [self.value(value, inner) for _, value in tree.values]
        names, output = self._output(tree.returning, inner)
        strength = UPDATE if table.key_indexes & set(columns) else NO_KEY_UPDATE

        def run(env: Env) -> Result:
            new: dict[Key, Row] = {}
            saved: list[tuple[Row, list[Any]]] = []
            for old in _targets(env, table, slot, joined, conditions, strength, new):
                row = list(old)
                for column, value in zip(columns, values, strict=True):
                    row[column] = table.plain(column, value(env))
                new[table.key(old)] = made = tuple(row)
                saved.append((made, [env[item] for item in slots]))
            reader: Reader = env[READER]
            reader.server.update(reader, table, new)
            return _returned(env, tree.returning, names, output, slot, slots, saved, "UPDATE")

        return names if tree.returning else None, run

    def delete(self, tree: p.Delete, scope: Scope) -> Runs:
        table, inner, slot, joined, conditions, slots = self._meant(tree.target, (), tree.where, scope)
        names, output = self._output(tree.returning, inner)

        def run(env: Env) -> Result:
            gone: dict[Key, Row] = {}
            saved: list[tuple[Row, list[Any]]] = []
            for old in _targets(env, table, slot, joined, conditions, UPDATE, gone):
                gone[table.key(old)] = old
                saved.append((old, [env[item] for item in slots]))
            reader: Reader = env[READER]
            reader.server.delete(reader, table, gone)
            return _returned(env, tree.returning, names, output, slot, slots, saved, "DELETE")

        return names if tree.returning else None, run

    def _meant(
        self,
        target: p.TableSource,
        sources: Sequence[p.Joined],
        where: p.Expression | None,
        scope: Scope,
    ) -> tuple[Table, Scope, int, Rows, list[Value], list[int]]:
        inner = Scope(scope)
        first = self._step(target, inner)
        assert first.table is not None
        steps, conditions = self._steps(sources, where, inner, first)
        return first.table, inner, first.slot, _loops(steps), conditions, [step.slot for step in steps]

    # expressions

    def _reading(self, tree: p.Expression, scope: Scope) -> tuple[Value, frozenset[int]]:
        """An expression, and the slots that it reads."""
        self._read, kept = set(), self._read
        value = self.value(tree, scope)
        read = frozenset(self._read)
        self._read |= kept
        return value, read

    def value(self, tree: p.Expression, scope: Scope) -> Value:
        match tree:
            case p.Literal(constant):
                return lambda env: constant
            case p.Parameter(number):
                return lambda env: env[PARAMETERS][number - 1]
            case p.ColumnName(source, name):
                slot, column = scope.find(source, name)
                self._read.add(slot)
                return _column(slot, column)
            case p.Cast(inner, to):
                return _cast(self.value(inner, scope), to)
            case p.RowOf(items):
                parts = [self.value(item, scope) for item in items]
                return lambda env: tuple([part(env) for part in parts])
            case p.Case(whens, otherwise):
                return self._case(whens, otherwise, scope)
            case p.InList(inner, items):
                sought = self.value(inner, scope)
                return _in(sought, _each([self.value(item, scope) for item in items]))
            case p.InQuery(inner, query):
                sought = self.value(inner, scope)
                _, rows = self.query(query, scope)
                return _in(sought, lambda env: [row[0] for row in rows(env)])
            case p.Exists(query):
                _, rows = self.query(query, scope)
                return lambda env: next(rows(env), None) is not None
            case p.Scalar(query):
                _, rows = self.query(query, scope)
                return lambda env: next(rows(env), (None,))[0]
            case p.Call(name, arguments):
                return self._call(name, arguments, scope)
        raise p.NotSpoken(f"{tree}")

    def _case(
        self, whens: Sequence[tuple[p.Expression, p.Expression]], otherwise: p.Expression, scope: Scope
    ) -> Value:
        arms = [(self.value(when, scope), self.value(then, scope)) for when, then in whens]
        last = self.value(otherwise, scope)

        def case(env: Env) -> Any:
            for when, then in arms:
                if when(env) is True:
                    return then(env)
            return last(env)

        return case

    def _call(self, name: str, arguments: Sequence[p.Expression], scope: Scope) -> Value:
        if name in AGGREGATES:
            return self._aggregate(name, arguments, scope)
        values = [self.value(item, scope) for item in arguments]
        if name == "= any":
            return _in(values[0], values[1])
        if name in _STRICT and len(values) == 2:
            return _strict(_STRICT[name], values[0], values[1])
        if name in _LOOSE:
            return _LOOSE[name](values)
        raise p.NotSpoken(f"{name} of {len(values)}")

    def _aggregate(self, name: str, arguments: Sequence[p.Expression], scope: Scope) -> Value:
        if scope.aggregates is None:
            raise p.NotSpoken(f"{name} outside of a select's list")
        star = arguments in ((), (p.ColumnName(None, "*"),))
        inside = None if star else self.value(arguments[0], scope)
        scope.aggregates.append((name, inside))
        place, number = scope.aggregate_slot, len(scope.aggregates) - 1
        return lambda env: env[place][number]


# joins, order and locks


def _in_order(steps: Sequence[Step], mine: frozenset[int]) -> list[Step]:
    """Inner joins in an order that reads little: what an index finds by what is there already comes first."""
    rest, found = list(steps), list[Step]()
    bound: set[int] = set()
    while rest:
        ready = [step for step in rest if step.needs & mine <= bound]
        if not ready:
            for step in rest:  # two tables that find each other: one of them has to be read
                if step.table is not None:
                    table = step.table
                    step.rows = _all_of(table)
                    step.needs, step.found_by = frozenset(), []
                    ready = [step]
                    break
        chosen = min(ready, key=lambda step: (step.table is not None and not step.found_by, rest.index(step)))
        rest.remove(chosen)
        found.append(chosen)
        bound.add(chosen.slot)
    return found


def _all_of(table: Table) -> Rows:
    return lambda env: env[READER].rows(table)


def _loops(steps: Sequence[Step]) -> Rows:
    """Each combination of rows, put into the environment."""
    if not steps:
        return lambda env: iter([()])

    def last(env: Env) -> Iterator[Row]:
        yield ()

    inner: Rows = last
    for step in reversed(steps):
        inner = _loop(step, inner)
    return inner


def _loop(step: Step, inner: Rows) -> Rows:
    slot, rows, filters = step.slot, step.rows, step.filters
    nothing = (None,) * step.width

    def loop(env: Env) -> Iterator[Row]:
        met = False
        for row in rows(env):
            env[slot] = row
            for condition in filters:
                if condition(env) is not True:
                    break
            else:
                met = True
                yield from inner(env)
        if step.left and not met:
            env[slot] = nothing
            yield from inner(env)

    return loop


def _ordered(
    joined: Rows, slots: Sequence[int], keys: Sequence[tuple[Value, p.Order]], aggregates: int
) -> Rows:
    kept_slots = [*slots, *([aggregates] if aggregates >= 0 else [])]

    def ordered(env: Env) -> Iterator[Row]:
        kept = [([env[slot] for slot in kept_slots], [value(env) for value, _ in keys]) for _ in joined(env)]
        for number, (_, item) in reversed(list(enumerate(keys) if len(kept) > 1 else ())):
            kept.sort(key=_nulls(number, item), reverse=item.down)
        for saved, _ in kept:
            for slot, row in zip(kept_slots, saved, strict=True):
                env[slot] = row
            yield ()

    return ordered


def _nulls(number: int, item: p.Order) -> Callable[[tuple[list[Any], list[Any]]], tuple[bool, Any]]:
    """Nulls come last when ascending and first when descending, unless it is said."""
    last = item.nulls_first == item.down

    def key(kept: tuple[list[Any], list[Any]]) -> tuple[bool, Any]:
        value = kept[1][number]
        return ((value is None) is last, 0 if value is None else value)

    return key


def _sort_key(value: Value, slot: int, env: Env, item: p.Order) -> Callable[[Row], tuple[bool, Any]]:
    last = item.nulls_first == item.down

    def key(row: Row) -> tuple[bool, Any]:
        env[slot] = row
        found = value(env)
        return ((found is None) is last, 0 if found is None else found)

    return key


def _locked(joined: Rows, steps: Sequence[Step], conditions: Sequence[Value], lock: p.Lock) -> Rows:
    """The rows that could be locked and are still meant, one by one."""
    places = [
        (step.slot, step.table)
        for step in steps
        if step.table is not None and (not lock.of or step.alias in lock.of)
    ]
    if not places:
        raise p.NotSpoken("a lock of what is no table")
    strength = STRENGTHS[lock.strength]

    def locked(env: Env) -> Iterator[Row]:
        reader: Reader = env[READER]
        for _ in joined(env):
            fits = True
            for slot, table in places:
                row = reader.lock(table, table.key(env[slot]), strength, skip=lock.skip, nowait=lock.nowait)
                if row is None:
                    fits = False
                    break
                if row is not env[slot]:
                    env[slot] = row
                    fits = all(condition(env) is True for condition in conditions)
            if fits:
                yield ()

    return locked


def _targets(
    env: Env,
    table: Table,
    slot: int,
    joined: Rows,
    conditions: Sequence[Value],
    strength: int,
    done: dict[Key, Row],
) -> Iterator[Row]:
    """The rows that an UPDATE or DELETE means, locked, each once and in its newest version."""
    reader: Reader = env[READER]
    for _ in joined(env):
        key = table.key(env[slot])
        if key in done:
            continue
        row = reader.lock(table, key, strength, skip=False, nowait=False)
        if row is None:
            continue
        if row is not env[slot]:
            env[slot] = row
            if not all(condition(env) is True for condition in conditions):
                continue
        yield row


def _returned(
    env: Env,
    returning: Sequence[p.Item],
    names: tuple[str, ...],
    output: Callable[[Env], Row],
    slot: int,
    slots: Sequence[int],
    saved: Sequence[tuple[Row, list[Any]]],
    verb: str,
) -> Result:
    if not returning:
        return Result(None, [], len(saved), verb)
    rows: list[Row] = []
    for row, others in saved:
        for place, other in zip(slots, others, strict=True):
            env[place] = other
        env[slot] = row
        rows.append(output(env))
    return Result(names, rows, len(saved), verb)


# trees


def _conjuncts(tree: p.Expression) -> list[p.Expression]:
    if isinstance(tree, p.Call) and tree.name == "and":
        return [part for item in tree.arguments for part in _conjuncts(item)]
    return [tree]


def _equalities(tree: p.Expression) -> list[tuple[p.ColumnName, Sequence[p.Expression], str]]:
    """The columns that this condition gives values for."""
    match tree:
        case p.Call("=", (left, right)):
            found: list[tuple[p.ColumnName, Sequence[p.Expression], str]] = []
            if isinstance(left, p.ColumnName):
                found.append((left, [right], "="))
            if isinstance(right, p.ColumnName):
                found.append((right, [left], "="))
            return found
        case p.Call("= any", (p.ColumnName() as column, array)):
            return [(column, [array], "any")]
        case p.InList(p.ColumnName() as column, items):
            return [(column, items, "in")]
    return []


def _aggregates(tree: p.Expression) -> bool:
    """Whether it has an aggregate of its own query."""
    match tree:
        case p.Call(name, arguments):
            return name in AGGREGATES or any(_aggregates(item) for item in arguments)
        case p.Cast(inner, _):
            return _aggregates(inner)
        case p.Case(whens, otherwise):
            return _aggregates(otherwise) or any(_aggregates(part) for when in whens for part in when)
    return False


def _resolved(tree: p.Expression, aliases: dict[str, p.Expression], scope: Scope) -> p.Expression:
    """ORDER BY may name a column of the list."""
    if isinstance(tree, p.ColumnName) and tree.source is None and tree.name in aliases:
        return aliases[tree.name]
    return tree


# values


def _column(slot: int, column: int) -> Value:
    return lambda env: env[slot][column]


def _each(values: Sequence[Value]) -> Callable[[Env], list[Any]]:
    return lambda env: [value(env) for value in values]


def _strict(what: Callable[[Any, Any], Any], left: Value, right: Value) -> Value:
    """None where either side is."""

    def strict(env: Env) -> Any:
        one = left(env)
        if one is None:
            return None
        other = right(env)
        return None if other is None else what(one, other)

    return strict


def _divided(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        return int(left / right) if abs(left) < 2**53 else left // right
    return left / right


@lru_cache(maxsize=256)
def _pattern(text: str, fold: bool) -> re.Pattern[str]:
    words = {"%": ".*", "_": "."}
    parts = re.findall(r"\\.|.", text, re.DOTALL)
    made = "".join(words.get(part, re.escape(part.removeprefix("\\"))) for part in parts)
    return re.compile(made, re.DOTALL | (re.IGNORECASE if fold else 0))


_STRICT: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divided,
    "%": lambda left, right: left - right * int(left / right),
    "||": lambda left, right: f"{left}{right}",
    "like": lambda left, right: _pattern(right, False).fullmatch(left) is not None,
    "ilike": lambda left, right: _pattern(right, True).fullmatch(left) is not None,
}


def _in(sought: Value, among: Callable[[Env], Iterable[Any] | None]) -> Value:
    def found(env: Env) -> bool | None:
        value = sought(env)
        values = among(env)
        if value is None or values is None:
            return None
        unsure = False
        for item in values:
            if item is None:
                unsure = True
            elif item == value:
                return True
        return None if unsure else False

    return found


def _and(values: Sequence[Value]) -> Value:
    left, right = values

    def both(env: Env) -> bool | None:
        one = left(env)
        if one is False:
            return False
        other = right(env)
        if other is False:
            return False
        return None if one is None or other is None else True

    return both


def _or(values: Sequence[Value]) -> Value:
    left, right = values

    def either(env: Env) -> bool | None:
        one = left(env)
        if one is True:
            return True
        other = right(env)
        if other is True:
            return True
        return None if one is None or other is None else False

    return either


def _not(values: Sequence[Value]) -> Value:
    (inner,) = values

    def negated(env: Env) -> bool | None:
        found = inner(env)
        return None if found is None else not found

    return negated


def _is(constant: object) -> Callable[[Sequence[Value]], Value]:
    return lambda values: lambda env: values[0](env) is constant


def _coalesce(values: Sequence[Value]) -> Value:
    def first(env: Env) -> Any:
        for value in values:
            found = value(env)
            if found is not None:
                return found
        return None

    return first


def _extreme(best: Callable[[Iterable[Any]], Any]) -> Callable[[Sequence[Value]], Value]:
    def made(values: Sequence[Value]) -> Value:
        def extreme(env: Env) -> Any:
            there = [found for value in values if (found := value(env)) is not None]
            return best(there) if there else None

        return extreme

    return made


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _to_timestamp(values: Sequence[Value]) -> Value:
    (seconds,) = values

    def instant(env: Env) -> datetime | None:
        found = seconds(env)
        return None if found is None else _EPOCH + timedelta(seconds=found)

    return instant


def _notify(values: Sequence[Value]) -> Value:
    channel, payload = values

    def noted(env: Env) -> str:
        env[READER].transaction.notes.append((channel(env), payload(env)))
        return ""

    return noted


def _simple(what: Callable[[Any], Any]) -> Callable[[Sequence[Value]], Value]:
    def made(values: Sequence[Value]) -> Value:
        (inner,) = values

        def simple(env: Env) -> Any:
            found = inner(env)
            return None if found is None else what(found)

        return simple

    return made


_LOOSE: dict[str, Callable[[Sequence[Value]], Value]] = {
    "and": _and,
    "or": _or,
    "not": _not,
    "is null": _is(None),
    "is true": _is(True),
    "is false": _is(False),
    "is distinct": lambda values: lambda env: values[0](env) != values[1](env),
    "coalesce": _coalesce,
    "greatest": _extreme(max),
    "least": _extreme(min),
    "to_timestamp": _to_timestamp,
    "pg_notify": _notify,
    "negative": _simple(operator.neg),
    "lower": _simple(str.lower),
    "length": _simple(len),
    "octet_length": _simple(len),
    "clock_timestamp": lambda values: lambda env: env[READER].server.clock(),
    "version": lambda values: lambda env: "PostgreSQL 16.0 (in memory, for Horarium's tests)",
    "current_schema": lambda values: lambda env: "public",
}


def _cast(inner: Value, to: str) -> Value:
    kind = to.removesuffix("[]")
    if kind in ("json", "jsonb") and kind == to:

        def document(env: Env) -> Any:
            found = inner(env)
            return Json.of(found) if isinstance(found, str) else found

        return document
    if kind in ("text", "varchar"):

        def text(env: Env) -> Any:
            found = inner(env)
            if isinstance(found, Json):
                return found.text
            return found if found is None or isinstance(found, str | list | tuple) else str(found)

        return text
    if to in ("float8", "float", "real"):
        return _simple(float)([inner])
    if kind in ("bigint", "int", "integer", "smallint", "timestamptz", "boolean", "bytea") or "[]" in to:
        return inner
    raise p.NotSpoken(f"type {to}")


def _aggregated(name: str, values: Sequence[Any]) -> Any:
    match name:
        case "count":
            return len(values)
        case "sum":
            return sum(values) if values else None
        case "min":
            return min(values, default=None)
    return max(values, default=None)

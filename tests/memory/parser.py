"""From SQL text to a tree: as much of PostgreSQL's language as Horarium's statements use.

Anything else raises `NotSpoken`, so that a statement is never half understood. A tree is made of frozen
dataclasses; `queries.py` compiles it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias


class NotSpoken(Exception):
    """The statement has something that this PostgreSQL does not know."""


# expressions


@dataclass(frozen=True, slots=True)
class Literal:
    value: object


@dataclass(frozen=True, slots=True)
class Parameter:
    """`$number`, from 1."""

    number: int


@dataclass(frozen=True, slots=True)
class ColumnName:
    """`source` None: whichever has it. `name` `*`: all of them."""

    source: str | None
    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """An operator or a function, by its name in lower case."""

    name: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Case:
    whens: tuple[tuple[Expression, Expression], ...]
    otherwise: Expression


@dataclass(frozen=True, slots=True)
class Cast:
    value: Expression
    type: str


@dataclass(frozen=True, slots=True)
class RowOf:
    """`(a, b)`"""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class InList:
    value: Expression
    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class InQuery:
    value: Expression
    query: Query


@dataclass(frozen=True, slots=True)
class Exists:
    query: Query


@dataclass(frozen=True, slots=True)
class Scalar:
    """A subquery whose one value is asked for."""

    query: Query


Expression: TypeAlias = (
    Literal | Parameter | ColumnName | Call | Case | Cast | RowOf | InList | InQuery | Exists | Scalar
)


# queries


@dataclass(frozen=True, slots=True)
class Item:
    """One of a select's or a RETURNING's list; `name` is what its column is called."""

    value: Expression
    name: str


@dataclass(frozen=True, slots=True)
class TableSource:
    table: str
    alias: str


@dataclass(frozen=True, slots=True)
class QuerySource:
    query: Query
    alias: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnnestSource:
    arrays: tuple[Expression, ...]
    alias: str
    columns: tuple[str, ...]
    ordinality: bool


Source: TypeAlias = TableSource | QuerySource | UnnestSource


@dataclass(frozen=True, slots=True)
class Joined:
    """A source with the condition that joins it; `left` keeps what came before without a partner."""

    source: Source
    on: Expression | None = None
    using: tuple[str, ...] = ()
    left: bool = False


@dataclass(frozen=True, slots=True)
class Lock:
    """`strength`: `key share`, `share`, `no key update`, `update`. `of` empty: every table."""

    strength: str
    of: tuple[str, ...]
    skip: bool
    nowait: bool


@dataclass(frozen=True, slots=True)
class Order:
    value: Expression
    down: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class Select:
    items: tuple[Item, ...]
    sources: tuple[Joined, ...]
    where: Expression | None
    group: tuple[Expression, ...]
    distinct: bool
    order: tuple[Order, ...] = ()
    limit: Expression | None = None
    offset: Expression | None = None
    lock: Lock | None = None


@dataclass(frozen=True, slots=True)
class Values:
    rows: tuple[tuple[Expression, ...], ...]


@dataclass(frozen=True, slots=True)
class UnionAll:
    parts: tuple[Query, ...]
    order: tuple[Order, ...] = ()
    limit: Expression | None = None
    offset: Expression | None = None


Query: TypeAlias = Select | Values | UnionAll


@dataclass(frozen=True, slots=True)
class Insert:
    table: str
    columns: tuple[str, ...]
    query: Query
    ignore_conflicts: bool
    returning: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Update:
    target: TableSource
    values: tuple[tuple[str, Expression], ...]
    sources: tuple[Joined, ...]
    where: Expression | None
    returning: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Delete:
    target: TableSource
    where: Expression | None
    returning: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """`common` are the queries of WITH, by name, in order."""

    common: tuple[tuple[str, Query], ...]
    body: Query | Insert | Update | Delete


def parse(text: str) -> Statement:
    """The tree of one statement."""
    return _Parser(text).statement()


_TOKEN = re.compile(
    r"""\s+ | --[^\n]*
    | (?P<string>'(?:[^']|'')*') | "(?P<quoted>[^"]+)"
    | \$(?P<parameter>\d+) | (?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?)
    | (?P<word>[a-z_][a-z_0-9]*) | (?P<sign>::|<>|!=|<=|>=|\|\||->>|[-+*/%=<>(),.;\[\]])""",
    re.VERBOSE | re.IGNORECASE,
)
_ENDS = frozenset(
    (
        "where",
        "order",
        "group",
        "limit",
        "offset",
        "for",
        "on",
        "using",
        "join",
        "cross",
        "left",
        "inner",
        "union",
        "returning",
        "set",
        "from",
        "as",
        "with",
        "conflict",
        "values",
        "select",
        "having",
        "fetch",
        "lateral",
        "and",
        "or",
        "not",
        "in",
        "is",
        "like",
        "between",
        "then",
        "when",
        "else",
        "end",
        "do",
    )
)
"""Words that are no alias."""


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise NotSpoken(f"{text[at : at + 20]!r} in {text}")
            at = found.end()
            if found.lastgroup is not None:
                value = found[found.lastgroup]
                self._tokens.append((found.lastgroup, value.lower() if found.lastgroup == "word" else value))
        self._tokens.append(("end", ""))
        self._at = 0

    # tokens

    def _peek(self, ahead: int = 0) -> str:
        kind, value = self._tokens[min(self._at + ahead, len(self._tokens) - 1)]
        return value if kind in ("word", "sign") else ""

    def _take(self, *words: str) -> bool:
        """Whether these words come next; then they are gone."""
        if all(self._peek(ahead) == word for ahead, word in enumerate(words)):
            self._at += len(words)
            return True
        return False

    def _need(self, *words: str) -> None:
        if not self._take(*words):
            raise self._lost(f"{' '.join(words)!r} expected")

    def _lost(self, why: str) -> NotSpoken:
        rest = " ".join(value for _, value in self._tokens[self._at : self._at + 8])
        return NotSpoken(f"{why} before {rest!r} in {self._text}")

    def _name(self) -> str:
        kind, value = self._tokens[self._at]
        if kind not in ("word", "quoted"):
            raise self._lost("a name expected")
        self._at += 1
        return value

    # statements

    def statement(self) -> Statement:
        common: list[tuple[str, Query]] = []
        if self._take("with"):
            while True:
                name = self._name()
                self._need("as")
                self._take("materialized")
                self._need("(")
                common.append((name, self._query()))
                self._need(")")
                if not self._take(","):
                    break
        body: Query | Insert | Update | Delete
        if self._take("insert"):
            body = self._insert()
        elif self._take("update"):
            body = self._update()
        elif self._take("delete"):
            body = self._delete()
        else:
            body = self._query()
        self._take(";")
        if self._tokens[self._at][0] != "end":
            raise self._lost("the end expected")
        return Statement(tuple(common), body)

    def _insert(self) -> Insert:
        self._need("into")
        table = self._name()
        columns: tuple[str, ...] = ()
        if self._take("("):
            columns = self._names()
        query = self._query()
        ignore = self._take("on", "conflict", "do", "nothing")
        return Insert(table, columns, query, ignore, self._returning())

    def _update(self) -> Update:
        target = self._target()
        self._need("set")
        values = []
        while True:
            name = self._name()
            self._need("=")
            values.append((name, self._expression()))
            if not self._take(","):
                break
        sources = self._sources() if self._take("from") else ()
        where = self._expression() if self._take("where") else None
        return Update(target, tuple(values), sources, where, self._returning())

    def _delete(self) -> Delete:
        self._need("from")
        target = self._target()
        where = self._expression() if self._take("where") else None
        return Delete(target, where, self._returning())

    def _target(self) -> TableSource:
        table = self._name()
        return TableSource(table, self._alias() or table)

    def _returning(self) -> tuple[Item, ...]:
        return self._items() if self._take("returning") else ()

    def _names(self) -> tuple[str, ...]:
        """After the opening parenthesis, to the closing one."""
        names = [self._name()]
        while self._take(","):
            names.append(self._name())
        self._need(")")
        return tuple(names)

    # queries

    def _query(self) -> Query:
        parts = [self._simple()]
        while self._take("union"):
            self._need("all")
            parts.append(self._simple())
        order = self._order() if self._take("order", "by") else ()
        limit = self._expression() if self._take("limit") else None
        offset = self._expression() if self._take("offset") else None
        lock = self._lock() if self._take("for") else None
        if len(parts) > 1:
            if lock is not None:
                raise self._lost("no lock on a union")
            return UnionAll(tuple(parts), order, limit, offset)
        (found,) = parts
        if not (order or limit or offset or lock):
            return found
        if not isinstance(found, Select):
            raise self._lost("only a select is ordered or locked")
        return Select(
            found.items, found.sources, found.where, found.group, found.distinct, order, limit, offset, lock
        )

    def _simple(self) -> Query:
        if self._take("("):
            query = self._query()
            self._need(")")
            return query
        if self._take("values"):
            rows = []
            while True:
                self._need("(")
                rows.append(self._list())
                if not self._take(","):
                    return Values(tuple(rows))
        self._need("select")
        distinct = self._take("distinct")
        items = () if self._peek() in ("from", "where") else self._items()
        sources = self._sources() if self._take("from") else ()
        where = self._expression() if self._take("where") else None
        group: list[Expression] = []
        if self._take("group", "by"):
            group.append(self._expression())
            while self._take(","):
                group.append(self._expression())
        return Select(items, sources, where, tuple(group), distinct)

    def _items(self) -> tuple[Item, ...]:
        items: list[Item] = []
        while True:
            value = self._expression()
            name = self._name() if self._take("as") else self._alias()
            items.append(Item(value, name or _called(value)))
            if not self._take(","):
                return tuple(items)

    def _order(self) -> tuple[Order, ...]:
        found: list[Order] = []
        while True:
            value = self._expression()
            down = self._take("desc")
            if not down:
                self._take("asc")
            nulls_first = down
            if self._take("nulls"):
                nulls_first = self._take("first")
                if not nulls_first:
                    self._need("last")
            found.append(Order(value, down, nulls_first))
            if not self._take(","):
                return tuple(found)

    def _lock(self) -> Lock:
        for strength in ("no key update", "key share", "update", "share"):
            if self._take(*strength.split()):
                break
        else:
            raise self._lost("a lock's strength expected")
        of: list[str] = []
        if self._take("of"):
            of.append(self._name())
            while self._take(","):
                of.append(self._name())
        skip, nowait = self._take("skip", "locked"), self._take("nowait")
        if self._peek() == "for":
            raise self._lost("one lock is known")
        return Lock(strength, tuple(of), skip, nowait)

    def _sources(self) -> tuple[Joined, ...]:
        found = [Joined(self._source())]
        while True:
            if self._take(",") or self._take("cross", "join"):
                found.append(Joined(self._source()))
                continue
            left = self._take("left")
            self._take("outer") if left else self._take("inner")
            if not self._take("join"):
                return tuple(found)
            source = self._source()
            if self._take("on"):
                found.append(Joined(source, on=self._expression(), left=left))
            else:
                self._need("using", "(")
                found.append(Joined(source, using=self._names(), left=left))

    def _source(self) -> Source:
        self._take("lateral")
        if self._take("("):
            query = self._query()
            self._need(")")
            self._take("as")
            return QuerySource(query, self._name(), self._names() if self._take("(") else ())
        name = self._name()
        if self._take("."):
            name = self._name()  # the schema has no say here
        if self._take("("):
            if name != "unnest":
                raise self._lost(f"{name} is no source")
            arrays = self._list()
            ordinality = self._take("with", "ordinality")
            self._take("as")
            alias = self._name()
            columns = self._names() if self._take("(") else ()
            return UnnestSource(arrays, alias, columns, ordinality)
        return TableSource(name, self._alias() or name)

    def _alias(self) -> str | None:
        if self._take("as"):
            return self._name()
        kind, value = self._tokens[self._at]
        if kind == "quoted" or (kind == "word" and value not in _ENDS):
            return self._name()
        return None

    # expressions, the loosest first

    def _list(self) -> tuple[Expression, ...]:
        """After the opening parenthesis, to the closing one."""
        found: list[Expression] = []
        while not self._take(")"):
            found.append(self._expression())
            if not self._take(","):
                self._need(")")
                break
        return tuple(found)

    def _expression(self) -> Expression:
        found = self._conjunction()
        while self._take("or"):
            found = Call("or", (found, self._conjunction()))
        return found

    def _conjunction(self) -> Expression:
        found = self._negation()
        while self._take("and"):
            found = Call("and", (found, self._negation()))
        return found

    def _negation(self) -> Expression:
        if self._take("not"):
            return Call("not", (self._negation(),))
        return self._comparison()

    def _comparison(self) -> Expression:
        left = self._sum()
        while True:
            word = self._peek()
            if word in ("=", "<>", "!=", "<", "<=", ">", ">="):
                self._at += 1
                if self._take("any", "("):
                    (array,) = self._list()
                    if word != "=":
                        raise self._lost("only = any is known")
                    left = Call("= any", (left, array))
                else:
                    left = Call("<>" if word == "!=" else word, (left, self._sum()))
            elif self._take("is"):
                negated = self._take("not")
                if self._take("distinct", "from"):
                    left = Call("is distinct", (left, self._sum()))
                else:
                    for name in ("null", "true", "false"):
                        if self._take(name):
                            left = Call(f"is {name}", (left,))
                            break
                    else:
                        raise self._lost("null, true or false expected")
                left = Call("not", (left,)) if negated else left
            elif word in ("in", "between", "like", "ilike") or (
                word == "not" and self._peek(1) in ("in", "between", "like", "ilike")
            ):
                negated = self._take("not")
                left = self._in_or_between(left)
                left = Call("not", (left,)) if negated else left
            else:
                return left

    def _in_or_between(self, left: Expression) -> Expression:
        if self._take("between"):
            low = self._sum()
            self._need("and")
            return Call("and", (Call(">=", (left, low)), Call("<=", (left, self._sum()))))
        for name in ("like", "ilike"):
            if self._take(name):
                found = Call(name, (left, self._sum()))
                if self._peek() == "escape":
                    self._at += 1
                    self._sum()
                return found
        self._need("in", "(")
        if self._peek() == "select":
            query = self._query()
            self._need(")")
            return InQuery(left, query)
        return InList(left, self._list())

    def _sum(self) -> Expression:
        found = self._product()
        while self._peek() in ("+", "-", "||"):
            name = self._peek()
            self._at += 1
            found = Call(name, (found, self._product()))
        return found

    def _product(self) -> Expression:
        found = self._postfix()
        while self._peek() in ("*", "/", "%"):
            name = self._peek()
            self._at += 1
            found = Call(name, (found, self._postfix()))
        return found

    def _postfix(self) -> Expression:
        found = self._primary()
        while self._take("::"):
            found = Cast(found, self._type())
        return found

    def _type(self) -> str:
        name = self._name()
        if name == "timestamp" and self._take("with", "time", "zone"):
            name = "timestamptz"
        if name == "double":
            self._need("precision")
            name = "float8"
        while self._take("["):
            self._need("]")
            name += "[]"
        return name

    def _primary(self) -> Expression:
        kind, value = self._tokens[self._at]
        if kind == "string":
            self._at += 1
            return Literal(value[1:-1].replace("''", "'"))
        if kind == "number":
            self._at += 1
            return Literal(float(value) if "." in value or "e" in value else int(value))
        if kind == "parameter":
            self._at += 1
            return Parameter(int(value))
        if self._take("-"):
            return Call("negative", (self._postfix(),))
        if self._take("*"):
            return ColumnName(None, "*")
        if self._take("("):
            return self._parenthesis()
        for word, constant in (("null", None), ("true", True), ("false", False)):
            if self._take(word):
                return Literal(constant)
        if self._take("case"):
            return self._case()
        if self._take("exists", "("):
            query = self._query()
            self._need(")")
            return Exists(query)
        if self._take("cast", "("):
            inner = self._expression()
            self._need("as")
            found = Cast(inner, self._type())
            self._need(")")
            return found
        return self._name_or_call()

    def _parenthesis(self) -> Expression:
        if self._peek() in ("select", "with"):
            query = self._query()
            self._need(")")
            return Scalar(query)
        items = self._list()
        return items[0] if len(items) == 1 else RowOf(items)

    def _case(self) -> Expression:
        whens: list[tuple[Expression, Expression]] = []
        while self._take("when"):
            condition = self._expression()
            self._need("then")
            whens.append((condition, self._expression()))
        otherwise = self._expression() if self._take("else") else Literal(None)
        self._need("end")
        return Case(tuple(whens), otherwise)

    def _name_or_call(self) -> Expression:
        name = self._name()
        if self._take("("):
            if name in ("count", "min", "max", "sum") and self._take("distinct"):
                raise self._lost("no distinct in an aggregate")
            return Call(name, self._list())
        if self._take("."):
            second = "*" if self._take("*") else self._name()
            if self._take("("):
                return Call(second, self._list())  # the schema has no say here
            return ColumnName(name, second)
        return ColumnName(None, name)


def _called(value: Expression) -> str:
    """The name of a column that was given none."""
    match value:
        case ColumnName(_, name):
            return name
        case Call(name, _):
            return name
        case Cast(inner, _):
            return _called(inner)
        case Exists():
            return "exists"
        case Scalar(Select((item, *_))):
            return item.name
    return "?column?"

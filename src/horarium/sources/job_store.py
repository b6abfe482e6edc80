"""Jobs of APScheduler 3 where it keeps them: its table in SQLite or PostgreSQL, or an export of them in JSON.

Nothing is written, and what is pickled in them stays so until `Job.state` reads it, which runs nothing.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from horarium.errors import InvalidInput, Problem, shown
from horarium.sources.document import MAX_BYTES
from horarium.sources.pickles import Global, Made, PickleRefused, read_pickle

TABLE = "apscheduler_jobs"
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?", re.ASCII)


@dataclass(frozen=True)
class Job:
    """A job by its id; `state` reads what it is made of, and raises `PickleRefused`."""

    id: str
    state: Callable[[], Any]


async def read_jobs(where: str, table: str = TABLE) -> tuple[list[Job], str]:
    """The jobs at `where`, by id, and how the store is called without secrets.

    `where` is an SQLite file, a file that `Scheduler.export_jobs` wrote, `sqlite:///FILE` or `postgresql://...`.
    Raises `InvalidInput` for what is none of these, `OSError` for a file that isn't there.
    """
    if not _NAME.fullmatch(table):
        raise InvalidInput(Problem("/table", shown(table), "a table's name is letters, digits and _", TABLE))
    scheme = re.match(r"([a-z0-9]+)(?:\+[a-z0-9]+)?://", where)
    if scheme is None:
        return _of_file(Path(where), table)
    if scheme[1] == "sqlite":
        return _of_file(Path(unquote(where[scheme.end() :].partition("?")[0]).removeprefix("/")), table)
    if scheme[1] in ("postgresql", "postgres"):
        url = "postgresql" + where[where.index("://") :]
        parts = urlsplit(url)
        name = f"postgresql://{parts.hostname or ''}{parts.path}"
        return await _of_postgres(url, table), name
    raise InvalidInput(
        Problem(
            "/store",
            scheme[0],
            "a job store is SQLite or PostgreSQL",
            "scheduler.export_jobs('jobs.json') writes a file that is read here too",
        )
    )


def _of_file(path: Path, table: str) -> tuple[list[Job], str]:
    with path.open("rb") as opened:
        head = opened.read(16)
    source = str(path.absolute())
    if head.startswith(b"SQLite format 3"):
        uri = f"file:{quote(source)}?mode=ro"
        try:
            with closing(sqlite3.connect(uri, uri=True)) as connection:
                rows = connection.execute(f"select id, job_state from {table} order by id").fetchall()
        except sqlite3.Error as error:
            raise _no_jobs(path, str(error)) from error
        return [_pickled(job_id, state) for job_id, state in rows], source
    if path.stat().st_size > MAX_BYTES:
        raise _no_jobs(path, f"an export has at most {MAX_BYTES:,} bytes")
    try:
        data = json.loads(path.read_bytes())
        found = data["jobs"] if data["version"] == 1 else None
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise _no_jobs(path, "it is no SQLite file, and no export of jobs") from error
    if not isinstance(found, list):
        raise _no_jobs(path, "it is no export of version 1")
    return [_exported(state) for state in found], source


def _no_jobs(path: Path, why: str) -> InvalidInput:
    return InvalidInput(Problem("/store", shown(str(path)), why, "--table, if the table has another name"))


async def _of_postgres(url: str, table: str) -> list[Job]:
    import asyncpg

    try:
        connection = await asyncpg.connect(url, timeout=20, statement_cache_size=0)
        try:
            rows = await connection.fetch(f"select id, job_state from {table} order by id")
        finally:
            await connection.close()
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, ValueError) as error:
        raise InvalidInput(
            Problem("/store", "the database", f"it can't be read ({type(error).__name__}: {error})", "")
        ) from error
    return [_pickled(row["id"], row["job_state"]) for row in rows]


def _pickled(job_id: Any, state: Any) -> Job:
    def read() -> Any:
        if not isinstance(state, bytes):
            raise PickleRefused("its state is no pickle")
        return read_pickle(state)

    return Job(str(job_id), read)


def _exported(state: Any) -> Job:
    """A job of an export: JSON, in which what JSON can't say is pickled."""
    name = state.get("id") if isinstance(state, dict) else None
    return Job(name if isinstance(name, str) else "job", lambda: _unfolded(state))


def _unfolded(value: Any, depth: int = 0) -> Any:
    if depth > 60:
        raise PickleRefused("its state nests too deep")
    if isinstance(value, list):
        return [_unfolded(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    pickled, named = value.get("__apscheduler_pickle__"), value.get("__apscheduler_class__")
    if isinstance(pickled, str):
        try:
            return read_pickle(base64.b64decode(pickled, validate=True))
        except binascii.Error as error:
            raise PickleRefused(f"its state is no base64 ({error})") from error
    if isinstance(named, str):
        module, _, name = named.partition(":")
        return Made(Global(module, name), (), _unfolded(value.get("__apscheduler_state__"), depth + 1))
    return {key: _unfolded(item, depth + 1) for key, item in value.items()}

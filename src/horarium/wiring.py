"""From settings to running objects. The only module that knows everyone."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

from horarium.clock import Clock, Ids, OffsetClock, SystemClock, SystemIds
from horarium.core.freeze import EVERYTHING
from horarium.core.spec import Listing, TargetSpec
from horarium.errors import AlreadyServing, HorariumError, InvalidInput, Problem, SchemaMismatch, shown
from horarium.flyte import CONNECTION_KEYS, extra_missing
from horarium.sources import apscheduler, celery_beat
from horarium.sources.base import SourceUnavailable, TargetChecks

# "as": the command line has these from here, since it may not know sources.
from horarium.sources.crontab import host_timezone as host_timezone
from horarium.sources.crontab import import_crontab as import_crontab
from horarium.sources.files import FileSource, Parsed, parse_triggers, read_parsed, triggers_files
from horarium.sources.imported import Imported as Imported
from horarium.sources.incumbents import Incumbents
from horarium.sources.job_store import read_jobs
from horarium.sources.kubernetes import import_kubernetes as import_kubernetes
from horarium.sources.prefect_yaml import import_prefect as import_prefect
from horarium.sources.starter import STARTER as STARTER
from horarium.targets import registry
from horarium.targets.base import TargetTraits
from horarium.targets.inline import current_run as current_run
from horarium.targets.secrets import HIDDEN

if TYPE_CHECKING:
    # What talks to databases and the network is imported where it is used: `validate`, `lint` and `import`
    # read files only, and no command needs a web server.
    from horarium.app.commands import Commands
    from horarium.app.queries import Queries
    from horarium.config import Settings
    from horarium.engine.service import Service
    from horarium.engine.syncer import Source
    from horarium.sources.flyte import FlyteSource
    from horarium.sources.prefect import PrefectSource
    from horarium.store.base import Store
    from horarium.store.postgres import PostgresStore
    from horarium.store.sqlite import SqliteStore

    SystemSource: TypeAlias = FlyteSource | PrefectSource

__all__ = [
    "STARTER",
    "Imported",
    "backup",
    "build",
    "built_for",
    "check_schema",
    "downgrade",
    "files_at",
    "host_timezone",
    "import_apscheduler",
    "import_celery",
    "import_crontab",
    "import_kubernetes",
    "import_prefect",
    "migrate",
    "open_app",
    "parse_files",
    "running",
    "serve",
]


@dataclass(slots=True)
class Instance:
    """Everything that one process runs, wired together and not yet started."""

    settings: Settings
    store: Store
    clock: Clock
    service: Service
    commands: Commands
    queries: Queries
    app: Any
    """The ASGI application."""


def build(
    settings: Settings,
    *,
    apply: Sequence[str] = (),
    clock: Clock | None = None,
    ids: Ids | None = None,
    store: Store | None = None,
    build_target: Callable[[TargetSpec], Any] | None = None,
    functions: Mapping[str, Callable[..., Any]] | None = None,
) -> Instance:
    """Wire an instance. `apply` are files and folders that the syncer keeps reading.

    `clock`, `ids`, `store` and `build_target` replace the real ones in tests; `functions` are callables
    that an embedding program offers to `inline` targets.
    """
    from horarium.api.server import create_app
    from horarium.app.commands import Commands
    from horarium.app.figures import Figures
    from horarium.app.queries import Queries
    from horarium.app.status import Database
    from horarium.config import Role
    from horarium.engine.executor import Executor, ExecutorSettings
    from horarium.engine.health import Health
    from horarium.engine.hints import Hints
    from horarium.engine.janitor import Janitor, Keep
    from horarium.engine.mirror import Mirror
    from horarium.engine.planner import Planner, PlannerSettings
    from horarium.engine.pool import TargetPool
    from horarium.engine.reporter import Reporter
    from horarium.engine.service import Parts, Service
    from horarium.engine.syncer import Syncer
    from horarium.engine.wake import Wake
    from horarium.store import migrations
    from horarium.telemetry import ClockWatch, Metrics

    metrics, wake = Metrics(), Wake()
    clock = clock or SystemClock()
    if settings.sqlite_path is None:
        clock = OffsetClock(clock, ClockWatch(metrics))  # replicas act by the database's time
    ids = ids or SystemIds()
    store = store or make_store(settings, clock)
    health = Health(clock)
    window = settings.window
    checks = registry.ServerChecks(settings.public_url)
    owner = owner_name(ids)
    given_store = store

    def default_target(spec: TargetSpec) -> Any:
        context = registry.TargetContext(
            clock, given_store, owner, wake.executor.set, functions or {}, settings.public_url
        )
        return registry.build(spec, context)

    def traits(spec: TargetSpec) -> TargetTraits:
        try:
            found: TargetTraits = (build_target or default_target)(spec).traits
        except (
            HorariumError
        ) as error:  # a kind that is not installed here, a function that only a program has
            return TargetTraits(False, False, f"can't be known here: {error}")
        return found

    pool = TargetPool(store, clock, build_target or default_target, settings.rate)
    parts = Parts(wake, health, metrics, pool)
    if settings.sqlite_path is None and isinstance(store, _postgres().PostgresStore):
        parts.hints = Hints(store, wake)
    roles = set(settings.roles)
    systems = _system_sources(settings, clock, store)
    if Role.SYNC in roles and (apply or systems):
        files = _Files(apply, store, checks)

        async def discover() -> list[Source]:
            return [*await files.sources(), *systems]

        parts.syncer = Syncer(
            store, clock, discover, wake, settings.resync_interval, metrics, shadow=settings.shadow
        )
    if Role.PLAN in roles:
        parts.planner = Planner(
            store,
            clock,
            window,
            wake,
            PlannerSettings(
                settings.deployment_batch_size,
                settings.insert_batch_size,
                lease=min(PlannerSettings().lease, settings.lease),
                poll=min(settings.poll_interval, settings.loop_seconds),
            ),
            metrics,
        )
        keep = Keep(
            settings.retention_runs,
            settings.retention_skips,
            settings.retention_audit,
            settings.retention_runs_per_trigger,
            settings.retention_skips_per_trigger,
        )
        parts.janitor = Janitor(store, clock, wake, keep)
    if Role.FIRE in roles:
        parts.executor = Executor(
            store,
            clock,
            ids,
            pool,
            wake,
            owner,
            ExecutorSettings(
                lease=settings.lease,
                late_after=settings.late_after,
                grace=settings.grace,
                guard=settings.catch_up_guard,
                poll=settings.poll_interval,
            ),
            metrics,
        )
        parts.mirror = Mirror(store, clock, pool, wake, metrics)
        executor, mirror = parts.executor, parts.mirror
        health.of_targets = lambda: mirror.told(executor.targets())
        parts.reporter = Reporter(store, clock, pool, wake, metrics)
    commands = Commands(
        store,
        clock,
        ids,
        parse=partial(parse_triggers, checks=checks),
        read_source=lambda kind, config: _read_source(settings, clock, store, kind, config),
        window=window,
        late_after=settings.late_after,
        grace=settings.grace,
        shadow=settings.shadow,
        wake=wake.changed,
        callback_keys=registry.callback_keys,
    )
    queries = Queries(
        store,
        clock,
        window=window,
        late_after=settings.late_after,
        health=health,
        database=Database(
            "sqlite" if settings.sqlite_path else "postgresql", settings.db_shown, migrations.head()
        ),
        guard=settings.catch_up_guard,
        traits=traits,
        incumbents=Incumbents(clock),
    )
    figures = Figures(store, clock, settings.late_after, metrics, health)
    mounts = _flyte_api(commands, queries, settings) if settings.api_flyte_enabled else {}
    app = create_app(commands, queries, health=health, figures=figures, mounts=mounts)
    return Instance(settings, store, clock, Service(parts, clock), commands, queries, app)


# Flyte


def _flyte_api(commands: Commands, queries: Queries, settings: Settings) -> dict[str, Any]:
    """Flyte's API under its paths. Raises `InvalidInput` where the extra is not installed."""
    try:
        from horarium.api.flyte import PATH, FlyteApi
        from horarium.api.flyte_words import FlyteSettings
    except ImportError as missing:
        raise extra_missing("/api_flyte_enabled", "true", missing) from missing
    words = FlyteSettings(settings.api_flyte_target, settings.api_flyte_uploads)
    return {PATH: FlyteApi(commands, queries, words)}


# sources that are other systems

_SYSTEMS = {"flyte": "endpoint", "prefect": "url"}
"""Kinds of sources that are another system, and the word for where it is."""


def _system_sources(settings: Settings, clock: Clock, store: Store) -> list[SystemSource]:
    """The sources that the settings have. Raises `InvalidInput`, with the settings' names."""
    found = [_of_settings(settings, clock, store, kind) for kind in _SYSTEMS]
    return [source for source in found if source is not None]


def _of_settings(settings: Settings, clock: Clock, store: Store, kind: str) -> SystemSource | None:
    """The source of that kind, if the settings have one: each word of it is a setting `sources_KIND_WORD`."""
    prefix = f"sources_{kind}_"
    words = type(settings).model_fields
    config = {name.removeprefix(prefix): getattr(settings, name) for name in words if name.startswith(prefix)}
    if config[_SYSTEMS[kind]] is None:
        return None
    headers: dict[str, str] = {}
    problems: list[Problem] = []
    for line in config["headers"]:
        name, colon, value = line.partition(":")
        headers[name.strip()] = value.strip()
        if not colon:
            rule = "a header is Name: value"
            problems.append(Problem("/headers", HIDDEN, rule, "X-Team: etl"))
    config["headers"] = headers
    config = {word: list(value) if isinstance(value, tuple) else value for word, value in config.items()}
    try:
        source = _make_source(kind, config, clock, store, f"/{_SYSTEMS[kind]}")
    except InvalidInput as error:
        problems += error.problems
    if problems:
        raise InvalidInput(
            replace(problem, pointer=f"/{prefix}{problem.pointer.lstrip('/')}") for problem in problems
        )
    return source


def _make_source(
    kind: str, config: Mapping[str, Any], clock: Clock, store: Store, pointer: str
) -> SystemSource:
    """A source of that kind. Raises `InvalidInput` with every problem of its config."""
    given = {word: value for word, value in config.items() if value is not None}
    if kind == "prefect":
        from horarium.sources import prefect

        return prefect.PrefectSource(prefect.check_source(given, ""), clock)
    try:
        from horarium.sources import flyte
    except ImportError as missing:
        raise extra_missing(pointer, "a Flyte backend", missing) from missing
    allowed = (*CONNECTION_KEYS, *flyte.CONFIG_KEYS)
    checked = flyte.check_source(given, "", allowed)
    return flyte.FlyteSource(checked, clock, lambda: store.source_listed_at(flyte.NAME))


async def _read_source(
    settings: Settings, clock: Clock, store: Store, kind: str, config: Mapping[str, Any] | None
) -> tuple[Listing, str]:
    """What the source of a kind says now, and where it is. `config` is one to read instead of the settings'.

    Raises `InvalidInput`, `SourceUnavailable`.
    """
    if kind not in _SYSTEMS:
        raise InvalidInput(
            Problem("/kind", shown(kind), f"a source that can be synced is one of {', '.join(_SYSTEMS)}")
        )
    where = _SYSTEMS[kind]
    source = (
        _of_settings(settings, clock, store, kind)
        if config is None
        else _make_source(kind, config, clock, store, f"/config/{where}")
    )
    if source is None:
        raise InvalidInput(
            Problem(
                f"/config/{where}",
                "nothing",
                f"{kind.capitalize()} is reached at its {where}, and the settings name none",
                f"--{where} URL, or {where} in [sources.{kind}]",
            )
        )
    return await source.read(), source.path


# files


async def import_apscheduler(store: str, table: str) -> Imported:
    """The triggers file of the jobs in APScheduler's `store`: a file or a URL. Raises `InvalidInput`."""
    jobs, source = await read_jobs(store, table)
    return apscheduler.import_apscheduler(jobs, source, SystemClock().now())


def import_celery(
    text: str,
    path: str,
    *,
    app: str | None = None,
    timezone: str | None = None,
    broker: str | None = None,
    backend: str | None = None,
) -> Imported:
    """The triggers file of beat's schedule. With `broker` and `backend` a `celery` target sends the tasks.

    Raises `InvalidInput`.
    """
    given = {word: at for word, at in (("broker", broker), ("backend", backend)) if at is not None}
    connection = registry.check_config("celery", given, "") if given else None
    return celery_beat.import_celery(text, path, app=app, timezone=timezone, connection=connection)


def parse_files(path: str) -> list[Parsed]:
    """Every triggers file at `path`, parsed. Raises `InvalidInput`, `SourceUnavailable`."""
    return read_parsed(path, registry)


def files_at(path: str) -> list[Path]:
    """The triggers files at `path`. Raises `SourceUnavailable`."""
    return triggers_files(path)


class _Files:
    """The sources that `serve --apply` reads: one a file. A folder's files come and go; a file that stays
    keeps its object. Where a whole path is gone, its files are asked for still: each says by its own name
    that it can't be read, and the other paths are none the worse."""

    def __init__(self, paths: Sequence[str], store: Store, checks: TargetChecks) -> None:
        self._paths = paths
        self._store = store
        self._checks = checks
        self._known: dict[Path, FileSource] = {}
        self._at: dict[str, list[Path]] = {}
        self._targets: dict[str, TargetSpec] = {}

    async def sources(self) -> list[Source]:
        """The sources as of now, which know the targets of the instance as of now."""
        self._targets = {row.spec.name: row.spec for row in await self._store.targets()}
        found = await asyncio.to_thread(lambda: [file for path in self._paths for file in self._files(path)])
        self._known = {file: self._known.get(file) or self._source(file) for file in found}
        return list(self._known.values())

    def _files(self, path: str) -> list[Path]:
        try:
            self._at[path] = triggers_files(path)
        except SourceUnavailable:
            if not self._at.get(path):
                raise
        return self._at[path]

    def _source(self, file: Path) -> FileSource:
        return FileSource(file, self._checks, targets=lambda: self._targets)


# databases


def make_store(settings: Settings, clock: Clock) -> SqliteStore | PostgresStore:
    """The store of the configured database."""
    if settings.sqlite_path is not None:
        from horarium.store.sqlite import SqliteStore

        return SqliteStore(settings.sqlite_path, clock)
    store: PostgresStore = _postgres().PostgresStore(
        settings.db,
        prepared_statements=settings.db_prepared_statements,
        host=clock if isinstance(clock, OffsetClock) else None,
        gone=has_ended,
    )
    return store


def _postgres() -> ModuleType:
    """The PostgreSQL store's module, loaded when it is used: its driver is an extra, and slow to load.

    Raises `InvalidInput` where the driver is not installed.
    """
    try:
        from horarium.store import postgres
    except ImportError as missing:
        raise InvalidInput(
            Problem(
                "/db",
                "a PostgreSQL database",
                f"its driver is not installed ({missing})",
                "pip install 'horarium[postgres]'",
                code="db",
            )
        ) from missing
    return postgres


_OWNERS: set[str] = set()
"""What instances in this process have called themselves."""


def owner_name(ids: Ids) -> str:
    """This process's name on leases and local executions."""
    owner = f"{socket.gethostname()}/{os.getpid()}/{ids.new_id()[:8]}"
    _OWNERS.add(owner)
    return owner


def has_ended(owner: str) -> bool:
    """Whether a process of this host that called itself `owner` is no more; of other hosts nobody knows."""
    host, _, rest = owner.partition("/")
    pid = rest.partition("/")[0]
    if host != socket.gethostname() or not pid.isdigit():
        return False
    if int(pid) == os.getpid():  # in a container each start has the same number
        return owner not in _OWNERS
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def migrate(settings: Settings) -> tuple[str | None, str]:
    """Bring the schema up to date; the revision before, and the one now. Makes a SQLite file and its folder.

    A newer one that says that this program can work on it stays as it is. Raises `SchemaMismatch` for any
    other newer one, `StoreUnavailable`. Not for use inside an event loop.
    """
    if settings.sqlite_path is None:
        before_and_now: tuple[str | None, str] = asyncio.run(_postgres().migrate_postgres(settings.db))
        return before_and_now
    from horarium.store.sqlite import migrate_sqlite

    settings.sqlite_path.parent.mkdir(parents=True, exist_ok=True)
    return migrate_sqlite(settings.sqlite_path)


def downgrade(settings: Settings, revision: str | None) -> tuple[str | None, str | None]:
    """Take the schema back to `revision`, or by one; the revision before, and the one now.

    Raises `InvalidInput` for what is not older, `Conflict` while something is held that an older version
    would never let go, `AlreadyServing` for a SQLite file in use. Not for use inside an event loop.
    """
    path = settings.sqlite_path
    if path is None:
        before_and_now: tuple[str | None, str | None] = asyncio.run(
            _postgres().downgrade_postgres(settings.db, revision)
        )
        return before_and_now
    if not path.exists():
        raise SchemaMismatch(f"there is no file {path}")
    from horarium.store.sqlite import downgrade_sqlite

    with ServerLock(path):
        return downgrade_sqlite(path, revision)


def built_for() -> str:
    """The schema that this program was built for."""
    from horarium.store import migrations

    return migrations.head()


@dataclass(frozen=True, slots=True)
class SchemaFound:
    """The schema that a database is at, the one that this program was built for, and the least that a program
    must be built for to work on it (None: from the times before that was said)."""

    schema: str
    built_for: str
    readable_by: str | None


def check_schema(settings: Settings) -> SchemaFound:
    """The schema there. Raises `SchemaMismatch` with what to do when this program can't work on it."""
    path = settings.sqlite_path
    if path is not None and not path.exists():
        raise SchemaMismatch(f"there is no file {path}; 'horarium serve' or 'horarium db upgrade' makes it")

    from sqlalchemy import select, text

    from horarium.store import tables

    async def check() -> SchemaFound:
        store = make_store(settings, SystemClock())
        await store.open()
        try:
            ((there,),) = await store.fetch(text("select version_num from alembic_version"))
            marks = await store.fetch(select(tables.schema_compatibility.c.readable_by))
            return SchemaFound(there, built_for(), marks[0].readable_by if marks else None)
        finally:
            await store.close()

    return asyncio.run(check())


def backup(settings: Settings, destination: str) -> Path:
    """A live, consistent copy of a SQLite file. Raises `FileExistsError`; `InvalidInput` on PostgreSQL."""
    path, there = settings.sqlite_path, Path(destination)
    if path is None:
        raise InvalidInput(
            Problem(
                "/db", settings.db_shown, "this copies SQLite files", "pg_dump, for PostgreSQL", code="db"
            )
        )

    from horarium.store.sqlite import SqliteStore

    # Not opened: a copy is wanted before an upgrade most of all, and a store opens at its own schema only.
    asyncio.run(SqliteStore(path, SystemClock()).backup(there))
    return there


@contextmanager
def _served_alone(settings: Settings) -> Iterator[None]:
    """A SQLite file is migrated, and served by one process at a time; replicas meet in PostgreSQL."""
    if settings.sqlite_path is None:
        yield
        return
    with ServerLock(settings.sqlite_path):
        migrate(settings)
        yield


class ServerLock:
    """At most one server on a SQLite file: a lock on a file beside it that dies with the process.

    Raises `AlreadyServing`, which names the holder.
    """

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(database.name + ".lock")
        self._file: TextIO | None = None

    def __enter__(self) -> ServerLock:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = self._path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as held:
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise AlreadyServing(
                f"another server ({holder}) runs on this SQLite file; stop it first, or use PostgreSQL "
                "to run several"
            ) from held
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()
        self._file = file
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


# running


@asynccontextmanager
async def open_app(settings: Settings) -> AsyncIterator[Any]:
    """The ASGI application straight on the settings' database, without loops; for the command line."""
    if settings.sqlite_path is not None:
        migrate(settings)
    instance = build(settings)
    await instance.store.open()
    try:
        yield instance.app
    finally:
        await instance.store.close()


@asynccontextmanager
async def running(
    settings: Settings,
    *,
    functions: Mapping[str, Callable[..., Any]] | None = None,
    before: Callable[[Instance], Awaitable[None]] | None = None,
) -> AsyncIterator[Instance]:
    """An instance that runs in the caller's event loop, without an API; it is drained at the end.

    `before` is awaited when the store is open and no loop has started.
    """
    with _served_alone(settings):
        instance = build(settings, functions=functions)
        await instance.store.open()
        try:
            if before is not None:
                await before(instance)
            await instance.service.start()
            try:
                yield instance
            finally:
                await instance.service.stop(settings.drain_timeout)
        finally:
            await instance.store.close()


def serve(
    settings: Settings,
    apply: Sequence[str] = (),
    say: Callable[[str], None] | None = None,
    *,
    frozen: bool = False,
) -> int:
    """Run a server until SIGTERM or SIGINT; the exit code. A second signal exits at once.

    `say` prints a line for people (default: standard output). `frozen`: freeze everything before anything is
    planned or fired.
    """
    print_line = say or _say
    with _served_alone(settings), _runner() as runner:
        return runner.run(_serve(settings, apply, print_line, frozen=frozen))


def spare_collector() -> None:
    """Have the collector of garbage in cycles leave alone what there is now, and come more rarely.

    A burst makes and drops some hundred objects a run, nearly none in a cycle; with the usual thresholds up
    to a quarter of its CPU goes into walking them, and all modules, again and again. Only for a process of
    our own.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def _runner() -> asyncio.Runner:
    if sys.platform == "win32":
        return asyncio.Runner()
    import uvloop

    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


async def _serve(
    settings: Settings, apply: Sequence[str], say: Callable[[str], None], *, frozen: bool
) -> int:
    from horarium.config import Role

    instance = build(settings, apply=apply)
    stop = asyncio.Event()
    _on_signals(stop)
    await instance.store.open()
    try:
        listener = _listen(settings) if Role.API in settings.roles else None
        if frozen:
            # Before anything else, also before the files are read: a target that they add is frozen, too.
            await instance.commands.freeze(EVERYTHING, note="serve --frozen")
            say("everything is frozen: `horarium owed` says what waits, `horarium release` lets it go")
        if instance.service.parts.syncer is not None:
            # Before anything fires, so that what the files say now is what is owed and caught up.
            await instance.service.parts.syncer.run_once()
        for line in await instance.queries.owed_report(instance.clock.now()):
            say(line)
        await instance.service.start()
        server = None if listener is None else _Api(instance.app, listener)
        spare_collector()
        if server is not None:
            await server.start()
            say(f"Horarium runs on {settings.db_shown}: http://{_address(listener)}/api/v1/status")
        else:
            say(f"Horarium runs on {settings.db_shown}, without the API (roles)")
        say("Stop it with Ctrl-C or SIGTERM; nothing is lost either way.")
        await stop.wait()
        say("stopping: no more claims, calls in flight end")
        if server is not None:
            await server.stop()
        settled = await instance.service.stop(settings.drain_timeout)
    finally:
        await instance.store.close()
    if not settled:
        say("stopped; the database was away, so the last answers are asked for again at the next start")
        return 1
    say("stopped")
    return 0


def _say(line: str) -> None:
    print(line, flush=True)


def _on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def asked(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)  # the second time: at once; leases and WAL see to the rest
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked, number)


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as taken:
        listener.close()
        raise InvalidInput(
            Problem(
                "/port",
                f"{settings.host}:{settings.port}",
                f"the API could not listen there: {taken.strerror}",
                "give another --port, or 0 for any free one",
                code="port",
            )
        ) from taken
    listener.listen(512)
    return listener


def _address(listener: socket.socket | None) -> str:
    assert listener is not None
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Api:
    """uvicorn inside our loop, without its own signal handlers."""

    def __init__(self, app: Any, listener: socket.socket) -> None:
        import uvicorn

        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=3
        )
        self._server = uvicorn.Server(config)
        self._listener = listener
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._server.capture_signals = _nothing  # type: ignore[method-assign,assignment]  # ours decide
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.wait([self._task], timeout=10.0)


class _nothing:
    """A context that does nothing."""

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...

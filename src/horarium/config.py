"""The settings: their names, defaults and rules, and where they come from.

A value is taken from the first of these that has it: a flag, the environment (`HORARIUM_POLL_INTERVAL`),
the TOML file (`poll_interval = "1s"`), the default. A wrong value is answered with the setting, the
value, the rule, what to try and where it was set; a name that is not known is refused with what is
close to it. `docs/settings.md` shows this table, and a test holds that it does.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from horarium.core.duration import format_duration, parse_duration
from horarium.core.keys import check_name
from horarium.core.plan import Window
from horarium.core.spec import Rate
from horarium.errors import InvalidInput, Problem, shown

ENV_PREFIX = "HORARIUM_"
CONFIG_VARIABLE = "HORARIUM_CONFIG"
"""Names the TOML file where `--config` does not."""
DEFAULT_FILE = "horarium.toml"
"""Read from the working directory if it is there and no other file is named."""
DEFAULT_DB = "sqlite:///horarium.db"

HIDDEN = "***"


class Role(StrEnum):
    """What a server process does."""

    SYNC = "sync"
    PLAN = "plan"
    FIRE = "fire"
    API = "api"


class LogFormat(StrEnum):
    """How log lines look: `auto` is `human` on a terminal, else `json`."""

    AUTO = "auto"
    HUMAN = "human"
    JSON = "json"


class LogLevel(StrEnum):
    """The least that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def _duration(value: object) -> timedelta:
    try:
        return parse_duration(value)
    except InvalidInput as error:
        raise _wrong(error.problems[0].rule, error.problems[0].hint) from None


def _listed(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _verify(value: object) -> object:
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value


def _db(value: object) -> str:
    rule = "a database is sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME"
    if not isinstance(value, str):
        raise _wrong(rule, DEFAULT_DB)
    if value.startswith("sqlite:"):
        if not re.fullmatch(r"sqlite:///.+", value):
            raise _wrong(
                "an SQLite database is sqlite:/// and a path: three slashes, four for an absolute one",
                "sqlite:///horarium.db or sqlite:////var/lib/horarium/horarium.db",
            )
        if "?" in value or "#" in value:
            raise _wrong("an SQLite database is a path without options", "leave out what follows ? or #")
        if value == "sqlite:///:memory:":
            raise _wrong(
                "runs are kept on disk: a database in memory would lose them", "sqlite:///horarium.db"
            )
        return value
    if re.match(r"postgres(ql)?(\+asyncpg)?://.", value):
        return value
    raise _wrong(
        rule, f"sqlite:///{value}" if re.fullmatch(r"[\w./-]+\.(db|sqlite3?)", value) else DEFAULT_DB
    )


def _server(value: object) -> object:
    if value is None:
        return None
    rule = "a server is an http or https address"
    if not isinstance(value, str):
        raise _wrong(rule, "http://127.0.0.1:8090")
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        fixed = f"http://{value}" if re.fullmatch(r"[\w.-]+(:\d+)?", value) else "http://127.0.0.1:8090"
        raise _wrong(rule, fixed)
    if parts.query or parts.fragment:
        raise _wrong("a server's address has no ? or # part", value.split("?")[0].split("#")[0])
    return value.rstrip("/")


def _target_name(value: object) -> object:
    if value is None:
        return None
    try:
        return check_name(value, "/api_flyte_target")
    except InvalidInput as error:
        raise _wrong(error.problems[0].rule, "the name of a target, such as flyte") from None


def _endpoint(value: object) -> object:
    if value is None:
        return None
    rule = "an endpoint is what Flyte's own configuration has: dns:///HOST, or an http or https address"
    if isinstance(value, str) and re.fullmatch(r"(dns:///|https?://)[^\s/]+/?", value):
        return value.rstrip("/")
    raise _wrong(rule, "dns:///flyte.example.com")


def _loopback(value: object) -> str:
    if isinstance(value, str):
        if value == "localhost":
            return value
        try:
            if ipaddress.ip_address(value.strip("[]")).is_loopback:
                return value.strip("[]")
        except ValueError:
            pass
    raise _wrong(
        "there is no access control yet, so the server listens on this machine only",
        "127.0.0.1, and a reverse proxy or an SSH tunnel for others",
    )


def _wrong(rule: str, hint: str) -> PydanticCustomError:
    # The rule goes in as a value, not as a template: braces in it mean themselves.
    return PydanticCustomError("rule", "{rule}", {"rule": rule, "try": hint})


Duration = Annotated[timedelta, BeforeValidator(_duration)]
"""A length of time: `20s`, `5m`, `1h30m`, `2d`, a number of seconds, or ISO 8601."""


_SECOND = timedelta(seconds=1)
"""Shorter than this, a loop would only spin."""


class Settings(BaseSettings):
    """Every setting. `Settings(db=...)` takes values by name, then the environment, then defaults;
    `load_settings` reads the file too. Raises `InvalidInput` with every problem."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        frozen=True,
        extra="forbid",
        validate_default=True,
        env_ignore_empty=True,
        hide_input_in_errors=True,
    )

    # Where the state is and who is asked.
    db: Annotated[str, BeforeValidator(_db)] = Field(
        DEFAULT_DB,
        repr=False,  # the address of a PostgreSQL may hold a password
        description="The database: `sqlite:///FILE` (three slashes: relative to the working directory; four: "
        "absolute) or `postgresql://USER:PASSWORD@HOST/NAME`.",
    )
    server: Annotated[str | None, BeforeValidator(_server)] = Field(
        None,
        repr=False,  # so may a server's
        description="The server that commands speak to, such as `http://127.0.0.1:8090`. Without one they "
        "work straight on the database. `serve` ignores it.",
    )

    db_prepared_statements: bool = Field(
        True,
        description="Whether PostgreSQL connections keep prepared statements. `false` behind PgBouncer in "
        "transaction mode, whose connections change hands between transactions.",
    )

    # What a server process does.
    roles: Annotated[tuple[Role, ...], NoDecode, BeforeValidator(_listed)] = Field(
        tuple(Role),
        min_length=1,
        description="What this process does: any of `sync`, `plan`, `fire`, `api`.",
    )
    host: Annotated[str, BeforeValidator(_loopback)] = Field(
        "127.0.0.1",
        description="Where the API listens. Only loopback addresses, until there is access control.",
    )
    port: int = Field(8090, ge=0, le=65_535, description="The API's port; 0 takes any free one.")
    public_url: Annotated[str | None, BeforeValidator(_server)] = Field(
        None,
        description="Where others reach the API, such as `https://horarium.example.com`: what a receiver of "
        "an `http` target is told with `callback: true`. A reverse proxy there passes on "
        "`/api/v1/runs/*/*/*/result`, and nothing else unless it checks who asks.",
    )
    drain_timeout: Duration = Field(
        timedelta(seconds=30),
        description="After SIGTERM: how long calls in flight and local runs may take to end.",
    )

    # Sync.
    resync_interval: Duration = Field(
        timedelta(seconds=30), ge=_SECOND, description="How often each source is read again, whole."
    )

    shadow: bool = Field(
        False,
        description="Whether new triggers start in shadow: planned and decided, and nothing is fired. What a "
        "trigger, its file or its source says of it counts first; later `horarium shadow` says.",
    )

    sources_flyte_endpoint: str | None = Field(
        None,
        repr=False,
        description="The API of a Flyte backend whose triggers are kept in step here, such as "
        "`https://flyte.example.com`, or a reference to it (`env:NAME`, `file:PATH`). See `docs/flyte.md`.",
    )
    sources_flyte_org: str | None = Field(None, description="The organisation, where that Flyte has any.")
    sources_flyte_token: str | None = Field(
        None, repr=False, description="A reference to a bearer token: `env:NAME` or `file:PATH`."
    )
    sources_flyte_headers: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)] = Field(
        (), repr=False, description="More headers, each `Name: value`; secret values as references."
    )
    sources_flyte_timeout: Duration = Field(
        timedelta(seconds=10), ge=_SECOND, description="The longest that a call there takes; at most 50s."
    )
    sources_flyte_verify: Annotated[bool | str, BeforeValidator(_verify)] = Field(
        True,
        description="Whether its certificate is checked, or the path of a PEM file of certificates to trust.",
    )
    sources_flyte_gzip: bool = Field(True, description="Whether requests to it are compressed.")
    sources_flyte_projects: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)] = Field(
        (), description="The `project/domain` pairs whose triggers are taken; empty is all."
    )
    sources_flyte_target: str | None = Field(
        None,
        description="The target of kind `flyte` that fires them; without one the source brings `flyte` "
        "along, which calls the same endpoint.",
    )
    sources_flyte_shadow: bool | None = Field(
        None, description="Whether its new triggers start in shadow; what `shadow` says unless given."
    )

    sources_prefect_url: str | None = Field(
        None,
        repr=False,
        description="The API of a Prefect server whose deployments are kept in step here, such as "
        "`http://127.0.0.1:4200/api`, or a reference to it (`env:NAME`, `file:PATH`). See `docs/prefect.md`.",
    )
    sources_prefect_api_key: str | None = Field(
        None, repr=False, description="A reference to an API key: `env:NAME` or `file:PATH`."
    )
    sources_prefect_auth_string: str | None = Field(
        None,
        repr=False,
        description="Instead of a key: a reference to the `user:password` of basic authentication.",
    )
    sources_prefect_headers: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)] = Field(
        (), repr=False, description="More headers, each `Name: value`; secret values as references."
    )
    sources_prefect_timeout: Duration = Field(
        timedelta(seconds=15), ge=_SECOND, description="The longest that a call there takes; at most 50s."
    )
    sources_prefect_verify: Annotated[bool | str, BeforeValidator(_verify)] = Field(
        True,
        description="Whether its certificate is checked, or the path of a PEM file of certificates to trust.",
    )
    sources_prefect_project: str = Field(
        "prefect", description="The project of all that comes from there: keys are `PROJECT/flow/deployment`."
    )
    sources_prefect_target: str | None = Field(
        None,
        description="The target of kind `prefect` that fires them; without one the source brings `prefect` "
        "along, which calls the same server.",
    )
    sources_prefect_ahead: Duration | None = Field(
        None,
        description="How long before they are due that target has flow runs; without it they are created "
        "when they are due.",
    )
    sources_prefect_shadow: bool | None = Field(
        None, description="Whether its new triggers start in shadow; what `shadow` says unless given."
    )

    # Plan.
    loop_seconds: Duration = Field(
        timedelta(seconds=60),
        ge=_SECOND,
        description="The planner's longest sleep; what becomes due wakes it earlier.",
    )
    deployment_batch_size: int = Field(
        100,
        ge=1,
        le=10_000,
        description="How many triggers one planning pass takes; eight times as many while nothing is about "
        "to fire.",
    )
    insert_batch_size: int = Field(
        500,
        ge=1,
        le=100_000,
        description="How many runs one planning transaction aims to insert; eight times as many while "
        "nothing is about to fire.",
    )
    max_catchup_runs_per_loop: int = Field(
        100,
        ge=1,
        le=10_000,
        description="How many past slots of one trigger a planning step makes up for. What is left follows "
        "in the next step: nothing is dropped.",
    )
    min_runs: int = Field(
        3, ge=1, le=1_000, description="At least so many upcoming runs of a trigger exist at every moment."
    )
    max_runs: int = Field(
        100, ge=1, le=100_000, description="At most so many upcoming runs of a trigger exist."
    )
    min_scheduled_time: Duration = Field(
        timedelta(hours=1), description="The upcoming runs cover at least this time."
    )
    max_scheduled_time: Duration = Field(
        timedelta(days=100), ge=_SECOND, description="No run is planned further ahead than this."
    )

    # Fire.
    execution_qps: float = Field(
        10,
        ge=0,
        le=1_000_000,
        allow_inf_nan=False,
        description="How many runs a second a target takes, unless it says `rate`; 0 is no limit.",
    )
    execution_burst: int = Field(
        20, ge=1, le=1_000_000, description="How many runs a target takes at once after a quiet time."
    )
    late_after: Duration = Field(
        timedelta(seconds=60),
        ge=_SECOND,
        description="A run is late if it has not fired by its time, its jitter and this; deployments can say "
        "otherwise.",
    )
    grace: Duration = Field(
        timedelta(seconds=60),
        ge=_SECOND,
        description="A gap this long is no downtime yet; `catch_up: none` takes a slot at most so old.",
    )
    catch_up_guard: int = Field(
        1_000,
        ge=0,
        le=1_000_000,
        description="If more runs than this came due for one target while nobody looked, they are held until "
        "`horarium release` says what becomes of them, and on-time runs go on; 0 is off.",
    )
    lease: Duration = Field(
        timedelta(seconds=60),
        ge=2 * _SECOND,
        description="How long a claimed run is ours; after a crash it is tried again when this has passed.",
    )
    poll_interval: Duration = Field(
        timedelta(seconds=1),
        ge=timedelta(milliseconds=10),
        description="The executor's longest sleep, in case a wake hint was lost.",
    )

    # Flyte.
    api_flyte_enabled: bool = Field(
        False,
        description="Whether the server speaks Flyte's API too, so that Flyte's SDK and CLI manage triggers "
        "here. Needs `pip install 'horarium[flyte]'`.",
    )
    api_flyte_target: Annotated[str | None, BeforeValidator(_target_name)] = Field(
        None,
        description="The target that runs tasks which Flyte's SDK deploys. Without one, the target that is "
        "called `flyte`.",
    )
    api_flyte_uploads: Annotated[str | None, BeforeValidator(_endpoint)] = Field(
        None,
        description="The Flyte backend that takes what Horarium does not keep: code bundles and images. "
        "Without one, tasks are deployed with their code in the image (`--copy-style none`).",
    )

    # Housekeeping.
    retention_runs: Duration = Field(
        timedelta(days=90),
        ge=timedelta(hours=1),
        description="How long settled runs are kept, with their attempts and the output of local ones.",
    )
    retention_runs_per_trigger: int = Field(
        150_000,
        ge=0,
        le=1_000_000_000,
        description="Of one trigger at most so many settled runs are kept, the newest (runs by hand are "
        "counted apart); 0 is any number. One that runs every minute for 90 days has 129,600.",
    )
    retention_skips: Duration = Field(
        timedelta(days=400), ge=timedelta(hours=1), description="How long skips are kept."
    )
    retention_skips_per_trigger: int = Field(
        10_000,
        ge=0,
        le=1_000_000_000,
        description="Of one trigger at most so many skips are kept, the newest; 0 is any number.",
    )
    retention_audit: Duration = Field(
        timedelta(days=400),
        ge=timedelta(hours=1),
        description="How long the record of who changed what is kept.",
    )

    # Logs.
    log_format: LogFormat = Field(
        LogFormat.AUTO,
        description="`human`, `json` (one object a line), or `auto`: human on a terminal, JSON otherwise.",
    )
    log_level: LogLevel = Field(
        LogLevel.INFO, description="The least that is logged: `debug`, `info`, `warning`, `error`."
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            # Not "from": its text may quote a secret.
            raise InvalidInput(_problems(error, values, values.get(_FILE, _File({}, "")))) from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Named values, the environment, and the file's values where `load_settings` passes them."""
        assert isinstance(init_settings, InitSettingsSource)
        given = dict(init_settings.init_kwargs)
        file = given.pop(_FILE, _File({}, ""))
        assert isinstance(env_settings, EnvSettingsSource)
        return (
            InitSettingsSource(settings_cls, given),
            env_settings,
            InitSettingsSource(settings_cls, dict(file.values)),
        )

    @model_validator(mode="after")
    def _together(self) -> Settings:
        if self.min_runs > self.max_runs:
            raise self._at("max_runs", f"at least min_runs, which is {self.min_runs}", str(2 * self.min_runs))
        if self.min_scheduled_time > self.max_scheduled_time:
            length = format_duration(self.min_scheduled_time)
            raise self._at("max_scheduled_time", f"at least min_scheduled_time, which is {length}", length)
        if self.grace < 2 * self.poll_interval:
            # The executor looks once a poll; a shorter grace would take every quiet minute for downtime.
            length = format_duration(2 * self.poll_interval)
            raise self._at("grace", f"at least twice poll_interval, which makes {length}", length)
        return self

    def _at(self, name: str, rule: str, hint: str) -> PydanticCustomError:
        value = _text(getattr(self, name))
        return PydanticCustomError(
            "rule", "{rule}", {"rule": rule, "try": hint, "setting": name, "value": value}
        )

    @property
    def window(self) -> Window:
        """What the planner keeps ahead of every trigger."""
        return Window(
            min_runs=self.min_runs,
            max_runs=self.max_runs,
            min_scheduled_time=self.min_scheduled_time,
            max_scheduled_time=self.max_scheduled_time,
            max_catchup_runs=self.max_catchup_runs_per_loop,
            grace=self.grace,
        )

    @property
    def rate(self) -> Rate | None:
        """How fast a target without a `rate` of its own is fed; None is no limit."""
        return Rate(float(self.execution_qps), self.execution_burst) if self.execution_qps else None

    @property
    def db_shown(self) -> str:
        """The database's address without its password."""
        return without_password(self.db)

    @property
    def sqlite_path(self) -> Path | None:
        """The SQLite file, or None for another database."""
        return Path(self.db.removeprefix("sqlite:///")) if self.db.startswith("sqlite:") else None


def load_settings(*, config: str | Path | None = None, flags: Mapping[str, object] | None = None) -> Settings:
    """The settings from flags, environment, TOML file and defaults, in this order of precedence.

    `config` is the TOML file; without it `HORARIUM_CONFIG`, else `horarium.toml` of the working directory if
    there is one. `flags` whose value is None were not given. Raises `InvalidInput` with every problem.
    """
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    path = _config_file(config)
    file = _flat(_read(path), str(path)) if path is not None else _File({}, "")
    wrong = [
        *(_unknown(name, value, file.place(name)) for name, value in file.values.items() if _strange(name)),
        *_near_misses(os.environ),
        *(_unknown(name, value, _flag(name)) for name, value in given.items() if _strange(name)),
    ]
    known = replace(file, values={name: item for name, item in file.values.items() if not _strange(name)})
    try:
        settings = Settings(
            **{name: value for name, value in given.items() if not _strange(name)}, **{_FILE: known}
        )
    except InvalidInput as error:
        raise InvalidInput([*wrong, *error.problems]) from None
    if wrong:
        raise InvalidInput(wrong)
    return settings


def without_password(url: str) -> str:
    """`url` with `***` in place of a password and of options that are secret by name."""
    hidden = re.sub(r"^([\w+.-]*:?/*[^:@/]*):(?!//).*@", rf"\1:{HIDDEN}@", url, flags=re.DOTALL)
    return re.sub(r"(?i)\b(\w*pass\w*|secret|token|key)=[^&\s]*", rf"\1={HIDDEN}", hidden)


def settings_table() -> list[tuple[str, str, str]]:
    """Name, default and description of every setting, in order: the table of `docs/settings.md`."""
    return [
        (name, _text(field.get_default()), field.description or "")
        for name, field in Settings.model_fields.items()
    ]


_FILE = "_from_file"
"""Under this name `load_settings` hands the file's values to the sources; no setting is called so."""


@dataclass(frozen=True, slots=True)
class _File:
    """What a TOML file holds. `written` says how the file writes a name, where that is another way."""

    values: Mapping[str, Any]
    path: str
    written: Mapping[str, str] = field(default_factory=dict)

    def place(self, name: str) -> str:
        return f"{self.path}: {self.written.get(name, name)}"


def _flat(values: Mapping[str, Any], path: str) -> _File:
    """A file with its tables: `enabled` of the table `[api.flyte]` is the setting `api_flyte_enabled`.

    Raises `InvalidInput` where a setting stands twice, once each way.
    """
    found: dict[str, Any] = {}
    written: dict[str, str] = {}
    twice: list[Problem] = []

    def walk(table: Mapping[str, Any], parents: tuple[str, ...]) -> None:
        for name, value in table.items():
            here = (*parents, name)
            flat = "_".join(here)
            if isinstance(value, dict):
                walk(value, here)
            elif flat in found:
                rule = f"a setting stands once, and {path} has it as {written[flat]} too"
                twice.append(
                    Problem(f"/{escape(flat)}", ".".join(here), rule, "take one out", code="duplicate")
                )
            else:
                found[flat], written[flat] = value, ".".join(here)

    walk(values, ())
    if twice:
        raise InvalidInput(twice)
    return _File(found, path, written)


def _config_file(config: str | Path | None) -> Path | None:
    named = config or os.environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named)
    default = Path(DEFAULT_FILE)
    return default if default.is_file() else None


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        problem = Problem(
            "/config",
            shown(str(path)),
            f"the settings file can't be read: {error.strerror}",
            "the path of a TOML file that this user may read",
            code="config",
        )
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        place = re.search(r"line (\d+), column (\d+)", str(error))
        problem = Problem(
            "/config",
            shown(str(path)),
            f"the settings file is TOML: {error}",
            'one setting a line: poll_interval = "1s"',
            code="config",
            line=int(place[1]) if place else None,
            column=int(place[2]) if place else None,
        )
    raise InvalidInput(problem)


def escape(name: str) -> str:
    """`name` as a JSON pointer has it (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def _strange(name: str) -> bool:
    return name not in Settings.model_fields


def _unknown(name: str, value: object, place: str) -> Problem:
    return Problem(
        f"/{escape(name)}",
        shown(name),
        f"there is no such setting (set by {place})" if place else "there is no such setting",
        _close(name) or "docs/settings.md names all settings",
        code="unknown",
    )


def _near_misses(environment: Mapping[str, str]) -> Iterable[Problem]:
    """Variables that look like a mistyped setting. Others with our prefix are none of our business: runs
    get some (`HORARIUM_RUN_NAME`), and secrets may be called so."""
    for variable in environment:
        name = variable.upper().removeprefix(ENV_PREFIX).lower()
        if variable.upper().startswith(ENV_PREFIX) and name != "config" and _strange(name):
            close = difflib.get_close_matches(name, Settings.model_fields, n=1, cutoff=0.85)
            if close:
                yield Problem(
                    f"/{escape(name)}",
                    variable,
                    "there is no such setting (set by the environment)",
                    ENV_PREFIX + close[0].upper(),
                    code="unknown",
                )


def _close(name: str) -> str:
    flat = name.lower().replace("-", "_")
    if not _strange(flat):
        return flat
    return " or ".join(difflib.get_close_matches(flat, Settings.model_fields, n=2, cutoff=0.6))


def _problems(error: ValidationError, given: Mapping[str, object], file: _File) -> list[Problem]:
    return [
        _problem(details, given, file) for details in error.errors(include_url=False, include_context=True)
    ]


def _problem(details: ErrorDetails, given: Mapping[str, object], file: _File) -> Problem:
    context = details.get("ctx", {})
    location = details["loc"] or (context.get("setting", ""),)
    name = str(location[0])
    if details["type"] == "extra_forbidden":
        return _unknown(name, "", "")
    rule, hint = _rule(details)
    place = _place(name, given, file)
    value = context["value"] if "setting" in context else details["input"]
    return Problem(
        f"/{escape(name)}",
        _shown(name, value),
        f"{rule} (set by {place})" if place else rule,
        hint,
        code="setting",
    )


def _place(name: str, given: Mapping[str, object], file: _File) -> str:
    if name in given:
        return _flag(name)
    variable = ENV_PREFIX + name.upper()
    if os.environ.get(variable):
        return variable
    return file.place(name) if name in file.values else ""


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _rule(details: ErrorDetails) -> tuple[str, str]:
    """The rule in words and what to try, from what pydantic found."""
    context = details.get("ctx", {})
    match details["type"]:
        case "rule":
            return str(context["rule"]), str(context["try"])
        case "greater_than_equal":
            return f"at least {_text(context['ge'])}", _text(context["ge"])
        case "less_than_equal":
            return f"at most {_text(context['le'])}", _text(context["le"])
        case "enum":
            return f"one of {context['expected']}", _close_value(details["input"], str(context["expected"]))
        case "int_type" | "int_parsing" | "int_from_float" | "int_parsing_size":
            return "a whole number", "digits only"
        case "float_type" | "float_parsing" | "finite_number":
            return "a number", "digits, with a point for decimals"
        case "too_short":
            return "at least one", ",".join(Role)
        case "tuple_type":
            return "a list of " + ", ".join(Role), ",".join(Role)
        case _:
            return details["msg"], ""


def _close_value(value: object, expected: str) -> str:
    words = re.findall(r"'([^']+)'", expected)
    close = difflib.get_close_matches(str(value).lower(), words, n=1, cutoff=0.5)
    return close[0] if close else words[0] if words else ""


def _shown(name: str, value: object) -> str:
    if name in _MAY_HOLD_SECRETS and isinstance(value, str):
        return shown(without_password(value))
    return format_duration(value) if isinstance(value, timedelta) else shown(value)


_MAY_HOLD_SECRETS = {"db", "server"}


def _text(value: object) -> str:
    """A value as a settings file would have it."""
    match value:
        case timedelta():
            return format_duration(value)
        case StrEnum():
            return value.value
        case bool():
            return str(value).lower()
        case tuple():
            return ",".join(_text(item) for item in value)
        case float() if value.is_integer():
            return str(int(value))
        case None:
            return ""
        case _:
            return str(value)

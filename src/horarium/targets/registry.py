"""Which kinds of targets there are, and the one way to check and to build them.

`local`, `http`, `inline`, `flyte`, `prefect`, `docket`, `celery`, `kubernetes` and `ray` come with Horarium
(`flyte`, `docket` and `celery` with their extras). A package adds its own with an entry point of the group
`horarium.targets` that leads to a `TargetKind`:

    [project.entry-points."horarium.targets"]
    smtp = "my_package.smtp:KIND"
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from horarium.clock import Clock
from horarium.core.spec import Json, TargetSpec
from horarium.errors import HorariumError, InvalidInput, Problem, shown
from horarium.flyte import ACTION_KEYS, CONNECTION_KEYS, extra_missing
from horarium.targets.base import LocalRuns, Target, completes

GROUP = "horarium.targets"
"""The entry point group for kinds from other packages."""


@dataclass(frozen=True, slots=True)
class TargetContext:
    """What a target is given beside its spec.

    `owner` is this server's own name, new at every start. `on_free` is called, in the event loop, when a
    place frees outside of a `create_run`. `functions` are those that an embedding program registered.
    `public_url` is where others reach this server's API, where the settings say so.
    """

    clock: Clock
    runs: LocalRuns
    owner: str
    on_free: Callable[[], None]
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    public_url: str | None = None


@dataclass(frozen=True, slots=True)
class TargetKind:
    """A kind of target: its words in the triggers file, its checks and its factory.

    `config_keys` are the fields of its mapping under `targets`, `action_keys` those that a deployment may
    have for it. `check_config(config, pointer)` and `check_action(action, parameters, pointer)` return the
    normalised mapping (JSON values only, the same for equal meaning) or raise `InvalidInput` with every
    problem. They read no network and no secret.

    `reports_completion`: it says when a run has ended, so that `overlap` can be more than `allow`; where only
    deployments with a certain word do, `completes_with` is that word and its value (`callback: true`).
    `cancels`: it can cancel a run that it has, which `overlap: replace` needs. `callback_keys(spec)` are the
    keys with which it signs callback tokens, newest first (`core/callback.py`); it raises `SecretMissing`.
    `check_use(config, action, pointer)` raises `InvalidInput` for a checked action that such a checked config
    can't serve.
    """

    name: str
    build: Callable[[TargetSpec, TargetContext], Target]
    check_config: Callable[[Mapping[str, Any], str], dict[str, Any]]
    check_action: Callable[[Mapping[str, Any], Mapping[str, Json], str], dict[str, Any]]
    config_keys: tuple[str, ...] = ()
    action_keys: tuple[str, ...] = ()
    reports_completion: bool = False
    completes_with: str = ""
    cancels: bool = False
    callback_keys: Callable[[TargetSpec], Sequence[bytes]] | None = None
    check_use: Callable[[Mapping[str, Any], Mapping[str, Any], str], None] | None = None

    def completes(self, action: Mapping[str, Any]) -> bool:
        """Whether such a target says when a run of this checked action has ended."""
        return completes(self.reports_completion, self.completes_with, action)


class BrokenPlugin(HorariumError):
    """An entry point of the group `horarium.targets` could not be loaded, or is no `TargetKind`."""


def kinds() -> tuple[str, ...]:
    """The names of all kinds, built in and installed, sorted."""
    return tuple(sorted({*_BUILT_IN, *_installed()}))


def kind(name: object, pointer: str = "/kind") -> TargetKind:
    """The kind of that name. Raises `InvalidInput` if there is none, `BrokenPlugin` if it can't be loaded."""
    if isinstance(name, str) and name in _BUILT_IN:
        return _BUILT_IN[name]()
    if isinstance(name, str) and name in _installed():
        return _load(name)
    close = difflib.get_close_matches(str(name), kinds(), 1)
    raise InvalidInput(
        Problem(
            pointer,
            shown(name),
            f"a target is one of {', '.join(kinds())}",
            close[0] if close else "install the package that brings this kind",
            code="target-kind",
        )
    )


def check_config(kind_name: str, config: Mapping[str, Any], pointer: str) -> dict[str, Any]:
    """The normalised config of a target. Raises `InvalidInput` with every problem."""
    return kind(kind_name, pointer).check_config(config, pointer)


def check_action(
    kind_name: str, action: Mapping[str, Any], parameters: Mapping[str, Json], pointer: str
) -> dict[str, Any]:
    """The normalised action of a deployment. Raises `InvalidInput` with every problem.

    `parameters` are all that a run will have: the deployment's, the trigger's, and the kickoff time under
    its argument's name.
    """
    return kind(kind_name, pointer).check_action(action, parameters, pointer)


def check_use(
    kind_name: str, config: Mapping[str, Any] | None, action: Mapping[str, Any], pointer: str
) -> None:
    """Raises `InvalidInput` for a checked action that a target of that kind can't serve.

    `config` is the target's checked config, None where it is wrong itself.
    """
    found = kind(kind_name, pointer)
    if found.check_use is not None and config is not None:
        found.check_use(config, action, pointer)


@dataclass(frozen=True, slots=True)
class ServerChecks:
    """The same checks by a server, which also knows what its own settings let targets do."""

    public_url: str | None
    kinds = staticmethod(kinds)
    kind = staticmethod(kind)
    check_config = staticmethod(check_config)
    check_action = staticmethod(check_action)

    def check_use(
        self, kind_name: str, config: Mapping[str, Any] | None, action: Mapping[str, Any], pointer: str
    ) -> None:
        """As `check_use`; a callback needs an address to come back to."""
        check_use(kind_name, config, action, pointer)
        found = kind(kind_name, pointer)
        if self.public_url is None and found.callback_keys is not None and found.completes(action):
            raise InvalidInput(
                Problem(
                    f"{pointer}/{found.completes_with.partition(':')[0]}",
                    "true",
                    "a receiver is told where it reaches this server, and the settings don't say that",
                    "public_url in the settings, or HORARIUM_PUBLIC_URL=https://horarium.example.com",
                    code="public-url",
                )
            )


def callback_keys(spec: TargetSpec) -> Sequence[bytes]:
    """The keys of a target's callback tokens; none where it has none. Raises `SecretMissing`."""
    keys = kind(spec.kind).callback_keys
    return () if keys is None else keys(spec)


def build(spec: TargetSpec, context: TargetContext) -> Target:
    """The target of a spec whose config was checked. It is not started yet."""
    return kind(spec.kind).build(spec, context)


# A kind is imported when a file or an instance uses it: the client of `http` takes longer to load than most
# commands to do their work.


def _local() -> TargetKind:
    from horarium.targets import local

    return TargetKind(
        "local",
        lambda spec, context: local.LocalTarget(
            spec, context.runs, context.clock, context.owner, context.on_free
        ),
        local.check_config,
        local.check_action,
        local.CONFIG_KEYS,
        local.ACTION_KEYS,
        reports_completion=True,
        cancels=True,
    )


def _http() -> TargetKind:
    from horarium.targets import http

    return TargetKind(
        "http",
        lambda spec, context: http.HttpTarget(spec, context.clock, context.public_url),
        http.check_config,
        http.check_action,
        http.CONFIG_KEYS,
        http.ACTION_KEYS,
        reports_completion=True,
        completes_with=http.COMPLETES_WITH,
        callback_keys=http.callback_keys,
        check_use=http.check_use,
    )


def _inline() -> TargetKind:
    from horarium.targets import inline

    return TargetKind(
        "inline",
        lambda spec, context: inline.InlineTarget(
            spec, context.functions, context.runs, context.clock, context.owner, context.on_free
        ),
        inline.check_config,
        inline.check_action,
        inline.CONFIG_KEYS,
        inline.ACTION_KEYS,
        reports_completion=True,
    )


def _flyte() -> TargetKind:
    # Its words are known without its extra, so that a file's other targets can be read all the same.
    def module(pointer: str) -> Any:
        try:
            from horarium.targets import flyte
        except ImportError as missing:
            raise extra_missing(pointer, "flyte", missing) from missing
        return flyte

    return TargetKind(
        "flyte",
        lambda spec, context: module(f"/targets/{spec.name}").FlyteTarget(spec, context.clock),
        lambda config, pointer: module(pointer).check_config(config, pointer),
        lambda action, parameters, pointer: module(pointer).check_action(action, parameters, pointer),
        CONNECTION_KEYS,
        ACTION_KEYS,
    )


def _engine(name: str, class_name: str) -> TargetKind:
    """A kind whose module has what all have that hand the work to an engine, and ask it how that goes."""
    module = import_module(f"horarium.targets.{name}")
    target = getattr(module, class_name)
    return TargetKind(
        name,
        lambda spec, context: target(spec, context.clock),
        module.check_config,
        module.check_action,
        module.CONFIG_KEYS,
        module.ACTION_KEYS,
        reports_completion=True,
        cancels=True,
    )


_BUILT_IN: Mapping[str, Callable[[], TargetKind]] = {
    "local": cache(_local),
    "http": cache(_http),
    "flyte": cache(_flyte),
    "prefect": cache(lambda: _engine("prefect", "PrefectTarget")),
    "kubernetes": cache(lambda: _engine("kubernetes", "KubernetesTarget")),
    "ray": cache(lambda: _engine("ray", "RayTarget")),
    "docket": cache(lambda: _engine("docket", "DocketTarget")),
    "celery": cache(lambda: _engine("celery", "CeleryTarget")),
    "inline": cache(_inline),
}


@cache
def _installed() -> frozenset[str]:
    return frozenset(point.name for point in entry_points(group=GROUP))


@cache
def _load(name: str) -> TargetKind:
    (point, *_) = entry_points(group=GROUP, name=name)
    try:
        found = point.load()
    except Exception as error:  # whatever a foreign module raises while it is imported
        raise BrokenPlugin(f"target kind {name!r} ({point.value}) can't be loaded: {error}") from error
    if not isinstance(found, TargetKind):
        raise BrokenPlugin(f"target kind {name!r}: {point.value} is a {type(found).__name__}, no TargetKind")
    return found

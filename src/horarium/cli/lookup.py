"""From what a person typed to the one trigger, deployment or run that is meant.

A trigger is typed as its whole key, as `deployment`, `deployment/name`, or as any ending of the key that
only one trigger has. A deployment is typed as its key or an ending of it, a run by its name.
What could be several is never guessed: the candidates are listed.
"""

from __future__ import annotations

import difflib
from typing import Any

from horarium.cli.client import PAGE, Api
from horarium.cli.failure import Exit, Failure

_SHOWN = 20
"""Candidates that a message lists: more than that helps nobody."""


async def trigger_path(api: Api, text: str, *, deleted: bool = False) -> str:
    """The API's path of the trigger that `text` means, such as `/triggers/default/default/tick/default`.

    With `deleted`, one that was deleted is found where no other is meant. Raises `Failure`.
    """
    parts = [part for part in text.strip().strip("/").split("/") if part]
    if len(parts) == 4:
        return "/triggers/" + "/".join(parts)  # the API says what is wrong with it
    if not 1 <= len(parts) <= 3:
        raise Failure(
            f"{text!r} is no trigger",
            hint="deployment, deployment/name or project/domain/deployment/name",
        )
    exact = _defaults(parts)
    if exact is not None and (found := await _get(api, f"/triggers/{exact}")):
        return f"/triggers/{found['key']}"
    near = await api.items("/triggers", None, q=parts[-1])
    if deleted and not any(_means(str(trigger["key"]).split("/"), parts) for trigger in near):
        near += await api.items("/triggers", None, q=parts[-1], status="deleted")
    candidates = [str(trigger["key"]) for trigger in near if _means(str(trigger["key"]).split("/"), parts)]
    if len(candidates) > 1:
        # `tick` is tick's own trigger `default` before it is all of tick's triggers.
        named = [key for key in candidates if _ends(key.split("/"), [*parts, "default"])]
        candidates = named if len(named) == 1 else candidates
    if len(candidates) == 1:
        return f"/triggers/{candidates[0]}"
    if candidates:
        more = [f"and {len(candidates) - _SHOWN} more"] if len(candidates) > _SHOWN else []
        raise Failure(
            f"{text!r} could be {len(candidates)} triggers",
            Exit.CONFLICT,
            hint=", ".join([*sorted(candidates)[:_SHOWN], *more]),
        )
    gone = [] if deleted else await api.items("/triggers", None, q=parts[-1], status="deleted")
    keys = [str(trigger["key"]) for trigger in gone if _means(str(trigger["key"]).split("/"), parts)]
    if keys:
        raise Failure(
            f"trigger {' and '.join(sorted(keys)[:_SHOWN])} was deleted",
            Exit.NOT_FOUND,
            hint="`horarium why` and `horarium runs list --trigger` still answer for it",
        )
    bare = await api.items("/deployments", None, deployment=parts[-1])
    if any(_ends(str(deployment["key"]).split("/"), parts) for deployment in bare):
        raise Failure(
            f"deployment {text!r} has no trigger",
            Exit.NOT_FOUND,
            hint="give it one in its triggers file; with `active: false` it runs by hand only",
        )
    raise Failure(f"there is no trigger {text!r}", Exit.NOT_FOUND, hint=await _close(api, text))


async def deployment_path(api: Api, text: str, *, withdrawn: bool = False) -> str:
    """The API's path of the deployment that `text` means: its name, or its key, or an ending of it.

    With `withdrawn`, one that its source has withdrawn is found where no other is meant. Raises `Failure`.
    """
    parts = [part for part in text.strip().strip("/").split("/") if part]
    if len(parts) == 3:
        return "/deployments/" + "/".join(parts)  # the API says what is wrong with it
    if not 1 <= len(parts) <= 2:
        raise Failure(f"{text!r} is no deployment", hint="its name, or project/domain/name")
    found: list[str] = []
    for gone in (None, True) if withdrawn else (None,):
        near = await api.items("/deployments", None, deployment=parts[-1], withdrawn=gone)
        found = found or [key for item in near if _ends((key := str(item["key"])).split("/"), parts)]
    if len(found) > 1:
        own = f"default/default/{parts[-1]}"
        found = [own] if len(parts) == 1 and own in found else found
    if len(found) == 1:
        return f"/deployments/{found[0]}"
    if found:
        hint = ", ".join(sorted(found)[:_SHOWN])
        raise Failure(f"{text!r} could be {len(found)} deployments", Exit.CONFLICT, hint=hint)
    keys = [str(item["key"]) for item in await api.items("/deployments", PAGE)]
    names = [name for key in keys for name in (key, key.split("/")[2])]
    close = difflib.get_close_matches(text.strip("/"), names, n=3, cutoff=0.6)
    hint = " or ".join(dict.fromkeys(close)) or "`horarium deployments list` shows all of them"
    raise Failure(f"there is no deployment {text!r}", Exit.NOT_FOUND, hint=hint)


async def run_path(api: Api, text: str) -> str:
    """The API's path of the run that `text` names: a name, or `project/domain/name`."""
    parts = [part for part in text.strip().strip("/").split("/") if part]
    if len(parts) == 3:
        return "/runs/" + "/".join(parts)
    if len(parts) != 1:
        raise Failure(f"{text!r} is no run", hint="a run's name, or project/domain/name")
    # By key, since a search by name would read the whole history.
    places = [("default", "default")]
    places += [place for place in await _places(api) if place not in places]
    found = [f"/runs/{project}/{domain}/{parts[0]}" for project, domain in places]
    there = [path for path in found if await _get(api, path)]
    if len(there) == 1:
        return there[0]
    if there:
        names = ", ".join(path.removeprefix("/runs/") for path in there)
        raise Failure(f"{text!r} could be {len(there)} runs", Exit.CONFLICT, hint=names)
    raise Failure(
        f"there is no run {text!r}", Exit.NOT_FOUND, hint="`horarium runs list` shows runs with their names"
    )


async def _close(api: Api, text: str) -> str:
    """What a mistyped name may have meant, among the first thousand triggers."""
    keys = [str(trigger["key"]) for trigger in await api.items("/triggers", PAGE)]
    names = {name: key for key in keys for name in (key, key.split("/")[2], key.split("/", 2)[2])}
    close = difflib.get_close_matches(text.strip("/"), names, n=3, cutoff=0.6)
    return " or ".join(dict.fromkeys(close)) or "`horarium triggers list` shows all of them"


async def _places(api: Api) -> list[tuple[str, str]]:
    """Every project and domain that has a deployment."""
    deployments = await api.items("/deployments", None)
    return sorted({(str(item["project"]), str(item["domain"])) for item in deployments})


def _defaults(parts: list[str]) -> str | None:
    """The key that the short forms stand for where project, domain and name are `default`."""
    if len(parts) == 1:
        return f"default/default/{parts[0]}/default"
    return f"default/default/{parts[0]}/{parts[1]}" if len(parts) == 2 else None


async def _get(api: Api, path: str) -> dict[str, Any] | None:
    try:
        return await api.get(path)
    except Failure as failure:
        if failure.code in (Exit.NOT_FOUND, Exit.FAILED):  # or what was typed is no name at all
            return None
        raise


def _means(key: list[str], parts: list[str]) -> bool:
    """Whether `parts` are an ending of the key, or of the key of its deployment."""
    return _ends(key, parts) or _ends(key[:-1], parts)


def _ends(key: list[str], parts: list[str]) -> bool:
    return key[-len(parts) :] == parts

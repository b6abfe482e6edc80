"""A rolling upgrade: an older release's processes beside ours on one database, while its schema is upgraded.

The older code is the last tagged release's, or that of a commit before there was one, taken from the history
(`git archive`), and runs in processes of its own. A checkout without that history (a shallow clone) has
nothing to run beside ours: there the test is skipped.
"""

from __future__ import annotations

import asyncio
import io
import random
import shutil
import subprocess
import tarfile
from pathlib import Path

import aiohttp
import pytest

from horarium.store import migrations
from tests.chaos.fleet import until_settled
from tests.chaos.history import check_words, judge, read_records
from tests.chaos.process import SOURCES, Server, now
from tests.chaos.world import SETTINGS, left, open_world, upgrade

BEFORE_RELEASES = "3d71a52a69c89bb45992e474c60a6a0e68fd6c9e"
"""Where there is no tag yet: the schema 0001 as it was left, before 0002 brought freezes."""

ROOT = Path(__file__).parents[2]
TRIGGERS = 40
STEPS = [2, 3, 4, 5]


async def test_old_and_new_replicas_share_a_database_through_an_upgrade(tmp_path: Path) -> None:
    release, older = older_sources(tmp_path / "older")
    chance = random.Random(release)
    world_of = open_world(tmp_path, chance, 1, TRIGGERS, STEPS, older)
    async with world_of as world, aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        fleet = world.fleet
        fleet.settings = {**SETTINGS, "log_level": "info"}
        olds = [await fleet.add(older), await fleet.add(older)]
        await world.people.create(session)
        over = asyncio.Event()
        world.people.stop = over.is_set
        editing = asyncio.create_task(world.people.meddle(session))
        await _both_fire(olds)

        await upgrade(world.database)
        await _both_fire(olds)
        news = [await fleet.add(), await fleet.add()]
        await _both_fire([*olds, *news])

        # The older release does not start on what it does not know, and says what it found.
        refused = await Server.start(fleet.url, fleet.triggers, fleet.news, older, **SETTINGS)
        assert await refused.exit() > 0
        said = "\n".join(refused.log)
        assert "made by a newer Horarium: use that version" in said  # before there was the mark
        assert "Traceback" not in said

        await fleet.kill(olds[0])
        await fleet.remove(olds[1], database_is_up=True)
        await _both_fire(news)
        over.set()
        await editing
        world.receiver.kind = True
        await world.people.resume_all(session)
        end = now()
        await until_settled(world.receiver, lambda: left(world.database, end))
        for server in news:
            await fleet.remove(server, database_is_up=True)
        records = await read_records(world.database)
    verdict = judge(records, world.receiver.effects, end)
    print(
        f"\n{release} beside ours: {verdict.slots} slots, {world.receiver.calls} calls, "
        f"{world.receiver.repeats} repeats, {verdict.lost} lost, {verdict.doubled} doubled"
    )
    assert verdict.wrong == []
    assert check_words(records.rules, world.people.words, frozenset(world.people.of_file)) == []
    assert fleet.lines == []


async def test_a_replica_starts_again_after_the_next_release_has_only_added_to_the_schema(
    tmp_path: Path,
) -> None:
    """And not after a release that has taken away what it needs: then it says what to do."""
    next_release = next_sources(
        tmp_path / "next", "9000", since=migrations.head(), readable_by=migrations.head()
    )
    after_next = next_sources(tmp_path / "after", "9001", since="9000", readable_by="9000", of=next_release)
    chance = random.Random(1)
    world_of = open_world(tmp_path, chance, 1, TRIGGERS, STEPS)
    async with world_of as world, aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        fleet = world.fleet
        fleet.settings = {**SETTINGS, "log_level": "info"}
        world.receiver.kind = True
        ours = [await fleet.add(), await fleet.add()]
        await world.people.create(session)
        await _both_fire(ours)

        await upgrade(world.database, next_release)
        news = await fleet.add(next_release)
        await fleet.kill(ours[0])
        again = await fleet.add()
        await _both_fire([ours[1], again, news])

        await upgrade(world.database, after_next)
        refused = await Server.start(fleet.url, fleet.triggers, fleet.news, **SETTINGS)
        assert await refused.exit() > 0
        said = "\n".join(refused.log)
        assert "only programs built for 9000 or later can work on it" in said
        assert f"horarium db downgrade {migrations.head()}" in said
        assert "Traceback" not in said
        for server in (ours[1], again):
            await fleet.remove(server, database_is_up=True)
        await fleet.add(next_release)

        end = now()
        await until_settled(world.receiver, lambda: left(world.database, end))
        records = await read_records(world.database)
    verdict = judge(records, world.receiver.effects, end)
    print(f"\nbeside the next release: {verdict.slots} slots, {verdict.lost} lost, {verdict.doubled} doubled")
    assert verdict.wrong == []
    assert fleet.lines == []


def next_sources(folder: Path, revision: str, *, since: str, readable_by: str, of: Path = SOURCES) -> Path:
    """The code of a release to come, which differs by one migration."""
    shutil.copytree(of, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "horarium" / "store" / "migrations" / "versions" / f"{revision}_next.py").write_text(
        f"""
from alembic import op
revision, down_revision, branch_labels, depends_on = "{revision}", "{since}", None, None
readable_by = "{readable_by}"

def upgrade():
    op.execute("alter table run add column priority_{revision} integer not null default 0")

def downgrade():
    op.execute("alter table run drop column priority_{revision}")
"""
    )
    return folder


def older_sources(folder: Path) -> tuple[str, Path]:
    """The release before ours and where its code is now."""
    tags = _git("tag", "--list", "v*", "--merged", "HEAD~1", "--sort=-version:refname").decode().split()
    release = tags[0] if tags else BEFORE_RELEASES
    with tarfile.open(fileobj=io.BytesIO(_git("archive", release, "src"))) as archive:
        archive.extractall(folder, filter="data")
    return release[:12], folder / "src"


def _git(*words: str) -> bytes:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"git {' '.join(words)}: {done.stderr.decode().strip()}; git fetch --unshallow brings it")
    return done.stdout


async def _both_fire(servers: list[Server]) -> None:
    """Each of them fires something from now on."""
    await asyncio.gather(*(server.logs_more('"fired"') for server in servers))

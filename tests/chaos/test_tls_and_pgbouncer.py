"""PostgreSQL as others run it: with TLS, passwords and certificates, and behind PgBouncer (transaction mode).

The wheel's server can do neither, so these take Debian's `postgresql-15` and `pgbouncer` (`.ci/run` installs
them) and start both on loopback. Where they are not installed the tests are skipped, and a skip fails CI.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
from sqlalchemy import text

from horarium.errors import StoreUnavailable
from horarium.store.postgres import Limits, PostgresStore, migrate_postgres
from tests.chaos.database import DEBIAN, Cluster, free_port
from tests.chaos.fleet import Fleet, until_settled
from tests.chaos.history import judge, read_records
from tests.chaos.process import SOURCES, News, environment, now
from tests.chaos.receiver import Unreliable
from tests.chaos.world import SETTINGS, left, write_file
from tests.store import test_changes, test_claims, test_plans
from tests.store.conftest import FILLED, PostgresServer, opened, postgres_back_door
from tests.store.world import World

# Of the suite that every store passes: those that send each hot statement and the long scripts.
SUITE: Sequence[Callable[[World], Awaitable[None]]] = (
    test_plans.test_two_planners_of_one_trigger_decide_each_slot_once,
    test_plans.test_a_name_that_another_slot_has_gives_way_to_the_long_name,
    test_plans.test_a_backfill_fills_holes_takes_over_pending_runs_and_repeats_nothing,
    test_claims.test_two_claimers_share_one_allowance,
    test_claims.test_a_zombies_late_success_ends_a_retry_and_a_lease,
    test_claims.test_a_retry_whose_trigger_was_paused_meanwhile_becomes_held,
    test_changes.test_a_resume_releases_what_was_held_and_records_the_paused_interval,
    test_changes.test_a_delete_ends_backfills_and_what_was_tried_ends_failed,
)

IDS = [item.__name__.removeprefix("test_") for item in SUITE]

PASSWORD = "correct horse"


@pytest.fixture(scope="module")
async def secured() -> AsyncIterator[Cluster]:
    """A server that wants TLS and a password of everybody who comes over the network."""
    cluster = Cluster({"fsync": "off"}, binaries=_debian(DEBIAN / "postgres"))
    async with cluster:
        _certificate(cluster, "server")
        _certificate(cluster, "other")
        for suffix, name in (("crt", "ssl_cert_file"), ("key", "ssl_key_file")):
            cluster.configure(name, str(cluster.folder / f"server.{suffix}"))
        cluster.configure("ssl", "on")
        hba = cluster.data / "pg_hba.conf"
        hba.write_text("local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n")
        await cluster.restart("fast")
        admin = await asyncpg.connect(host=str(cluster.folder), port=cluster.port, user="postgres")
        await admin.execute(f"create role horarium login createdb password '{PASSWORD}'")
        await admin.execute("create database blank owner horarium")
        await admin.close()
        passwords = cluster.folder / "passwords"
        passwords.write_text(f"localhost:{cluster.port}:*:horarium:{PASSWORD}\n")
        passwords.chmod(0o600)
        await migrate_postgres(_secured_url(cluster))
        yield cluster


@pytest.fixture(scope="module")
async def bounced() -> AsyncIterator[tuple[Cluster, int]]:
    """A server, and the port of a PgBouncer before it that lends three connections, a transaction each."""
    async with Cluster({"fsync": "off"}, binaries=_debian(DEBIAN / "postgres")) as cluster:
        await migrate_postgres(cluster.url())
        async with _pgbouncer(cluster) as port:
            yield cluster, port


# TLS


@pytest.mark.parametrize("test", SUITE, ids=IDS)
async def test_the_store_over_tls(secured: Cluster, test: Callable[[World], Awaitable[None]]) -> None:
    url = _secured_url(secured)
    async with opened(await _emptied(url)) as world:
        await test(world)
        (row,) = await world.store.fetch(
            text(
                "select bool_and(ssl) as all_of_them, count(*) as n from pg_stat_ssl s"
                " join pg_stat_activity a using (pid) where usename = 'horarium'"
            )
        )
        assert row.all_of_them
        assert row.n > 0


async def test_hints_and_migrations_come_over_tls_too(secured: Cluster) -> None:
    store = PostgresStore(_secured_url(secured))
    await store.open()
    heard: asyncio.Queue[str] = asyncio.Queue()
    listening = asyncio.ensure_future(store.listen(heard.put_nowait))
    async with asyncio.timeout(60):
        assert await heard.get() == "listening"
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    await store.close()
    before, after = await migrate_postgres(_secured_url(secured))
    assert before == after


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"authority": "other.crt"}, "certificate verify failed"),
        ({"host": "127.0.0.1"}, "IP address mismatch|doesn't match|not valid for"),
        ({"sslmode": "disable"}, "no encryption"),
        ({"password": "wrong"}, "password authentication failed"),
    ],
    ids=["another authority", "another host", "no TLS", "a wrong password"],
)
async def test_what_is_not_as_asked_for_is_refused(
    secured: Cluster, changes: dict[str, str], why: str
) -> None:
    with pytest.raises(StoreUnavailable, match=why):
        await PostgresStore(_secured_url(secured, **changes)).open()


async def test_serve_fails_with_what_is_wrong_and_without_the_password(secured: Cluster) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "horarium", "serve", "--port", "0"),
        env=environment(SOURCES, db=_secured_url(secured, password="not-this-one")),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    said = out.decode()
    assert process.returncode not in (0, None)
    assert "password authentication failed" in said
    assert "not-this-one" not in said
    assert "Traceback" not in said


# PgBouncer


@pytest.mark.parametrize("test", SUITE, ids=IDS)
async def test_the_store_behind_pgbouncer(
    bounced: tuple[Cluster, int], test: Callable[[World], Awaitable[None]]
) -> None:
    cluster, port = bounced
    await _emptied(cluster.url())
    async with opened(cluster.url(port=port), prepared_statements=False) as world:
        await test(World(world.store, postgres_back_door(cluster.url())))


async def test_many_transactions_share_few_connections(bounced: tuple[Cluster, int]) -> None:
    """Nothing of a session is left behind for the next one: no limits, no statements, no locks."""
    cluster, port = bounced
    await _emptied(cluster.url())
    limits = Limits()
    async with opened(cluster.url(port=port), prepared_statements=False, limits=limits) as world:
        await world.add("a")
        now_ = await world.store.clock()
        answers = await asyncio.gather(
            *(world.store.remember(f"k{number % 20}", "d", now_) for number in range(100))
        )
        assert sum(answer is None for answer in answers) == 20, "each key was new once"
    direct = await asyncpg.connect(cluster.url())
    sessions = await direct.fetchval(
        "select count(*) from pg_stat_activity"
        " where backend_type = 'client backend' and pid <> pg_backend_pid()"
    )
    kept = await direct.fetchval("select count(*) from pg_locks where locktype = 'advisory'")
    await direct.close()
    assert 0 < sessions <= 3
    assert kept == 0


async def test_replicas_behind_pgbouncer_fire_each_slot_once(
    bounced: tuple[Cluster, int], tmp_path: Path
) -> None:
    """Hints are lost there: LISTEN belongs to a session. Polling is the truth."""
    cluster, port = bounced
    await _emptied(cluster.url())
    news = News()
    async with Unreliable(news, 1) as receiver:
        keys = [f"default/default/f{number}/default" for number in range(20)]
        file = tmp_path / "triggers.yaml"
        write_file(file, receiver.url, dict.fromkeys(keys, 2))
        settings = {**SETTINGS, "db_prepared_statements": "false"}
        fleet = Fleet(cluster.url(port=port), file, news, settings)
        fleet.up.set()
        try:
            servers = [await fleet.add(), await fleet.add()]
            assert await receiver.more(50, 60.0)
            await fleet.kill(servers[0])
            assert await receiver.more(50, 60.0)
            receiver.kind = True
            end = now()
            await until_settled(receiver, lambda: left(cluster.url(), end))
            await fleet.remove(servers[1], database_is_up=True)
        finally:
            await fleet.close()
        verdict = judge(await read_records(cluster.url()), receiver.effects, end)
    assert verdict.wrong == []
    assert verdict.fired >= 50
    assert fleet.lines == []


# how


def _debian(program: Path) -> Path:
    """The folder of a program of Debian's. Where it is missing the test is skipped, which CI refuses."""
    if not program.exists():
        pytest.skip(f"{program} is not installed: apt-get install -y postgresql-15 pgbouncer")
    return program.parent


def _secured_url(
    cluster: Cluster,
    *,
    host: str = "localhost",
    sslmode: str = "verify-full",
    authority: str = "server.crt",
    password: str = "",
) -> str:
    secret = f":{password}" if password else ""
    rest = "" if password else f"&passfile={cluster.folder / 'passwords'}"
    return (
        f"postgresql://horarium{secret}@{host}:{cluster.port}/blank?sslmode={sslmode}"
        f"&sslrootcert={cluster.folder / authority}{rest}"
    )


def _certificate(cluster: Cluster, name: str) -> None:
    """A key and a certificate for `localhost` that vouches for itself."""
    key, certificate = cluster.folder / f"{name}.key", cluster.folder / f"{name}.crt"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
            ),
            *("-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    key.chmod(0o600)
    cluster.give(key)


@asynccontextmanager
async def _pgbouncer(cluster: Cluster) -> AsyncIterator[int]:
    program = Path(shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin") or "/usr/sbin/pgbouncer")
    _debian(program)
    port = free_port()
    settings = cluster.folder / "pgbouncer.ini"
    settings.write_text(
        f"[databases]\n* = host=127.0.0.1 port={cluster.port} user=postgres\n[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        "pool_mode = transaction\ndefault_pool_size = 3\nmax_client_conn = 200\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(str(program), str(settings)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        user=cluster.user,
    )
    assert process.stdout is not None
    try:
        said = b""
        async with asyncio.timeout(60):
            while b"process up" not in said:
                line = await process.stdout.readline()
                assert line, said.decode()
                said += line
        reading = asyncio.ensure_future(process.stdout.read())
        yield port
    finally:
        process.kill()
        await process.wait()
    await reading


async def _emptied(url: str) -> str:
    """A migrated database as a migration leaves it."""
    connection = await asyncpg.connect(url)
    there = await connection.fetchval("select to_regnamespace('blank')")
    if there is None:
        await connection.execute("create schema blank")
        for name in FILLED:
            await connection.execute(f'create table blank."{name}" as table "{name}"')
    await connection.close()
    return await PostgresServer(url, urlsplit(url).path.removeprefix("/")).emptied()

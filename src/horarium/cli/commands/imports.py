"""`import`: make a triggers file of what another scheduler was told. Needs no server and no database."""

from __future__ import annotations

import functools
import getpass
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from horarium.cli.failure import Exit, Failure
from horarium.cli.options import Group, wait_for
from horarium.cli.render import count
from horarium.core.keys import check_name
from horarium.errors import InvalidInput, Problem

if TYPE_CHECKING:
    from horarium.wiring import Imported


@click.group("import", cls=Group)
def import_command() -> None:
    """Make a triggers file of something else.

    What can't be carried over faithfully is left out, and named with its place and the reason, on standard
    error and as a comment in the file; then the exit code is 1.
    """


def command(name: str) -> Callable[[Callable[..., Imported]], click.Command]:
    """A command of this group: its function reads, and what it returns is written out.

    So all of them say in the same words where the file goes and what stands in it.
    """

    def add(function: Callable[..., Imported]) -> click.Command:
        @functools.wraps(function)
        def run(
            *,
            shadow: bool,
            project: str | None,
            domain: str | None,
            out: Path | None,
            force: bool,
            **options: Any,
        ) -> int:
            keys = {
                word: check_name(value, f"/{word}")
                for word, value in (("project", project), ("domain", domain))
                if value is not None
            }
            imported = function(**options).of(**keys)
            return _finish(imported.in_shadow() if shadow else imported, out, force)

        call: Callable[..., int] = run
        for option in (
            click.option("--force", is_flag=True, help="Write over a file that is there."),
            click.option(
                "-o",
                "--output",
                "out",
                metavar="FILE",
                type=click.Path(path_type=Path),
                help="Write it there [standard output].",
            ),
            click.option("--domain", metavar="NAME", help="The domain of its deployments [default]."),
            click.option("--project", metavar="NAME", help="The project of its deployments [default]."),
            click.option(
                "--shadow",
                is_flag=True,
                help="Its triggers start in shadow: they fire nothing beside the other scheduler.",
            ),
        ):
            call = option(call)
        return import_command.command(name)(call)

    return add


@command("crontab")
@click.argument("file", metavar="FILE|-")
@click.option("--system", is_flag=True, help="The form of /etc/crontab, with a user before the command.")
@click.option(
    "--timezone", "-z", metavar="ZONE", help="The zone of the host whose cron ran it [this host's]."
)
@click.option("--user", metavar="NAME", help="With --system: take entries of this user [yours].")
@click.option(
    "--any-user", is_flag=True, help="With --system: take entries of every user; all run as Horarium."
)
def import_crontab(
    file: str,
    system: bool,
    timezone: str | None,
    user: str | None,
    any_user: bool,
) -> Imported:
    """Make a triggers file that does what a crontab does.

    What an entry gets from cron without asking is written out. An entry that can't be carried over faithfully
    is left out, and named with its line and the reason; then the exit code is 1.

    \b
    crontab -l | horarium import crontab - > triggers.yaml
    """
    from horarium import wiring

    if (user or any_user) and not system:
        raise Failure("only the system form has users", Exit.USAGE, hint="--system")
    # Like cron, which takes bytes as they are: what is no UTF-8 comes through as it was.
    return wiring.import_crontab(
        _read(file).decode("utf-8", "surrogateescape"),
        _source(file),
        timezone=timezone or _host_timezone(),
        system=system,
        home=os.path.expanduser("~"),
        user=None if any_user or not system else user or getpass.getuser(),
    )


@command("apscheduler")
@click.argument("store", metavar="FILE|URL")
@click.option("--table", metavar="NAME", default="apscheduler_jobs", help="Its table [apscheduler_jobs].")
def import_apscheduler(store: str, table: str) -> Imported:
    """Make a triggers file of the jobs of APScheduler 3.

    FILE is the SQLite database of its job store, or what scheduler.export_jobs wrote; URL is that of a
    PostgreSQL database. What is pickled in it is read and never run. Each run calls the job's function.

    \b
    horarium import apscheduler jobs.sqlite -o triggers.yaml
    horarium import apscheduler postgresql://user@host/db -o triggers.yaml
    """
    from horarium import wiring

    return wait_for(wiring.import_apscheduler(store, table))


@command("celery")
@click.argument("file", metavar="FILE|-")
@click.option(
    "--app",
    metavar="APP",
    help="What `celery --app` takes, such as proj.celery; it names tasks of FILE, too.",
)
@click.option("--timezone", "-z", metavar="ZONE", help="The app's zone [what the file says, else UTC].")
@click.option(
    "--broker",
    metavar="URL",
    help="Celery's broker, or a reference such as env:BROKER_URL: tasks are sent by a celery target.",
)
@click.option("--backend", metavar="URL", help="With --broker: the Redis that its workers write results to.")
def import_celery(
    file: str, app: str | None, timezone: str | None, broker: str | None, backend: str | None
) -> Imported:
    """Make a triggers file of the schedule of Celery beat.

    FILE is the Python module that sets beat_schedule, which is read and never run, or JSON. Each run sends
    its task: by `celery call`, or with --broker under the run's name, so that it is sent once and tells how
    it ended. What is not written out in the module is left out, and named with its line.

    \b
    horarium import celery proj/celery.py --app proj -o triggers.yaml
    horarium import celery proj/celery.py --broker env:BROKER_URL --backend env:BACKEND_URL -o triggers.yaml
    """
    from horarium import wiring

    return wiring.import_celery(
        _text(file), _source(file), app=app, timezone=timezone, broker=broker, backend=backend
    )


@command("kubernetes")
@click.argument("file", metavar="FILE|-")
@click.option(
    "--timezone",
    "-z",
    metavar="ZONE",
    default="UTC",
    help="The controller's zone, for CronJobs without one [UTC].",
)
@click.option(
    "--server",
    metavar="URL|cluster",
    help="The API server: Jobs are made by a kubernetes target, not by kubectl.",
)
def import_kubernetes(file: str, timezone: str, server: str | None) -> Imported:
    """Make a triggers file of CronJobs: manifests, or what kubectl prints.

    Each run makes the CronJob's Job in the cluster, under the run's name: by `kubectl create job --from`, or
    with --server by the API, which also tells how the Job ended. Suspend the CronJobs in the cluster when
    Horarium fires them.

    \b
    kubectl get cronjobs --all-namespaces -o yaml | horarium import kubernetes - > triggers.yaml
    """
    from horarium import wiring

    return wiring.import_kubernetes(_text(file), _source(file), timezone=timezone, server=server)


@command("prefect")
@click.argument("file", metavar="FILE|-")
@click.option(
    "--url",
    metavar="URL",
    envvar="PREFECT_API_URL",
    default="http://127.0.0.1:4200/api",
    help="Prefect's API [PREFECT_API_URL, http://127.0.0.1:4200/api].",
)
def import_prefect(file: str, url: str) -> Imported:
    """Make a triggers file of the deployments of a prefect.yaml.

    Each run makes a flow run of its deployment, which stays in Prefect. The name of a flow is read in the
    source that the entrypoint names, which is never run. Switch Prefect's own scheduler off.

    \b
    horarium import prefect prefect.yaml -o triggers.yaml
    """
    from horarium import wiring

    folder = Path() if file == "-" else Path(file).parent

    def source_of(name: str) -> str | None:
        try:
            return (folder / name).read_text("utf-8-sig")
        except (OSError, ValueError):
            return None  # said in the report: the name is taken from the function

    return wiring.import_prefect(_text(file), _source(file), url=url, read=source_of)


def _read(file: str) -> bytes:
    return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()


def _text(file: str) -> str:
    """The file as UTF-8 text. Raises `InvalidInput`."""
    try:
        return _read(file).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            Problem("", f"byte {error.start}", f"{file} is not UTF-8", "convert it", code="encoding")
        ) from error


def _source(file: str) -> str:
    """How the file is known afterwards: by its path, wherever it was typed."""
    return "-" if file == "-" else str(Path(file).absolute())


def _host_timezone() -> str:
    from horarium import wiring

    zone = wiring.host_timezone()
    if zone is None:
        raise InvalidInput(
            Problem("/timezone", "no zone", "the host does not say its time zone", "--timezone Europe/Berlin")
        )
    return zone


def _finish(imported: Imported, out: Path | None, force: bool) -> int:
    """Write the file and say what became of each entry."""
    text = imported.text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if out is None:
        sys.stdout.write(text)
    else:
        try:
            with out.open("w" if force else "x", encoding="utf-8") as opened:
                opened.write(text)
        except FileExistsError:
            raise Failure(f"{out} is there already", Exit.CONFLICT, hint="another name, or --force") from None
    for note in imported.notes:
        print(f"{imported.unit} {note.line}: note: {note.text}", file=sys.stderr)
    for dropped in imported.dropped:
        print(
            f"{imported.unit} {dropped.line}: left out: {dropped.text}\n  {dropped.reason}", file=sys.stderr
        )
    entries = imported.carried + sum(dropped.whole for dropped in imported.dropped)
    summary = f"{imported.carried} of {count(entries, 'entry', 'entries')} carried over"
    print(f"{summary}{f' to {out}' if out else ''}.", file=sys.stderr)
    return Exit.FAILED if imported.dropped else Exit.OK

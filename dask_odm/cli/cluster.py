"""Command line, clusters: where ``fit`` runs, and the commands that manage a cluster.

Dask's configuration gives what options do not: encryption, and for the commands that only manage a cluster its address
as well (``scheduler-address``, DASK_SCHEDULER_ADDRESS).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from typing import Any

import click

from dask_odm.cli.shell import emit, gathered, json_option, option_field, progress_shown


@dataclass(frozen=True)
class Joining:
    """The scheduler that options name, and how to connect to it."""

    scheduler: str | None = option_field("Join the Dask cluster there, such as tcp://host:8786.", metavar="ADDRESS")
    # without these PEM files, Dask's configuration says whether and how to encrypt
    tls_ca: str | None = option_field(
        "Certificate authority of an encrypted scheduler, tls://host:8786.", metavar="FILE"
    )
    tls_cert: str | None = option_field("Certificate to show it.", metavar="FILE")
    tls_key: str | None = option_field("Key of the certificate.", metavar="FILE")
    min_workers: int | None = option_field("Begin once the scheduler has so many workers.", type=click.IntRange(0))
    wait: str | None = option_field(
        "How long scheduler and workers may take to be there, as 5m.  [default: 15s]", metavar="TIME"
    )

    def joined(self) -> AbstractContextManager[Any]:
        """Return a context in which the scheduler, by default the one configured, is joined; it yields the client."""
        import dask

        from dask_odm.engine.workers import joined, security_of

        address = self.scheduler or dask.config.get("scheduler-address", None)
        if not address:
            raise click.UsageError("Name the --scheduler, or set DASK_SCHEDULER_ADDRESS.")
        security = security_of(self.tls_ca, self.tls_cert, self.tls_key)
        return joined(address, security=security, wait=self.wait or "15s", workers=self.min_workers or 0)


join_options = gathered("joining", Joining)


@dataclass(frozen=True)
class Place(Joining):
    """Options for the place of a command's work: workers of this machine, those of a scheduler, or this process."""

    workers: int | None = option_field(
        "Work on so many worker processes of this machine; a fit of small data is solved in this one all the "
        "same: up to 65536 rows and 256 MB, in one partition.",
        type=click.IntRange(1, 4096),  # a mistyped number would fill this machine's memory
    )
    threads: int | None = option_field("Threads of each of --workers.  [default: 1]", type=click.IntRange(1))
    worker_memory: str | None = option_field("Memory of each of --workers, such as 2GB, enforced.", metavar="LIMIT")
    scratch: str | None = option_field(
        "Folder for temporary data, which workers must see.  [default: Dask's temporary-directory, else the system's]",
        type=click.Path(),
    )

    def __post_init__(self) -> None:
        if self.scheduler is not None and self.workers is not None:
            raise click.UsageError("--scheduler and --workers exclude each other.")
        if self.workers is None and (self.threads is not None or self.worker_memory is not None):
            raise click.UsageError("--threads and --worker-memory go with --workers.")
        if self.scheduler is None and any(getattr(self, each.name) is not None for each in fields(Joining)):
            raise click.UsageError("--min-workers, --wait and --tls-... go with --scheduler.")

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Run the work of a ``with`` block at this place."""
        import dask

        from dask_odm.engine.workers import local_workers

        if self.scheduler is not None:
            where: AbstractContextManager[Any] = self.joined()
        elif self.workers is not None:
            where = local_workers(self.workers, self.threads or 1, self.worker_memory or "auto")
        else:
            where = nullcontext()
        with where, dask.config.set({} if self.scratch is None else {"temporary-directory": self.scratch}):
            yield


place_options = gathered("runs_on", Place)


@click.command()
@join_options
@json_option
def cluster(joining: Joining, as_json: bool) -> None:
    """Say which workers a Dask cluster has, once it has --min-workers."""
    from dask.utils import format_bytes

    from dask_odm.engine.workers import members

    with joining.joined() as client:
        found = members(client)
    lines = [f"{each.name}: {each.threads} threads, {format_bytes(each.memory)}" for each in found]
    emit(as_json, {"workers": [vars(each) for each in found]}, "\n".join(lines) or "no workers")


@click.command()
@click.option("--name", "names", multiple=True, required=True, envvar="DASK_ODM_WORKER",
              help="The --name a worker was started with; may be repeated.  [default: DASK_ODM_WORKER]")  # fmt: skip
@click.option(
    "--finish", metavar="TIME", default="90s", show_default=True, help="How long tasks it runs may take to end."
)
@join_options
@json_option
def retire(names: tuple[str, ...], finish: str, joining: Joining, as_json: bool) -> None:
    """Have a worker hand over what it holds before it is stopped.

    It finishes what it runs and gets no more. Its process stays, and is to be stopped then; where no worker has the
    name, there is nothing to do.
    """
    from dask_odm.engine.workers import retire as hand_over

    with progress_shown() as seconds, joining.joined() as client:
        done = hand_over(client, names, finish)
        taken = seconds()
    text = f"{', '.join(done)}: handed over, {taken:.2f} s" if done else f"no worker is called {', '.join(names)}"
    emit(as_json, {"retired": done, "seconds": taken}, text)

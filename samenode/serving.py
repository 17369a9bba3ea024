"""An arm's server while it is needed, as a process or in a container; and one kept by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from recipes.schema import Recipe, SearchSpace
from samenode.clients import Settings, model_for
from samenode.interrupts import InterruptedCampaign, Interrupts
from samenode.progress import Progress, span
from serve import container, ports, process
from serve.command import Phase, ServerCommand, server_command
from serve.models import cache_folder


@contextmanager
def start_server(
    recipe: Recipe,
    settings: Settings,
    command: ServerCommand,
    folder: Path,
    run: Path,
    tick: Callable[[float], None],
) -> Iterator[process.Running]:
    """A server that answers, for a ``with`` block, whose end is the server's: a process, or a
    container of the settings' image.

    ``folder`` takes its log; ``run`` is the campaign's folder, by which its orphans are known;
    ``tick`` is called while it starts, as by `serve.process.wait_ready`.

    Raises:
        UserError: it does not come up, or cannot be ended.
    """
    grace = recipe.server.stop_grace_s
    server: process.Running
    if settings.image:
        server = container.start(
            command, settings.image, folder, str(run), grace, recipe.accelerator
        )
    else:
        server = process.start(command, settings.server_bin, folder, str(run), grace)
    try:
        process.wait_ready(server, recipe.server.ready_timeout_s, tick)
        yield server
    finally:
        server.stop()


def serve_forever(
    recipe: Recipe, arm: str, space: SearchSpace, phase: Phase, conc: int, settings: Settings
) -> int:
    """Start one arm's server, say where it is, and keep it until Ctrl-C or its death.

    Raises:
        UserError: it does not come up, or dies.
    """
    if settings.image:
        container.preflight(settings.image, recipe.accelerator)
    model = model_for(recipe, settings)
    port = ports.choose(settings.port)
    command = server_command(recipe, arm, space, phase, conc, model, port)
    folder = cache_folder() / "serve" / f"{recipe.name}-{arm}-{space.name}"
    progress = Progress(1)
    progress.say(f"$ {command.shell()}")
    with Interrupts() as interrupts:

        def tick(waited: float) -> None:
            interrupts.check()
            progress.tick(f"starting, {span(waited)}")

        progress.step(1, f"{arm} {space.name}")
        with (
            suppress(InterruptedCampaign),
            start_server(recipe, settings, command, folder, folder, tick) as server,
        ):
            progress.finish(f"ready after {span(server.ready_s or 0)}")
            progress.say(f"{model.name} at {command.url}/v1; log {server.log}; Ctrl-C ends it")
            while not interrupts.count:
                if death := server.death():
                    raise process.ServerError(f"the server died ({death}); see {server.log}")
                time.sleep(0.5)
    return 0

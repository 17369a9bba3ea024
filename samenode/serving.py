"""Serve one arm by hand, to look at it or to measure it with something else."""

from __future__ import annotations

import time

from recipes.schema import Recipe, SearchSpace
from samenode.clients import Settings
from samenode.interrupts import InterruptedCampaign, Interrupts
from samenode.progress import Progress, span
from serve import ports, process
from serve.command import Phase, server_command
from serve.models import cache_folder, resolve


def serve_forever(
    recipe: Recipe, arm: str, space: SearchSpace, phase: Phase, conc: int, settings: Settings
) -> int:
    """Start one arm's server, say where it is, and keep it until Ctrl-C or its death.

    Raises:
        UserError: it does not come up, or dies.
    """
    model = resolve(recipe, settings.model, settings.server_bin / "python")
    port = ports.choose(settings.port)
    command = server_command(recipe, arm, space, phase, conc, model, port)
    folder = cache_folder() / "serve" / f"{recipe.name}-{arm}-{space.name}"
    progress = Progress(1)
    progress.say(f"$ {command.shell()}")
    with Interrupts() as interrupts:
        server = process.start(
            command, settings.server_bin, folder, str(folder), recipe.server.stop_grace_s
        )

        def tick(waited: float) -> None:
            interrupts.check()
            progress.tick(f"starting, {span(waited)}")

        progress.step(1, f"{arm} {space.name}")
        try:
            process.wait_ready(server, recipe.server.ready_timeout_s, tick)
            progress.finish(f"ready after {span(server.ready_s or 0)}")
            progress.say(f"{model.name} at {command.url}/v1; log {server.log}; Ctrl-C ends it")
            while not interrupts.count:
                if death := server.death():
                    raise process.ServerError(f"the server died ({death}); see {server.log}")
                time.sleep(0.5)
        except InterruptedCampaign:
            pass
        finally:
            server.stop()
    return 0

"""What the harness costs: the same server, measured with and without it, alternating.

    .venv/bin/python -m tests.overhead [--pairs 5] [--duration 60]

*Plain* is aiperf alone. *Harness* is the same command under `evals.client` with the node sampler
and the Prometheus scraper beside it, and scoring after it, as a campaign does. Prints each run, the
seconds that the harness adds to aiperf's own time, and the paired ratio of the throughput.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from evals import client
from evals.agentx import probe
from evals.prometheus import Scraper
from recipes.load import load
from results.records import read_summary
from results.stats import paired_ratio
from samenode.clients import Clients, Settings
from samenode.plan import Point
from samenode.runs import ROOT
from serve import ports, process
from serve.command import server_command
from serve.sampler import Sampler


def measure(
    argv: list[str], env: dict[str, str], folder: Path, server: Any, harness: bool
) -> float:
    """One run of aiperf; returns the seconds beyond aiperf's own wall time."""
    began = time.monotonic()
    if harness:
        with (
            Sampler(folder / "samples.csv", gpus=()),
            Scraper(server.command.url, folder / "prometheus.jsonl"),
        ):
            outcome = client.run(
                argv, cwd=folder, env=env, log=folder / "client.log",
                watch=lambda passed: server.death(), hurry=lambda: False,
            )  # fmt: skip
        wall = outcome.wall_s
    else:
        with (folder / "client.log").open("wb") as log:
            subprocess.run(argv, cwd=folder, env=env, stdout=log, stderr=log, check=True)
        wall = time.monotonic() - began
    return time.monotonic() - began - wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--duration", type=int, default=60)
    args = parser.parse_args()
    recipe = load("smoke-cpu")
    agentx = recipe.agentx.model_copy(update={"duration_s": args.duration})
    recipe = recipe.model_copy(update={"agentx": agentx})
    settings = Settings(
        server_bin=ROOT / ".venv-server" / "bin",
        aiperf=probe(str(Path(sys.executable).with_name("aiperf"))).program,
    )
    clients = Clients.prepared(recipe, settings)
    command = server_command(
        recipe, "prefix-on", recipe.search_space[0], "throughput", 2, clients.model,
        ports.choose(None),
    )  # fmt: skip
    point = Point(1, "agentx", "prefix-on", 0, "tp1", 2, 1, 1, "overhead")
    values: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        server = process.start(command, settings.server_bin, top / "server", name, 20)
        try:
            process.wait_ready(server, 300, lambda waited: None)
            for pair in range(args.pairs):
                for harness in (False, True) if pair % 2 == 0 else (True, False):
                    folder = top / f"{pair}-{harness}"
                    folder.mkdir()
                    argv, added = clients.command(point, command.url, folder)
                    env = {**os.environ, **added, process.MARK: name}
                    extra = measure(argv, env, folder, server, harness)
                    summary = read_summary(folder / "aiperf" / "profile_export_aiperf.json")
                    rate = summary.value("total_token_throughput")
                    assert rate is not None
                    values[harness].append(rate)
                    print(
                        f"pair {pair + 1} {'harness' if harness else 'plain  '} "
                        f"{rate:8.1f} tok/s  +{extra:.2f} s",
                        flush=True,
                    )
        finally:
            server.stop()
    found = paired_ratio(values[False], values[True])
    print(
        f"harness / plain: {found.ratio:.4f} "
        f"[{found.low:.4f}, {found.high:.4f}] over {found.n} pairs, p = {found.p:.3f}"
    )


if __name__ == "__main__":
    main()

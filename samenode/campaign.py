"""The campaign: walk the rooms, point by point, and survive whatever happens on the way."""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from evals import agentx, client, gsm8k
from evals.prometheus import Scraper
from recipes.schema import Recipe, SearchSpace
from results.columns import Row
from results.compare import Cell, cells, pair_up
from results.history import Floors, aa_history
from results.load import items_reader, run_rows
from results.score import score
from results.tables import write_tables
from samenode import plan as plans
from samenode import runs
from samenode.clients import Clients, Settings
from samenode.errors import UserError
from samenode.files import write_json
from samenode.interrupts import InterruptedCampaign, Interrupts
from samenode.journal import Journal, now
from samenode.plan import Launch, Point, duration_s, space_of
from samenode.progress import Progress, span
from samenode.serving import start_server
from serve import container, gpu, node, ports, process
from serve.command import server_command, speculative_config
from serve.sampler import Sampler
from serve.samples import judge, read_samples

MEMORY_WAIT_S = 120.0
"""Patience for the GPUs' memory to come free after a server's end."""
ORPHANED_CLIENT_S = 20.0
"""Patience for a client to write down what it has after its server's death."""


class Campaign:
    """A planned campaign in its folder. ``run`` does what of it is not done yet."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder
        self.settings = settings
        self.plan = runs.read_plan(folder)
        self.recipe = Recipe.model_validate(self.plan["recipe"])
        self.launches = plans.from_json(self.plan["launches"])
        self.journal = Journal(folder / "journal.jsonl")
        self.progress = Progress(sum(len(launch.points) for launch in self.launches))

    @classmethod
    def create(
        cls, recipe: Recipe, launches: list[Launch], settings: Settings, facts: dict[str, Any]
    ) -> Campaign:
        """Make the folder of a new campaign: plan.json and node.json."""
        folder = runs.runs_folder() / runs.new_id(recipe.name)
        folder.mkdir(parents=True)
        write_json(folder / "node.json", facts)
        plan = {
            "schema": 1,
            "samenode": version("samenode"),
            "created": now(),
            "model": settings.model,
            "image": settings.image,
            "gsm8k_data": settings.gsm8k_data,
            "recipe": recipe.model_dump(mode="json", by_alias=True),
            "launches": plans.to_json(launches),
        }
        write_json(folder / "plan.json", plan)
        return cls(folder, settings)

    def run(self) -> None:
        """Run every point that is not done.

        Raises:
            InterruptedCampaign: Ctrl-C; the finished points are kept.
            UserError: the campaign cannot go on; it can be resumed once that is mended.
        """
        process.end(process.marked(str(self.folder)), 10.0)
        if self.settings.image:
            container.end_orphans(str(self.folder))
        done = self.journal.done()
        self.journal.write("resume" if self.journal.events() else "begin", done=len(done))
        left = [
            replace(launch, points=tuple(p for p in launch.points if p.name not in done))
            for launch in self.launches
        ]
        with Interrupts() as self.interrupts:
            self.progress.say("preparing the model, the traces and the clients …")
            self.clients = Clients.prepared(self.recipe, self.settings)
            if any(point.kind == "gsm8k" for launch in left for point in launch.points):
                gsm8k.protocol(self.clients.gsm8k(1))  # fails now if the data cannot be had
            runs.check_disk(self.folder, duration_s(self.recipe, left))
            for launch in left:
                points = list(launch.points)
                while points:
                    points = self._launch(launch, points)
        self.journal.write("end")

    @cached_property
    def floors(self) -> Floors:
        """The node's A/A history: no other campaign runs beside this one, so it is read once."""
        return aa_history(self.folder.parent)

    def tables(self) -> tuple[list[Row], list[Cell]]:
        """Rewrite the campaign's CSVs; returns the rows so far and their comparison."""
        rows = run_rows(self.folder)
        items = items_reader({self.folder.name: self.folder})
        comparison = cells(pair_up(rows), floors=self.floors, items=items)
        write_tables(self.folder, rows, [cell.row() for cell in comparison])
        return rows, comparison

    # ---- one server

    def _launch(self, launch: Launch, points: list[Point]) -> list[Point]:
        """Start the launch's server and measure ``points``; returns those that a dead server left
        unmeasured."""
        space = space_of(self.recipe, launch.config)
        port = ports.choose(self.settings.port)
        command = server_command(
            self.recipe, launch.arm, space, launch.phase, launch.conc, self.clients.model, port
        )
        folder = self.folder / "servers" / f"{launch.number:03}"
        tool = None if self.recipe.accelerator == "cpu" else gpu.open_tool()
        held = gpu.memory_used(tool) if tool else {}
        self.progress.step(points[0].number, f"{launch.arm} {launch.config}")
        digest = None
        if self.settings.image:
            digest = node.read(self.folder / "node.json")["image"]["digest"]
            container.require_same_image(self.settings.image, digest)
        self.journal.write("server-start", launch=launch.number, command=command.shell())

        def tick(waited: float) -> None:
            self.interrupts.check()
            self.progress.tick(f"starting the server, {span(waited)}")

        try:
            with start_server(
                self.recipe, self.settings, command, folder, self.folder, tick
            ) as server:
                self.progress.tick(f"server ready after {span(server.ready_s or 0)}")
                self.journal.write("server-ready", launch=launch.number, seconds=server.ready_s)
                write_json(
                    folder / "server.json",
                    {
                        "arm": launch.arm, "config": launch.config, "phase": launch.phase,
                        "command": command.shell(), "ready_s": server.ready_s,
                        "model": self.clients.model.name, "source": self.clients.model.source,
                        "image": digest,
                    },
                )  # fmt: skip
                while points:
                    self._point(points.pop(0), launch, server, space)
                    if server.death():
                        break
        finally:
            self.journal.write("server-stop", launch=launch.number)
        if tool:
            gpu.wait_free(tool, held, MEMORY_WAIT_S)
        return points

    # ---- one point

    def _point(
        self, point: Point, launch: Launch, server: process.Running, space: SearchSpace
    ) -> None:
        began = time.monotonic()
        folder = self.folder / "points" / point.name
        self._set_aside(folder)
        write_json(folder / "point.json", self._identity(point, launch, space))
        what = "GSM8K" if point.kind == "gsm8k" else f"AgentX, concurrency {point.conc}"
        self.progress.step(point.number, f"{point.arm} {point.config} pair {point.repeat}: {what}")
        self.journal.write("point-start", point=point.name)
        offset = server.log.stat().st_size
        argv, env = self.clients.command(point, server.command.url, folder)
        env = {**env, process.MARK: str(self.folder)}
        gpus = () if self.recipe.accelerator == "cpu" else None
        invalid: list[dict[str, str]] = []
        died = math.inf

        def watch(passed: float) -> str | None:
            nonlocal died
            if self.interrupts.count:
                return "interrupted"
            if death := server.death():
                died = time.monotonic()
                invalid.append({"rule": "server-died", "detail": death})
                return "server-died"
            if reason := runs.disk_short(self.folder):
                invalid.append({"rule": "disk-short", "detail": reason})
                return "disk-short"
            self.progress.tick(span(passed))
            return None

        def hurry() -> bool:
            return self.interrupts.count > 1 or time.monotonic() > died + ORPHANED_CLIENT_S

        with (
            Sampler(folder / "samples.csv", own_pids=server.pids, gpus=gpus),
            Scraper(server.command.url, folder / "prometheus.jsonl"),
        ):
            started, started_ns = now(), time.time_ns()
            outcome = client.run(
                argv, cwd=folder, env=env, log=folder / "client.log", watch=watch, hurry=hurry
            )
            ended, ended_ns = now(), time.time_ns()
        if outcome.stopped is None and outcome.exit_code != 0:
            if death := server.death():
                invalid.append({"rule": "server-died", "detail": death})
            words = client.last_words(folder / "client.log")
            detail = f"{Path(argv[0]).name} ended with exit code {outcome.exit_code}: {words}"
            invalid.append({"rule": "client-failed", "detail": detail})
        samples = read_samples(folder / "samples.csv")
        invalid += judge(samples, started_ns, ended_ns)
        with server.log.open("rb") as log, (folder / "server.log").open("wb") as out:
            log.seek(offset)
            shutil.copyfileobj(log, out)
        run = {
            "schema": 1,
            "started": started,
            "ended": ended,
            "client": self.clients.name(point),
            "client_command": argv,
            "client_exit": outcome.exit_code,
            "client_wall_s": round(outcome.wall_s, 3),
            "overhead_s": None,
            "invalid": invalid,
            "interrupted": outcome.stopped == "interrupted",
        }
        write_json(folder / "run.json", run)
        row = score(folder)
        write_json(folder / "row.json", row)
        write_json(
            folder / "run.json",
            {**run, "overhead_s": round(time.monotonic() - began - outcome.wall_s, 3)},
        )
        self.tables()
        if outcome.stopped == "interrupted":
            self.journal.write("point-interrupted", point=point.name)
            self.progress.finish("interrupted; what there is of it is kept")
            raise InterruptedCampaign
        if outcome.stopped == "disk-short":
            reason = next(found["detail"] for found in invalid if found["rule"] == "disk-short")
            self.journal.write("point-stopped", point=point.name, reason=reason)
            raise UserError(
                f"{reason}; free some space first",
                exit_code=1,
            )
        self.journal.write("point-done", point=point.name, valid=row["valid"])
        self.progress.finish(headline(row))

    def _set_aside(self, folder: Path) -> None:
        """Make a point's folder; keep that of an earlier, unfinished try, but out of every table.

        lm-eval goes on from the answers that an unfinished try already has.
        """
        old = None
        if folder.exists():
            tries = self.folder / "unfinished"
            tries.mkdir(exist_ok=True)
            old = tries / f"{folder.name}.{len(list(tries.glob(f'{folder.name}.*'))) + 1}"
            folder.rename(old)
        folder.mkdir(parents=True)
        if old and (old / gsm8k.OUTPUT).exists():
            shutil.copytree(old / gsm8k.OUTPUT, folder / gsm8k.OUTPUT)

    def _identity(self, point: Point, launch: Launch, space: SearchSpace) -> dict[str, Any]:
        """point.json: what this point is, before anything is known of how it went."""
        recipe = self.recipe
        spec = speculative_config(recipe, space, launch.phase) or {}
        why = []
        if point.kind == "agentx":
            why = agentx.why_not_canonical(
                self.clients.aiperf, self.clients.corpus, recipe.agentx.duration_s
            )
        return {
            "schema": 1,
            "campaign": self.folder.name,
            "point": point.name,
            "kind": point.kind,
            "recipe": recipe.name,
            "fingerprint": recipe.fingerprint(space),
            "model": self.clients.model.name,
            "arm": point.arm,
            "baseline": recipe.baseline,
            "config": point.config,
            "tp": space.tp,
            "pp": space.pp,
            "dp": space.dp,
            "ep": space.ep,
            "gpus": space.gpus,
            "conc": point.conc,
            "spec_method": spec.get("method", "none"),
            "spec_tokens": spec.get("num_speculative_tokens", 0),
            "rejection": spec.get("rejection_sample_method", "standard") if spec else "none",
            "target_acceptance_length": spec.get("synthetic_acceptance_length"),
            "repeat": point.repeat,
            "slot": point.slot,
            "launch": point.launch,
            "duration_s": recipe.agentx.duration_s if point.kind == "agentx" else None,
            "seed": recipe.agentx.seed,
            "corpus": self.clients.corpus.name if point.kind == "agentx" else None,
            "canonical": point.kind == "agentx" and not why,
            "non_canonical_why": "; ".join(why) or None,
            "must_dispatch": list(recipe.arms[point.arm].must_dispatch),
            "must_not_dispatch": sorted(
                {kernel for arm in recipe.arms.values() for kernel in arm.must_dispatch}
                - set(recipe.arms[point.arm].must_dispatch)
            ),
            "slo": recipe.slo.model_dump() if recipe.slo else None,
            "validity": recipe.validity.model_dump(),
            "gsm8k": recipe.gsm8k.model_dump(),
        }


def headline(row: dict[str, Any]) -> str:
    """The few figures of a row that a person wants to see at once."""
    if not row["valid"]:
        return f"INVALID: {row['invalid_reasons']}"
    if row["kind"] == "gsm8k":
        return f"strict {row['gsm8k_strict']:.3f}, flexible {row['gsm8k_flexible']:.3f}"
    parts = [
        (row["interactivity_p90"], "{:.1f} tok/s/user at p90"),
        (row["total_throughput"], "{:.0f} tok/s"),
        (row["acceptance_length"], "acceptance length {:.2f}"),
    ]
    return ", ".join(form.format(value) for value, form in parts if value is not None)

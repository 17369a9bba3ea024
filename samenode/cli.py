"""The command line. Thin: it reads arguments, calls the rooms, and turns errors into sentences."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samenode import __version__
from samenode import plan as plans
from samenode.errors import UserError
from samenode.runs import ROOT
from serve import ports

if TYPE_CHECKING:
    from recipes.schema import Recipe
    from samenode.campaign import Campaign
    from samenode.clients import Settings
    from samenode.plan import Kind, Launch

EXIT_INVALID = 3
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns the exit code: 0 done, 1 the job could not be finished, 2 the input is at fault, 3 a
    row is invalid or a gate failed, 130 interrupted.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except UserError as error:
        print(f"samenode: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("samenode: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="samenode",
        description="Do custom kernels make a served model faster on this node, and keep it "
        "accurate? Campaigns run the arms of a recipe interleaved and compare them.",
        epilog="Exit codes: 0 done; 1 could not be finished (resumable); 2 bad input; 3 a row is "
        "invalid or a gate failed; 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"samenode {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    for kinds, name, text in (
        (("agentx",), "agentx", "replay agentic traces against every arm, and compare"),
        (("gsm8k",), "gsm8k", "run GSM8K 5-shot against every arm, and compare"),
        (("agentx", "gsm8k"), "run", "both: the traces and GSM8K"),
    ):
        command = commands.add_parser(name, help=text, description=text.capitalize() + ".")
        _campaign_arguments(command)
        command.set_defaults(run=_run, kinds=kinds)

    plan = commands.add_parser(
        "plan", help="show every point, command line and the expected time; start nothing"
    )
    _campaign_arguments(plan)
    plan.add_argument(
        "--kind", choices=("agentx", "gsm8k", "both"), default="agentx", help="what to plan"
    )
    plan.set_defaults(run=_plan)

    resume = commands.add_parser(
        "resume", help="go on with a campaign that was stopped; no finished point runs again"
    )
    resume.add_argument("id", help="the run's id, a unique part of it, or 'last'")
    _environment_arguments(resume)
    resume.set_defaults(run=_resume)

    serve = commands.add_parser("serve", help="start one arm's server and keep it until Ctrl-C")
    _campaign_arguments(serve)
    serve.add_argument("--arm", required=True, help="the arm to serve")
    serve.add_argument(
        "--phase", choices=("throughput", "accuracy"), default="throughput",
        help="which speculative settings (default: throughput)",
    )  # fmt: skip
    serve.set_defaults(run=_serve)

    _results_commands(commands)

    traces = commands.add_parser("traces", help="write generated agentic traces (weka_trace files)")
    traces.add_argument("folder", type=Path, help="where to write; described only if it has traces")
    traces.add_argument("--profile", choices=("smoke", "agentic"), default="smoke")
    traces.add_argument("--max-model-len", type=int, default=4096, help="context to scale to")
    traces.add_argument("--sessions", type=int, default=32)
    traces.add_argument("--seed", type=int, default=42)
    traces.set_defaults(run=_traces)

    recipes = commands.add_parser("recipes", help="list the recipes, their arms and configs")
    recipes.set_defaults(run=_recipes)

    imported = commands.add_parser(
        "import-recipe", help="turn an agentic vLLM entry of InferenceX's files into a recipe"
    )
    imported.add_argument("file", type=Path, help="an InferenceX master file (YAML)")
    imported.add_argument("--key", required=True, help="the entry to import")
    imported.add_argument(
        "--out", type=Path, help="recipe file to write (default: standard output)"
    )
    imported.set_defaults(run=_import)

    doctor = commands.add_parser(
        "doctor", help="what this node is, what is missing, how to mend it"
    )
    _server_argument(doctor)
    doctor.set_defaults(run=_doctor)
    return parser


def _campaign_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what to run (all of the recipe unless narrowed)")
    what.add_argument("--recipe", help="name or file (default: the one for this node)")
    what.add_argument("--tp", type=int, help="tensor parallel size")
    what.add_argument("--dp", type=int, help="data parallel size")
    what.add_argument("--ep", type=int, help="expert parallel size")
    what.add_argument("--spec", help="speculative method, or 'none'")
    what.add_argument("--conc", type=int, nargs="+", help="concurrencies (live session trees)")
    what.add_argument(
        "--arms", help="arms, comma-separated; one named twice makes an A/A campaign: off,off"
    )
    what.add_argument("--repeats", type=int, default=1, help="pairs (default: 1)")
    what.add_argument("--duration", type=int, help="seconds a point")
    what.add_argument("--limit", type=int, help="GSM8K items, the same for each arm")
    _environment_arguments(parser)


def _environment_arguments(parser: argparse.ArgumentParser) -> None:
    where = parser.add_argument_group("environment")
    where.add_argument("--model", help="a model folder or hub repository instead of the recipe's")
    where.add_argument("--gsm8k-path", help="folder with train.jsonl and test.jsonl (GSM8K_PATH)")
    where.add_argument("--aiperf", help="aiperf program (default: the client environment's)")
    _server_argument(where)
    where.add_argument(
        "--port", type=int, help="server port (default: a free one from 8000 to 8999)"
    )
    where.add_argument(
        "--runtime", choices=("process", "docker"), help="how servers run (default: process)"
    )
    where.add_argument("--image", help="image of --runtime docker (default: the recipe's)")


def _server_argument(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--server-env", type=Path, default=ROOT / ".venv-server",
        help="virtual environment that holds vllm (default: .venv-server)",
    )  # fmt: skip


def _results_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    compare = commands.add_parser(
        "compare",
        help="compare a run's arms, or several runs with the first",
        description="Compare the arms of one run, pair by pair, or several runs with the first. "
        "Runs of different nodes, images, workloads, clients or metric bases are refused unless "
        "the difference is named with --across.",
    )
    compare.add_argument("runs", nargs="+", help="run ids, 'last', folders or CSV files of rows")
    compare.add_argument("--across", action="append", default=[], help="a field that may differ")
    compare.add_argument("--metric", action="append", help="a column to compare (repeatable)")
    compare.add_argument("--csv", type=Path, help="write the comparison to this CSV file")
    compare.add_argument("--json", type=Path, help="write the comparison to this JSON file")
    compare.add_argument(
        "--fail-if", action="append", default=[], metavar="METRIC:CHANGE",
        help="gate for CI, such as interactivity_p90:-3%% (repeatable; exit code 3 when broken)",
    )  # fmt: skip
    compare.set_defaults(run=_compare)

    report = commands.add_parser("report", help="write a run's report.html and its figures")
    report.add_argument("id", help="the run's id, a unique part of it, 'last', or its folder")
    report.set_defaults(run=_report)

    power = commands.add_parser(
        "power", help="how many pairs a wanted effect needs here, from this node's A/A campaigns"
    )
    power.add_argument("effect", help="the change to find, such as 2%%")
    power.add_argument("--duration", type=float, help="seconds a point (default: the history's)")
    power.set_defaults(run=_power)

    published = commands.add_parser("published", help="the kernels' published serving figures")
    published.set_defaults(run=_published)


# ---- commands; the rooms are imported where they are used, so that --help is quick


def _run(args: argparse.Namespace) -> int:
    from samenode import runs
    from samenode.campaign import Campaign

    recipe, launches, settings, facts = _prepared(args, args.kinds)
    plans.check_node(recipe, launches, facts)
    if settings.image:
        from serve import container

        container.preflight(settings.image, recipe.accelerator)
        facts = container.add_image(facts, settings.image)
    with runs.alone():
        campaign = Campaign.create(recipe, launches, settings, facts)
        return _finish(campaign)


def _resume(args: argparse.Namespace) -> int:
    from samenode import runs
    from samenode.campaign import Campaign
    from serve import node

    folder = runs.find(args.id)
    plan = runs.read_plan(folder)
    args.model = args.model or plan["model"]
    args.gsm8k_path = args.gsm8k_path or plan["gsm8k_data"]
    image = plan.get("image")
    if args.runtime not in (None, "docker" if image else "process"):
        raise UserError(
            f"the campaign began with RUNTIME={'docker' if image else 'process'}; resume it so"
        )
    if args.image not in (None, image):
        raise UserError(f"the campaign's image is {image or 'none'}; resume it without IMAGE")
    settings = _settings(args, image)
    if image:
        from serve import container

        container.preflight(image, plan["recipe"]["accelerator"])
        container.require_same_image(image, node.read(folder / "node.json")["image"]["digest"])
        facts = container.add_image(node.collect(None), image)
    else:
        facts = node.collect(settings.server_bin / "python")
    node.require_same(folder / "node.json", facts)
    campaign = Campaign(folder, settings)
    with runs.alone():
        return _finish(campaign)


def _finish(campaign: Campaign) -> int:
    from results.compare import render
    from results.report import write_report
    from samenode.interrupts import InterruptedCampaign

    name = campaign.folder.name
    try:
        campaign.run()
    except InterruptedCampaign:
        print(
            f"samenode: interrupted; finished points are kept, go on with 'samenode resume {name}'",
            file=sys.stderr,
        )
        return EXIT_INTERRUPTED
    except UserError as error:
        note = f" (resume with 'samenode resume {name}')"
        raise UserError(f"{error}{note}", exit_code=error.exit_code) from error
    rows, comparison = campaign.tables()
    print(render(comparison))
    for row in rows:
        if not row["valid"]:
            print(f"invalid {row['point']}: {row['invalid_reasons']}")
    print(f"rows and CSVs: {campaign.folder}\nreport: {write_report(campaign.folder)[0]}")
    return 0 if all(row["valid"] for row in rows) else EXIT_INVALID


def _plan(args: argparse.Namespace) -> int:
    from samenode.clients import Clients
    from samenode.progress import span
    from serve.command import server_command

    kinds: dict[str, tuple[Kind, ...]] = {"both": ("agentx", "gsm8k")}
    recipe, launches, settings, facts = _prepared(args, kinds.get(args.kind, (args.kind,)))
    planned = Clients.planned(recipe, settings)
    print(f"recipe   {recipe.name}: {recipe.about}")
    print(f"model    {planned.model.name} (from the {planned.model.source})")
    if settings.image:
        print(f"image    {settings.image}: each server in a container of it")
    for launch in launches:
        space = plans.space_of(recipe, launch.config)
        command = server_command(
            recipe, launch.arm, space, launch.phase, launch.conc, planned.model,
            settings.port or ports.FIRST,
        )  # fmt: skip
        print(f"\nserver {launch.number}: {launch.arm} {launch.config}, pair {launch.repeat}")
        print(f"  $ {command.shell()}")
        for point in launch.points:
            argv, _ = planned.command(point, command.url, Path("points") / point.name)
            print(f"  {point.name}\n    $ {shlex.join(argv)}")
    points = sum(len(launch.points) for launch in launches)
    expected = span(plans.duration_s(recipe, launches))
    print(f"\n{len(launches)} servers, {points} points, about {expected} (expected, not measured)")
    try:
        plans.check_node(recipe, launches, facts)
    except UserError as error:
        print(f"not on this node: {error}")
    return 0


def _serve(args: argparse.Namespace) -> int:
    from samenode.serving import serve_forever

    recipe, launches, settings, _ = _prepared(args, ("agentx",))
    arm = plans.pick_arms(recipe, [args.arm])[0]
    space = plans.space_of(recipe, launches[0].config)
    conc = max(launch.conc for launch in launches)
    return serve_forever(recipe, arm, space, args.phase, conc, settings)


def _compare(args: argparse.Namespace) -> int:
    from results.command import compare_command
    from samenode import runs

    sources = [Path(run) if run.endswith(".csv") else runs.find(run) for run in args.runs]
    return compare_command(
        sources,
        across=args.across,
        metrics=args.metric,
        csv_file=args.csv,
        json_file=args.json,
        fail_if=args.fail_if,
        history=runs.runs_folder(),
    )


def _report(args: argparse.Namespace) -> int:
    from results.report import write_report
    from samenode import runs

    print(write_report(runs.find(args.id))[0])
    return 0


def _power(args: argparse.Namespace) -> int:
    from results.history import aa_history
    from results.power import power_text
    from results.provenance import node_name
    from samenode import runs
    from serve import node

    try:
        effect = float(args.effect.removesuffix("%")) / (100 if args.effect.endswith("%") else 1)
    except ValueError as error:
        raise UserError(f"'{args.effect}' is no change; write it as 2%") from error
    here = node_name(node.collect(None)) or "this node"
    print(power_text(aa_history(runs.runs_folder()), here, effect, duration_s=args.duration))
    return 0


def _published(args: argparse.Namespace) -> int:
    from results import published_figures

    print(published_figures.text())
    return 0


def _traces(args: argparse.Namespace) -> int:
    from evals import traces

    if not any(args.folder.glob("*.json")):
        spec = traces.make_spec(
            args.profile, args.max_model_len, seed=args.seed, sessions=args.sessions
        )
        traces.write_traces(spec, args.folder)
    print(traces.describe(args.folder))
    return 0


def _recipes(args: argparse.Namespace) -> int:
    from recipes.load import load, shipped

    for name in shipped():
        recipe = load(name)
        print(f"{name}  ({recipe.accelerator}): {recipe.about}")
        print(f"  arms     {', '.join(recipe.arms)}  (baseline {recipe.baseline})")
        for space in recipe.search_space:
            print(f"  config   {space.name}, concurrency {' '.join(map(str, space.concurrencies))}")
    return 0


def _import(args: argparse.Namespace) -> int:
    from recipes.inferencex import import_entry
    from samenode.files import write_text

    imported = import_entry(args.file, args.key)
    if args.out is None:
        print(imported.text, end="")
    elif args.out.exists():
        raise UserError(f"{args.out} exists already; name a new file with --out")
    else:
        write_text(args.out, imported.text)
    for line in imported.dropped:
        print(f"not carried over: {line}", file=sys.stderr)
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from samenode import doctor

    return doctor.show(ROOT, args.server_env)


# ---- what several commands need


def _settings(args: argparse.Namespace, image: str | None) -> Settings:
    from samenode.clients import Settings

    aiperf = args.aiperf or str(Path(sys.executable).with_name("aiperf"))
    return Settings(
        server_bin=args.server_env.absolute() / "bin",
        aiperf=aiperf,
        image=image,
        model=args.model,
        port=args.port,
        gsm8k_data=args.gsm8k_path or os.environ.get("GSM8K_PATH"),
    )


def _prepared(
    args: argparse.Namespace, kinds: tuple[Kind, ...]
) -> tuple[Recipe, list[Launch], Settings, dict[str, Any]]:
    """The recipe with the command line's changes, its launches, and what the node is."""
    from recipes.load import DEFAULTS, load
    from serve import node

    for name in ("tp", "dp", "ep", "repeats", "duration", "limit", "port"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UserError(f"--{name} is {value}; it must be at least 1")
    if args.conc and min(args.conc) < 1:
        raise UserError(f"--conc is {min(args.conc)}; it must be at least 1")
    ports.choose(args.port)
    in_image = args.runtime == "docker"
    if args.image and not in_image:
        raise UserError("IMAGE names the image of RUNTIME=docker; give that too")
    facts = node.collect(None if in_image else args.server_env.absolute() / "bin" / "python")
    recipe = load(args.recipe or DEFAULTS[facts["accelerator"]])
    settings = _settings(args, (args.image or recipe.image) if in_image else None)
    if args.duration:
        changed = recipe.agentx.model_copy(update={"duration_s": args.duration})
        recipe = recipe.model_copy(update={"agentx": changed})
    if args.limit:
        changed_gsm8k = recipe.gsm8k.model_copy(update={"limit": args.limit})
        recipe = recipe.model_copy(update={"gsm8k": changed_gsm8k})
    wanted = plans.Selection(
        kinds=kinds,
        arms=plans.pick_arms(recipe, args.arms.split(",") if args.arms else None),
        repeats=args.repeats,
        tp=args.tp,
        dp=args.dp,
        ep=args.ep,
        spec=args.spec,
        conc=tuple(sorted(set(args.conc))) if args.conc else None,
    )
    return recipe, plans.expand(recipe, wanted), settings, facts


if __name__ == "__main__":
    sys.exit(main())

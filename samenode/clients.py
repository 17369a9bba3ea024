"""What measures a server: the model as the clients see it, aiperf and its corpus, and lm-eval."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from evals import agentx, gsm8k, traces
from recipes.schema import Recipe
from samenode.errors import UserError
from samenode.plan import Point
from serve import container
from serve.models import Model, cache_folder, converted, hub_has, resolve


@dataclass(frozen=True)
class Settings:
    """What a campaign is given besides its recipe and selection."""

    server_bin: Path
    aiperf: str
    image: str | None = None
    """Servers run in containers of this image; None: as processes."""
    model: str | None = None
    port: int | None = None
    gsm8k_data: str | None = None


def model_for(recipe: Recipe, settings: Settings) -> Model:
    """The model to serve, ready: a packaged one is converted where the server will run."""
    if settings.image:
        convert = partial(container.converted, image=settings.image)
    else:
        convert = partial(converted, server_python=settings.server_bin / "python")
    return resolve(recipe, settings.model, convert)


def corpus_for(recipe: Recipe, prepare: bool = True) -> agentx.Corpus:
    """The public corpus where the recipe names one and the hub can be reached, else generated
    traces, scaled to the server's context.

    Traces are kept in the cache folder; with ``prepare`` False they are not written.
    """
    public = recipe.agentx.public_dataset
    if public and hub_has(agentx.corpus_repository(public), None, "dataset"):
        return agentx.Corpus(public, public=public)
    wanted = recipe.agentx.traces
    context = recipe.server.flags.get("max-model-len")
    if not isinstance(context, int):
        raise UserError(
            f"recipe {recipe.name}: server.flags.max-model-len must be a number, since the "
            "generated traces are scaled to it"
        )
    spec = traces.make_spec(wanted.profile, context, seed=wanted.seed, sessions=wanted.sessions)
    name = f"{wanted.profile}-{context}-{wanted.sessions}-{wanted.seed}"
    folder = cache_folder() / "traces" / name
    if prepare:
        name = f"{name}:{traces.write_traces(spec, folder)}"
    return agentx.Corpus(f"synthetic:{name}", folder=folder)


@dataclass(frozen=True)
class Clients:
    """What measures a server: the model's client side, aiperf and its corpus, and lm-eval."""

    recipe: Recipe
    model: Model
    aiperf: agentx.Aiperf
    corpus: agentx.Corpus
    gsm8k_data: str | None

    @classmethod
    def prepared(cls, recipe: Recipe, settings: Settings) -> Clients:
        """Everything made ready: the model converted, the traces written, aiperf asked."""
        model = model_for(recipe, settings)
        return cls(
            recipe, model, agentx.probe(settings.aiperf), corpus_for(recipe),
            settings.gsm8k_data,
        )  # fmt: skip

    @classmethod
    def planned(cls, recipe: Recipe, settings: Settings) -> Clients:
        """The same without making anything ready, for a dry run."""
        model = resolve(recipe, settings.model, convert=None)
        corpus = corpus_for(recipe, prepare=False)
        return cls(recipe, model, agentx.probe(settings.aiperf), corpus, settings.gsm8k_data)

    def gsm8k(self, conc: int) -> gsm8k.Gsm8kSettings:
        """The GSM8K settings of this recipe at ``conc`` requests in flight."""
        settings = self.recipe.gsm8k
        return gsm8k.Gsm8kSettings(
            shots=settings.shots,
            limit=settings.limit,
            max_tokens=settings.max_tokens,
            concurrency=conc,
            data_path=Path(self.gsm8k_data) if self.gsm8k_data else None,
        )

    def command(self, point: Point, url: str, folder: Path) -> tuple[list[str], dict[str, str]]:
        """The client's command line for a point, and what it adds to the environment."""
        if point.kind == "agentx":
            argv = agentx.command(
                self.recipe.agentx, self.aiperf, self.corpus, self.model, url, point.conc,
                folder / "aiperf",
            )  # fmt: skip
            return argv, {} if self.corpus.public else self.model.client_env
        return gsm8k.command(self.gsm8k(point.conc), url, self.model.name, folder), {}

    def name(self, point: Point) -> str:
        """The client and its version."""
        if point.kind == "agentx":
            return f"aiperf {self.aiperf.version}"
        return f"lm-eval {version('lm-eval')}"

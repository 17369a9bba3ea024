"""Find recipes by name or path."""

from __future__ import annotations

import difflib
from pathlib import Path

from pydantic import ValidationError

from recipes.schema import Recipe
from recipes.strict import explain, load_yaml
from samenode.errors import UserError

FOLDER = Path(__file__).parent
DEFAULTS = {
    "rocm": "dsv41flash-fp4-mi355x-vllm-agentic-dspark",
    "cuda": "h200-dense",
    "cpu": "smoke-cpu",
}
"""The recipe that a node runs when none is named."""


def shipped() -> list[str]:
    """The names of the recipes in this folder."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(name_or_path: str) -> Recipe:
    """Load a shipped recipe by name, or any recipe file by path (ending in .yaml or .yml).

    Raises:
        UserError: there is no such recipe, or it breaks the schema; the sentence names the file,
            the line, the key and the nearest known one.
    """
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        path = FOLDER / f"{name_or_path}.yaml"
        if not path.exists():
            near = difflib.get_close_matches(name_or_path, shipped(), n=1, cutoff=0.3)
            hint = f"did you mean '{near[0]}'?" if near else f"shipped: {', '.join(shipped())}"
            raise UserError(f"unknown recipe '{name_or_path}'; {hint}")
    data, lines = load_yaml(path)
    if not isinstance(data, dict):
        raise UserError(f"{path}:1: a recipe is a mapping of keys; this file holds none")
    try:
        return Recipe.model_validate({"name": path.stem, **data})
    except ValidationError as error:
        raise UserError(explain(error, path, lines)) from error

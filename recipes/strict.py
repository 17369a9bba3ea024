"""The base of every configuration model, and YAML whose errors name the line.

A mistyped key that is silently ignored makes a benchmark measure something other than what its
file says, so unknown keys are errors, and so are keys given twice.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from samenode.errors import UserError

Where = tuple[str | int, ...]


def hyphenated(name: str) -> str:
    """The YAML spelling of a field: ``conc_list`` is written ``conc-list``."""
    return name.replace("_", "-")


class Strict(BaseModel):
    """Immutable, with hyphenated keys; an unknown key is an error that names the nearest one."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=hyphenated, populate_by_name=True
    )

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_key(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = {hyphenated(name) for name in cls.model_fields} | set(cls.model_fields)
        for key in data:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
                hint = (
                    f"did you mean '{near[0]}'?"
                    if near
                    else f"known here: {', '.join(sorted(hyphenated(f) for f in cls.model_fields))}"
                )
                raise PydanticCustomError(
                    "unknown_key", "unknown key '{key}'; {hint}", {"key": str(key), "hint": hint}
                )
        return data


def load_yaml(path: Path) -> tuple[Any, dict[Where, int]]:
    """Read one YAML document.

    Returns the value and, for every key or item in it, the line (from 1) where it stands.

    Raises:
        UserError: the file cannot be read, is not YAML, or gives a key twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; name a recipe file that exists") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text; save the file as UTF-8") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "cannot be parsed"
        raise UserError(f"{path}{line}: not valid YAML: {problem}") from error
    lines: dict[Where, int] = {}
    if node is not None:
        _walk(node, (), lines, path)
    return yaml.safe_load(text), lines


def _walk(node: Any, where: Where, lines: dict[Where, int], path: Path) -> None:
    lines.setdefault(where, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            place = (*where, key.value)
            if place in lines:
                raise UserError(
                    f"{path}:{key.start_mark.line + 1}: key '{key.value}' is given twice; "
                    f"the first is on line {lines[place]}"
                )
            lines[place] = key.start_mark.line + 1
            _walk(value, place, lines, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _walk(item, (*where, index), lines, path)


def explain(error: ValidationError, path: Path, lines: dict[Where, int]) -> str:
    """The first of a validation error's complaints as ``file:line: where: what``."""
    first = error.errors()[0]
    where: Where = tuple(first["loc"])
    if first["type"] == "unknown_key":
        where = (*where, first["ctx"]["key"])
    line = next((lines[where[:n]] for n in range(len(where), -1, -1) if where[:n] in lines), 1)
    place = ""
    for part in where:
        place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else str(part)
    message = first["msg"].removeprefix("Value error, ")
    return f"{path}:{line}: {place + ': ' if place else ''}{message}"

"""GSM8K, five-shot, through lm-eval: the settings, the data and the protocol of an evaluation.

The evaluation itself runs in a process of its own, ``python -m evals.lm_eval_client``.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import yaml

from samenode.errors import UserError

if TYPE_CHECKING:
    import datasets

TASKS = Path(__file__).parent / "tasks"
ENDPOINT = "/v1/chat/completions"
OUTPUT = "lm_eval"
HUB_DATASET = ("openai/gsm8k", "main")
SPLITS = ("train", "test")

Row = dict[str, str]


@dataclass(frozen=True)
class Gsm8kSettings:
    """What one evaluation asks of a server. The defaults are the full, published-size protocol.

    Attributes:
        shots: worked examples before each question, each a user and an assistant turn.
        limit: the first ``limit`` test items only; None is all of them.
        max_tokens: most output tokens an answer may have, reasoning included.
        concurrency: requests in flight.
        data_path: folder with ``train.jsonl`` and ``test.jsonl``; None takes ``GSM8K_PATH`` from
            the environment, and without that the hub's ``openai/gsm8k``.
        seed: draws the worked examples, and is sent with each request.
        timeout: seconds a request may take.
        max_retries: attempts at a request before the evaluation is given up.
        chat_template_kwargs: passed on to the server's chat template, e.g. ``{"thinking": True}``.

    Raises:
        UserError: a number is out of its range.
    """

    shots: int = 5
    limit: int | None = None
    max_tokens: int = 12288
    concurrency: int = 8
    data_path: Path | None = None
    seed: int = 1234
    timeout: int = 1800
    max_retries: int = 5
    chat_template_kwargs: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        least = {"shots": 0, "max_tokens": 1, "concurrency": 1, "timeout": 1, "max_retries": 1}
        if self.limit is not None:
            least["limit"] = 1
        for name, bound in least.items():
            value = getattr(self, name)
            if value < bound:
                raise UserError(f"GSM8K: {name} is {value}, but it must be at least {bound}.")

    @property
    def data_folder(self) -> Path | None:
        """The folder that the data comes from, or None for the hub."""
        if self.data_path is not None:
            return self.data_path.absolute()
        path = os.environ.get("GSM8K_PATH")
        return Path(path).absolute() if path else None


def command(settings: Gsm8kSettings, url: str, model: str, folder: Path) -> list[str]:
    """The command line of one evaluation, to be run with ``folder`` as its working directory.

    It evaluates ``model`` on the server whose root is ``url`` (``http://127.0.0.1:8000``) and
    leaves ``folder/lm_eval``. A finished evaluation there is not run again, a half-done one is
    gone on with. Progress goes to stderr, the score table to stdout. Exit status: 0 done, 1 the
    server failed or the output could not be written, 2 bad input, 130 interrupted.
    """
    arguments: dict[str, object] = {
        "url": url,
        "model": model,
        "output": folder.absolute() / OUTPUT,
        "shots": settings.shots,
        "limit": settings.limit,
        "max-tokens": settings.max_tokens,
        "concurrency": settings.concurrency,
        "data": settings.data_folder,
        "seed": settings.seed,
        "timeout": settings.timeout,
        "max-retries": settings.max_retries,
    }
    if settings.chat_template_kwargs is not None:
        arguments["chat-template-kwargs"] = json.dumps(dict(settings.chat_template_kwargs))
    argv = [sys.executable, "-m", "evals.lm_eval_client"]
    for name, value in arguments.items():
        if value is not None:
            argv += [f"--{name}", str(value)]
    return argv


def protocol(settings: Gsm8kSettings) -> dict[str, Any]:
    """Everything that must agree before two scores may be compared, whatever the server.

    Raises:
        UserError: the data cannot be had, or has fewer items than the settings ask for.
    """
    rows = read_data(settings.data_folder)
    used = items(settings, rows)
    sampling = {**read_task()["generation_kwargs"], "max_tokens": settings.max_tokens}
    return {
        "task": "gsm8k",
        "task_sha256": hashlib.sha256(task_file().read_bytes()).hexdigest(),
        "endpoint": ENDPOINT,
        "few_shot": {
            "shots": settings.shots,
            "form": "multi-turn chat",
            "draw": "at random from train for each item, seeded (lm-eval's default sampler)",
            "seed": settings.seed,
        },
        "sampling": {**sampling, "seed": settings.seed},
        "chat_template_kwargs": (
            None if settings.chat_template_kwargs is None else dict(settings.chat_template_kwargs)
        ),
        "lm_eval_version": metadata.version("lm_eval"),
        "lm_eval_commit": _lm_eval_commit(),
        "dataset": {
            split: {"rows": len(rows[split]), "sha256": _rows_sha256(rows[split])}
            for split in SPLITS
        },
        "items": {"count": len(used), "sha256": _sha256(i["question_sha256"] for i in used)},
    }


def items(settings: Gsm8kSettings, rows: Mapping[str, list[Row]]) -> list[dict[str, Any]]:
    """The test items of the evaluation: ``{"index": place in test, "question_sha256": …}``.

    They are the first ``limit`` of the test split, so every arm and repeat gets the same ones.

    Raises:
        UserError: there are fewer test items than ``limit`` or fewer train items than ``shots``.
    """
    test, train = rows["test"], rows["train"]
    if settings.limit is not None and settings.limit > len(test):
        raise UserError(f"GSM8K: limit is {settings.limit}, but the test split has {len(test)}.")
    if settings.shots > len(train):
        raise UserError(f"GSM8K: shots is {settings.shots}, but the train split has {len(train)}.")
    return [
        {"index": index, "question_sha256": _sha256([row["question"]])}
        for index, row in enumerate(test[: settings.limit])
    ]


def task_file() -> Path:
    """The lm-eval task: prompt, filters, metric and sampling."""
    return TASKS / "gsm8k.yaml"


def read_task() -> dict[str, Any]:
    """The task file's content; what it names by ``!function`` stays a name."""

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda _, node: node.value)
    with task_file().open(encoding="utf-8") as handle:
        return cast("dict[str, Any]", yaml.load(handle, Loader=Loader))


def dataset(data_path: str | None = None, **_: object) -> datasets.DatasetDict:
    """The splits as lm-eval wants them; the task file names this function.

    Args:
        data_path: folder with ``train.jsonl`` and ``test.jsonl``, or None for the hub.

    Raises:
        UserError: see `read_data`.
    """
    import datasets  # takes seconds, and only lm-eval's process needs it

    rows = read_data(None if data_path is None else Path(data_path))
    return datasets.DatasetDict(
        {split: datasets.Dataset.from_list(rows[split]) for split in SPLITS}
    )


def read_data(folder: Path | None) -> dict[str, list[Row]]:
    """Read both splits, from ``folder`` or (None) from the hub, as ``{question, answer}`` rows.

    Raises:
        UserError: the hub cannot be reached, a file is missing, or a line is not a GSM8K item.
    """
    if folder is not None:
        return {split: _read_jsonl(folder / f"{split}.jsonl") for split in SPLITS}
    import datasets  # takes seconds, and a folder does without it

    try:
        loaded = datasets.load_dataset(*HUB_DATASET)
    # The loader passes on what its HTTP client, its cache and its readers raise.
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"GSM8K could not be loaded from the hub ({'/'.join(HUB_DATASET)}: {reason}); set "
            "GSM8K_PATH to a folder that holds train.jsonl and test.jsonl."
        ) from error
    return {
        split: [_row(row, f"{split} row {i}") for i, row in enumerate(loaded[split])]
        for split in SPLITS
    }


def _read_jsonl(path: Path) -> list[Row]:
    try:
        lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    except FileNotFoundError as error:
        raise UserError(
            f"GSM8K: there is no {path}; point GSM8K_PATH at a folder that holds train.jsonl "
            "and test.jsonl."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"GSM8K: {path} cannot be read: {error}.") from error
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"GSM8K: {path} line {number} is not JSON ({error}).") from error
        rows.append(_row(value, f"{path} line {number}"))
    return rows


def _row(value: object, where: str) -> Row:
    if not isinstance(value, Mapping):
        raise UserError(f"GSM8K: {where} is not an object with 'question' and 'answer'.")
    question, answer = value.get("question"), value.get("answer")
    if not isinstance(question, str) or not isinstance(answer, str) or "#### " not in answer:
        raise UserError(
            f"GSM8K: {where} needs a 'question' and an 'answer' that ends in '#### number'."
        )
    return {"question": question, "answer": answer}


def _sha256(texts: Iterable[str]) -> str:
    """One digest of several texts, joined by newlines."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _rows_sha256(rows: list[Row]) -> str:
    """A split's digest by content: the same from the hub and from a folder."""
    return _sha256(json.dumps([row["question"], row["answer"]]) for row in rows)


def _lm_eval_commit() -> str | None:
    """The git commit that lm-eval was installed from, or None for a release from a registry."""
    text = metadata.distribution("lm_eval").read_text("direct_url.json")
    if text is None:
        return None
    commit = json.loads(text).get("vcs_info", {}).get("commit_id")
    return None if commit is None else str(commit)

"""Evaluate GSM8K on a live server with lm-eval: ``python -m evals.lm_eval_client --help``.

lm-eval builds the prompts, sends them, filters the answers and scores them. This module adds what
it lacks: a look at the server before anything else, a record of every answer (how it ended, where
its text came from) that a killed evaluation goes on from, and output that is whole or absent.
lm-eval's own ``--use_cache`` keeps only the text and answers for a dead server, so it is not used.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import logging
import os
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, TextIO

import aiohttp
import requests
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.loggers import EvaluationTracker
from lm_eval.models.openai_completions import LocalChatCompletion
from lm_eval.tasks import TaskManager
from lm_eval.utils import make_table
from tqdm import tqdm

from evals import gsm8k
from samenode.errors import UserError
from samenode.files import write_json

PROBE_SECONDS = 120


class BadReplyError(Exception):
    """The server answered 200, but not with a chat completion."""


# What lm-eval lets through once a request has failed for the last time.
FAILURES = (
    aiohttp.ClientError,
    requests.RequestException,
    TimeoutError,
    json.JSONDecodeError,
    BadReplyError,
)


class Answer(str):
    """An answer's text, with how the server came to it."""

    finish_reason: str | None
    source: str  # "content" or "reasoning"
    prompt_tokens: int | None
    completion_tokens: int | None


def read_reply(reply: Any) -> Answer:
    """The answer in a chat completion; its reasoning where the content is empty.

    A model that spends ``max_tokens`` on its reasoning, or whose parser takes everything for
    reasoning, leaves no content. Servers call the field ``reasoning_content`` or ``reasoning``.

    Raises:
        BadReplyError: ``reply`` is not a chat completion.
    """
    try:
        choice = reply["choices"][0]
        message = choice["message"]
        content = message.get("content") or ""
        reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
        usage = reply.get("usage") or {}
        answer = Answer(content or reasoning)
        answer.source = "reasoning" if reasoning and not content else "content"
        answer.finish_reason = choice.get("finish_reason")
        answer.prompt_tokens = usage.get("prompt_tokens")
        answer.completion_tokens = usage.get("completion_tokens")
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise BadReplyError(f"a reply without a message: {json.dumps(reply)[:200]}") from error
    return answer


class Record:
    """``answers.jsonl``: one line for each answered request, written as the answer comes.

    A request is known by the SHA-256 of the model, the seed and all that was sent, so an answer is
    taken up again only for the very same request. The file belongs to one point, hence to one
    server configuration.

    Raises:
        UserError: another process writes to the file, or a line of it is damaged.
    """

    def __init__(self, path: Path, model: str, seed: int) -> None:
        self.path = path
        self._identity = [model, seed]
        self.index_of: dict[str, int] = {}
        self.lines: dict[str, dict[str, Any]] = {}
        self._handle: TextIO = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise UserError(f"Another evaluation is writing to {path.parent}.") from error
        self._read()

    def close(self) -> None:
        """Let go of the file."""
        self._handle.close()

    def _read(self) -> None:
        self._handle.seek(0)
        text = self._handle.read()
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # the process was killed while it wrote the last line
            self._handle.truncate(len(whole.encode()))
        for number, line in enumerate(whole.split("\n")[:-1], 1):
            try:
                entry = json.loads(line)
                self.lines[entry["key"]] = entry
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise UserError(
                    f"{self.path} line {number} is damaged; remove the file to begin again."
                ) from error

    def key(self, request: tuple[Any, ...]) -> str:
        """The name of a request: lm-eval's pair of messages (as JSON) and generation arguments."""
        return hashlib.sha256(json.dumps([*self._identity, *request]).encode()).hexdigest()

    def add_partial(self, _kind: str, request: tuple[Any, ...], answer: Answer) -> None:
        """Keep an answer. lm-eval calls this, its cache hook, as soon as one arrives."""
        key = self.key(request)
        entry = {
            "key": key,
            "index": self.index_of[key],
            "finish_reason": answer.finish_reason,
            "source": answer.source,
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
            "text": str(answer),
        }
        self._handle.write(json.dumps(entry) + "\n")
        self._handle.flush()
        self.lines[key] = entry

    def counts(self, keys: Iterable[str]) -> dict[str, int]:
        """How the answers to ``keys`` came about: numbers of items, and of tokens."""
        entries = [self.lines[key] for key in keys]
        return {
            "items": len(entries),
            "empty": sum(not e["text"].strip() for e in entries),
            "from_reasoning": sum(e["source"] == "reasoning" for e in entries),
            "truncated": sum(e["finish_reason"] == "length" for e in entries),
            "prompt_tokens": sum(e["prompt_tokens"] or 0 for e in entries),
            "completion_tokens": sum(e["completion_tokens"] or 0 for e in entries),
        }


class RecordedChatCompletions(LocalChatCompletion):  # type: ignore[misc]
    """lm-eval's chat-completions client, which asks only what the record does not hold."""

    def __init__(self, record: Record, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.record = record
        self.set_cache_hook(record)
        self.keys: list[str] = []
        self.prompts_sha256 = ""
        self.resumed = 0

    def parse_generations(self, outputs: Any, **_: Any) -> list[Answer]:
        return [read_reply(out) for out in (outputs if isinstance(outputs, list) else [outputs])]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        self.keys = [self.record.key(request.args) for request in requests]
        for key, request in zip(self.keys, requests, strict=True):
            self.record.index_of[key] = request.doc_id
        prompts = "\n".join(request.args[0].prompt for request in requests)
        self.prompts_sha256 = hashlib.sha256(prompts.encode()).hexdigest()
        left = [
            request
            for key, request in zip(self.keys, requests, strict=True)
            if key not in self.record.lines
        ]
        self.resumed = len(requests) - len(left)
        if self.resumed:
            say(f"{self.resumed} of {len(requests)} items were answered before; going on.")
        if left:
            try:
                super().generate_until(left, disable_tqdm)
            except BaseException:
                for bar in list(tqdm._instances):  # else they are drawn over what is said next
                    bar.close()
                raise
        return [self.record.lines[key]["text"] for key in self.keys]


def say(text: str) -> None:
    """Tell the person at the keyboard."""
    print(f"gsm8k: {text}", file=sys.stderr, flush=True)


def probe(url: str, model: str) -> None:
    """Have the server complete one token, so that nothing is scored on behalf of a dead one.

    Raises:
        UserError: (exit status 1) no server, not this model, or no completion.
    """
    body = {"model": model, "messages": [{"role": "user", "content": "1 + 1 ="}], "max_tokens": 1}
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=PROBE_SECONDS) as response:
            read_reply(json.load(response))
    except urllib.error.HTTPError as error:
        words = " ".join(error.read().decode(errors="replace").split())[:200]
        raise UserError(
            f"The server refused a first request for model {model!r} at {url} "
            f"(HTTP {error.code}: {words}).",
            exit_code=1,
        ) from error
    except (OSError, ValueError, BadReplyError) as error:
        raise UserError(
            f"No live server at {url} ({error}); start it, and run the same command again.",
            exit_code=1,
        ) from error


def evaluate(settings: gsm8k.Gsm8kSettings, url: str, model: str, output: Path) -> None:
    """Evaluate, resume or (when it is finished already) leave the evaluation in ``output``.

    Writes ``answers.jsonl`` as answers come, then lm-eval's ``<model>/results_*.json`` and
    ``<model>/samples_gsm8k_*.jsonl``, and last ``gsm8k.json``, whose presence says it is finished.

    Raises:
        UserError: bad data, another protocol's output, or (exit status 1) a failing server.
        OSError: ``output`` cannot be written.
    """
    summary = output / "gsm8k.json"
    wanted = gsm8k.protocol(settings)
    if summary.exists():
        require_same(wanted, summary)
        say(f"{output} holds this evaluation, finished; nothing to do.")
        return
    endpoint = url.rstrip("/") + gsm8k.ENDPOINT
    probe(endpoint, model)
    output.mkdir(parents=True, exist_ok=True)
    with closing(Record(output / "answers.jsonl", model, settings.seed)) as record:
        tracker = EvaluationTracker(output_path=str(output / ".unfinished"))
        started = time.monotonic()
        lm, results = ask(settings, endpoint, model, record, tracker)
        samples = results.pop("samples")
        table = make_table(results)
        save(tracker, results, samples, output)
        folder = settings.data_folder
        write_json(
            summary,
            {
                "schema": 1,
                "protocol": {**wanted, "prompts_sha256": lm.prompts_sha256},
                "dataset_source": "/".join(gsm8k.HUB_DATASET) if folder is None else str(folder),
                "model": model,
                "url": url,
                "concurrency": settings.concurrency,
                "seconds": round(time.monotonic() - started, 3),
                "resumed": lm.resumed,
                "counts": record.counts(lm.keys),
                "items": gsm8k.items(settings, gsm8k.read_data(folder)),
            },
        )
    print(table)


def require_same(wanted: dict[str, Any], summary: Path) -> None:
    """Raise a UserError unless a finished evaluation followed the protocol that is asked for."""
    try:
        found = json.loads(summary.read_text(encoding="utf-8"))["protocol"]
        changed = [name for name in wanted if wanted[name] != found.get(name)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{summary} is damaged; remove its folder to begin again.") from error
    if changed:
        raise UserError(
            f"{summary.parent} holds a finished evaluation whose {', '.join(changed)} is not what "
            "is asked for now; choose another folder."
        )


def ask(
    settings: gsm8k.Gsm8kSettings,
    endpoint: str,
    model: str,
    record: Record,
    tracker: EvaluationTracker,
) -> tuple[RecordedChatCompletions, dict[str, Any]]:
    """Have lm-eval ask and score every item; returns its client and its results.

    Raises:
        UserError: (exit status 1) a request failed ``max_retries`` times.
    """
    model_args = {
        "model": model,
        "base_url": endpoint,
        "num_concurrent": settings.concurrency,
        "max_retries": settings.max_retries,
        "timeout": settings.timeout,
        "seed": settings.seed,
        "tokenized_requests": False,
    }
    generation: dict[str, Any] = {"max_tokens": settings.max_tokens}
    if settings.chat_template_kwargs is not None:
        generation["chat_template_kwargs"] = dict(settings.chat_template_kwargs)
    folder = settings.data_folder
    lm = RecordedChatCompletions(record, **model_args)
    try:
        results = simple_evaluate(
            model=lm,
            model_args=model_args,
            tasks=["gsm8k"],
            task_manager=TaskManager(
                include_path=gsm8k.TASKS,
                include_defaults=False,
                metadata={"data_path": None if folder is None else str(folder)},
            ),
            num_fewshot=settings.shots,
            limit=settings.limit,
            gen_kwargs=generation,
            apply_chat_template=True,
            fewshot_as_multiturn=True,
            fewshot_random_seed=settings.seed,
            log_samples=True,
            evaluation_tracker=tracker,
        )
    except FAILURES as error:
        reason = str(error) or type(error).__name__
        if isinstance(error, (aiohttp.ClientResponseError, requests.HTTPError)):
            reason += (
                "; its words are above: if they speak of length, lower max_tokens or raise the "
                "server's context"
            )
        raise UserError(
            f"The server failed ({reason}); {len(record.lines)} answers are kept, and the same "
            "command goes on from there.",
            exit_code=1,
        ) from error
    return lm, results


def save(
    tracker: EvaluationTracker, results: dict[str, Any], samples: dict[str, Any], output: Path
) -> None:
    """Have lm-eval write its files aside, check them, and move them into ``output`` whole.

    lm-eval only warns when it cannot write.

    Raises:
        UserError: (exit status 1) the files are missing or short.
    """
    aside = output / ".unfinished"
    shutil.rmtree(aside, ignore_errors=True)
    tracker.save_results_aggregated(results=results, samples=samples)
    tracker.save_results_samples(task_name="gsm8k", samples=samples["gsm8k"])
    lines = [
        line
        for path in aside.glob("*/samples_gsm8k_*.jsonl")
        for line in path.read_text(encoding="utf-8").split("\n")[:-1]
    ]
    if len(list(aside.glob("*/results_*.json"))) != 1 or len(lines) != len(samples["gsm8k"]):
        raise UserError(
            f"lm-eval could not write its results under {output} (is the disk full?); the answers "
            "are kept, and the same command goes on from there.",
            exit_code=1,
        )
    written = next(aside.iterdir())
    shutil.rmtree(output / written.name, ignore_errors=True)
    written.rename(output / written.name)
    aside.rmdir()


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m evals.lm_eval_client",
        description="Evaluate GSM8K on a live OpenAI-compatible server with lm-eval.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    default = gsm8k.Gsm8kSettings()
    add = parser.add_argument
    add("--url", required=True, help="the server's root, e.g. http://127.0.0.1:8000")
    add("--model", required=True, help="the model's name as it is served")
    add("--output", type=Path, default=Path(gsm8k.OUTPUT), help="output folder")
    add("--shots", type=int, default=default.shots, help="worked examples before each question")
    add("--limit", type=int, help="only the first LIMIT test items")
    add("--max-tokens", type=int, default=default.max_tokens, help="most tokens an answer may have")
    add("--concurrency", type=int, default=default.concurrency, help="requests in flight")
    add("--data", type=Path, help="folder with train.jsonl and test.jsonl; else $GSM8K_PATH or hub")
    add("--seed", type=int, default=default.seed, help="draws the examples; sent to the server")
    add("--timeout", type=int, default=default.timeout, help="seconds a request may take")
    add("--max-retries", type=int, default=default.max_retries, help="attempts at a request")
    add("--chat-template-kwargs", type=json.loads, help="JSON for the server's chat template")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns its exit status (see `evals.gsm8k.command`)."""
    arguments = parse(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        settings = gsm8k.Gsm8kSettings(
            shots=arguments.shots,
            limit=arguments.limit,
            max_tokens=arguments.max_tokens,
            concurrency=arguments.concurrency,
            data_path=arguments.data,
            seed=arguments.seed,
            timeout=arguments.timeout,
            max_retries=arguments.max_retries,
            chat_template_kwargs=arguments.chat_template_kwargs,
        )
        evaluate(settings, arguments.url, arguments.model, arguments.output)
    except UserError as error:
        say(str(error))
        return error.exit_code
    except OSError as error:
        say(f"{arguments.output} cannot be written ({error}).")
        return 1
    except KeyboardInterrupt:
        say("interrupted; the answers so far are kept, and the same command goes on from there.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

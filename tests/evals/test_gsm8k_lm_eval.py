"""GSM8K through the real lm-eval, against a chat server in this process whose answers are known."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from lm_eval.loggers import EvaluationTracker

from evals import gsm8k, lm_eval_client
from samenode.errors import UserError

REPOSITORY = Path(__file__).parents[2]
MODEL = "org/tiny"
GOLD = ["18", "3", "70,000", "540", "20", "64", "260", "-160"]

# What the server answers to item 0, 1, … and whether that is right by (strict, flexible):
# strict wants "#### number", flexible takes any number; both the last one, and both forget
# commas, dollars and a closing full stop.
ANSWERS: list[tuple[dict[str, Any], tuple[int, int]]] = [
    ({"content": "16 - 7 = 9\n#### 9 no, again:\n#### 18."}, (1, 1)),
    ({"content": "so it is 3"}, (0, 1)),
    ({"content": "#### 70000"}, (1, 1)),
    ({"content": "#### $540"}, (0, 1)),
    ({"content": "#### 20\nThat was 5 steps."}, (1, 0)),
    ({"content": None, "reasoning_content": "8 * 8\n#### 64"}, (1, 1)),
    ({"content": ""}, (0, 0)),
    ({"content": "#### -16", "finish_reason": "length"}, (0, 0)),
]
STRICT, FLEXIBLE = 4 / 8, 5 / 8


@dataclass
class Reply:
    """One answer of the server: an HTTP status and a body, or no answer at all."""

    status: int = 200
    body: Any = None

    @staticmethod
    def chat(finish_reason: str = "stop", **message: Any) -> Reply:
        choice = {
            "index": 0,
            "finish_reason": finish_reason,
            "message": {"role": "assistant", **message},
        }
        return Reply(
            200, {"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}
        )


class ChatServer(ThreadingHTTPServer):
    """The server's side of chat completions; ``answer`` maps an item's index to a reply."""

    def __init__(self, questions: list[str]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.questions = questions
        self.answer: Callable[[int], Reply] = lambda index: Reply.chat(**ANSWERS[index][0])
        self.asked: list[dict[str, Any]] = []
        self.probes = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def index(self, request: dict[str, Any]) -> int:
        (found,) = [
            i for i, q in enumerate(self.questions) if q in request["messages"][-1]["content"]
        ]
        return found

    @property
    def asked_items(self) -> list[int]:
        return sorted(self.index(request) for request in self.asked)

    def reply(self, request: dict[str, Any]) -> Reply:
        if request["max_tokens"] == 1:
            self.probes += 1
            return Reply.chat(content="2", finish_reason="length")
        self.asked.append(request)
        return self.answer(self.index(request))


class Handler(BaseHTTPRequestHandler):
    server: ChatServer

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        reply = self.server.reply(request)
        data = json.dumps(reply.body).encode()
        try:
            self.send_response(reply.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            pass  # the client was killed

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated GSM8K: nine train items and eight test items with the gold numbers of GOLD."""
    folder = tmp_path_factory.mktemp("data")
    for split, numbers in {"train": [str(n) for n in range(9)], "test": GOLD}.items():
        rows = [
            {"question": f"The {split} question {i}: how many?", "answer": f"Count.\n#### {number}"}
            for i, number in enumerate(numbers)
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def settings(data: Path) -> gsm8k.Gsm8kSettings:
    return gsm8k.Gsm8kSettings(data_path=data, max_tokens=64, max_retries=2, timeout=20)


@pytest.fixture
def server(data: Path) -> Iterator[ChatServer]:
    questions = [row["question"] for row in gsm8k.read_data(data)["test"]]
    with ChatServer(questions) as server:
        yield server
        server.shutdown()


def start(argv: list[str], folder: Path) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(
        argv,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(settings: gsm8k.Gsm8kSettings, server: ChatServer, folder: Path) -> tuple[int, str]:
    """Run the evaluation to its end as a process: exit status and stderr."""
    process = start(gsm8k.command(settings, server.url, MODEL, folder), folder)
    _, stderr = process.communicate(timeout=300)
    return process.returncode, stderr


def run_here(settings: gsm8k.Gsm8kSettings, server: ChatServer, folder: Path) -> int:
    """The same in this process, which has lm-eval loaded already."""
    folder.mkdir(exist_ok=True)
    argv = gsm8k.command(settings, server.url, MODEL, folder)
    assert argv[:3] == [sys.executable, "-m", "evals.lm_eval_client"]
    return lm_eval_client.main(argv[3:])


def wait_for_lines(path: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.02)
    raise AssertionError(f"{path} never had {count} lines")


def summary(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "lm_eval" / "gsm8k.json").read_text(encoding="utf-8")))


def scores(folder: Path) -> dict[str, float]:
    (path,) = (folder / "lm_eval").glob("**/results_*.json")
    return dict(json.loads(path.read_text(encoding="utf-8"))["results"]["gsm8k"])


def samples(folder: Path) -> list[dict[str, Any]]:
    (path,) = (folder / "lm_eval").glob("**/samples_gsm8k_*.jsonl")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_stands_in_only_for_empty_content(field: str) -> None:
    for content in ["", None]:
        answer = lm_eval_client.read_reply(Reply.chat(content=content, **{field: "6"}).body)
        assert (answer, answer.source) == ("6", "reasoning")
    answer = lm_eval_client.read_reply(Reply.chat(content="7", **{field: "6"}).body)
    assert (answer, answer.source) == ("7", "content")


def test_a_whole_evaluation(
    settings: gsm8k.Gsm8kSettings, server: ChatServer, tmp_path: Path
) -> None:
    status, stderr = run(settings, server, tmp_path)
    assert status == 0, stderr
    assert server.probes == 1
    assert server.asked_items == list(range(8))
    assert "8/8" in stderr

    found = scores(tmp_path)
    assert found["exact_match,strict-match"] == STRICT
    assert found["exact_match,flexible-extract"] == FLEXIBLE
    by_item = {(s["doc_id"], s["filter"]): s["exact_match"] for s in samples(tmp_path)}
    assert by_item == {
        (index, name): right[place]
        for index, (_, right) in enumerate(ANSWERS)
        for place, name in enumerate(["strict-match", "flexible-extract"])
    }

    written = summary(tmp_path)
    assert written["counts"] == {
        "items": 8,
        "empty": 1,
        "from_reasoning": 1,
        "truncated": 1,
        "prompt_tokens": 8 * 9,
        "completion_tokens": 8 * 2,
    }
    assert written["resumed"] == 0
    expected = gsm8k.protocol(settings)
    assert {name: written["protocol"][name] for name in expected} == expected
    rows = gsm8k.read_data(settings.data_folder)
    assert written["items"] == gsm8k.items(settings, rows)


def test_the_request_is_five_shot_multi_turn_greedy_chat(
    settings: gsm8k.Gsm8kSettings, server: ChatServer, tmp_path: Path
) -> None:
    thinking = replace(settings, chat_template_kwargs={"thinking": False})
    assert run_here(thinking, server, tmp_path) == 0
    rows = gsm8k.read_data(settings.data_folder)
    prompt = gsm8k.read_task()["doc_to_text"]
    draw = random.Random(1234)  # lm-eval's default sampler: one draw an item, in the items' order
    sent = {server.index(request): request for request in server.asked}
    for index, item in enumerate(rows["test"]):
        turns = []
        for example in draw.sample(rows["train"], 5):
            turns.append(
                {"role": "user", "content": prompt.replace("{{question}}", example["question"])}
            )
            turns.append({"role": "assistant", "content": example["answer"]})
        turns.append({"role": "user", "content": prompt.replace("{{question}}", item["question"])})
        assert sent[index] == {
            "model": MODEL,
            "messages": turns,
            "max_tokens": 64,
            "temperature": 0.0,
            "top_p": 1.0,
            "seed": 1234,
            "stop": ["</s>", "<|im_end|>"],
            "chat_template_kwargs": {"thinking": False},
        }


def test_arms_are_asked_the_same_and_scored_apart(
    settings: gsm8k.Gsm8kSettings, server: ChatServer, tmp_path: Path
) -> None:
    assert run_here(settings, server, tmp_path / "off") == 0
    first, server.asked = server.asked, []
    server.answer = lambda index: Reply.chat(content=f"#### {GOLD[index]}")
    one_by_one = replace(settings, concurrency=1)  # lm-eval then takes another code path
    assert run_here(one_by_one, server, tmp_path / "on") == 0

    def bodies(asked: list[dict[str, Any]]) -> list[str]:
        return sorted(json.dumps(request, sort_keys=True) for request in asked)

    assert bodies(first) == bodies(server.asked)
    off, on = summary(tmp_path / "off"), summary(tmp_path / "on")
    assert off["protocol"] == on["protocol"]
    assert off["items"] == on["items"]
    assert scores(tmp_path / "off")["exact_match,strict-match"] == STRICT
    assert scores(tmp_path / "on")["exact_match,strict-match"] == 1.0


def test_a_limit_takes_the_first_items_with_the_same_prompts(
    settings: gsm8k.Gsm8kSettings, server: ChatServer, tmp_path: Path
) -> None:
    assert run_here(settings, server, tmp_path / "whole") == 0
    whole, server.asked = server.asked, []
    assert run_here(replace(settings, limit=3), server, tmp_path / "short") == 0
    assert server.asked_items == [0, 1, 2]
    assert all(request in whole for request in server.asked)
    assert [item["index"] for item in summary(tmp_path / "short")["items"]] == [0, 1, 2]


def test_a_finished_evaluation_is_not_run_again(
    settings: gsm8k.Gsm8kSettings,
    server: ChatServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_here(settings, server, tmp_path) == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    server.asked, server.probes = [], 0
    assert run_here(settings, server, tmp_path) == 0
    assert (server.asked, server.probes) == ([], 0)
    assert "finished; nothing to do" in capsys.readouterr().err

    assert run_here(replace(settings, max_tokens=65), server, tmp_path) == 2
    assert "whose sampling is not what is asked for now" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_killed_evaluation_goes_on_with_the_items_that_are_left(
    settings: gsm8k.Gsm8kSettings, server: ChatServer, tmp_path: Path
) -> None:
    release = threading.Event()

    def answer(index: int) -> Reply:
        if len(server.asked) > 3:
            release.wait(120)
        return Reply.chat(**ANSWERS[index][0])

    server.answer = answer
    two = replace(settings, concurrency=2)
    process = start(gsm8k.command(two, server.url, MODEL, tmp_path), tmp_path)
    answers = tmp_path / "lm_eval" / "answers.jsonl"
    wait_for_lines(answers, 3)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "lm_eval" / "gsm8k.json").exists()
    assert not list((tmp_path / "lm_eval").glob("**/results_*.json"))
    kept = {json.loads(line)["index"] for line in answers.read_text().splitlines()}
    with answers.open("a") as handle:
        handle.write('{"key": "a line that the kill cut')

    release.set()
    server.asked = []
    server.answer = lambda index: Reply.chat(**ANSWERS[index][0])
    status, stderr = run(two, server, tmp_path)
    assert status == 0, stderr
    assert "3 of 8 items were answered before" in stderr
    assert server.asked_items == sorted(set(range(8)) - kept)
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    assert sorted(line["index"] for line in lines) == list(range(8))
    assert summary(tmp_path)["resumed"] == 3
    assert summary(tmp_path)["counts"]["truncated"] == 1
    assert scores(tmp_path)["exact_match,strict-match"] == STRICT


def test_ctrl_c_keeps_the_answers_and_exits_130(
    settings: gsm8k.Gsm8kSettings, server: ChatServer, tmp_path: Path
) -> None:
    release = threading.Event()

    def answer(index: int) -> Reply:
        if len(server.asked) > 2:
            release.wait(120)
        return Reply.chat(**ANSWERS[index][0])

    server.answer = answer
    process = start(gsm8k.command(settings, server.url, MODEL, tmp_path), tmp_path)
    wait_for_lines(tmp_path / "lm_eval" / "answers.jsonl", 2)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    release.set()
    assert process.returncode == 130
    assert stderr.splitlines()[-1].startswith("gsm8k: interrupted; the answers so far are kept")
    assert "Traceback" not in stderr


def test_a_dead_server_scores_nothing_even_with_every_answer_on_record(
    settings: gsm8k.Gsm8kSettings,
    server: ChatServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_here(settings, server, tmp_path) == 0
    (tmp_path / "lm_eval" / "gsm8k.json").unlink()
    (results,) = (tmp_path / "lm_eval").glob("**/results_*.json")
    results.unlink()
    server.shutdown()
    server.server_close()
    assert run_here(settings, server, tmp_path) == 1
    assert "No live server at http://127.0.0.1:" in capsys.readouterr().err
    assert not (tmp_path / "lm_eval" / "gsm8k.json").exists()
    assert not list((tmp_path / "lm_eval").glob("**/results_*.json"))


def test_a_lost_result_is_made_again_from_the_record_without_asking(
    settings: gsm8k.Gsm8kSettings, server: ChatServer, tmp_path: Path
) -> None:
    assert run_here(settings, server, tmp_path) == 0
    before = scores(tmp_path)
    (tmp_path / "lm_eval" / "gsm8k.json").unlink()  # as if killed just before this last file
    server.asked = []
    assert run_here(settings, server, tmp_path) == 0
    assert server.asked == []
    assert scores(tmp_path) == before
    assert summary(tmp_path)["resumed"] == 8


def test_a_passing_fault_is_tried_again(
    settings: gsm8k.Gsm8kSettings, server: ChatServer, tmp_path: Path
) -> None:
    faults = [Reply(500, {"error": "busy"})]
    server.answer = lambda index: (
        faults.pop() if index == 2 and faults else Reply.chat(**ANSWERS[index][0])
    )
    assert run_here(settings, server, tmp_path) == 0
    assert scores(tmp_path)["exact_match,strict-match"] == STRICT


FAULTS = {
    "500": (Reply(500, {"error": "engine is gone"}), "500"),
    "400": (Reply(400, {"error": "too long"}), "lower max_tokens or raise the server's context"),
    "no-choices": (Reply(200, {"choices": []}), "a reply without a message"),
}


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_failing_server_ends_the_evaluation_and_it_can_go_on(
    settings: gsm8k.Gsm8kSettings,
    server: ChatServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    fault: str,
    concurrency: int,
) -> None:
    reply, sentence = FAULTS[fault]
    settings = replace(settings, concurrency=concurrency)
    server.answer = lambda index: reply if index == 7 else Reply.chat(**ANSWERS[index][0])
    assert run_here(settings, server, tmp_path) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("gsm8k: The server failed (")
    assert sentence in last
    assert not (tmp_path / "lm_eval" / "gsm8k.json").exists()

    server.answer = lambda index: Reply.chat(**ANSWERS[index][0])
    server.asked = []
    assert run_here(settings, server, tmp_path) == 0
    assert 7 in server.asked_items
    assert scores(tmp_path)["exact_match,strict-match"] == STRICT


def test_a_server_that_refuses_the_model_is_told_from_a_dead_one(
    settings: gsm8k.Gsm8kSettings,
    server: ChatServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusal = Reply(404, {"error": {"message": "The model does not exist."}})
    monkeypatch.setattr(server, "reply", lambda request: refusal)
    assert run_here(settings, server, tmp_path) == 1
    message = capsys.readouterr().err
    assert "refused a first request for model 'org/tiny'" in message
    assert "HTTP 404" in message
    assert "The model does not exist." in message
    assert not (tmp_path / "lm_eval").exists()


def test_bad_data_is_one_sentence_and_exit_status_2(
    settings: gsm8k.Gsm8kSettings,
    server: ChatServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    nowhere = replace(settings, data_path=tmp_path / "nowhere")
    assert run_here(nowhere, server, tmp_path / "point") == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert server.probes == 0


def test_an_unreachable_hub_says_how_to_use_a_folder(
    settings: gsm8k.Gsm8kSettings,
    server: ChatServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GSM8K_PATH", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "empty"))
    status, stderr = run(replace(settings, data_path=None), server, tmp_path / "point")
    assert status == 2
    assert "could not be loaded from the hub (openai/gsm8k/main" in stderr
    assert "set GSM8K_PATH to a folder" in stderr
    assert "Traceback" not in stderr


def test_two_evaluations_cannot_write_to_one_folder(
    settings: gsm8k.Gsm8kSettings,
    server: ChatServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "lm_eval").mkdir()
    record = lm_eval_client.Record(tmp_path / "lm_eval" / "answers.jsonl", MODEL, 1234)
    assert run_here(settings, server, tmp_path) == 2
    assert "Another evaluation is writing to" in capsys.readouterr().err
    record.close()


def test_a_damaged_record_or_summary_is_named_and_left_alone(
    settings: gsm8k.Gsm8kSettings,
    server: ChatServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers = tmp_path / "lm_eval" / "answers.jsonl"
    answers.parent.mkdir()
    answers.write_text('{"foreign": 1}\n')
    assert run_here(settings, server, tmp_path) == 2
    assert "answers.jsonl line 1 is damaged; remove the file" in capsys.readouterr().err
    assert answers.read_text() == '{"foreign": 1}\n'
    (answers.parent / "gsm8k.json").write_text("[]")
    assert run_here(settings, server, tmp_path) == 2
    assert "gsm8k.json is damaged" in capsys.readouterr().err


def test_output_that_cannot_be_written_is_noticed(
    settings: gsm8k.Gsm8kSettings,
    server: ChatServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "lm_eval").write_text("a file where the folder should be")
    assert run_here(settings, server, tmp_path) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_a_save_that_lm_eval_only_warns_about_is_an_error(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.write_text("lm-eval cannot make its folder below a file")
    tracker = EvaluationTracker(output_path=str(full / "below"))
    with pytest.raises(UserError, match="lm-eval could not write its results"):
        lm_eval_client.save(tracker, {}, {"gsm8k": []}, tmp_path)


def test_the_model_s_own_solutions_of_the_public_test_split_score_one(tmp_path: Path) -> None:
    folder = Path(os.environ.get("GSM8K_PATH", REPOSITORY.parent / "shared/data/gsm8k"))
    if not (folder / "test.jsonl").exists():
        pytest.skip("the public GSM8K is not here: set GSM8K_PATH to its folder")
    settings = gsm8k.Gsm8kSettings(data_path=folder, limit=200)
    rows = gsm8k.read_data(folder)
    assert (len(rows["train"]), len(rows["test"])) == (7473, 1319)
    with ChatServer([row["question"] for row in rows["test"]]) as server:
        server.answer = lambda index: Reply.chat(content=rows["test"][index]["answer"])
        assert run_here(settings, server, tmp_path) == 0
        server.shutdown()
    found = scores(tmp_path)
    assert found["exact_match,strict-match"] == found["exact_match,flexible-extract"] == 1.0

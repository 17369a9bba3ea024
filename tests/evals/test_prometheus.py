"""Reading a server's /metrics."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from evals.prometheus import Scraper, parse

PAGE = """\
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 100.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 20.0
# TYPE vllm:prompt_tokens_created gauge
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7e+09
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 9.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 4.0
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{engine="0",le="0.3",model_name="m"} 2.0
vllm:e2e_request_latency_seconds_sum{engine="0",model_name="m"} 0.5
vllm:e2e_request_latency_seconds_count{engine="0",model_name="m"} 2.0
# TYPE dsv41:dispatch_total counter
dsv41:dispatch_total{kernel="mono_k1"} 7.0
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation="0"} 5.0
"""


def test_replicas_are_summed_and_other_families_left_out() -> None:
    samples = parse(PAGE)
    assert samples["vllm:prompt_tokens_total"] == 120.0
    assert samples['vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"}'] == 4.0
    assert samples['dsv41:dispatch_total{kernel="mono_k1"}'] == 7.0
    assert not any("python" in name or "bucket" in name or "created" in name for name in samples)


def test_the_course_is_kept_line_by_line_until_the_end(tmp_path: Path) -> None:
    class Handler(BaseHTTPRequestHandler):
        count = 0

        def do_GET(self) -> None:
            Handler.count += 1
            failing = Handler.count == 2
            self.send_response(500 if failing else 200)
            self.end_headers()
            self.wfile.write(f"# TYPE vllm:n counter\nvllm:n_total {Handler.count}\n".encode())

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    path = tmp_path / "prometheus.jsonl"
    began = time.time_ns()
    with Scraper(f"http://127.0.0.1:{server.server_port}", path, interval_s=0.1):
        time.sleep(0.55)
    server.shutdown()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    values = [line["samples"]["vllm:n_total"] for line in lines]
    assert values[0] == 1 and 2 not in values and values == sorted(values) and len(values) >= 4
    assert began <= lines[0]["t_ns"] <= lines[-1]["t_ns"] <= time.time_ns()
    # The last scrape comes after the end was asked for: it closes the window.
    assert lines[-1]["t_ns"] - began >= 0.5e9

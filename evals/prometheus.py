"""Read a server's Prometheus counters once a second while a point runs.

The profiling window's ends are known only afterwards, from the client's records, so the whole
course is kept and the two scrapes around the window are chosen then.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

FAMILIES = ("vllm:", "dsv41")
"""Prefixes of the metric names that are kept: the server's own and the kernel plugin's."""
SUMMED_AWAY = {"engine", "model_name"}


def parse(page: str) -> dict[str, float]:
    """The counters and gauges of a ``/metrics`` page, by ``name{label="value",…}``.

    Histogram buckets are left out. The labels ``engine`` and ``model_name`` are summed over, so
    that data-parallel replicas count as one server.
    """
    lines = [
        line
        for line in page.splitlines()
        if line.removeprefix("# TYPE ").startswith(FAMILIES) and "_bucket{" not in line
    ]
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            labels = sorted((k, v) for k, v in sample.labels.items() if k not in SUMMED_AWAY)
            inside = ",".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in labels)
            key = f"{sample.name}{{{inside}}}" if inside else sample.name
            if not sample.name.endswith("_created"):
                samples[key] = samples.get(key, 0.0) + sample.value
    return samples


class Scraper:
    """A thread that appends one line a second to ``path``: ``{"t_ns": …, "samples": {…}}``.

    A scrape that fails is left out: the gap shows in the file, and the point's watch finds a dead
    server by itself.
    """

    def __init__(self, url: str, path: Path, interval_s: float = 1.0) -> None:
        self._url = f"{url}/metrics"
        self._path = path
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="prometheus", daemon=True)

    def __enter__(self) -> Scraper:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def _loop(self) -> None:
        with httpx.Client(timeout=5) as http, self._path.open("a", encoding="utf-8") as out:
            due = time.monotonic()
            last = False
            while True:
                try:
                    now = time.time_ns()
                    page = http.get(self._url)
                    page.raise_for_status()
                    out.write(json.dumps({"t_ns": now, "samples": parse(page.text)}) + "\n")
                    out.flush()
                except (httpx.HTTPError, OSError, ValueError):
                    pass
                if last:
                    return
                due += self._interval_s
                last = self._stop.wait(max(0.0, due - time.monotonic()))

"""A few real steps as a Chrome trace, for ui.perfetto.dev or chrome://tracing: the timeline of the page, in full."""

import json
from collections.abc import Iterator
from typing import Any

from stoker.records.attributed import Excerpt

PROCESS = 1
MICRO = 1e6


def dumps(excerpt: Excerpt, run: str) -> str:
    """JSON in Chrome's trace format: a lane is a thread, a batch on its way is a flow."""
    return json.dumps({
        "displayTimeUnit": "ms",
        "otherData": {"run": run, "first_step": excerpt.first_step, "steps": excerpt.steps},
        "traceEvents": [*_names(excerpt, run), *_spans(excerpt), *_flows(excerpt)],
    })  # fmt: skip


def _names(excerpt: Excerpt, run: str) -> Iterator[dict[str, Any]]:
    yield _meta("process_name", 0, {"name": f"stoker {run}"})
    for number, lane in enumerate(excerpt.lanes):
        yield _meta("thread_name", number, {"name": lane})
        yield _meta("thread_sort_index", number, {"sort_index": number})


def _meta(name: str, thread: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": PROCESS, "tid": thread, "args": arguments}


def _spans(excerpt: Excerpt) -> Iterator[dict[str, Any]]:
    threads = {lane: number for number, lane in enumerate(excerpt.lanes)}
    for span in excerpt.spans:
        yield {
            "ph": "X",
            "name": span.name,
            "cat": span.lane,
            "pid": PROCESS,
            "tid": threads[span.lane],
            "ts": round((excerpt.start_s + span.start_s) * MICRO, 3),
            "dur": round((span.end_s - span.start_s) * MICRO, 3),
            "args": {"step": span.step},
        }


def _flows(excerpt: Excerpt) -> Iterator[dict[str, Any]]:
    threads = {lane: number for number, lane in enumerate(excerpt.lanes)}
    inside = 1.0  # microseconds before the end of the span that a flow belongs to
    for join in excerpt.joins:
        flow = {"name": "batch", "cat": "batch", "id": join.step, "pid": PROCESS}
        made, taken = ((excerpt.start_s + at_s) * MICRO - inside for at_s in (join.made_s, join.taken_s))
        yield {**flow, "ph": "s", "tid": threads[join.lane], "ts": round(made, 3)}
        waited = {"waited_s": join.wait_s}
        yield {**flow, "ph": "f", "bp": "e", "tid": threads["main thread"], "ts": round(taken, 3), "args": waited}

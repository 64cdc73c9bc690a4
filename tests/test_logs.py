"""Logs of what runs do: ids, names and numbers, in lines of JSON, without content."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from counterfoil import ToolError, tool
from counterfoil.core.errors import StoreError
from counterfoil.doors.cli.logs import Form, JsonLines, logging_as
from counterfoil.observers.runlog import RunLog
from counterfoil.testing import call, say
from tests.helpers import agent, both, counted, fine, go


@tool
def lookup(word: str) -> str:
    """Fails."""
    raise ToolError(f"no {word}", code=404)


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@both
def test_a_run_is_logged_with_ids_and_outcomes_and_without_a_word_of_anybody(place, capsys):
    pay, _ = counted("pay", needs_approval=True)
    first = [
        call("fine", id="f"), call("lookup", word="secret-input", id="l"), call("secret-tool", id="n"),
        call("pay", id="p"),
    ]  # fmt: skip  # one row
    desk = agent([first, say("secret-answer")], fine, lookup, pay)

    async def main():
        runtime = place.runtime(desk)
        RunLog(runtime)
        with logging_as(Form.JSON):
            async with runtime:
                run = await (await runtime.start("desk", "secret-prompt")).wait()
                await run.reject("p", by="grace", reason="secret-reason")
                return (await run.wait()).id

    run = go(main())
    seen = [line for line in lines(capsys) if line["logger"] == "counterfoil.runs"]
    assert "secret" not in json.dumps(seen)
    assert {line["runId"] for line in seen} == {run}
    calls = {line["callId"]: (line["tool"], line["outcome"], line["code"]) for line in seen if "outcome" in line}
    assert calls == {
        "f": ("fine", "succeeded", None), "l": ("lookup", "failed", 404), "n": ("(unknown)", "failed", 4001),
        "p": ("pay", "rejected", None),
    }  # fmt: skip  # a table
    assert [line["message"].removeprefix(f"run {run} ") for line in seen if line["message"].startswith("run")] == [
        "began, agent desk", "pauses for 1 calls", "goes on, agent desk", "ended, status completed by answer",
    ]  # fmt: skip  # one row
    assert [line["decision"] for line in seen if "decision" in line] == ["reject"]
    assert all(line["level"] == "INFO" and line["time"].endswith("+00:00") for line in seen)


def formatted(message, *args, name="counterfoil", error=None):
    info = None
    if error is not None:
        try:
            raise error
        except type(error):
            info = sys.exc_info()
    return json.loads(JsonLines().format(logging.LogRecord(name, logging.WARNING, "x.py", 1, message, args, info)))


def test_a_value_that_has_no_field_is_left_out_where_it_is_a_text():
    told = formatted("lock %s of tenant %s, run %s: %d of 100%% in %.1f s", "order:secret", "acme", "r1", 3, 0.25)
    assert told["message"] == "lock … of tenant …, run r1: 3 of 100% in 0.2 s"
    assert told["runId"] == "r1"
    path = formatted("%s %s %d, request %s", "GET", "/v1/runs", 200, "q1", name="counterfoil.http")
    assert (path["message"], path["requestId"]) == ("GET /v1/runs 200, request q1", "q1")
    assert formatted("Started server process [%d]", 7, name="uvicorn.error")["message"] == "Started server process [7]"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("secret"), None),
        (StoreError("database is locked"), "database is locked"),
        (ConnectionError("refused"), "refused"),
    ],
)
def test_an_exception_has_its_class_and_place_and_its_message_where_that_is_no_content(error, message):
    told = formatted("run %s failed", "r1", error=error)["error"]
    assert (told["type"].rpartition(".")[2], told["message"]) == (type(error).__name__, message)
    assert told["at"][-1].startswith(__file__)
    assert told["at"][-1].endswith(" formatted")


def test_logging_is_as_it_was_afterwards():
    log = logging.getLogger("counterfoil")
    before = (log.handlers[:], log.level, log.propagate)
    for form in (Form.JSON, Form.TEXT, None):
        with logging_as(form):
            assert form is None or (log.level, log.propagate) == (logging.INFO, False)
        assert (log.handlers, log.level, log.propagate) == before


def test_text_goes_to_standard_error(capsys):
    with logging_as(Form.TEXT):
        logging.getLogger("counterfoil.runs").info("run %s began, agent %s", "r1", "desk")
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.endswith("INFO run r1 began, agent desk\n")

"""What the gateway says of a call before any body runs, seen through the public interface."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from counterfoil import (
    Change,
    Denied,
    ErrorCode,
    Hooks,
    Limits,
    Policy,
    Rejected,
    Rule,
    Run,
    Skip,
    Skipped,
    Succeeded,
    ToolContext,
    ToolResult,
    tool,
)
from counterfoil.testing import call, say
from tests.boundary import go, until
from tests.marks import case, law

ran: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_ran():
    ran.clear()


@tool
def look(word: str, times: int = 1) -> str:
    """Look a word up."""
    ran.append((word, times))
    return f"{word} x{times}"


@tool
def empty() -> str:
    """Takes nothing."""
    ran.append("empty")
    return "ran with nothing"


def refused(seen: Any, code: ErrorCode) -> str:
    """Check that the gateway refused the one call, and nothing ran; the model's text."""
    assert not ran
    part = seen.part
    assert (seen.failure.code, seen.failure.origin, seen.failure.body) == (code, "gateway", "not_started")
    assert seen.failure.retryable is False
    assert (part.attempt, part.started_at, part.duration_ms) == (None, None, None)
    assert part.author.type == "System"
    assert part.output == {"error": {"code": int(code), "name": code.name, "message": seen.read}}
    assert seen.report.code == code == part.error_code
    assert seen.report.model_text == seen.read
    assert "Nothing ran" in seen.read
    return seen.read


# ------------------------------------------------------------------------------------------ the code rows


@law("3.4000")
@case("R125", "R127")
@pytest.mark.parametrize(
    "raw", ['{"word": "a', '["a"]', '"a"', "7", '{"word": "a"} {', "{'word': 'a'}", '{"times": NaN}', "}{"]
)
def test_arguments_that_are_no_json_object_are_4000_and_are_not_repaired(raw):
    seen = go([look], call("look", raw=raw))
    refused(seen, ErrorCode.INVALID_JSON)
    assert seen.report.input == raw


@law("3.4000")
@case("R119")
@pytest.mark.parametrize("raw", ["", "  \n", None, "null", "{}"])
def test_empty_arguments_and_null_count_as_an_empty_object(raw):
    seen = go([empty], call("empty", raw=raw))
    assert seen.outcome == Succeeded()
    assert seen.run.calls[0].input == {}


@law("3.4001")
@case("R092")
def test_an_unknown_tool_is_4001_and_close_names_are_named():
    seen = go([look, empty], call("lok", word="a"))
    text = refused(seen, ErrorCode.UNKNOWN_TOOL)
    assert "no tool named lok" in text
    assert "look" in text
    assert "empty" not in text
    assert seen.report.tool_name == seen.part.tool_name == "lok"


@law("3.4001")
def test_an_unknown_name_that_is_close_to_none_is_told_all_tools():
    text = refused(go([look, empty], call("zzzzzz")), ErrorCode.UNKNOWN_TOOL)
    assert "look" in text
    assert "empty" in text


@law("3.4001")
def test_a_name_of_a_megabyte_does_not_come_back_whole():
    seen = go([look], call("x" * 1_000_000))
    assert len(refused(seen, ErrorCode.UNKNOWN_TOOL)) < 1000
    assert len(seen.report.tool_name) == 1_000_000


@case("R092")
def test_a_made_up_name_fails_alone_and_the_loop_goes_on():
    seen = go([look], [call("look", word="a"), call("invented"), call("look", word="b")])
    assert [p.failed for p in seen.results] == [False, True, False]
    assert seen.reads[0] == "a x1"
    assert seen.reads[2] == "b x1"
    assert (seen.run.status, seen.run.answer) == ("completed", "done")


@law("3.4002")
def test_a_tool_that_was_not_offered_in_this_turn_is_4002():
    open_hours: list[bool] = [False, True]

    @tool(offered=lambda: open_hours.pop(0))
    def shop() -> str:
        ran.append("shop")
        return "sold"

    seen = go([look, shop], call("shop"))
    assert "not available" in refused(seen, ErrorCode.NOT_OFFERED)
    first, second = seen.model.requests
    assert [t["name"] for t in first.tools] == ["look"]
    assert [t["name"] for t in second.tools] == ["look", "shop"]


@law("3.4002")
def test_a_function_that_offers_is_asked_with_the_context_of_the_turn():
    asked: list[tuple[Any, ...]] = []

    async def offered(ctx: ToolContext[Any]) -> bool:
        asked.append((ctx.caller.tenant, ctx.run_id, ctx.step_index))
        return True

    seen = go([tool(offered=offered)(lambda_named("sell"))], call("sell"))
    assert seen.outcome == Succeeded()
    assert [a[0] for a in asked] == ["default", "default"]
    assert {a[1] for a in asked} == {seen.run.id}


def lambda_named(name: str) -> Callable[[], str]:
    def fn() -> str:
        ran.append(name)
        return name

    fn.__name__ = name
    return fn


@law("3.4002")
def test_a_function_that_offers_and_raises_ends_the_run_and_offers_nothing():
    def offered() -> bool:
        raise LookupError("no calendar")

    seen = go([tool(offered=offered)(lambda_named("sell"))], call("sell"))
    assert (seen.run.status, seen.run.ended_by) == ("failed", "error")
    assert "LookupError: no calendar" in str(seen.run.reason)
    assert not seen.model.requests


@law("3.4003", "4.schema")
@case("R163", "R122")
def test_what_the_schema_refuses_is_4003_and_the_complaint_reaches_the_model_whole():
    raw = '{"times": "seven", "path": "x"}'
    seen = go([look], call("look", raw=raw))
    text = refused(seen, ErrorCode.INVALID_INPUT)
    assert "times: expected an integer, got 'seven' (a string)" in text
    assert "word: expected" in text
    assert "nothing (it is missing)" in text
    assert "path: expected no such field; the fields are: word, times" in text
    assert seen.report.input == raw


@law("3.4081")
def test_nobody_decided_in_time_is_4081_for_that_call_alone():
    @tool(needs_approval=True)
    def pay(cents: int) -> str:
        ran.append(cents)
        return "paid"

    async def wait_out(run: Run) -> None:
        await until(lambda: run.status != "paused")

    seen = go(
        [pay, look], [call("pay", cents=5), call("look", word="a")], limits=Limits(approval_seconds=0.02), then=wait_out
    )
    expired, fine = seen.results
    assert seen.run.calls[0].approval is not None
    assert ran == [("a", 1)]
    assert fine.result.outcome == Succeeded()
    failure = expired.result.outcome.failure  # type: ignore[union-attr]
    assert (failure.code, failure.retryable, failure.body) == (4081, False, "not_started")
    assert "nobody decided in time" in seen.reads[0]
    assert (seen.report.code, seen.report.input) == (4081, {"cents": 5})
    assert seen.run.answer == "done"


@law("3.4290")
def test_a_call_beyond_the_budget_of_calls_is_4290():
    seen = go([look], [call("look", word="a"), call("look", word="b")], limits=Limits(calls=1))
    assert ran == [("a", 1)]
    failed = seen.results[1].result
    assert failed.outcome.failure.code == ErrorCode.LIMIT_REACHED  # type: ignore[union-attr]
    assert "1 tool calls" in failed.model_output
    assert "Nothing ran" in failed.model_output
    assert seen.report.input == {"word": "b", "times": 1}
    assert (seen.run.status, seen.run.ended_by) == ("limited", "limit")


def guards(*functions: Any) -> list[Hooks]:
    return [Hooks(before_call=list(functions))]


def raises(_: object) -> None:
    raise OSError("/etc/secret is missing")


def leaves(_: object) -> None:
    raise asyncio.CancelledError


async def leaves_later(_: object) -> None:
    raise asyncio.CancelledError


class Unsayable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raises_unsayable(_: object) -> None:
    raise Unsayable


JUNK = {
    "raises": raises,
    "raises what cannot be said": raises_unsayable,
    "raises CancelledError": leaves,
    "raises CancelledError later": leaves_later,
    "gives junk": lambda _: "fine",
    "gives False": lambda _: False,
    "gives a result": lambda _: ToolResult.text("forged"),
    "gives a Change of nothing": lambda _: Change(),
    "gives a Change for after the call": lambda _: Change(content="x"),
    "gives a Change for both": lambda _: Change(input={"word": "b"}, content="x"),
    "gives an input that the schema refuses": lambda _: Change(input={"word": 7}),
    "gives an input that is no object": lambda _: Change(input=["b"]),
    "gives an input that is no JSON": lambda _: Change(input={"word": object()}),  # type: ignore[dict-item]
}


@law("3.5002")
@case("R086", "R169")
@pytest.mark.parametrize("guard", JUNK.values(), ids=JUNK)
def test_a_guard_that_does_not_answer_as_it_should_refuses_the_call(guard):
    seen = go([look], call("look", word="a"), hooks=guards(guard))
    text = refused(seen, ErrorCode.GUARD_ERROR)
    assert "secret" not in text
    assert seen.report.input == {"word": "a", "times": 1}
    assert isinstance(seen.report.error, BaseException)


@law("3.5002")
@case("R086")
def test_a_guard_that_hangs_refuses_the_call_even_if_it_takes_no_cancel(monkeypatch):
    monkeypatch.setattr("counterfoil.judge.GUARD_SECONDS", 0.01)
    let_go = asyncio.Event()

    async def hangs(_: object) -> None:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    seen = go([look], call("look", word="a"), lambda _: (let_go.set(), say("stopped"))[1], hooks=guards(hangs))
    refused(seen, ErrorCode.GUARD_ERROR)
    assert isinstance(seen.report.error, TimeoutError)


@law("3.5003")
@case("R086")
@pytest.mark.parametrize("answer", [raises, raises_unsayable, leaves, lambda *_: None, lambda *_: "yes", lambda *_: 1])
def test_a_function_needs_approval_that_does_not_answer_refuses_the_call(answer):
    @tool(needs_approval=lambda _, given: answer(given))
    def pay(cents: int) -> str:
        ran.append(cents)
        return "paid"

    seen = go([pay], call("pay", cents=5))
    assert "secret" not in refused(seen, ErrorCode.POLICY_ERROR)
    assert seen.report.input == {"cents": 5}
    if answer is raises:
        assert isinstance(seen.report.error, OSError)


@law("3.5003")
def test_a_policy_that_cannot_be_evaluated_refuses_the_call():
    rules = [Rule("broken", "allow", when="input.nothing == 1")]
    seen = go([look], call("look", word="a"), policy=Policy(rules))
    refused(seen, ErrorCode.POLICY_ERROR)
    assert seen.run.calls[0].decision["rule"] == "broken"  # type: ignore[index,call-overload]


def test_a_function_needs_approval_sees_context_and_input_and_decides_call_by_call():
    asked: list[Any] = []

    async def needs(ctx: ToolContext[Any], given: dict[str, int]) -> bool:
        asked.append((ctx.call_id, ctx.attempt, given))
        return given["cents"] > 100

    @tool(needs_approval=needs)
    def pay(cents: int) -> str:
        ran.append(cents)
        return "paid"

    seen = go([pay], [call("pay", cents=5, id="small"), call("pay", cents=500, id="large")])
    assert ran == [5]
    assert seen.run.status == "paused"
    assert asked == [("small", 0, {"cents": 5}), ("large", 0, {"cents": 500})]


# ---------------------------------------------------------------------------------------------- the order


@law("3.judge-order")
@pytest.mark.parametrize(
    ("name", "raw", "code"),
    [
        ("unknown", "{", 4000),  # parsed before it is found
        ("unknown", '{"a": 1}', 4001),  # found before it is validated
        ("hidden", "{", 4000),
        ("hidden", '{"a": 1}', 4002),  # offered before it is validated
        ("watched", "{}", 4003),  # validated before the guards
        ("watched", '{"word": "guard"}', 5002),  # guarded before policy
        ("watched", '{"word": "policy"}', 5003),  # judged before the limits
    ],
)
def test_each_step_of_judging_comes_before_the_next(name, raw, code):
    @tool
    def watched(word: str) -> str:
        ran.append(word)
        return word

    hidden = tool(offered=lambda: False)(lambda_named("hidden"))

    def guard(before: Any) -> None:
        if before.input["word"] == "guard":
            raise ValueError

    rules = [Rule("broken", "allow", when="input.nothing == 1")]
    limits = Limits(calls=0)
    seen = go([watched, hidden], call(name, raw=raw), hooks=guards(guard), policy=Policy(rules), limits=limits)
    assert (seen.report.code, ran) == (code, [])


@law("3.judge-order")
def test_an_approval_comes_before_the_limits():
    @tool(needs_approval=True)
    def pay(cents: int) -> str:
        ran.append(cents)
        return "paid"

    async def approve(run: Run) -> None:
        assert run.status == "paused"
        await run.approve(run.calls[0].call_id, by="grace")

    seen = go([pay], call("pay", cents=5), limits=Limits(calls=0), then=approve)
    assert (seen.report.code, ran) == (4290, [])
    assert seen.run.status == "limited"


@law("3.judge-order", "3.no-rewrite")
def test_guards_run_in_order_each_on_what_the_one_before_made_and_policy_judges_the_last():
    judged: list[object] = []

    def rule(facts: Any) -> bool:
        judged.append(facts.input)
        return True

    inputs: list[object] = []

    def louder(before: Any) -> Change:
        inputs.append(before.input)
        return Change(input={"word": before.input["word"] + "!"})

    policy = Policy([Rule("all", "allow", when=rule)])
    seen = go([look], call("look", word="a"), hooks=guards(louder, louder), policy=policy)
    assert inputs == [{"word": "a", "times": 1}, {"word": "a!", "times": 1}]
    assert judged == [{"word": "a!!", "times": 1}]
    assert ran == [("a!!", 1)]
    part = seen.run.calls[0]
    assert part.raw_input == '{"word":"a"}'
    assert part.input == {"word": "a", "times": 1}
    assert part.effective_input == {"word": "a!!", "times": 1}


@law("3.no-rewrite")
def test_what_a_guard_or_a_rule_does_to_the_input_that_it_sees_changes_nothing():
    def spoils(before: Any) -> None:
        before.input["word"] = "spoilt"

    def rule(facts: Any) -> bool:
        facts.input["word"] = "spoilt"
        return True

    seen = go([look], call("look", word="a"), hooks=guards(spoils), policy=Policy([Rule("r", "allow", when=rule)]))
    assert ran == [("a", 1)]
    assert seen.run.calls[0].effective_input == {"word": "a", "times": 1}


REFUSALS = {
    "denied": {"policy": Policy([Rule("no", "deny")])},
    "not to be judged": {"policy": Policy([Rule("no", "deny", when="input.nothing")])},
    "limited": {"limits": Limits(calls=0)},
    "passed over": {"skips": True},
}


@law("3.no-rewrite")
@pytest.mark.parametrize("options", REFUSALS.values(), ids=REFUSALS)
def test_both_versions_of_a_changed_input_stay_on_record_also_when_the_call_is_refused(options):
    options = dict(options)
    more = [lambda _: Skip("no")] if options.pop("skips", False) else []
    hooks = guards(lambda _: Change(input={"word": "b"}), *more)
    seen = go([look], call("look", word="a"), hooks=hooks, **options)
    part = seen.run.calls[0]
    assert (part.input, part.effective_input) == ({"word": "a", "times": 1}, {"word": "b", "times": 1})
    assert all(r.input == {"word": "b", "times": 1} for r in seen.handled)


@law("3.resume-no-guard")
def test_resuming_an_approved_call_runs_no_guard_again():
    guarded: list[object] = []

    def guard(before: Any) -> Change:
        guarded.append(before.input)
        return Change(input={"cents": before.input["cents"] + 1})

    @tool(needs_approval=True)
    def pay(cents: int) -> str:
        ran.append(cents)
        return "paid"

    async def approve(run: Run) -> None:
        (waiting,) = await run.approvals()
        assert (waiting.input, waiting.effective_input) == ({"cents": 5}, {"cents": 6})
        await run.approve(waiting.call_id, by="grace")

    seen = go([pay], call("pay", cents=5), hooks=guards(guard), then=approve)
    assert (guarded, ran) == ([{"cents": 5}], [6])
    assert seen.outcome == Succeeded()


# ------------------------------------------------------------------------------- guards, policies, people


@law("1.1.Skipped", "1.3.never", "source.003.skipped")
def test_a_guard_passes_a_call_over_by_its_name_and_the_text_says_that_nothing_ran():
    def holiday(_: object) -> Skip:
        return Skip("the shop is closed")

    seen = go([look], call("look", word="a"), hooks=guards(holiday))
    assert seen.outcome == Skipped("the shop is closed", "holiday")
    assert (seen.part.result.is_error, seen.part.result.executed, seen.part.skipped) == (False, False, True)
    assert "Nothing ran" in seen.read
    assert "the shop is closed" in seen.read
    assert (ran, seen.handled, seen.stored) == ([], [], [])
    assert seen.part.author.type == "System"


@law("1.1.Denied", "1.3.never", "source.000.denied")
def test_a_policy_denies_with_rule_and_reason_and_it_is_no_failure():
    policy = Policy([Rule("quiet", "deny", reason="Not at night.")])
    seen = go([look], call("look", word="a"), policy=policy)
    assert seen.outcome == Denied("policy", "quiet", "Not at night.")
    assert (seen.part.denied, seen.part.failed, seen.part.result.executed) == (True, False, False)
    assert seen.part.output == seen.read
    assert "Not at night." in seen.read
    assert (ran, seen.handled, seen.stored) == ([], [], [])


@law("4.rejection", "1.1.Rejected", "1.3.never", "source.000.rejected")
@pytest.mark.parametrize("reason", ["Not this month.", None])
def test_a_rejection_says_that_a_person_refused_why_and_not_to_try_again(reason):
    pay = tool(needs_approval=True)(lambda_named("pay"))

    async def reject(run: Run) -> None:
        await run.reject(run.calls[0].call_id, by="grace", reason=reason)

    seen = go([pay], call("pay"), then=reject)
    assert seen.outcome == Rejected(reason, "grace")
    assert "person refused" in seen.read
    assert "Nothing ran" in seen.read
    assert (reason or "No reason was given.") in seen.read
    assert "Do not try the same call again" in seen.read
    assert (seen.part.rejected, seen.part.author.type, seen.part.author.name) == (True, "Human", "grace")
    assert (ran, seen.handled, seen.stored) == ([], [], [])


@law("4.rejection")
def test_with_repeat_block_the_very_call_that_a_person_refused_is_refused_and_another_is_asked_for():
    @tool
    def pay(cents: int) -> str:
        ran.append(cents)
        return "paid"

    async def decide(run: Run) -> None:
        await run.reject(run.calls[0].call_id, by="grace")
        await run.wait(60)
        assert [a.effective_input for a in await run.approvals()] == [{"cents": 6}]
        await run.approve(run.calls[2].call_id, by="grace")

    turns = [call("pay", cents=5)], [call("pay", cents=5), call("pay", cents=6)]
    seen = go([pay], *turns, policy=Policy([Rule("ask", "ask")], repeat_block=True), then=decide)
    assert ran == [6]
    assert seen.results[1].result.outcome == Denied("policy", "repeat_block", "a person refused this very call before")
    assert "Do not try it again" in seen.reads[1]
    assert "Nothing ran" in seen.reads[1]


@case("R088")
def test_forty_calls_at_once_are_all_decided_by_a_slow_policy():
    waiting, release = [0], asyncio.Event()

    async def slow(_: object) -> bool:
        waiting[0] += 1
        if waiting[0] == 40:
            release.set()
        await release.wait()
        return True

    calls = [call("look", word=str(n)) for n in range(40)]
    seen = go([look], calls, policy=Policy([Rule("slow", "allow", when=slow)]))
    assert sorted(int(w) for w, _ in ran) == list(range(40))
    assert all(p.result.outcome == Succeeded() for p in seen.results)
    assert {c.decision["rule"] for c in seen.run.calls} == {"slow"}  # type: ignore[index,call-overload]


@case("R086", "R088")
def test_a_policy_that_is_too_slow_denies_each_of_forty_calls_and_none_runs():
    async def never(_: object) -> bool:
        await asyncio.Event().wait()
        return True

    calls = [call("look", word=str(n)) for n in range(40)]
    policy = Policy([Rule("slow", "allow", when=never)], seconds=0.02)
    seen = go([look], calls, policy=policy)
    assert ran == []
    assert [r.code for r in seen.handled] == [5003] * 40


# ---------------------------------------------------------------------------------- what was asked before


@case("R128")
def test_an_id_that_comes_again_in_a_later_turn_is_a_call_with_an_id_of_ours():
    seen = go([look], call("look", word="a", id="c1"), call("look", word="a", id="c1"))
    first, second = seen.run.calls
    assert (first.call_id, second.provider_call_id) == ("c1", "c1")
    assert second.call_id != "c1"
    assert ran == [("a", 1), ("a", 1)]


@case("R124")
def test_every_digit_of_a_large_integer_reaches_the_body_and_the_record():
    @tool
    def find(number: int) -> int:
        ran.append(number)
        return number

    raws = ('{"number": 2512292042121000001}', '{"number": "9007199254740993"}')
    seen = go([find], [call("find", raw=raw) for raw in raws])
    assert sorted(ran) == [9007199254740993, 2512292042121000001]
    assert seen.reads == ["2512292042121000001", "9007199254740993"]
    assert json.dumps(seen.run.calls[0].input) == '{"number": 2512292042121000001}'


@case("R121")
@pytest.mark.parametrize("text", ['{"a":1}', "[1]", "12", "null", "\ud83c\udf78"])
def test_a_text_that_holds_json_arrives_as_that_text(text):
    @tool
    def note(body: str | None) -> str:
        ran.append(body)
        return "noted"

    go([note], call("note", raw=json.dumps({"body": text})))
    assert ran == [text.encode("utf-16", "surrogatepass").decode("utf-16")]


@case("R179")
def test_a_default_is_filled_in_by_us_when_the_model_leaves_it_out_or_says_null():
    go([look], [call("look", word="a"), call("look", raw='{"word": "b", "times": null}')])
    assert sorted(ran) == [("a", 1), ("b", 1)]

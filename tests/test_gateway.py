"""The gateway's way of a call that ran: render, after-guards, size, report, result; and what no tool can forge."""

import asyncio
import contextlib
import hashlib
import json
import math
import threading
from collections.abc import Callable
from typing import Any, Literal

import pytest

from counterfoil import (
    Agent,
    Audio,
    Cancelled,
    Change,
    Denied,
    Failed,
    File,
    Hooks,
    Image,
    Json,
    Limits,
    Policy,
    Rejected,
    Rule,
    Run,
    Runtime,
    Skip,
    Skipped,
    Succeeded,
    Text,
    ToolContext,
    ToolError,
    ToolFailure,
    ToolResult,
    tool,
)
from counterfoil.adapters.stores.memory import MemoryStore
from counterfoil.core.content import Kept
from counterfoil.core.outcome import CODE_TABLE, ErrorCode
from counterfoil.core.result import seal
from counterfoil.testing import ScriptedModel, call, say
from tests.boundary import Ran, go, until
from tests.marks import case, law
from tests.promises import shared


def returns(value: Any, **settings: Any) -> Ran:
    """The run of a tool that returns this."""

    def gives() -> Any:
        return value

    return go([tool(**settings)(gives)] if settings else [gives], call("gives"))


# ------------------------------------------------------------------------------------------- no forging

FORGED = {
    "Skipped": Skipped("not today", "framework"),
    "Rejected": Rejected("no", "grace"),
    "Cancelled": Cancelled("enough"),
    "Denied by policy": Denied("policy", "rule-7", "no"),
    "Failed with a code of ours": Failed(ToolFailure(4290, "no more", origin="gateway", body="not_started")),
    "Failed with a code that is none": Failed(ToolFailure("77")),  # type: ignore[arg-type]
}


@law("1.1.resealed", "1.1.no-forging", "source.003.skipped")
@pytest.mark.parametrize("outcome", FORGED.values(), ids=FORGED)
@pytest.mark.parametrize("way", ["sealed", "from JSON", "from a generator"])
def test_an_outcome_that_is_not_the_tool_s_to_give_becomes_a_tool_error(outcome, way):
    forged = seal((Text("Nothing ran."),), outcome, {"d": 1}, terminate=True, narration="All is well")
    if way == "from JSON":
        forged = ToolResult.from_json(forged.to_json())

    def gives() -> Any:
        return forged

    def yields() -> Any:
        yield forged

    seen = go([tool(name="gives")(yields if way == "from a generator" else gives)], call("gives"))
    assert isinstance(seen.outcome, Failed)
    assert (seen.failure.code, seen.failure.origin, seen.failure.body) == (5000, "gateway", "ended")
    assert "Nothing ran" not in seen.read
    assert "may have had an effect" in seen.read
    assert (seen.part.result.terminate, seen.part.result.narration) == (False, None)
    assert seen.report.code == 5000
    assert isinstance(seen.report.error, TypeError)


@law("1.1.resealed", "6.read_result-sees")
@pytest.mark.parametrize("way", ["block", "list", "result"])
def test_a_pointer_to_a_text_kept_apart_is_not_the_tool_s_to_make(way):
    pointer = Kept("01900000-0000-7000-8000-000000000000", 5, "preview")
    seen = returns({"block": pointer, "list": [pointer], "result": ToolResult((Text("a"), pointer))}[way])
    assert all(not isinstance(b, Kept) for b in seen.part.result.content)
    assert seen.part.tool_result_id is None
    assert (seen.part.error_code == 4220) is (way == "result")


@law("1.1.resealed", "1.1.Failed")
def test_a_failure_of_the_tool_s_own_says_that_it_is_the_tool_s_whatever_it_claims():
    claims = ToolFailure(77, "m", retryable=True, origin="gateway", body="not_started", data=[1])
    for claim in (ToolFailure(77, origin="gateway"), ToolFailure(77, body="unknown")):
        assert returns(ToolResult((Text("It broke."),), Failed(claim))).failure == ToolFailure(77)
    seen = returns(ToolResult((Text("It broke."),), Failed(claims), {"d": 1}, terminate=True))
    assert seen.failure == ToolFailure(77, "m", retryable=True, origin="tool", body="ended", data=[1])
    assert (seen.read, seen.part.result.details) == ("It broke.", {"d": 1})


@law("1.1.Denied", "source.003.denied")
def test_a_tool_denies_by_its_own_check_and_that_is_no_failure():
    seen = returns(ToolResult.denied("Only a signed-in user can refund."))
    assert seen.outcome == Denied("tool", None, "Only a signed-in user can refund.")
    assert seen.read == "Only a signed-in user can refund."
    assert (seen.part.denied, seen.part.failed) == (True, False)
    assert (seen.part.result.executed, seen.part.result.is_error) == (False, True)
    assert seen.part.author.type == "Agent"


@law(
    "1.1.Succeeded", "1.1.narration", "1.1.details", "source.003.outcome", "source.004.narration", "source.004.details"
)
def test_what_a_tool_returned_as_its_result_is_its_result():
    made = ToolResult.blocks(Text("a"), Json({"b": 1})).with_details({"n": 1}).with_narration("Did it").with_terminate()
    seen = returns(made)
    assert seen.part.result == made
    assert seen.part.output == [{"type": "text", "text": "a"}, {"type": "json", "value": {"b": 1}}]


@case("R167")
@law("2.6", "source.003.extensions", "source.004.details")
def test_nothing_but_content_reaches_a_request():
    result = ToolResult.text("plain").with_details("canary").with_narration("canary").with_extensions("canary")

    @tool
    def gives() -> ToolResult:
        return result

    @tool
    def fails() -> None:
        raise ToolError("plain", data="canary", details="canary", narration="canary")

    @tool
    def raises() -> None:
        raise ValueError("canary")

    seen = go([gives, fails, raises], [call("gives"), call("fails"), call("raises")])
    assert "canary" not in str(seen.model.requests[-1].messages)
    assert seen.reads[:2] == ["plain", "plain"]


# ------------------------------------------------------------------------------------------ after-guards


def watch(*guards: Any) -> list[Hooks]:
    return [Hooks(after_call=list(guards))]


@tool
def card() -> ToolResult:
    return ToolResult.text("card 4111").with_details({"pan": 4111}).with_narration("Read a card").with_terminate()


@law("3.after-guard")
def test_an_after_guard_changes_content_details_narration_and_vote_and_what_it_replaced_is_kept():
    change = Change(content="card ****", details={"pan": None}, narration="Read something", terminate=False)
    seen = go([card], call("card"), hooks=watch(lambda _: change))
    result = seen.part.result
    assert seen.read == "card ****"
    assert (result.outcome, result.details) == (Succeeded(), {"pan": None})
    assert (result.narration, result.terminate) == ("Read something", False)
    assert seen.part.replaced == {
        "content": [{"type": "text", "text": "card 4111"}],
        "details": {"pan": 4111},
        "narration": "Read a card",
        "terminate": True,
    }
    assert seen.part.result_size == len("card ****")
    assert "4111" not in str(seen.model.requests[-1].messages)
    assert "4111" not in json.dumps(seen.part.to_json())


@law("3.after-guard")
@pytest.mark.parametrize(
    ("change", "left"),
    [
        (Change(content=[Text("a"), Json([1])]), {"content"}),
        (Change(content=Json({"a": 1})), {"content"}),
        (Change(details=None), {"details"}),
        (Change(narration=None), {"narration"}),
        (Change(terminate=False), {"terminate"}),
    ],
)
def test_a_field_that_a_change_does_not_name_stays_as_it_is(change, left):
    seen = go([card], call("card"), hooks=watch(lambda _: change))
    plain = card.fn().to_dict()
    made = seen.part.result.to_dict()
    assert {name for name in plain if made[name] != plain[name]} == left


@law("3.after-guard")
def test_after_guards_see_the_result_input_and_place_and_run_in_order_those_of_the_runtime_first():
    seen_by: list[Any] = []

    def first(after: Any) -> Change:
        seen_by.append((after.tool.name, after.input, after.call_id, after.where.step, after.caller.tenant))
        return Change(content=after.result.model_output + " 1")

    async def second(after: Any) -> Change:
        return Change(content=after.result.model_output + " 2")

    @tool
    def echo(word: str) -> str:
        return word

    seen = go([echo], call("echo", word="a", id="c1"), hooks=watch(first, second))
    assert seen.read == "a 1 2"
    assert seen_by == [("echo", {"word": "a"}, "c1", 0, "default")]
    assert seen.part.replaced["content"] == [{"type": "text", "text": "a"}]  # type: ignore[index,call-overload]


@law("1.1.hook-no-forging", "3.after-guard")
def test_a_changed_failure_or_denial_keeps_its_outcome():
    @tool
    def fails() -> None:
        raise ToolError("locked", code=77)

    @tool
    def denies() -> ToolResult:
        return ToolResult.denied("no")

    seen = go([fails, denies], [call("fails"), call("denies")], hooks=watch(lambda _: Change(content="fine")))
    assert [p.result.outcome for p in seen.results] == [
        Failed(ToolFailure(77, "locked")), Denied("tool", None, "no"),
    ]  # fmt: skip
    assert seen.reads == ["fine", "fine"]
    assert seen.report.model_text == "fine"


def raises(_: object) -> None:
    raise OSError("/etc/secret")


def leaves(_: object) -> None:
    raise asyncio.CancelledError


WRONG: dict[str, Callable[[Any], Any]] = {
    "raises": raises,
    "raises CancelledError": leaves,
    "gives a result": lambda _: ToolResult.text("forged"),
    "gives an outcome": lambda _: Succeeded(),
    "gives text": lambda _: "forged",
    "gives a Skip": lambda _: Skip("no"),
    "gives a Change for before the call": lambda _: Change(input={}),
    "gives content that cannot be rendered": lambda _: Change(content=object()),  # type: ignore[arg-type]
    "gives details that are no JSON": lambda _: Change(details=object()),  # type: ignore[arg-type]
    "gives a narration that is no text": lambda _: Change(narration=7),  # type: ignore[arg-type]
}


@law("3.5002", "1.1.hook-no-forging", "3.after-start")
@case("R169")
@pytest.mark.parametrize("guard", WRONG.values(), ids=WRONG)
def test_an_after_guard_that_does_not_answer_as_it_should_withholds_the_result(guard):
    seen = go([card], call("card"), hooks=watch(guard))
    assert (seen.failure.code, seen.failure.body, seen.failure.retryable) == (5002, "ended", False)
    assert "its effect may stand" in seen.read
    assert "4111" not in seen.read
    assert "secret" not in seen.read
    assert seen.part.result.terminate is False
    assert seen.part.replaced["content"] == [{"type": "text", "text": "card 4111"}]  # type: ignore[index,call-overload]
    assert seen.report.code == 5002
    assert isinstance(seen.report.error, BaseException)
    assert seen.run.answer == "done"


@law("3.5002")
def test_an_after_guard_that_hangs_withholds_the_result(monkeypatch):
    monkeypatch.setattr("counterfoil.ending.GUARD_SECONDS", 0.01)

    async def hangs(_: object) -> None:
        await asyncio.Event().wait()

    seen = go([card], call("card"), hooks=watch(hangs))
    assert seen.failure.code == 5002
    assert isinstance(seen.report.error, TimeoutError)


@law("3.record")
def test_a_result_is_rendered_guarded_sized_reported_and_recorded_in_this_order():
    steps: list[str] = []

    class Rendered:
        def __init__(self) -> None:
            self.text = "x" * 10

    def guard(after: Any) -> Change:
        steps.append(f"guarded {after.result.model_output!r:.20}")
        return Change(content="y" * 100)

    def report(failed: Any) -> None:
        steps.append(f"reported {failed.code}")

    def event(seen: Any) -> None:
        if type(seen).__name__ == "CallEnded":
            steps.append(f"recorded {seen.part.error_code}")

    @tool(max_output_bytes=50, on_oversize="fail")
    def gives() -> str:
        return Rendered().text

    go([gives], call("gives"), hooks=[Hooks(after_call=guard, on_tool_error=report, on_event=event)])
    assert steps == ["guarded 'xxxxxxxxxx'", "reported 4130", "recorded 4130"]


@law("3.execute")
def test_the_start_is_on_record_before_the_body_runs():
    found: list[list[str]] = []
    holder: list[Run] = []

    @tool
    async def looks(ctx: ToolContext[Any]) -> str:
        store = holder[0]._runtime.store
        entries = await store.entries("default", ctx.interaction_id)
        found.append([e.kind for e in entries if e.kind in {"turn", "start", "result"}])
        return "looked"

    agent = Agent("desk", ScriptedModel([call("looks"), say("done")]), tools=[looks])

    async def main() -> None:
        async with Runtime(agents=[agent]) as runtime:
            holder.append(await runtime.start("desk", "Go."))
            await holder[0].wait(60)

    asyncio.run(main())
    assert found == [["turn", "start"]]


def direct(tools: list[Any], name: str, given: dict[str, Any], **options: Any) -> tuple[Run, list[Any], ScriptedModel]:
    """A call without a model: its run, its reports and the model that must not be asked."""
    model = ScriptedModel([say("never")])
    agent = Agent("desk", model, tools=tools, **options)

    async def main() -> tuple[Run, list[Any], ScriptedModel]:
        async with Runtime(agents=[agent]) as runtime:
            run = await runtime.call("desk", name, given)
            if run.status == "paused":
                await run.approve(run.calls[0].call_id, by="grace")
                await run.wait(60)
            assert (await runtime.verify()).ok
            return run, await run.errors(), model

    return asyncio.run(main())


@law("3.direct")
def test_a_call_without_a_model_is_a_run_of_one_step_that_asks_no_model():
    run, reports, model = direct([echo], "echo", {"text": "a"})
    assert (run.status, run.steps, len(run.calls), reports, model.requests) == ("completed", 1, 1, [], [])
    assert run.results[0].output == "a"


@law("3.direct")
@pytest.mark.parametrize(
    ("name", "given", "code"), [("ecko", {}, 4001), ("echo", {"text": 7}, 4003), ("echo", {"word": "a"}, 4003)]
)
def test_a_direct_call_goes_through_the_same_gateway(name, given, code):
    run, reports, model = direct([echo], name, given)
    assert run.results[0].error_code == code
    assert [r.code for r in reports] == [code]
    assert model.requests == []


@law("3.direct")
def test_a_direct_call_is_guarded_judged_and_approved_as_any_other():
    asks = Policy([Rule("ask", "ask")])
    hooks = Hooks(before_call=lambda before: Change(input={"text": before.input["text"] + "!"}))
    run, _, _ = direct([echo], "echo", {"text": "a"}, policy=asks, hooks=hooks)
    assert run.results[0].output == "a!"
    assert run.calls[0].approval is not None
    denied, _, _ = direct([echo], "echo", {"text": "a"}, policy=Policy([Rule("no", "deny")]))
    assert denied.results[0].denied


@law("3.5001", "1.3.one-per-failure", "3.after-start")
def test_a_body_whose_process_died_is_interrupted_and_with_tell_the_model_knows_that_the_effect_is_unknown():
    started: list[int] = []
    handled: list[Any] = []

    @tool(on_interrupted="tell")
    async def pay(cents: int) -> str:
        started.append(cents)
        await asyncio.Event().wait()
        return "never"

    model = ScriptedModel([call("pay", cents=5, id="c1"), say("done")])
    store = MemoryStore()

    async def main() -> Run:
        first = Runtime(agents=[Agent("desk", model, tools=[pay])], store=store)
        await first.open()
        run = await first.start("desk", "Go.")
        await until(lambda: bool(started))
        await first.close()  # as a process that ends does: the start stays on record without an end
        hooks = Hooks(on_tool_error=handled.append)
        async with Runtime(agents=[Agent("desk", model, tools=[pay], hooks=hooks)], store=store) as second:
            again = await second.get(run.id)
            await again.wait(60)
            assert (await second.verify()).ok
            return again

    run = asyncio.run(main())
    (part,) = run.results
    assert isinstance(part.result.outcome, Failed)
    failure = part.result.outcome.failure
    assert (failure.code, failure.retryable, failure.body, failure.origin) == (5001, False, "unknown", "gateway")
    assert "Nobody can say whether it had its effect" in part.result.model_output
    assert started == [5]
    assert [(r.code, r.call_id, r.input) for r in handled] == [(5001, "c1", {"cents": 5})]
    assert run.answer == "done"


@case("R095")
def test_the_time_limit_of_an_outer_call_does_not_become_that_of_an_inner_one_whose_result_is_not_lost():
    let_go = threading.Event()
    inner: list[Run] = []

    @tool
    def slow() -> str:
        let_go.wait(60)
        return "worked it out"

    async def main() -> None:
        helper = Agent("helper", ScriptedModel([call("slow"), say("inner done")]), tools=[slow])

        @tool(timeout=0.3)
        async def delegates() -> str:
            inner.append(await runtime.start(helper, "Work."))
            await inner[0].wait()
            return str(inner[0].answer)

        agent = Agent("desk", ScriptedModel([call("delegates"), say("done")]), tools=[delegates])
        async with Runtime(agents=[agent]) as runtime:
            run = await runtime.start("desk", "Go.")
            await run.wait(60)
            assert run.results[0].error_code == 4080
            assert inner[0].status == "running"
            let_go.set()
            await inner[0].wait(60)
            assert (inner[0].results[0].output, inner[0].answer) == ("worked it out", "inner done")

    asyncio.run(main())


@case("R116")
def test_a_reader_that_goes_away_changes_nothing_and_reads_on_without_a_gap_or_a_repeat():
    let_go = asyncio.Event()

    @tool
    async def waits() -> str:
        await let_go.wait()
        return "waited"

    agent = Agent("desk", ScriptedModel([call("waits"), call("waits"), say("done")]), tools=[waits])

    def stored(events: list[Any]) -> list[tuple[int, str]]:
        return [(e.entry, type(e).__name__) for e in events if type(e).__name__ not in {"TurnDelta", "CallProgress"}]

    async def main() -> None:
        async with Runtime(agents=[agent]) as runtime:
            run = await runtime.start("desk", "Go.")
            seen: list[Any] = []
            async with contextlib.aclosing(run.events()) as events:
                async for event in events:
                    seen.append(event)
                    if type(event).__name__ == "CallStarted":
                        break
            let_go.set()
            await run.wait(60)
            assert (run.status, run.answer) == ("completed", "done")
            rest = [e async for e in run.events(after=seen[-1].entry)]
            whole = [e async for e in run.events()]
            assert stored(seen) + stored(rest) == stored(whole)

    asyncio.run(main())


@case("R161")
def test_what_the_model_was_given_stands_in_the_part_that_a_timeline_shows():
    picture = Image(b"\x89PNG" * 10)

    @tool
    def shows() -> ToolResult:
        return ToolResult.blocks(Text("See:"), picture).with_narration("Took a picture")

    @tool
    def writes() -> str:
        return "x" * 5000

    seen = go([shows, writes], [call("shows"), call("writes")], limits=Limits(keep_apart_bytes=1000))
    assert [p.result.model_output for p in seen.results] == seen.reads
    assert "[image, image/png, 40 bytes]" in seen.reads[0]
    shown: Any = seen.results[0].to_json()["result"]
    assert [b["type"] for b in shown["content"]] == ["text", "image"]
    assert "bytes are left out here" in seen.reads[1]


# ------------------------------------------------------------------------------------- what has no form


class Strange:
    def __repr__(self) -> str:
        return "<Strange at 0xdeadbeef with a secret>"


def cyclic() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@law("3.4220", "8.no-repr", "3.after-start")
@case("R146")
@pytest.mark.parametrize(
    "value",
    [Strange(), {"a": Strange()}, [Strange()], cyclic(), deep(201), lambda: 1, type],
    ids=["object", "in a dict", "in a list", "cycle", "too deep", "function", "class"],
)
def test_a_value_without_a_form_is_4220_and_no_repr_is_read(value):
    seen = returns(value)
    assert (seen.failure.code, seen.failure.body, seen.failure.retryable) == (4220, "ended", False)
    assert "its effect may stand" in seen.read
    assert "Strange" not in seen.read
    assert "0x" not in seen.read
    assert seen.report.code == 4220
    assert isinstance(seen.report.error, ValueError)


def spoilt(result: ToolResult) -> ToolResult:
    """Its details were changed after it was made."""
    object.__setattr__(result, "details", {"a": Strange()})
    return result


@law("3.4220")
def test_a_declared_failure_or_denial_keeps_its_outcome_though_its_details_cannot_be_stored():
    seen = returns(spoilt(ToolResult.error("It broke.", ToolFailure(77, "m"))))
    assert seen.failure == ToolFailure(77, "m")
    assert (seen.read, seen.part.result.details) == ("It broke.", None)
    seen = returns(spoilt(ToolResult.denied("Not you.")))
    assert seen.outcome == Denied("tool", None, "Not you.")
    seen = returns(spoilt(ToolResult.text("fine")))
    assert seen.failure.code == 4220


@law("3.4130", "6.fail", "3.after-start")
def test_too_large_an_output_is_4130_with_on_oversize_fail_and_counts_bytes():
    fits = returns("é" * 50, max_output_bytes=100, on_oversize="fail")
    assert fits.outcome == Succeeded()
    seen = returns("é" * 51, max_output_bytes=100, on_oversize="fail")
    assert (seen.failure.code, seen.failure.retryable) == (4130, False)
    assert "102 bytes" in seen.read
    assert "100" in seen.read
    assert "ran" in seen.read
    assert "é" not in seen.read
    assert seen.report.code == 4130
    assert seen.part.result_size == 102


@law("3.4130")
def test_the_limit_of_the_run_counts_where_the_tool_has_none_and_media_count_too():
    @tool(on_oversize="fail")
    def draws() -> Image:
        return Image(b"x" * 11)

    assert go([draws], call("draws"), limits=Limits(output_bytes=10)).failure.code == 4130
    assert go([draws], call("draws"), limits=Limits(output_bytes=11)).outcome == Succeeded()


@law("3.4130")
def test_a_failure_that_is_too_large_stays_the_failure_that_it_is():
    @tool(max_output_bytes=10, on_oversize="fail")
    def fails() -> None:
        raise ToolError("x" * 100, code=77)

    assert go([fails], call("fails")).failure.code == 77


@law("3.after-start", "3.table", "4.words")
def test_every_row_of_the_table_has_its_sentence_and_says_what_ran():
    from counterfoil.core import words

    values = {
        "reason": "r", "hint": "", "complaints": "", "seconds": 1.0, "effect": words.HAS_ENDED, "size": 1, "limit": 1,
        "error": "E",
    }  # fmt: skip
    before = {4000, 4001, 4002, 4003, 4081, 4290, 5003}
    for code in CODE_TABLE:
        text = words.failure(ErrorCode(code), "the_tool", **values)
        assert "the_tool" in text
        assert ("Nothing ran" in text) is (code in before), code
        if code not in before:
            assert any(w in text for w in (" ran", "effect", "begun")), code


# --------------------------------------------------------------------------------- values and their forms


@case("R142", "R143", "R151", "R145")
@law("4.never-empty", "8.nan", "8.None")
@pytest.mark.parametrize(
    ("value", "read", "output"),
    [
        (None, "(no output)", ""),
        ("", "(no output)", ""),
        (" \n", "(no output)", " \n"),
        ([], "[]", []),
        ({}, "{}", {}),
        (0, "0", 0),
        (False, "false", False),
        ({"x": math.nan, "y": math.inf}, '{"x":null,"y":null}', {"x": None, "y": None}),
        (2**64 + 1, "18446744073709551617", 2**64 + 1),
        ("a\x00b", "a\x00b", "a\x00b"),
        ({"a\x00": "\ud800"}, '{"a\\u0000":"\ufffd"}', {"a\x00": "\ufffd"}),
        ("\ud800 \ud83c\udf78", "\ufffd \U0001f378", "\ufffd \U0001f378"),
    ],
    ids=str,
)
def test_a_value_has_one_form_for_model_record_and_wire_and_is_never_empty_to_the_model(value, read, output):
    seen = returns(value)
    assert seen.read == read
    assert seen.part.output == output
    assert seen.part.to_json()["output"] == output
    assert seen.part.result == ToolResult.from_json(seen.part.result.to_json())


@case("R160")
@law("6.media")
@pytest.mark.parametrize("kind", [Image, Audio, File])
def test_media_keep_every_byte_whole_however_large(kind):
    data = bytes(range(256)) * 400
    seen = returns(kind(data))
    (block,) = seen.part.result.content
    assert hashlib.sha256(block.data).digest() == hashlib.sha256(data).digest()  # type: ignore[union-attr]
    assert (seen.part.tool_result_id, seen.part.result_size) == (None, len(data))
    (item,) = [i for i in seen.model.requests[-1].items if type(i).__name__ == "ResultEntry"]
    assert item.result.content == (kind(data),)  # type: ignore[union-attr]


@case("R164")
def test_a_failed_result_is_never_reused_for_the_same_call_later():
    tries: list[int] = []

    @tool(read_only=True)
    def looks() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError
        return "found"

    seen = go([looks], call("looks"), call("looks"))
    assert [p.failed for p in seen.results] == [True, False]
    assert len(tries) == 2


# ------------------------------------------------------------------------------------------ hostile input


def hostile(name: str) -> str:
    folder = shared()
    if folder is None:
        pytest.skip("the collections of hostile input are not beside this repository")
    return (folder / "data" / "hostile" / name).read_text(encoding="utf-8")


@tool
def echo(text: str) -> str:
    return text


@case("R137", "R139", "R185")
@law("2.1")
def test_naughty_strings_pass_as_arguments_results_tool_names_and_prompts():
    naughty: list[str] = json.loads(hostile("blns.json"))
    cleaned = [t.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for t in naughty]
    seen = go([echo], *([call("echo", text=t) for t in naughty[n : n + 40]] for n in range(0, len(naughty), 40)),
              limits=Limits(calls=None, consecutive_failures=None))  # fmt: skip
    assert [p.output for p in seen.results] == cleaned
    assert seen.reads == [t if t.strip() else "(no output)" for t in cleaned]
    seen = go([echo], [call(t) for t in naughty], limits=Limits(calls=None, consecutive_failures=None))
    assert {r.code for r in seen.handled} == {4001}
    assert [p.tool_name for p in seen.results] == cleaned


@tool
def get_weather(city: str) -> str:
    return f"fair in {city}"


@tool
def add(a: float, b: float) -> float:
    return a + b


@tool
def search_files(query: str) -> list[str]:
    return [query]


@tool
def send_email(to: str, body: str) -> str:
    return f"sent {len(body)} characters to {to}"


@tool
def set_timer(minutes: int) -> str:
    return f"{minutes} minutes"


@tool
def cancel_order(order_id: str, reason: Literal["no longer needed", "ordered by mistake"]) -> str:
    return f"{order_id}: {reason}"


CODES = {
    "ok": {None}, "unknown_tool": {4001, 4000}, "no_arguments": {4001}, "enum": {4003}, "extra_argument": {4003},
    "missing_argument": {4003}, "bad_json": {4000}, "truncated": {4000}, "not_object": {4000},
}  # fmt: skip


@case("R127", "R125")
@law("2.1", "2.4")
def test_raw_calls_of_a_small_model_each_get_the_answer_of_their_kind_and_nothing_is_repaired():
    rows = [json.loads(line) for line in hostile("smollm2-raw-tool-calls.jsonl").splitlines()]
    tools = [get_weather, add, search_files, send_email, set_timer, cancel_order]
    limits = Limits(steps=None, calls=None, consecutive_failures=None)
    seen = go(tools, *map(_as_call, rows), limits=limits)
    found = {row["i"]: (row["class"], part.error_code) for row, part in zip(rows, seen.results, strict=True)}
    assert {i: f for i, f in found.items() if f[1] not in CODES[f[0]]} == {}
    assert len(seen.handled) == len(seen.stored) == sum(p.failed for p in seen.results)
    assert all(r.input == c.raw_input for r, c in zip(seen.handled, (c for c, p in zip(
        seen.run.calls, seen.results, strict=True) if p.failed), strict=True))  # fmt: skip
    assert seen.run.answer == "done"


def _as_call(row: dict[str, Any]) -> Any:
    """The call that a provider would make of the model's text: what it cannot read, it hands on as arguments."""
    text = row["raw"].partition("</tool_call>")[0].strip()
    try:
        made = json.loads(text)
        return call(made["name"], raw=json.dumps(made["arguments"]) if "arguments" in made else None)
    except (ValueError, TypeError, KeyError):
        return call(row["expected_tool"], raw=text)

"""Conversations of several people and agents: who sees which thread, what a reader is given (contract 9)."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil import Caller, NotFound, Runtime
from counterfoil.core.call_entries import ResultEntry
from counterfoil.core.entries import CallRecord, PausedEntry, TurnEntry
from counterfoil.core.items import Message, Note, Reasoning, ToolCallPart, ToolResultPart
from counterfoil.core.parts import items_of
from counterfoil.core.result import ToolResult
from counterfoil.core.threads import View, family, view_of
from counterfoil.core.timeline import rows, summary
from counterfoil.core.turn import Usage, author
from counterfoil.core.wire import context_items, run_json, timeline_items
from counterfoil.model import ModelTurn, ReasoningDelta
from counterfoil.testing import say
from tests.helpers import Place, agent, both, content, go, requests
from tests.marks import case, law
from tests.records import OUTCOMES, Book, ended

MINER = author("Agent", "miner", "acme").id
SMITH = author("Agent", "smith", "acme").id
DISPATCH, PRIVATE, OTHER = f"dispatch:{MINER}:run-2", f"private:{MINER}", f"dispatch:{SMITH}:run-3"
THREADS = [None, PRIVATE, DISPATCH, f"question:{MINER}:run-2"]
FIELDS = {
    "toolCallId", "result", "isError", "toolResultId", "resultSize", "rejectionReason", "sequence", "author", "date",
    "threadId", "kind", "runId", "outcome",
}  # fmt: skip  # names alone


def a_team() -> Book:
    """A manager handed two tasks on; the first one is done, with a private answer kept, the second goes on."""
    book = Book()
    book.begin("chief")
    book.message("Forge a ring.")
    book.turn(("look", "{}"), text="I look first.")
    book.start()
    book.result(0, ToolResult.text("a vein of gold"))
    book.turn(("dispatch", "{}"), ("dispatch", "{}"), text="I hand it on.")
    book.start(0, child="run-2")
    book.start(1, child="run-3")
    book.on("run-2", DISPATCH).begin("miner", parent="run-1", call=(1, 0))
    book.message("Dig.", author_type="Agent", author_name="chief")
    book.on("run-3", OTHER).begin("smith", parent="run-1", call=(1, 1))
    book.message("Heat.", author_type="Agent", author_name="chief")
    book.on("run-2", DISPATCH).turn(("dig", "{}"), text="Digging.", thought="Gold is deep.")
    book.on("run-3", OTHER).turn(("heat", "{}"))
    book.start()
    book.on("run-2", DISPATCH).start()
    book.result(0, ToolResult.text("gold"))
    book.turn(text="Found gold.")
    book.thread = PRIVATE
    book.message("Dig.", author_type="Agent", author_name="chief")
    book.message("Found gold.", author_type="Agent", author_name="miner")
    book.thread = DISPATCH
    book.end(answer="Found gold.")
    book.on("run-3", OTHER).result(0, ended(OUTCOMES["denied"]))
    return book.on("run-1")


def said(items: list[dict[str, Any]]) -> list[str]:
    """Kind and text of each item."""
    return [f"{i['kind']}: {i.get('text', i.get('result', i.get('toolName')))}" for i in items]


@law("9.threads", "1.4.threadId")
def test_each_thread_is_read_alone_and_whole() -> None:
    record = a_team().record
    found = {t: said(context_items(record, "run-1", thread=t)) for t in (None, DISPATCH, PRIVATE, OTHER)}
    assert found == {
        None: [
            "Message: Forge a ring.", "Message: I look first.", "ToolCall: look", "ToolResult: a vein of gold",
            "Message: I hand it on.", "ToolCall: dispatch", "ToolCall: dispatch",
        ],
        DISPATCH: [
            "Message: Dig.", "Reasoning: Gold is deep.", "Message: Digging.", "ToolCall: dig", "ToolResult: gold",
            "Message: Found gold.",
        ],
        PRIVATE: ["Message: Dig.", "Message: Found gold."],
        OTHER: ["Message: Heat.", "ToolCall: heat", "ToolResult: what the model reads"],
    }  # fmt: skip  # a thread a row, or more
    assert said(context_items(record, "run-3", thread=PRIVATE)) == found[PRIVATE]
    every = context_items(record, "run-1")
    assert sorted(said(every)) == sorted(line for one in found.values() for line in one)
    assert {i["threadId"] for i in every} == set(found)


@law("9.root-runs", "1.4.sequence")
def test_the_whole_interaction_has_one_sequence() -> None:
    every = context_items(a_team().record)
    numbers = [i["sequence"] for i in every]
    assert numbers == sorted(set(numbers))
    assert all(i["author"]["id"] and i["date"] for i in every)


@law("9.threads")
def test_a_run_is_read_with_the_runs_below_it_and_a_child_alone() -> None:
    record = a_team().record
    assert list(family(record, "run-1")) == ["run-1", "run-2", "run-3"]
    assert {i["runId"] for i in context_items(record, "run-2")} == {"run-2"}
    assert {i["threadId"] for i in timeline_items(record, "run-3")} == {OTHER}
    shown = [run_json(record, run, "i") for run in ("run-1", "run-2")]
    assert [(s["parentRunId"], s["threadId"]) for s in shown] == [(None, None), ("run-1", DISPATCH)]
    with pytest.raises(KeyError):
        context_items(record, "run-9", thread=DISPATCH)


@law("9.threads", "1.4.every-field")
@case("R023")
@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("thread", THREADS)
def test_a_result_has_every_field_on_every_kind_of_thread(thread: str | None, outcome: str) -> None:
    book = Book(run_id="run-2", thread=thread)
    book.begin("miner")
    book.turn(("dig", "{}"))
    book.start()
    book.result(0, ended(OUTCOMES[outcome]))
    (shown,) = (i for i in context_items(book.record, "run-2", thread=thread) if i["kind"] == "ToolResult")
    assert set(shown) == FIELDS
    assert (shown["threadId"], shown["runId"], shown["outcome"]) == (thread, "run-2", outcome)


def test_the_items_of_a_run_have_reasoning_and_notes_as_kinds_of_their_own() -> None:
    book = a_team()
    book.note("Mind the smith.", author_name="grace")
    kinds = [type(i) for i in items_of(book.record, "run-2")]
    assert kinds == [Message, Reasoning, Message, ToolCallPart, ToolResultPart, Message, Message, Message]
    note = items_of(book.record, "run-1")[-1]
    assert (type(note), note.kind, note.text, note.author.name) == (Note, "NOTE", "Mind the smith.", "grace")
    assert context_items(book.record, "run-1", thread=None)[-1]["kind"] == "Note"
    assert [row.text for row in rows(book.record, "run-1") if row.kind == "note"] == ["Mind the smith."]


def test_a_turn_reserves_a_number_for_its_reasoning() -> None:
    turn = TurnEntry(
        run_id="r", at=0, step=0, text="so", calls=(CallRecord("c", "c", "t", "{}"),), stop="calls", thought="hm",
        sequence=5,
    )  # fmt: skip  # two rows
    assert (turn.width, turn.call_sequence(0), turn.result_sequence(0)) == (4, 7, 8)


@law("9.threads")
@pytest.mark.parametrize("run", ["run-1", "run-2", "run-3"])
@pytest.mark.parametrize("thread", [..., None, DISPATCH, PRIVATE, OTHER])
def test_a_timeline_and_a_context_read_the_same_runs(run: str, thread: Any) -> None:
    record = a_team().record
    told = rows(record, run, thread)
    for kinds, same in ((("message", "turn"), "Message"), (("call",), "ToolCall")):
        items = [i for i in context_items(record, run, thread=thread) if i["kind"] == same]
        assert [(r.run_id, r.thread_id) for r in told if r.kind in kinds] == [
            (i["runId"], i["threadId"]) for i in items
        ]
    # Who reads a thread also reads when the run on it began and how it ended, by whichever run it is read.
    on = {one.run_id for one in told if one.kind == "run"}
    assert on == {None: {run} & {"run-1"}, DISPATCH: {"run-2"}, PRIVATE: set(), OTHER: {"run-3"}}.get(
        thread, set(family(record, run))
    )


@law("9.threads")
def test_a_timeline_is_of_all_that_happened_or_of_one_thread() -> None:
    record = a_team().record
    assert {row.thread_id for row in rows(record, "run-1", None)} == {None}
    working = [
        "miner began for ada", "Dig.", "Digging.", "dig gave 4 bytes in 12 ms", "Found gold.",
        "completed: the model answered",
    ]  # fmt: skip  # two rows
    assert [row.text for row in rows(record, "run-1", DISPATCH)] == working
    assert [row.text for row in rows(record, "run-2")] == [*working[:5], "Dig.", "Found gold.", working[5]]
    assert [row.text for row in rows(record, "run-1", PRIVATE)] == ["Dig.", "Found gold."]
    assert "Gold is deep." not in str(rows(record, "run-2"))


@law("9.spending")
def test_the_time_that_a_run_waits_for_others_is_theirs_and_counts_for_it() -> None:
    book = Book()
    book.begin("chief")
    book.turn(("dispatch", "{}"))
    book.start(0, child="run-2")
    book.put(PausedEntry(run_id="run-1", at=book.at, children=True))
    run = book.record.runs["run-1"]
    assert (run.status, run.left, run.seconds) == ("running", True, 3.0)
    book.on("run-2", DISPATCH).begin("miner", parent="run-1", call=(0, 0))
    book.turn(text="Dug.", usage=Usage(7, 0))
    book.end(answer="Dug.")
    book.on("run-1").queue()
    assert (run.seconds, run.usage.tokens) == (5.0, 127)
    assert book.record.runs["run-2"].seconds == 2.0
    book.resume()
    book.result(0)
    assert (run.left, run.seconds) == (False, 6.0)


@law("9.threads")
@case("R089")
def test_a_summary_counts_the_runs_below() -> None:
    numbers = summary(a_team().record, "run-1")
    assert numbers.outcomes == {"succeeded": 2, "denied": 1, "open": 2}
    assert (numbers.calls, numbers.steps, numbers.runs) == (5, 5, 2)
    assert "2 child runs" in numbers.line


def texts(view: View | None) -> list[str]:
    """What a model reads of each item."""
    assert view is not None
    return [i.result.model_output if isinstance(i, ResultEntry) else i.text for i in view.take()]


@law("9.sees", "2.6")
@case("R194")
def test_a_managed_agent_sees_the_main_thread_and_its_own_and_never_anothers() -> None:
    book = a_team()
    book.on("run-4", f"dispatch:{MINER}:run-4").begin("miner", parent="run-1")
    book.message("Dig more.", author_type="Agent", author_name="chief")
    seen = texts(view_of(book.record, book.record.runs["run-4"]))
    assert seen == [
        "Forge a ring.",
        "[chief] I look first.\n[chief used look, which gave:] a vein of gold",
        "Dig.",
        "Found gold.",
        "Dig more.",
    ]
    other = texts(view_of(book.record, book.record.runs["run-3"]))
    assert other == ["Forge a ring.", seen[1], "Heat.", "", "what the model reads"]


@law("9.sees")
def test_what_a_run_sees_of_others_stays_as_it_was_when_the_run_began() -> None:
    book = a_team()
    view = view_of(book.record, book.record.runs["run-3"])
    first = texts(view)
    book.on("run-4", f"dispatch:{SMITH}:run-4").begin("smith", parent="run-1")
    book.thread = f"private:{SMITH}"
    book.message("of another time")
    book.on("run-3", OTHER).turn(text="Hot.")
    assert texts(view) == [*first, "Hot."]


@law("9.sees")
def test_a_root_run_of_a_managed_agent_sees_what_it_was_told_alone() -> None:
    book = a_team()
    book.on("run-5").begin("miner")
    book.message("What did you find?")
    seen = texts(view_of(book.record, book.record.runs["run-5"]))
    assert seen == ["Forge a ring.", "I look first.", "a vein of gold", "Dig.", "Found gold.", "What did you find?"]
    chief = Book()
    chief.begin("chief")
    assert view_of(chief.record, chief.record.runs["run-1"]) is None


@both
@law("9.participants")
def test_an_interaction_is_opened_with_participants_and_its_runs_bring_in_more(place: Place) -> None:
    desk = agent([say("Hello.")])

    async def main() -> None:
        async with place.runtime(desk) as runtime:
            opened = await runtime.open_interaction([("Human", "ada"), ("System", "clock")], tenant="acme")
            caller = Caller("acme", "grace")
            run = await runtime.start(desk, "Hi.", caller=caller, interaction=opened.interaction_id)
            await run.wait()
            row = await runtime.interaction(opened.interaction_id, tenant="acme")
            assert [(p.type, p.name) for p in row.participants] == [
                ("Human", "ada"), ("System", "clock"), ("Human", "grace"), ("Agent", "desk"),
            ]  # fmt: skip  # one row
            assert row.participants[2] == author("Human", "grace", "acme")
            assert await runtime.interactions(tenant="acme") == [row]
            with pytest.raises(NotFound):
                await runtime.interaction(opened.interaction_id)
            (message, answer) = await runtime.context(run.id, tenant="acme")
            assert (message["author"]["name"], answer["author"]["name"]) == ("grace", "desk")
            await content(runtime)

    go(main())


@law("9.root-runs")
@case("R187")
def test_several_people_talk_in_one_conversation_one_run_after_another() -> None:
    desk = agent([lambda request: say(str(len(request.messages)))])

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            first = await (await runtime.start(desk, "I am Ada.", caller=Caller(user="ada"))).wait()
            again = await runtime.start(
                desk, "I am Grace.", caller=Caller(user="grace"), interaction=first.interaction_id
            )  # fmt: skip  # one call
            await again.wait()
            both = [await runtime.context(run.id) for run in (first, again)]
            assert [await runtime.context(run.id, thread="main") for run in (first, again)] == both
            names = [[i["author"]["name"] for i in items] for items in both]
            assert names == [["ada", "desk"], ["grace", "desk"]]
            assert [i["sequence"] for items in both for i in items] == [1, 2, 3, 4]
            assert [m["content"] for m in requests(desk)[-1]] == ["I am Ada.", "1", "I am Grace."]

    go(main())


@both
def test_a_note_is_read_by_people_and_by_no_model(place: Place) -> None:
    desk = agent([say("Hello."), say("Again.")])

    async def main() -> None:
        async with place.runtime(desk) as runtime:
            run = await (await runtime.start(desk, "Hi.")).wait()
            await runtime.note(run.id, "Ada is a friend.", by="grace")
            items = await runtime.context(run.id)
            assert (items[-1]["kind"], items[-1]["text"]) == ("Note", "Ada is a friend.")
            more = await runtime.start(desk, "And?", interaction=run.interaction_id)
            await more.wait()
            assert "friend" not in str(requests(desk))
            assert [i["sequence"] for i in await runtime.context(more.id)] == [4, 5]
            await content(runtime)

    go(main())


def test_what_a_provider_shows_of_the_reasoning_is_on_record_and_no_model_reads_it() -> None:
    class Thinks:
        def __init__(self) -> None:
            self.asked: list[Any] = []

        async def respond(self, request: Any) -> Any:
            self.asked.append(request.messages)
            yield ReasoningDelta("Let me ")
            yield ReasoningDelta("see.")
            yield ModelTurn("Hello.")

    from counterfoil import Agent

    model = Thinks()
    desk = Agent("desk", model)

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            run = await (await runtime.start(desk, "Hi.")).wait()
            assert [(i.kind, getattr(i, "text", None)) for i in run.items] == [
                ("MESSAGE", "Hi."), ("REASONING", "Let me see."), ("MESSAGE", "Hello."),
            ]  # fmt: skip  # one row
            await (await runtime.start(desk, "And?", interaction=run.interaction_id)).wait()
            assert "see." not in str(model.asked)
            await content(runtime)

    go(main())

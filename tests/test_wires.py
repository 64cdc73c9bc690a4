"""Any record becomes a request that any wire takes, whoever wrote it; and a run goes on where another wire left it."""

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from counterfoil import Agent, Runtime, tool
from counterfoil.adapters.models.anthropic import answer as anthropic_answer
from counterfoil.adapters.models.google import answer as google_answer
from counterfoil.adapters.models.openai import answer as openai_answer
from counterfoil.adapters.models.openai_chat import answer as chat_answer
from counterfoil.adapters.models.shared.opaque import origin_of, own_items, tagged
from counterfoil.adapters.models.shared.waiting import retry_after
from counterfoil.core.call import Offer
from counterfoil.core.content import Audio, File, Image, Json, Link, Text
from counterfoil.core.context import Fitter
from counterfoil.core.entries import CallRecord
from counterfoil.core.errors import ModelError
from counterfoil.core.jsontext import clean_text, normal
from counterfoil.core.media import kind_of
from counterfoil.core.result import ToolResult, seal
from counterfoil.core.turn import Usage
from counterfoil.model import ModelRequest
from counterfoil.testing.fake_openai import chunk, usage
from counterfoil.testing.fake_server import Chunks, Play
from counterfoil.testing.model_bench import HOSTILE, KEY, LOOK, PNG, request, result, said, turn
from counterfoil.transcripts import Transcript, import_messages
from tests.helpers import go
from tests.marks import case, law
from tests.records import OUTCOMES
from tests.transcripts import broken
from tests.wires import WIRES

NAUGHTY = json.loads((Path(__file__).parent / "hostile" / "blns.json").read_text(encoding="utf-8"))

texts = st.one_of(st.sampled_from([*HOSTILE[:-1], *NAUGHTY]), st.text(max_size=30)).map(clean_text)
ids = st.one_of(st.none(), st.sampled_from(["", "same", "call_1", "x" * 41, "x" * 65]), texts)
names = st.one_of(st.just("look"), texts)
arguments = st.one_of(
    st.sampled_from(["{}", "", "null", "[1]", '{"a": ', '{"a": NaN}', '{"a": "\\ud800"}', "{" * 300, '{"a":null}']),
    texts,
)
blocks = st.one_of(
    texts.map(Text),
    st.recursive(st.none() | st.booleans() | st.integers() | texts, lambda x: st.lists(x, max_size=2)).map(Json),
    st.builds(
        Image, st.sampled_from([PNG, b"", b"\xff\xd8\xff\xe0", b"GIF89a", b"none"]), st.sampled_from(["image/png", "x"])
    ),
    st.builds(Audio, st.just(b"RIFF")),
    st.builds(
        File, st.sampled_from([b"%PDF-1", b"", b"x"]), st.sampled_from(["application/pdf", ""]), st.none() | texts
    ),
    st.builds(Link, texts, st.none() | texts),
)
messages = st.one_of(
    st.builds(said, texts, st.sampled_from(["Human", "System"])),
    st.lists(blocks, min_size=1, max_size=3).map(lambda found: said("", "Human", *found)),
)
items_of_others: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    texts,
    st.builds(
        lambda wire, kind, text: {
            "wire": wire,
            "origin": "imported",
            "items": [{"type": kind, "signature": text, "id": text}],
        },
        st.sampled_from(["anthropic", "google", "openai-responses", ""]),
        st.sampled_from(["reasoning", "thinking", "message", "call"]),
        texts,
    ),
    st.lists(st.dictionaries(texts, texts, max_size=2), max_size=2),
    st.dictionaries(st.sampled_from(["wire", "origin", "items"]), texts, max_size=3),
)


@st.composite
def results(draw: st.DrawFn) -> ToolResult:
    content = tuple(draw(st.lists(blocks, min_size=1, max_size=3)))
    return seal(content, OUTCOMES[draw(st.sampled_from(sorted(OUTCOMES)))], details=CANARY, narration=CANARY)


CANARY = "canary-of-the-other-half"


@st.composite
def requests(draw: st.DrawFn) -> ModelRequest:
    """A request over a valid record: turns of any provider, each call with its one result."""
    items: list[Any] = [draw(messages)]
    for step in range(draw(st.integers(0, 3))):
        run = draw(st.sampled_from(["r", "r2"]))
        made = [
            CallRecord(f"c{step}.{n}", draw(ids), draw(names), draw(arguments)) for n in range(draw(st.integers(0, 3)))
        ]
        stop = draw(st.sampled_from(["", "length", "refusal", "other"]))
        words, reasoning = draw(texts), draw(items_of_others)
        items.append(turn(*made, words=words, step=step, run=run, stop=stop, reasoning=reasoning))
        items += [result(c.call_id, draw(results()), index=n, step=step, run=run) for n, c in enumerate(made)]
        if draw(st.booleans()):
            items.append(draw(messages))
    elided = draw(st.frozensets(st.integers(0, len(items) - 1), max_size=2))
    offer = Offer(
        "look", draw(texts), {"type": "object", "properties": {"a": {"type": "string", "default": draw(texts)}}}
    )
    schema = draw(
        st.sampled_from([None, {"type": "integer"}, {"type": "object", "properties": {"a": {"type": "null"}}}])
    )
    return ModelRequest(
        draw(texts), items, len(items), draw(st.sampled_from([(), (offer,)])), "r",
        tool_choice=draw(st.sampled_from(["auto", "required", "none"])), output_schema=schema, elided=elided,
    )  # fmt: skip  # two rows


class Standing:
    """One wire's server and model in a loop that stays, since starting them costs more than a request."""

    def __init__(self, name: str) -> None:
        self.runner = asyncio.Runner()
        self.server = WIRES[name].fake(key=KEY)
        self.runner.run(self.server.__aenter__())
        self.model = WIRES[name].model(self.server.base_url, KEY)

    def ask(self, request: ModelRequest) -> None:
        async def main() -> None:
            self.server.add(Play("fine"))
            assert [event async for event in self.model.respond(request)][-1].text == "fine"

        self.runner.run(main())

    def close(self) -> None:
        self.runner.run(self.model.aclose())
        self.runner.run(self.server.__aexit__(None, None, None))
        self.runner.close()


@pytest.fixture(scope="module", params=list(WIRES))
def standing(request: pytest.FixtureRequest) -> Iterator[Standing]:
    wire = Standing(request.param)
    yield wire
    wire.close()


@law("2.1", "2.6")
@case("R011", "R022", "R130", "R167")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(request=requests())
def test_any_record_becomes_a_request_that_the_wire_takes(standing: Standing, request: ModelRequest) -> None:
    standing.ask(request)
    asked = standing.server.asked[-1]
    assert asked.fault is None
    assert CANARY.encode() not in asked.raw
    assert KEY.encode() not in asked.raw
    told = standing.server.told(asked.body)
    calls = [one.id for one in told if one.kind == "call"]
    assert [one.id for one in told if one.kind == "result"] == calls
    assert len(set(calls)) == len(calls)
    assert not any(one.kind == "opaque" for one in told)


@law("2.1")
@case("R011")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(transcript=broken())
def test_any_imported_history_becomes_a_request_that_the_wire_takes(standing: Standing, transcript: Transcript) -> None:
    async def record() -> ModelRequest:
        async with Runtime("memory://") as runtime:
            run = await import_messages(runtime, transcript)
            items = [*run._fold.record.items, said("Go on.")]
            return ModelRequest("Be kind.", items, len(items), ())

    standing.ask(standing.runner.run(record()))
    asked = standing.server.asked[-1]
    assert asked.fault is None
    told = standing.server.told(asked.body)
    assert [one.id for one in told if one.kind == "call"] == [one.id for one in told if one.kind == "result"]


STEPS = st.lists(
    st.tuples(
        texts,
        st.lists(st.tuples(ids, results() | st.integers(0, 3_000).map(lambda n: ToolResult.text("x" * n))), max_size=3),
        st.none() | messages,
    ),
    min_size=1,
    max_size=6,
)


@law("2.1", "6.context-budget")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, budget=st.integers(0, 2_500), counted=st.sampled_from([0, 50, 5_000]))
def test_every_cut_is_taken_takes_nothing_back_and_leaves_the_beginning_as_it_was(
    standing: Standing, steps: list[Any], budget: int, counted: int
) -> None:
    items: list[Any] = [said("Go")]
    fitter, gone, before, last = Fitter(budget, -1), set[str](), None, None
    for step, (words, calls, message) in enumerate(steps):
        made = [CallRecord(f"c{step}.{n}", given, "look", "{}") for n, (given, _) in enumerate(calls)]
        items.append(turn(*made, words=words, step=step))
        items[-1].usage = Usage(counted)
        items += [result(c.call_id, calls[n][1], index=n, step=step, size=4_000) for n, c in enumerate(made)]
        items += [] if message is None and made else [message or said("And?")]
        cut = fitter.fit(items)
        asked = ModelRequest("Be brief.", cut.items, cut.length, (LOOK,), "r", step, elided=cut.elided)
        standing.ask(asked)
        assert standing.server.asked[-1].fault is None
        told = standing.server.told(standing.server.asked[-1].body)
        calls_told = [one.id for one in told if one.kind == "call"]
        assert [one.id for one in told if one.kind == "result"] == calls_told
        kept = {item.call_id for p, item in enumerate(asked.items) if hasattr(item, "index") and p not in cut.elided}
        assert not gone & kept, "what left a request never comes back"
        gone |= {item.call_id for item in items if hasattr(item, "index")} - kept
        assert {f"c{step}.{n}" for n in range(len(calls))} <= kept, "the newest batch is whole"
        state = cut.elided, cut.left_out
        if state == last and before is not None:
            assert told[: len(before)] == before, "nothing was cut, so a cache of the request before counts"
        before, last = told, state


@tool(needs_approval=True)
def refund(order_id: str, cents: int = 100) -> str:
    """Refund an order."""
    return f"Refunded {cents} on {order_id}"


@law("7.9")
@case("R011")
@pytest.mark.parametrize(("first", "second"), [(a, b) for a in WIRES for b in WIRES if a != b])
def test_a_run_that_paused_on_one_wire_goes_on_on_another(tmp_path: Path, first: str, second: str) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    calls = [("c1", "refund", '{"order_id": "W1", "cents": null}'), ("c1", "refund", '{"order_id": "W2"}')]
    plan = Play("Let me refund.", calls=calls, reasoning="They are owed.")

    async def main() -> None:
        async with WIRES[first].fake([plan], key=KEY) as server:
            agent = Agent("desk", WIRES[first].model(server.base_url, KEY), tools=[refund])
            async with Runtime(url, agents=[agent]) as runtime:
                run = await (await runtime.start("desk", "Refund W1 and W2")).wait()
                assert run.status == "paused"
            await agent.model.aclose()
            assert server.faults == []
        async with WIRES[second].fake([Play("Done.")], key=KEY) as server:
            agent = Agent("desk", WIRES[second].model(server.base_url, KEY), tools=[refund])
            async with Runtime(url, agents=[agent]) as runtime:
                again = await runtime.get(run.id)
                one, two = await again.approvals()
                await again.approve(one.call_id, by="grace")
                await again.reject(two.call_id, by="grace", reason="not W2")
                await again.wait()
                assert (again.status, again.answer) == ("completed", "Done.")
                assert (await runtime.verify()).ok
            await agent.model.aclose()
            assert server.faults == []
            told = server.told(server.asked[-1].body)
            assert [one.kind for one in told if one.kind != "system"] == [
                *("user", "assistant", "call", "call", "result", "result"),
            ]
            assert next(one.text for one in told if one.kind == "result") == "Refunded 100 on W1"
            assert b"They are owed." not in server.asked[-1].raw

    go(main())


# ------------------------------------------------------------------------------ what the wires share


def test_opaque_items_are_given_to_their_origin_alone_and_as_copies() -> None:
    kept = tagged("w", "o", [{"a": 1}])
    assert own_items(kept, "w", "o") == [{"a": 1}]
    assert own_items(normal(kept), "w", "o") == [{"a": 1}], "as the record gives it back"
    own_items(kept, "w", "o")[0]["a"] = 2
    assert own_items(kept, "w", "o") == [{"a": 1}]
    assert (
        own_items(kept, "w", "p")
        == own_items(kept, "v", "o")
        == own_items(None, "w", "o")
        == own_items("x", "w", "o")
        == []
    )
    assert own_items({"wire": "w", "origin": "o", "items": [1, None, "x"]}, "w", "o") == []
    assert tagged("w", "o", []) is None
    assert len({origin_of("a", "b"), origin_of("a", "c"), origin_of("ab"), origin_of("b", "a")}) == 4


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
        ({"retry-after": "Fri, 30 Oct 2026 12:00:30 GMT", "date": "Fri, 30 Oct 2026 12:00:00 GMT"}, 30.0),
        ({"retry-after": "Fri, 30 Oct 2026 11:00:00 GMT", "date": "Fri, 30 Oct 2026 12:00:00 GMT"}, 0.0),
        ({"retry-after": "Fri, 30 Oct 2026 12:00:30 GMT"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "later"}, None),
        ({"retry-after": "Fri, 30 Oct 2026 12:00:30 -0000", "date": "Fri, 30 Oct 2026 12:00:00 GMT"}, None),
    ],
)
def test_how_long_a_server_asks_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp"),
        (b"RIFF\x00\x00\x00\x00WAVE", "audio/wav"),
        (b"RIFF\x00\x00\x00\x00AVI ", None),
        (b"\xff\xfb\x90\x00", "audio/mpeg"),
        (b"ID3\x04", "audio/mpeg"),
        (b"\xff\xf1\x50\x80", None),
        (b"fLaC", "audio/flac"),
        (b"OggS", "audio/ogg"),
        (b"%PDF-1.7", "application/pdf"),
        (b"", None),
        (b"\x89PNG", None),
        (b"<svg/>", None),
    ],
)
def test_the_kind_of_a_medium_is_that_of_its_bytes(data: bytes, kind: str | None) -> None:
    assert kind_of(data) == kind


SPENT = {
    "anthropic": (Play("half", usage=Usage(700, 30, 500), then="drop"), Usage(700, 1, 500)),
    "google": (Play("half", usage=Usage(700, 30, 500), then="drop"), Usage(700)),
    "openai": (
        Chunks([
            {
                "type": "response.failed",
                "response": {
                    "status": "failed",
                    "error": {"code": "server_error", "message": "overloaded"},
                    "usage": {"input_tokens": 700, "output_tokens": 30, "input_tokens_details": {"cached_tokens": 500}},
                },
            }
        ]),
        Usage(700, 30, 500),
    ),
    "openai-chat": (Chunks([chunk({"content": "half"}), usage(700, 30, 500)], "drop"), Usage(700, 30, 500)),
}  # fmt: skip  # what each wire tells before an answer breaks off


@pytest.mark.parametrize("wire", SPENT)
def test_what_a_wire_has_told_of_the_cost_before_its_answer_breaks_off_is_kept(wire):
    async def main():
        reply, spent = SPENT[wire]
        async with WIRES[wire].fake([reply], key=KEY) as server:
            model = WIRES[wire].model(server.base_url, KEY)
            asked = request()
            with pytest.raises(ModelError) as caught:
                [event async for event in model.respond(asked)]
            await model.aclose()
        assert caught.value.retryable
        assert asked.discarded == ((model.model, spent),)

    go(main())


ANSWERS = {
    "anthropic": lambda: anthropic_answer.Answer("m"),
    "google": lambda: google_answer.Answer("m", {}),
    "openai": lambda: openai_answer.Answer("m"),
    "openai-chat": lambda: chat_answer.Answer("m"),
}


def work(wire: str, deltas: int, *, calls: bool) -> int:
    """Functions that are called to take an answer of so many pieces, of a text or of a call's arguments."""
    words = "0123456789" * deltas
    made = [("c1", "look", json.dumps({"text": words}))] if calls else ()
    pieces = list(WIRES[wire].fake().stream_of(Play("" if calls else words, made, pieces=deltas)))
    answer = ANSWERS[wire]()
    count = 0

    def called(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        for piece in pieces:
            for _ in answer.add(piece):
                pass
    finally:
        sys.setprofile(None)
    assert answer.finish
    return count


@pytest.mark.parametrize("calls", [False, True])
@pytest.mark.parametrize("wire", ANSWERS)
def test_the_work_for_a_piece_does_not_grow_with_the_turn(wire, calls):
    small, large = work(wire, 300, calls=calls), work(wire, 3000, calls=calls)
    assert large <= 10 * small

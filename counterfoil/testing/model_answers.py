"""The model suite: what comes back from a provider becomes events and one finished turn."""

# ruff: noqa: S101, PLR2004  # tests, as those in tests/

from __future__ import annotations

import asyncio

import pytest

from counterfoil.core.jsontext import dumps
from counterfoil.core.turn import Usage
from counterfoil.model import CallDelta, ModelCall, ModelTurn, ReasoningDelta, TextDelta
from counterfoil.testing.fake_server import Play
from counterfoil.testing.model_bench import HOSTILE, ModelBench, Serve, awaited, request, said

TWO = [("p1", "look", '{"a": 1}'), ("p2", "seek", '{"b": {"c": [2]}}')]


class AnswerTests(ModelBench):
    """Text, calls, ends, usage."""

    @awaited
    async def test_a_text_is_streamed_and_then_whole(self, serve: Serve) -> None:
        async with serve(Play("Hello there, Ada.", pieces=4)) as at:
            *deltas, last = await at.events()
        assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == "Hello there, Ada."
        assert all(isinstance(delta, TextDelta) for delta in deltas)
        assert (last.text, last.calls, last.stop, last.model) == ("Hello there, Ada.", (), "end", "fake-1")

    @awaited
    async def test_a_text_of_many_pieces_is_whole(self, serve: Serve) -> None:
        words = "".join(chr(ord("a") + n % 26) for n in range(5000))
        async with serve(Play(words, pieces=5000)) as at:
            *deltas, last = await at.events()
        assert len(deltas) == 5000
        assert last.text == words

    @awaited
    async def test_parallel_calls_come_as_they_are(self, serve: Serve) -> None:
        async with serve(Play("Looking.", calls=TWO, pieces=3)) as at:
            *deltas, last = await at.events()
            came = [(identity, name, at.came(arguments)) for identity, name, arguments in TWO]
        assert last.calls == tuple(ModelCall(*call) for call in came)
        assert (last.text, last.stop) == ("Looking.", "calls")
        pieces = [delta for delta in deltas if isinstance(delta, CallDelta)]
        for number, (_, name, arguments) in enumerate(came):
            of_one = [piece for piece in pieces if piece.index == number]
            assert "".join(piece.text for piece in of_one) == arguments
            assert {piece.tool_name for piece in of_one} == {name}

    @awaited
    async def test_ids_that_repeat_and_ids_that_are_missing_come_as_they_are(self, serve: Serve) -> None:
        same = [("same", "look", "{}"), ("same", "look", '{"a":1}'), (None, "look", "{}")]
        async with serve(Play(calls=same)) as at:
            got = await at.turn()
        assert [(call.id or None, call.arguments) for call in got.calls] == [(i, a) for i, _, a in same]

    @awaited
    async def test_broken_arguments_are_left_as_they_are(self, serve: Serve) -> None:
        broken = [("p1", "look", '{"a": '), ("p2", "look", "no JSON"), ("p3", "look", '{"a": 2}')]
        async with serve(Play(calls=broken)) as at:
            if at.server.objects:
                return
            got = await at.turn()
        assert [call.arguments for call in got.calls] == [arguments for _, _, arguments in broken]

    @pytest.mark.parametrize(
        ("reply", "stop"),
        [
            pytest.param(Play("x"), "end", id="end"),
            pytest.param(Play(calls=TWO), "calls", id="calls"),
            pytest.param(Play("x", stop="length"), "length", id="length"),
            pytest.param(Play(calls=TWO, stop="length"), "length", id="length with calls"),
            pytest.param(Play("I cannot.", stop="refusal"), "refusal", id="refusal"),
            pytest.param(Play("I cannot.", calls=TWO, stop="refusal"), "refusal", id="refusal with calls"),
            pytest.param(Play("x", stop="other"), "other", id="a reason that nobody knows"),
        ],
    )
    def test_the_reason_for_the_end_is_told(self, serve: Serve, reply: Play, stop: str) -> None:
        @awaited
        async def main() -> None:
            async with serve(reply) as at:
                got = await at.turn()
            assert (got.stop, got.text) == (stop, reply.text)

        main()

    @awaited
    async def test_usage_is_counted_with_what_came_from_a_cache(self, serve: Serve) -> None:
        async with serve(Play("x", usage=Usage(700, 30, 500))) as at:
            got = await at.turn()
        assert got.usage == Usage(700, 30, 500)

    @awaited
    async def test_an_answer_of_nothing_is_an_answer(self, serve: Serve) -> None:
        async with serve(Play("")) as at:
            got = await at.turn()
        assert (got.text, got.calls, got.stop) == ("", (), "end")

    @awaited
    async def test_hostile_texts_come_as_they_are(self, serve: Serve) -> None:
        raws = [dumps({"a": text}).decode() for text in HOSTILE]
        plays = [Play(f"<{text}>", calls=[("p1", "look", raw)]) for text, raw in zip(HOSTILE, raws, strict=True)]
        async with serve(*plays) as at:
            for text, raw in zip(HOSTILE, raws, strict=True):
                got = await at.turn()
                assert got.text == f"<{text}>"
                assert got.calls == (ModelCall("p1", "look", raw),)

    @awaited
    async def test_reasoning_is_no_part_of_the_text(self, serve: Serve) -> None:
        async with serve(Play("Yes.", reasoning="Hmm, perhaps.")) as at:
            *deltas, last = await at.events()
        shown = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
        assert shown in ("", "Hmm, perhaps.")
        assert last.text == "Yes."

    @awaited
    async def test_requests_at_once_do_not_mix(self, serve: Serve) -> None:
        def echo(number: int) -> Play:
            return Play(f"answer {number}", calls=[(f"p{number}", "look", f'{{"a":{number}}}')], pieces=3)

        async with serve(*[lambda body: echo(int(str(body).partition("number ")[2][0]))] * 5) as at:
            asked = [request(said(f"number {n}")) for n in range(5)]
            turns: list[ModelTurn] = await asyncio.gather(*map(at.turn, asked))
        assert [turn.text for turn in turns] == [f"answer {n}" for n in range(5)]
        assert [turn.calls[0].id for turn in turns] == [f"p{n}" for n in range(5)]

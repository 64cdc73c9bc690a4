"""The model suite: what goes wrong on the way, and who goes away."""

# ruff: noqa: S101, PLR2004  # tests, as those in tests/

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from counterfoil.agent import Agent
from counterfoil.core.turn import NO_USAGE, Usage
from counterfoil.model import TextDelta
from counterfoil.run import Run
from counterfoil.runtime import Runtime
from counterfoil.testing.effects import FrozenEffects
from counterfoil.testing.fake_server import FakeServer, Play, Refusal, Silence, rate_limit
from counterfoil.testing.model_bench import KEY, At, MakeModel, ModelBench, Serve, awaited, causes, request

HALF = Play("half", pieces=1, then="hang")
SPENT = Usage(700, 30, 500)


async def driven(at: At, **settings: Any) -> tuple[Run, FrozenEffects]:
    """A run on the wire that waits in no real time."""
    effects = FrozenEffects()
    async with Runtime("memory://", agents=[Agent("desk", at.model, **settings)], effects=effects) as runtime:
        return await (await runtime.start("desk", "Go")).wait(), effects


class FailureTests(ModelBench):
    """Refusals, lost connections, secrets, cancelling."""

    @pytest.mark.parametrize(
        ("status", "retryable"),
        [
            *((status, False) for status in (400, 401, 402, 403, 404, 422)),
            *((status, True) for status in (408, 429, 500, 502, 503, 529)),
        ],
    )
    def test_a_status_says_whether_asking_again_may_help(self, serve: Serve, status: int, retryable: bool) -> None:  # noqa: FBT001  # a value under test
        @awaited
        async def main() -> None:
            async with serve(Refusal(status, "the server's own words")) as at:
                error = await at.refused()
            assert error.retryable is retryable
            assert str(status) in str(error)
            assert "the server's own words" in str(error)
            assert error.retry_after is None
            assert error.elsewhere is (status in (402, 429)), "a quota of this provider's"

        main()

    @awaited
    async def test_a_rate_limit_says_how_long_to_wait_and_is_asked_once(self, serve: Serve) -> None:
        async with serve(rate_limit(7), Play("fine")) as at:
            error = await at.refused()
            assert (error.retryable, error.retry_after) == (True, 7.0)
            assert len(at.server.asked) == 1, "the run asks again, on record, and not the client"
            assert (await at.turn()).text == "fine"

    @pytest.mark.parametrize(
        "reply",
        [
            pytest.param(Play("half", then="drop"), id="amid a text"),
            pytest.param(Play(calls=[("c1", "look", '{"a": 1}')], then="drop"), id="amid a call"),
            pytest.param(Play("", then="drop"), id="before the first piece"),
        ],
    )
    def test_a_connection_that_drops_may_come_back(self, serve: Serve, reply: Play) -> None:
        @awaited
        async def main() -> None:
            async with serve(reply) as at:
                error = await at.refused()
            assert error.retryable

        main()

    @awaited
    async def test_a_server_that_is_not_there_may_come_back(
        self, fake: type[FakeServer], make_model: MakeModel
    ) -> None:
        async with fake() as server:
            url = server.base_url
        model: Any = make_model(url, KEY)
        with pytest.raises(Exception, match="connection") as caught:
            [event async for event in model.respond(request())]
        assert caught.value.retryable  # type: ignore[attr-defined]  # a ModelError
        await model.aclose()

    @pytest.mark.parametrize(
        ("key", "reply"),
        [
            pytest.param(KEY, Refusal(500, f"bad header Authorization: Bearer {KEY}"), id="a server that quotes it"),
            pytest.param(f"{KEY}-wrong", Play("fine"), id="a wrong key"),
            pytest.param(KEY, Refusal(400, "x" * 390 + KEY), id="a key where a text may be cut"),
            pytest.param(f"{KEY}\nline", Play("fine"), id="a key that no header takes"),
            pytest.param(f"{KEY}-ключ", Play("fine"), id="a key beyond ASCII"),
        ],
    )
    def test_the_key_is_in_no_error_and_no_request(self, serve: Serve, key: str, reply: Any) -> None:
        @awaited
        async def main() -> None:
            async with serve(reply, key=key) as at:
                error = await at.refused()
                shown = causes(error)
                bodies = b"".join(asked.raw for asked in at.server.asked)
            for part in (KEY, KEY[:12], KEY[-8:]):
                assert part not in shown
                assert part.encode() not in bodies

        main()

    @awaited
    async def test_the_key_is_not_on_record(self, serve: Serve) -> None:
        async with serve(Play(calls=[("c1", "gone", "{}")]), Refusal(400, f"your key {KEY} is odd")) as at:
            run = await Agent("desk", at.model).run("Go")
            assert run.status == "failed"
            assert "is odd" in (run.reason or "")
            shown = repr(run.items) + str(run.reason) + repr([event async for event in run.events()])
        assert KEY[:12] not in shown

    @awaited
    async def test_cancelling_amid_the_stream_closes_the_connection(self, serve: Serve) -> None:
        async with serve(HALF, Play("fine")) as at:

            async def read() -> None:
                async for _ in at.model.respond(request()):
                    pass

            task = asyncio.create_task(read())
            await at.server.streaming.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await at.server.gone.wait()
            assert (await at.turn()).text == "fine"

    @awaited
    async def test_leaving_the_answer_closes_the_connection(self, serve: Serve) -> None:
        async with serve(HALF) as at:
            events = at.model.respond(request())
            assert await anext(events) == TextDelta("half")
            await events.aclose()
            await at.server.gone.wait()

    @awaited
    async def test_cancelling_the_run_closes_the_connection(self, serve: Serve) -> None:
        async with serve(HALF) as at:
            agent = Agent("desk", at.model)
            async with Runtime("memory://", agents=[agent]) as runtime:
                run = await runtime.start("desk", "Go")
                await at.server.streaming.wait()
                await run.cancel(reason="enough")
                await run.wait()
                assert run.status == "cancelled"
                await at.server.gone.wait()

    @pytest.mark.parametrize(
        "reply",
        [
            pytest.param(Silence(), id="no answer"),
            pytest.param(HALF, id="silence amid the answer"),
            pytest.param(Play("half", pieces=1, then="tick"), id="signs of life alone"),
        ],
    )
    def test_a_server_that_is_silent_is_left_in_time_and_may_come_back(self, serve: Serve, reply: Any) -> None:
        @awaited
        async def main() -> None:
            try:
                serving = serve(reply, timeout=0.2)
                at = await serving.__aenter__()
            except TypeError:
                pytest.skip("make_model takes no timeout")
            try:
                error = await at.refused()
                assert error.retryable
                assert "in time" in str(error)
                await at.server.gone.wait()
            finally:
                await serving.__aexit__(None, None, None)

        main()

    @awaited
    async def test_cancelling_before_the_answer_begins_closes_the_connection(self, serve: Serve) -> None:
        async with serve(Silence()) as at:
            task = asyncio.create_task(at.turn())
            await at.server.streaming.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await at.server.gone.wait()

    @awaited
    async def test_a_run_asks_again_for_what_may_pass_and_records_one_turn(self, serve: Serve) -> None:
        async with serve(rate_limit(7), Play("half", then="drop"), Play("fine")) as at:
            run, effects = await driven(at)
            assert len(at.server.asked) == 3
        assert (run.status, run.answer, run.steps) == ("completed", "fine", 1)
        assert effects.slept == [7, 1.0]

    @awaited
    async def test_a_run_asks_only_twice_again_and_never_what_stays(self, serve: Serve) -> None:
        async with serve(*[Refusal(503, "down")] * 3, Refusal(400, "no"), Play("fine")) as at:
            out, _ = await driven(at)
            assert len(at.server.asked) == 3
            wrong, _ = await driven(at)
            assert len(at.server.asked) == 4
        assert [(run.status, run.steps) for run in (out, wrong)] == [("failed", 0), ("failed", 0)]

    @awaited
    async def test_after_a_turn_is_on_record_only_the_next_one_is_asked_for(self, serve: Serve) -> None:
        async with serve(Play(calls=[("c1", "gone", "{}")]), Play("half", then="drop"), Play("fine")) as at:
            run, _ = await driven(at)
            last, before = at.server.asked[-1].body, at.server.asked[-2].body
        assert (run.answer, run.steps, len(run.calls)) == ("fine", 2, 1)
        assert last == before

    @awaited
    async def test_what_a_broken_answer_has_cost_counts(self, serve: Serve) -> None:
        async with serve(Play("half", usage=SPENT, then="drop"), Play("fine", usage=SPENT)) as at:
            asked = request()
            await at.refused(asked)
            told = sum((usage for _, usage in asked.discarded), start=NO_USAGE)
            assert (await at.turn(asked)).usage == SPENT
            assert sum((usage for _, usage in asked.discarded), start=NO_USAGE) == told, "a turn is not discarded"
            at.server.add(Play("half", usage=SPENT, then="drop"), Play("fine", usage=SPENT))
            run, _ = await driven(at)
        # Some wires tell the input at the beginning, others all at the end.
        assert told.input_tokens in (0, 700)
        assert run.usage == SPENT + told

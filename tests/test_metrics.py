"""Metrics of Prometheus, and what probes are told."""

from __future__ import annotations

import asyncio
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from counterfoil import Runtime, ToolError, ToolResult, tool
from counterfoil.core.errors import StoreError
from counterfoil.observers.prometheus import OWN_CODES, Metrics
from counterfoil.testing import call, say
from tests.helpers import Gate, Place, agent, both, counted, fine, go, until
from tests.served import follow, served


async def read(metrics: Metrics) -> dict[str, dict[tuple[str, ...], float]]:
    """Samples by name, by the values of their labels, which stand by name."""
    return parsed((await metrics.text()).decode())


def parsed(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


@tool
def lookup(code: int) -> str:
    """Fails."""
    raise ToolError("no", code=code)


@tool
def guarded() -> ToolResult:
    """Refuses."""
    return ToolResult.denied("not you")


def turns(*more):
    return [
        [
            call("fine", id="1"),
            call("lookup", code=404, id="2"),
            call("guarded", id="3"),
            call("pay", id="4"),
            call("pay", n=2, id="8"),
        ],
        [call("eve-1", id="5"), call("eve-2", id="6"), call("fine", raw="{", id="7")],
        *more,
        say("Done."),
    ]


@both
def test_what_runs_did_is_counted_by_outcome_and_code_and_what_waits_is_asked_of_the_store(place):
    pay, _ = counted("pay", needs_approval=True)
    desk = agent(turns(), fine, lookup, guarded, pay)

    async def main():
        async with place.open(desk) as runtime:
            metrics = Metrics(runtime)
            run = await runtime.start("desk", "go")
            await run.wait()
            waits = await read(metrics)
            assert waits["counterfoil_runs_unfinished"] == {("driven",): 0, ("queued",): 0, ("paused",): 1}
            assert waits["counterfoil_approvals_waiting"] == {(): 2}
            assert waits["counterfoil_runs_driven"] == {(): 0}
            await run.approve("4", by="grace")
            await run.approve("8", by="grace")
            await run.wait()
            await runtime.start("desk", "later", not_before=run.items[0].date.replace(year=9000))
            seen = await read(metrics)
        assert seen["counterfoil_calls_total"] == {
            ("", "succeeded", "fine"): 1, ("404", "failed", "lookup"): 1, ("", "denied", "guarded"): 1,
            ("", "succeeded", "pay"): 2, ("4001", "failed", "other"): 2, ("4000", "failed", "fine"): 1,
        }  # fmt: skip  # a table
        assert seen["counterfoil_call_duration_seconds_count"] == {
            ("fine",): 1, ("lookup",): 1, ("guarded",): 1, ("pay",): 2,
        }  # fmt: skip  # one row
        assert seen["counterfoil_model_turn_duration_seconds_count"] == {("desk",): 3}
        assert seen["counterfoil_runs_started_total"] == {("desk",): 1}
        assert seen["counterfoil_runs_paused_total"] == {("desk",): 1}
        assert seen["counterfoil_runs_ended_total"] == {("desk", "answer", "completed"): 1}
        assert seen["counterfoil_decisions_total"] == {("approve",): 2}
        assert seen["counterfoil_model_turns_total"] == {("desk", "calls"): 2, ("desk", "end"): 1}
        assert seen["counterfoil_runs_unfinished"] == {("driven",): 0, ("queued",): 1, ("paused",): 0}
        assert seen["counterfoil_approvals_waiting"] == {(): 0}
        assert seen["counterfoil_store_up"] == {(): 1}

    go(main())


def test_the_number_of_series_depends_on_the_tools_alone():
    many = [
        [call("lookup", code=code, id=f"c{code}") for code in range(1, OWN_CODES + 4)]
        + [call(f"tool-{i}", id=f"t{i}") for i in range(50)]
    ]

    async def main():
        async with Runtime(agents=[agent([*many, say("Done.")], lookup)]) as runtime:
            metrics = Metrics(runtime)
            await (await runtime.start("desk", "go")).wait()
            calls = (await read(metrics))["counterfoil_calls_total"]
            assert calls["4001", "failed", "other"] == 50
            assert calls["other", "failed", "lookup"] == 3
            assert len(calls) == OWN_CODES + 2

    go(main())


def test_names_have_their_unit_and_no_series_has_a_tenant_or_an_id():
    async def main():
        desk = agent([[call("fine", id="secret-call")], say("secret-text")], fine)
        async with Runtime(agents=[desk]) as runtime:
            metrics = Metrics(runtime)
            run = await runtime.start("desk", "secret-prompt")
            await run.wait()
            text = (await metrics.text()).decode()
        assert "secret" not in text
        assert run.id not in text
        assert "default" not in text
        for family in text_string_to_metric_families(text):
            assert re.fullmatch(r"(counterfoil|process)_[a-z_]+", family.name)
            assert family.documentation
            if "duration" in family.name and not family.name.endswith("_created"):
                assert family.name.endswith("_seconds")

    go(main())


def test_metrics_are_read_with_the_scope_admin_and_count_requests_by_route_and_open_streams(tmp_path):
    gate = Gate()

    async def main():
        desk = agent([[call("work", at="hold", id="h")], say("Done.")], gate.tool())
        async with served(Place("sqlite", tmp_path).runtime(desk)) as http:
            run = await http.start()
            await http.client.get(f"/v1/runs/{run['runId']}")
            await http.client.get("/v1/runs/0199aaaa")
            await http.client.get("/no/such/route")
            await http.client.request("BREW", "/v1/runs")
            reading = asyncio.create_task(anext(follow(http.client, run["runId"])))
            metrics = http.app.state.metrics
            await until(lambda: metrics.streams._value.get() == 1)
            answer = await http.client.get("/metrics")
            assert answer.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
            seen = parsed(answer.text)
            assert seen["counterfoil_event_streams"] == {(): 1}
            assert seen["counterfoil_http_requests_total"] == {
                ("POST", "/v1/runs", "202"): 1, ("GET", "/v1/runs/{run_id}", "200"): 1,
                ("GET", "/v1/runs/{run_id}", "404"): 1, ("GET", "other", "404"): 1, ("other", "/v1/runs", "405"): 1,
            }  # fmt: skip  # a table
            gate.open("hold")
            await reading
            await until(lambda: metrics.streams._value.get() == 0)
            took = (await read(metrics))["counterfoil_http_request_duration_seconds_count"]
            assert ("GET", "/v1/runs/{run_id}/events") not in took
            assert took["GET", "/v1/runs/{run_id}"] == 2
        async with served(Runtime(agents=[desk]), dev=None) as http:
            assert (await http.client.get("/metrics")).status_code == 401

    go(main())


class Failing:
    """A store that does not answer."""

    def __init__(self, store):
        self._store = store
        self.fails = False

    def __getattr__(self, name):
        if self.fails and name in ("version", "counts"):
            return self._refuse
        return getattr(self._store, name)

    async def _refuse(self, *_):
        raise StoreError("the disk at /secret/place is gone")


def test_a_server_is_ready_while_its_store_answers_and_its_worker_lives_and_says_so_in_its_metrics(tmp_path):
    async def main():
        runtime = Place("sqlite", tmp_path).runtime(agent([say("Done.")]))
        runtime.store = store = Failing(runtime.store)
        assert await runtime.unready() == "it is not open"
        async with served(runtime) as http:

            async def told():
                answer = await http.client.get("/readyz")
                return answer.status_code, answer.json().get("detail", "ok").rpartition("now: ")[2]

            assert await told() == (200, "ok")
            store.fails = True
            assert await told() == (503, "its store does not answer")
            seen = await read(http.app.state.metrics)
            assert seen["counterfoil_store_up"] == {(): 0}
            assert all(value != value for value in seen["counterfoil_runs_unfinished"].values())  # noqa: PLR0124  # NaN
            assert (await http.client.get("/healthz")).json() == {"status": "ok"}
            store.fails = False
            runtime._sweeper.cancel()
            await until(runtime._sweeper.done)
            assert (await told())[1] == "its worker has ended; start it anew"
            runtime._sweeper = None
            await runtime.drain()
            assert await told() == (503, "it is about to end, and takes up nothing more")

    go(main())


@pytest.mark.parametrize("known", [None, "one", "many"])
def test_metrics_leave_a_runtimes_own_hooks_as_they_are(known):
    from counterfoil import Hooks

    seen = []
    own = {None: None, "one": Hooks(on_event=seen.append), "many": [Hooks(on_event=seen.append), Hooks()]}[known]

    async def main():
        async with Runtime(agents=[agent([say("Done.")])], hooks=own) as runtime:
            metrics = Metrics(runtime)
            await (await runtime.start("desk", "go")).wait()
            assert (await read(metrics))["counterfoil_runs_ended_total"] == {("desk", "answer", "completed"): 1}
        assert bool(seen) == (known is not None)

    go(main())


def test_a_turn_is_timed_from_what_came_before_it_and_a_pause_and_a_body_are_no_part_of_it():
    from counterfoil.testing import FrozenEffects

    effects = FrozenEffects()

    @tool(needs_approval=True)
    async def pay() -> str:
        """Takes its time."""
        effects.advance(100)
        return "paid"

    def slow(request):
        effects.advance(7)
        return say("Done.")

    async def main():
        desk = agent([[call("pay", id="p")], slow], pay)
        async with Runtime(agents=[desk], effects=effects) as runtime:
            metrics = Metrics(runtime)
            run = await (await runtime.start("desk", "go")).wait()
            effects.advance(1000)
            await run.approve("p", by="grace")
            await run.wait()
            seen = await read(metrics)
        assert seen["counterfoil_model_turn_duration_seconds_sum"][("desk",)] == pytest.approx(7, abs=0.1)
        assert seen["counterfoil_model_turn_duration_seconds_count"] == {("desk",): 2}

    go(main())

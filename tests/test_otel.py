"""Traces of OpenTelemetry: a run is one trace, with a span for each segment, request and call."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, TraceIdRatioBased
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes, exception_attributes
from opentelemetry.trace import SpanKind, StatusCode

from counterfoil import Agent, Runtime, ToolContext, ToolError, ToolResult, tool
from counterfoil.core.turn import Usage
from counterfoil.model import ModelTurn
from counterfoil.observers.otel import Tracing
from counterfoil.testing import ScriptedModel, call, say
from tests.helpers import Gate, Place, agent, both, counted, fine, go, until
from tests.served import served


class Traced:
    """A process that traces."""

    def __init__(self, *, content=False, **options):
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**options)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = Tracing(self.provider, content=content)

    @property
    def spans(self):
        return self.exporter.get_finished_spans()

    def one(self, name):
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def all(self, name):
        return [span for span in self.spans if span.name == name]


@tool
def lookup(word: str) -> str:
    """Fails."""
    raise ToolError(f"no such {word}", code=404)


@tool
def guarded(word: str) -> ToolResult:
    """Refuses."""
    return ToolResult.denied("not you")


def turns():
    first = [
        call("fine", id="f"), call("lookup", word="secret-input", id="l"), call("guarded", word="x", id="g"),
        call("secret-tool", id="n"), call("fine", raw="{", id="j"), call("pay", id="p"),
    ]  # fmt: skip  # two rows
    return [first, say("secret-answer")]


def desk():
    pay, _ = counted("pay", needs_approval=True)
    return agent(turns(), fine, lookup, guarded, pay, instructions="secret-instructions")


@both
def test_a_run_is_one_trace_over_a_pause_and_another_process_and_its_segments_are_linked(place):
    async def main():
        first, second = Traced(), Traced()
        async with place.open(desk(), hooks=first.tracing.hooks) as runtime:
            run = await (await runtime.start("desk", "secret-prompt")).wait()
            await run.approve("p", by="grace") if place.kind == "memory" else None
            if place.kind == "memory":
                await run.wait()
        if place.kind == "memory":
            second = first
        else:
            async with place.open(desk(), hooks=second.tracing.hooks) as runtime:
                run = await runtime.get(run.id)
                await run.approve("p", by="grace")
                await run.wait()
        begun = first.all("invoke_agent desk")[0]
        resumed = second.all("invoke_agent desk")[-1]
        assert begun is not resumed
        assert begun.context.trace_id == resumed.context.trace_id
        assert (begun.parent, resumed.parent, begun.links) == (None, None, ())
        (link,) = resumed.links
        assert (link.context.trace_id, link.context.span_id) == (begun.context.trace_id, begun.context.span_id)
        assert dict(begun.attributes) == {
            "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "desk", "counterfoil.run.id": run.id,
            "counterfoil.run.resumed": False, "gen_ai.conversation.id": run.interaction_id,
            "gen_ai.provider.name": "ScriptedModel", "gen_ai.request.model": "ScriptedModel",
            "counterfoil.run.status": "paused",
        }  # fmt: skip  # a table
        assert resumed.attributes["counterfoil.run.resumed"] is True
        assert resumed.attributes["counterfoil.run.status"] == "completed"
        assert resumed.attributes["counterfoil.run.ended_by"] == "answer"
        assert [e.name for e in begun.events] == ["counterfoil.call.waiting"]
        inside = [s for s in first.spans if s.parent and s.parent.span_id == begun.context.span_id]
        assert sorted(s.name for s in inside) == [
            "chat ScriptedModel", "execute_tool", "execute_tool fine", "execute_tool fine", "execute_tool guarded",
            "execute_tool lookup",
        ]  # fmt: skip  # two rows
        assert second.one("execute_tool pay").parent.span_id == resumed.context.span_id
        assert {s.context.trace_id for s in (*first.spans, *second.spans)} == {begun.context.trace_id}
        assert first.tracing._open == second.tracing._open == {}

    go(main())


def test_a_call_has_its_outcome_in_our_words_and_its_error_in_those_of_the_conventions():
    async def main():
        traced = Traced()
        async with Runtime(agents=[desk()], hooks=traced.tracing.hooks) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
        part = {r.call_id: r for r in run.results}["f"]
        good, failed = traced.all("execute_tool fine")[-1], traced.one("execute_tool lookup")
        assert dict(good.attributes) == {
            "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "fine", "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": "f", "counterfoil.run.id": run.id, "counterfoil.attempt": 1,
            "counterfoil.outcome": "succeeded",
        }  # fmt: skip  # a table
        assert good.status.status_code is StatusCode.UNSET
        assert good.end_time == round(part.date.timestamp() * 1_000_000) * 1000
        assert good.start_time <= good.end_time
        assert failed.status.status_code is StatusCode.ERROR
        assert (failed.attributes["counterfoil.code"], failed.attributes["error.type"]) == (404, "404")
        (event,) = failed.events
        assert (event.name, dict(event.attributes)) == (
            "exception", {"exception.type": "counterfoil.core.errors.ToolError"},
        )  # fmt: skip  # one row
        denied, unknown = traced.one("execute_tool guarded"), traced.one("execute_tool")
        assert denied.attributes["counterfoil.outcome"] == "denied"
        assert denied.status.status_code is StatusCode.UNSET
        assert (unknown.attributes["counterfoil.code"], unknown.start_time) == (4001, unknown.end_time)
        assert [e.name for e in unknown.events] == ["exception"]
        assert "gen_ai.tool.name" not in unknown.attributes

    go(main())


class Named(ScriptedModel):
    """Says how it is called."""

    model = "small-1"

    async def respond(self, request):
        async for event in super().respond(request):
            yield (
                ModelTurn(event.text, event.calls, event.stop, event.usage, "small-1-2026")
                if isinstance(event, ModelTurn)
                else event
            )


def test_a_request_to_a_model_has_its_names_and_tokens():
    async def main():
        traced = Traced()
        named = Agent("named", model=Named([say("Done.")]), parameters={"temperature": 0.5})
        async with Runtime(agents=[named], hooks=traced.tracing.hooks) as runtime:
            run = await (await runtime.start("named", "go")).wait()
        chat = traced.one("chat small-1")
        assert chat.kind is SpanKind.CLIENT
        assert dict(chat.attributes) == {
            "gen_ai.operation.name": "chat", "gen_ai.provider.name": "Named", "gen_ai.request.model": "small-1",
            "gen_ai.request.temperature": 0.5, "gen_ai.response.model": "small-1-2026",
            "gen_ai.conversation.id": run.interaction_id, "gen_ai.response.finish_reasons": ("end",),
            "gen_ai.usage.input_tokens": run.usage.input_tokens, "gen_ai.usage.output_tokens": run.usage.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": 0, "gen_ai.usage.reasoning.output_tokens": 0,
            "counterfoil.run.id": run.id, "counterfoil.step": 0,
        }  # fmt: skip  # a table

    go(main())


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("openai:gpt-5", ("openai", "gpt-5")),
        ("openai-chat:a:b", ("openai", "a:b")),
        ("google:gemini-3", ("gcp.gemini", "gemini-3")),
        ("local", ("local", "local")),
        (["openai:gpt-5", "local"], ("openai", "gpt-5")),
        (None, ("NoneType", "NoneType")),
    ],
)
def test_a_model_is_named_as_the_conventions_have_it(model, names):
    from counterfoil.observers.otel import _named

    assert _named(model) == names


def test_no_span_holds_what_anybody_wrote_unless_it_is_asked_for():
    async def texts(traced):
        async with Runtime(agents=[desk()], hooks=traced.tracing.hooks) as runtime:
            run = await (await runtime.start("desk", "secret-prompt")).wait()
            await run.reject("p", by="grace", reason="secret-reason")
            await run.wait()
        return "".join(span.to_json() for span in traced.spans)

    words = ("prompt", "instructions", "input", "reason", "answer", "tool")

    async def main():
        assert "secret" not in await texts(Traced())
        spoken = Traced(content=True)
        told = await texts(spoken)
        assert all(f"secret-{word}" in told for word in words)
        failed = spoken.one("execute_tool lookup")
        assert json.loads(failed.attributes["gen_ai.tool.call.arguments"]) == {"word": "secret-input"}
        assert failed.attributes["gen_ai.tool.call.result"] == "no such secret-input"
        assert failed.events[0].attributes["exception.message"] == "no such secret-input"
        asked = json.loads(spoken.all("chat ScriptedModel")[1].attributes["gen_ai.input.messages"])
        assert [m["role"] for m in asked] == ["user", "assistant", *["tool"] * 6]
        assert asked[1]["parts"][1] == {
            "type": "tool_call", "id": "l", "name": "lookup", "arguments": {"word": "secret-input"},
        }  # fmt: skip  # one row

    go(main())


def test_attributes_outside_our_namespace_are_those_of_the_installed_conventions():
    known = {
        value
        for module in (gen_ai_attributes, error_attributes, exception_attributes)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    }
    with open(Tracing.__init__.__code__.co_filename, encoding="utf-8") as file:  # noqa: PTH123  # its own path
        used = set(re.findall(r'"((?:gen_ai|error|exception)\.[a-z_.]+)"', file.read()))
    assert len(used) > 20
    assert used - {"gen_ai.client.operation.duration", "gen_ai.client.token.usage"} <= known


def test_a_model_that_fails_ends_its_span_and_the_run_is_an_error():
    def fails(request):
        raise RuntimeError("secret")

    async def main():
        traced = Traced()
        async with Runtime(agents=[agent([fails])], hooks=traced.tracing.hooks) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
        assert run.status == "failed"
        chat, segment = traced.one("chat ScriptedModel"), traced.one("invoke_agent desk")
        assert chat.status.status_code is segment.status.status_code is StatusCode.ERROR
        assert chat.attributes["error.type"] == "_OTHER"
        assert segment.attributes["counterfoil.run.status"] == "failed"
        assert "secret" not in segment.to_json() + chat.to_json()

    go(main())


def spans_of_their_own(tracer):
    """Tools of every kind whose bodies make a span with their own name."""

    @tool
    async def at_once() -> str:
        """Never waits."""
        with tracer.start_as_current_span("at_once"):
            return "done"

    @tool
    async def waits() -> str:
        """Waits first."""
        await asyncio.sleep(0)
        with tracer.start_as_current_span("waits"):
            await asyncio.sleep(0)
            return "done"

    @tool
    def thread() -> str:
        """Runs in a thread."""
        with tracer.start_as_current_span("thread"):
            return "done"

    @tool
    def items() -> Iterator[str]:
        """Gives one after the other from a thread."""
        with tracer.start_as_current_span("items"):
            yield "done"

    @tool
    async def later_items() -> AsyncIterator[str]:
        """Gives one after the other."""
        await asyncio.sleep(0)
        with tracer.start_as_current_span("later_items"):
            yield "done"

    @tool(retries=1, read_only=True)
    async def again(ctx: ToolContext) -> str:
        """Fails once."""
        with tracer.start_as_current_span("again"):
            if ctx.attempt == 1:
                raise RuntimeError
            return "done"

    return [at_once, waits, thread, items, later_items, again]


def test_what_a_body_traces_belongs_to_its_call_whatever_runs_it():
    async def main():
        traced = Traced()
        tools = spans_of_their_own(traced.provider.get_tracer("app"))
        calls = [call(t.name, id=t.name) for t in tools]
        turns = [calls, [call("thread", id="t2")], say("Done.")]
        async with Runtime(agents=[agent(turns, *tools)], hooks=traced.tracing.hooks) as runtime:
            await (await runtime.start("desk", "go")).wait()
        for name in ("at_once", "waits", "thread", "items", "later_items", "again"):
            around = {span.context.span_id: span for span in traced.all(f"execute_tool {name}")}
            inside = traced.all(name)
            assert {span.parent.span_id for span in inside} == set(around)
            assert len(inside) == (2 if name in ("thread", "again") else 1)

    go(main())


@tool(isolation="process")
def far() -> str:
    """Says which span it is in, as a client of HTTP would tell a server."""
    told: dict[str, str] = {}
    propagate.inject(told)
    return told.get("traceparent", "none")


def test_a_body_in_a_process_of_its_own_is_in_its_call_and_the_next_one_is_not():
    async def main():
        traced = Traced()
        turns = [call("far", id="f"), say("Done.")]
        for hooks in (traced.tracing.hooks, None):
            async with Runtime(agents=[agent(turns, far)], hooks=hooks) as runtime:
                run = await (await runtime.start("desk", "go")).wait()
                (part,) = run.results
                if hooks is not None:
                    span = traced.one("execute_tool far").context
                    assert part.output[:-3] == f"00-{span.trace_id:032x}-{span.span_id:016x}"
                else:
                    assert part.output == "none"

    go(main())


class Asks(ScriptedModel):
    """A client that traces its requests."""

    tracer = None

    async def respond(self, request):
        with self.tracer.start_as_current_span("POST"):
            async for event in super().respond(request):
                await asyncio.sleep(0)
                yield event


def test_what_a_models_client_traces_belongs_to_its_request():
    async def main():
        traced = Traced()
        model = Asks([call("fine"), say("Done.")])
        model.tracer = traced.provider.get_tracer("app")
        async with Runtime(agents=[Agent("desk", model, tools=[fine])], hooks=traced.tracing.hooks) as runtime:
            await (await runtime.start("desk", "go")).wait()
        posts, chats = traced.all("POST"), traced.all("chat Asks")
        assert [s.parent.span_id for s in posts] == [s.context.span_id for s in chats]
        assert traced.one("execute_tool fine").parent.span_id == traced.one("invoke_agent desk").context.span_id

    go(main())


def test_what_started_a_run_is_linked_and_stays_what_is_traced_there():
    async def main():
        traced = Traced()
        tracer = traced.provider.get_tracer("app")
        async with Runtime(agents=[agent([say("Done.")])], hooks=traced.tracing.hooks) as runtime:
            with tracer.start_as_current_span("request") as request:
                await (await runtime.start("desk", "go")).wait()
                assert trace.get_current_span() is request
        segment = traced.one("invoke_agent desk")
        assert [link.context.span_id for link in segment.links] == [request.get_span_context().span_id]
        assert segment.context.trace_id != request.get_span_context().trace_id

    go(main())


class Counts(Named):
    """Says what its turns cost."""

    async def respond(self, request):
        async for event in super().respond(request):
            yield replace(event, usage=Usage(30, 4)) if isinstance(event, ModelTurn) else event


def test_requests_to_models_are_measured_as_the_conventions_ask():
    def fails(request):
        raise RuntimeError("secret")

    async def main():
        reader = InMemoryMetricReader()
        tracing = Tracing(TracerProvider(), meters=MeterProvider([reader]))
        agents = [Agent("counts", Counts([say("Done.")])), agent([fails])]
        async with Runtime(agents=agents, hooks=tracing.hooks) as runtime:
            for name in ("counts", "desk"):
                await (await runtime.start(name, "go")).wait()
        ((scope,),) = ([r.scope_metrics for r in reader.get_metrics_data().resource_metrics],)
        made = {m.name: (m.unit, m.data.data_points) for m in scope[0].metrics}
        common = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "Counts", "gen_ai.request.model": "small-1"}
        common["gen_ai.response.model"] = "small-1-2026"
        unit, (good, bad) = made["gen_ai.client.operation.duration"]
        assert (unit, good.count, dict(good.attributes)) == ("s", 1, common)
        assert good.explicit_bounds == (
            0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
        )  # fmt: skip  # one row
        assert (bad.count, bad.attributes["error.type"]) == (1, "_OTHER")
        unit, points = made["gen_ai.client.token.usage"]
        assert (unit, {p.attributes["gen_ai.token.type"]: p.sum for p in points}) == (
            "{token}", {"input": 30, "output": 4},
        )  # fmt: skip  # one row
        assert points[0].explicit_bounds[-1] == 67108864

    go(main())


def test_a_run_is_linked_to_the_trace_that_its_request_was_sent_in():
    async def main():
        traced = Traced()
        async with served(Runtime(agents=[desk()], hooks=traced.tracing.hooks), traces=True) as http:
            sent = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
            body = {"agent": "desk", "prompt": "go"}
            first = await http.client.post("/v1/runs", json=body, headers=sent)
            second = await http.client.post("/v1/runs", json=body)
            for answer in (first, second):
                await http.rests(answer.json()["runId"])
        segments = {span.attributes["counterfoil.run.id"]: span for span in traced.all("invoke_agent desk")}
        (link,) = segments[first.json()["runId"]].links
        assert (link.context.trace_id, link.context.span_id) == (
            0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331,
        )  # fmt: skip  # one row
        assert segments[second.json()["runId"]].links == ()

    go(main())


def test_a_run_that_is_given_back_has_its_span_ended_when_tracing_is_closed(tmp_path):
    gate = Gate()

    async def main():
        traced, place = Traced(), Place("sqlite", tmp_path)
        held = agent([call("work", at="hold", id="h"), say("Done.")], gate.tool())
        async with place.open(held, hooks=traced.tracing.hooks) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("hold")
            leaving = asyncio.create_task(runtime.drain())
            await until(lambda: runtime.leaving)
            gate.open("hold")
            await leaving
        assert run.status == "running"
        assert traced.all("invoke_agent desk") == []
        traced.tracing.close()
        assert traced.one("invoke_agent desk").attributes["counterfoil.run.status"] == "left"

    go(main())


@pytest.mark.parametrize("sampler", [ALWAYS_OFF, TraceIdRatioBased(0.5)])
def test_a_run_is_sampled_whole_or_not_at_all(sampler):
    async def main():
        sizes = set()
        for _ in range(1 if sampler is ALWAYS_OFF else 24):
            traced = Traced(sampler=sampler)
            async with Runtime(agents=[desk()], hooks=traced.tracing.hooks) as runtime:
                run = await (await runtime.start("desk", "go")).wait()
                await run.approve("p", by="grace")
                await run.wait()
            sizes.add(len(traced.spans))
        assert sizes == ({0} if sampler is ALWAYS_OFF else {0, 10})

    go(main())


def test_a_tracer_that_raises_changes_nothing(caplog):
    class Broken:
        def get_tracer(self, *_):
            raise RuntimeError("boom")

    async def main():
        broken = Tracing(Broken())
        async with Runtime(agents=[desk()], hooks=broken.hooks) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert run.status == "paused"

    go(main())
    assert "boom" in caplog.text

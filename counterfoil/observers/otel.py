"""What runs do as traces of OpenTelemetry, of the extra ``otel``.

Names of spans and attributes are those of its semantic conventions for generative AI; what they have no word for, our
outcomes above all, is under ``counterfoil``. A run is one trace, whoever drives it (decision 43).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from opentelemetry import context, metrics, propagate, trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, TraceFlags, Tracer, TracerProvider

from counterfoil.core.events import (
    CallEnded,
    CallStarted,
    CallWaiting,
    Event,
    RunEnded,
    RunPaused,
    RunResumed,
    RunStarted,
)
from counterfoil.core.outcome import ErrorCode, Failed
from counterfoil.core.report import ToolErrorReport, store_error
from counterfoil.crossing import CARRIED
from counterfoil.hooks import AfterModel, BeforeModel, BodyBegins, Hooks
from counterfoil.observers.otel_content import as_text, input_messages, output_messages
from counterfoil.observers.otel_ids import RunIds, ids_of, is_ours, wanted_ids

log = logging.getLogger("counterfoil")

SCOPE: Final = "counterfoil"
PROVIDERS: Final = {"openai-chat": "openai", "google": "gcp.gemini"}
"""Names of the conventions for our schemes, where they differ."""
SECONDS: Final = [0.01 * 2**n for n in range(14)]
TOKENS: Final = [4**n for n in range(14)]
"""Bounds of the histograms, as the conventions have them."""
NOTHING: Final = context.Context()
"""A context without a span: what starts in it is no part of whatever trace goes on here."""


@dataclass(slots=True)
class _Chat:
    """A request to a model that has no turn yet."""

    span: Span
    began: float
    """On `time.monotonic`."""
    told: dict[str, Any]
    """What its measurements are of."""


@dataclass(slots=True)
class _Segment:
    """A run from where it was taken up until it ends, pauses or is left."""

    span: Span
    within: context.Context
    calls: dict[str, Span] = field(default_factory=dict)
    errors: dict[str, ToolErrorReport] = field(default_factory=dict)
    """Reports of calls that have no span yet: no body ran."""
    chat: _Chat | None = None
    tools: frozenset[str] = frozenset()
    """What the newest request offered."""


class Tracing:
    """Makes a span of each segment of a run, of each request to a model and of each call; measures the requests.

    Args:
        provider: whose spans they are; None: the program's own, as `opentelemetry.trace` has it.
        content: also what people, models and tools wrote, as attributes. Off: names, numbers and ids alone.
        meters: whose measurements they are; None: the program's own, as `opentelemetry.metrics` has it.
    """

    def __init__(
        self, provider: TracerProvider | None = None, *, content: bool = False, meters: MeterProvider | None = None
    ) -> None:
        self._provider = provider
        meter = metrics.get_meter(SCOPE, meter_provider=meters)
        self._seconds = meter.create_histogram(
            "gen_ai.client.operation.duration", "s", "Of a request to a model, its retries included.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )  # fmt: skip  # two rows
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", "Of a turn.", explicit_bucket_boundaries_advisory=TOKENS
        )
        self._content = content
        self._made: Tracer | None = None
        self._open: dict[str, _Segment] = {}
        self.hooks = Hooks(
            before_model=_harmless(self._asks),
            after_model=_harmless(self._answered),
            on_tool_error=self._failed,
            on_event=self._see,
            on_body=self._within,
        )
        """What does it: for ``Runtime(hooks=…)``, ``Agent(hooks=…)`` or `Runtime.add_hooks`."""

    def close(self) -> None:
        """End the spans of runs that go on elsewhere; the provider is its owner's to shut down."""
        for run_id in list(self._open):
            self._end(run_id, None)

    # segments

    def _see(self, event: Event) -> None:
        match event:
            case RunStarted() | RunResumed():
                self._begin(event)
            case CallStarted():
                self._call(event)
            case CallEnded():
                self._called(event)
            case CallWaiting():
                if event.run_id in self._open:
                    told = {"gen_ai.tool.name": event.tool_name, "gen_ai.tool.call.id": event.call_id}
                    self._open[event.run_id].span.add_event("counterfoil.call.waiting", told, _ns(event.at))
            case RunPaused():
                self._end(event.run_id, event.at, status="paused")
            case RunEnded():
                reason = event.reason if self._content else None
                self._end(event.run_id, event.at, status=event.status, ended_by=event.ended_by, reason=reason)
            case _:
                pass

    def _begin(self, event: RunStarted | RunResumed) -> None:
        self._end(event.run_id, event.at)
        first, caller = isinstance(event, RunStarted), trace.get_current_span().get_span_context()
        tracer, ids = self._tracer(), ids_of(event.run_id)
        links = [Link(caller)] if caller.is_valid else []
        if not first and is_ours(tracer):
            links = [Link(SpanContext(*ids, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED)))]
        told: dict[str, Any] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": event.agent,
            "counterfoil.run.id": event.run_id,
            "counterfoil.run.resumed": not first,
        }
        if event.thread_id is not None:
            told["counterfoil.thread.id"] = event.thread_id
        with wanted_ids(ids[0], ids[1] if first else None):
            span = tracer.start_span(
                f"invoke_agent {event.agent}", NOTHING, SpanKind.INTERNAL, told, links, _ns(event.at)
            )
        within = trace.set_span_in_context(span, NOTHING)
        self._open[event.run_id] = _Segment(span, within)
        # The driver's own task: what bodies and models' clients trace in it belongs to this segment.
        context.attach(trace.set_span_in_context(span))

    def _end(
        self, run_id: str, at: datetime | None, *, status: str = "left", ended_by: str | None = None,
        reason: str | None = None,
    ) -> None:  # fmt: skip  # two rows
        segment = self._open.pop(run_id, None)
        if segment is None:
            return
        end = None if at is None else _ns(at)
        for call in segment.calls.values():
            call.end(end)
        if segment.chat is not None:
            segment.chat.told["error.type"] = error = status if status in ("cancelled", "limited", "left") else "_OTHER"
            segment.chat.span.set_attribute("error.type", error)
            segment.chat.span.set_status(StatusCode.ERROR)
            self._measured(segment.chat, end)
        segment.span.set_attribute("counterfoil.run.status", status)
        if ended_by is not None:
            segment.span.set_attribute("counterfoil.run.ended_by", ended_by)
        if status == "failed":
            segment.span.set_attribute("error.type", "run_failed")
            segment.span.set_status(StatusCode.ERROR, reason)
        segment.span.end(end)

    # calls

    def _call(self, event: CallStarted) -> None:
        segment = self._open.get(event.run_id)
        if segment is not None:
            again = segment.calls.pop(event.call_id, None)
            if again is not None:
                again.end(_ns(event.at))
            segment.calls[event.call_id] = span = self._tool_span(segment, event, event.at)
            span.set_attribute("counterfoil.attempt", event.attempt)
            if self._content:
                span.set_attribute("gen_ai.tool.call.arguments", as_text(event.input))

    def _within(self, seen: BodyBegins) -> None:
        """What the body traces belongs to its call, in a process of its own too."""
        segment = self._open.get(seen.where.run_id)
        span = None if segment is None else segment.calls.get(seen.call_id)
        if span is not None:
            context.attach(trace.set_span_in_context(span))
            if seen.tool.isolation == "process":
                carrier: dict[str, str] = {}
                propagate.inject(carrier)
                CARRIED.set({**CARRIED.get(), "counterfoil.observers.otel_ids:attach": carrier})

    def _tool_span(self, segment: _Segment, event: CallStarted | CallEnded, at: datetime) -> Span:
        told = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": event.call_id,
            "counterfoil.run.id": event.run_id,
        }
        name = "execute_tool"
        if self._content or event.tool_name in segment.tools or not _is_made_up(event):
            name, told["gen_ai.tool.name"] = f"{name} {event.tool_name}", event.tool_name
        return self._tracer().start_span(name, segment.within, SpanKind.INTERNAL, told, None, _ns(at))

    def _called(self, event: CallEnded) -> None:
        segment = self._open.get(event.run_id)
        if segment is None:
            return
        span = segment.calls.pop(event.call_id, None) or self._tool_span(segment, event, event.at)
        result = event.part.result
        outcome, report = result.outcome, segment.errors.pop(event.call_id, None)
        span.set_attribute("counterfoil.outcome", type(outcome).__name__.lower())
        if report is not None:
            self._error(span, report)
        if isinstance(outcome, Failed):
            failure = outcome.failure
            if failure.code is not None:
                span.set_attribute("counterfoil.code", int(failure.code))
            span.set_attribute("error.type", str(failure.code or "tool_error"))
            span.set_status(StatusCode.ERROR, failure.message if self._content else None)
        if self._content:
            span.set_attribute("gen_ai.tool.call.result", result.model_output)
        span.end(_ns(event.at))

    def _failed(self, report: ToolErrorReport) -> None:
        segment = self._open.get(report.run_id)
        if segment is not None:
            span = segment.calls.get(report.call_id)
            if span is None:
                segment.errors[report.call_id] = report
            else:
                self._error(span, report)

    def _error(self, span: Span, report: ToolErrorReport) -> None:
        error = store_error(report.error)
        assert isinstance(error, dict)  # noqa: S101  # it gives nothing else
        told = {"exception.type": str(error["type"])}
        if self._content:
            told |= {"exception.message": str(error["message"]), "exception.stacktrace": str(error["traceback"])}
        span.add_event("exception", told, report.at_us * 1000)

    # models

    def _asks(self, seen: BeforeModel) -> None:
        segment = self._open.get(seen.run_id)
        if segment is None:
            return
        segment.tools = frozenset(offer.name for offer in seen.request.tools)
        provider, model = _named(seen.model)
        asked = {"gen_ai.provider.name": provider, "gen_ai.request.model": model}
        segment.span.set_attributes({**asked, "gen_ai.conversation.id": seen.interaction_id})
        asked["gen_ai.operation.name"] = "chat"
        told: dict[str, Any] = {
            **asked,
            "gen_ai.conversation.id": seen.interaction_id,
            "counterfoil.run.id": seen.run_id,
            "counterfoil.step": seen.step,
        }
        if seen.request.output_schema is not None:
            told["gen_ai.output.type"] = "json"
        for name in ("temperature", "top_p", "max_tokens"):
            value = seen.request.parameters.get(name)
            if isinstance(value, (int, float)):
                told[f"gen_ai.request.{name}"] = value
        if self._content:
            told["gen_ai.system_instructions"] = as_text([{"type": "text", "content": seen.request.instructions}])
            told["gen_ai.input.messages"] = as_text(input_messages(seen.request))
        if segment.chat is not None:
            self._measured(segment.chat, None)
        span = self._tracer().start_span(f"chat {model}", segment.within, SpanKind.CLIENT, told)
        segment.chat = _Chat(span, time.monotonic(), asked)
        context.attach(trace.set_span_in_context(span))

    def _answered(self, seen: AfterModel) -> None:
        segment, turn = self._open.get(seen.run_id), seen.turn
        if segment is None or segment.chat is None:
            return
        chat, segment.chat = segment.chat, None
        context.attach(trace.set_span_in_context(segment.span))
        usage = turn.usage
        told: dict[str, Any] = {
            "gen_ai.response.finish_reasons": (str(turn.stop),),
            "gen_ai.usage.input_tokens": usage.input_tokens,
            "gen_ai.usage.output_tokens": usage.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
            "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
        }
        if turn.model:
            told["gen_ai.response.model"] = chat.told["gen_ai.response.model"] = str(turn.model)
        if self._content:
            told["gen_ai.output.messages"] = as_text(output_messages(turn))
        chat.span.set_attributes(told)
        self._measured(chat, None)
        for kind, count in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            if count:  # a script and some servers do not count
                self._tokens.record(count, {**chat.told, "gen_ai.token.type": kind})

    def _measured(self, chat: _Chat, end: int | None) -> None:
        chat.span.end(end)
        self._seconds.record(time.monotonic() - chat.began, chat.told)

    def _tracer(self) -> Tracer:
        if self._made is None:
            provider = self._provider or trace.get_tracer_provider()
            self._made = provider.get_tracer(SCOPE)
            if hasattr(self._made, "id_generator"):
                self._made.id_generator = RunIds(self._made.id_generator)
        return self._made


def exporting(*, content: bool = False) -> tuple[Tracing, Callable[[], None]]:
    """Tracing for a process of its own: exported by OTLP over HTTP, as the variables ``OTEL_…`` of OpenTelemetry say.

    Where the program has a provider already, as under ``opentelemetry-instrument``, that one is used as it is.

    Returns:
        The tracing, and what to call at the end: it sends what is left.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider as Provider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = trace.get_tracer_provider()
    if not isinstance(provider, Provider):
        resource = Resource.create()
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):  # no variable names it
            resource = resource.merge(Resource({SERVICE_NAME: SCOPE}))
        provider = Provider(resource=resource)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    tracing, made = Tracing(provider, content=content), provider

    def end() -> None:
        tracing.close()
        made.shutdown()

    return tracing, end


def _is_made_up(event: CallStarted | CallEnded) -> bool:
    """Whether the tool's name may be a model's invention, and with that a text like any other."""
    outcome = event.part.result.outcome if isinstance(event, CallEnded) else None
    return isinstance(outcome, Failed) and outcome.failure.code in (ErrorCode.INVALID_JSON, ErrorCode.UNKNOWN_TOOL)


def _ns(at: datetime) -> int:
    seconds, rest = divmod(at.timestamp(), 1)
    return int(seconds) * 1_000_000_000 + round(rest * 1_000_000) * 1000


def _named(model: Any) -> tuple[str, str]:
    """Provider and model, as the conventions name them; of models that stand in for each other, the first."""
    if isinstance(model, (list, tuple)) and model:
        model = model[0]
    scheme, colon, name = model.partition(":") if isinstance(model, str) else ("", "", "")
    if colon or scheme:
        return PROVIDERS.get(scheme, scheme), name or scheme
    own = getattr(model, "model", None)
    return type(model).__name__, own if isinstance(own, str) else type(model).__name__


def _harmless(observe: Callable[[Any], None]) -> Callable[[Any], None]:
    """A guard that only looks: what it raises is logged and fails no run."""

    def look(seen: Any) -> None:
        try:
            observe(seen)
        except Exception:  # an observer changes nothing
            log.exception("tracing failed")

    return look

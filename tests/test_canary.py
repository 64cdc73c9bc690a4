"""The model reads its half only (contract 2.6): nothing of the other half is in any request's bytes, on any wire.

Whatever a model must not read holds the word `CANARY` and a name of its own, and each is seen to be on record.
"""

import asyncio
import logging
from functools import partial
from pathlib import Path

import pytest

from counterfoil import (
    Agent,
    Caller,
    Change,
    Hooks,
    Limits,
    Policy,
    Rule,
    Runtime,
    ToolContext,
    ToolError,
    ToolResult,
    tool,
)
from counterfoil.adapters.models.anthropic import AnthropicMessages
from counterfoil.adapters.models.openai import OpenAIResponses
from counterfoil.core.entries import MessageEntry
from counterfoil.core.jsontext import dumps
from counterfoil.core.threads import view_of
from counterfoil.core.turn import author
from counterfoil.effects import Effects
from counterfoil.model import ModelRequest
from counterfoil.testing.fake_server import Play, Refusal, rate_limit
from counterfoil.testing.model_bench import KEY
from tests.helpers import arrives, go
from tests.marks import law
from tests.records import Book
from tests.wires import WIRES, Wire, named

CANARY = "canary-4d1f"
ALL = WIRES | {
    "anthropic whole": Wire(WIRES["anthropic"].fake, partial(named, AnthropicMessages, stream=False)),
    "openai whole": Wire(WIRES["openai"].fake, partial(named, OpenAIResponses, stream=False)),
}
wires = pytest.mark.parametrize("wire", list(ALL))


def secret(name: str) -> str:
    return f"{CANARY}-{name}"


class Quick(Effects):
    """Who waits for a provider need not in a test."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class Opaque:
    def __repr__(self) -> str:
        return secret("repr")


@tool
async def tells(ctx: ToolContext) -> ToolResult:
    """Tell."""
    await ctx.progress(secret("progress"), 1, 2)
    ctx.extensions.add(secret("scratch"))
    told = await ctx.memo("step", lambda: secret("memo"))
    return ToolResult.text("Told.").with_details({"a": [secret("details"), told]}).with_narration(secret("narration"))


@tool
async def raises(n: int = 0) -> str:
    """Raise."""
    error = RuntimeError(secret("exception"))
    error.add_note(secret("note"))
    raise error from LookupError(secret("cause"))


@tool
async def fails() -> str:
    """Fail."""
    raise ToolError("It failed.", 7, data=secret("data"), details=secret("failed-details"), narration=secret("said"))


@tool(read_only=True, retries=1)
async def again(ctx: ToolContext) -> str:
    """Fail once."""
    if ctx.attempt == 1:
        raise OSError(secret("attempt"))
    return "The second time."


@tool
async def breaks_off() -> object:
    """Break off."""

    async def lines():
        yield secret("partial")
        raise ValueError(secret("midway"))

    return lines()


@tool
async def odd() -> object:
    """Return what nobody can show."""
    return Opaque()


@tool
async def long() -> str:
    """Return a long text."""
    return "x" * 50_000 + secret("kept") + "x" * 50_000


@tool
async def covered() -> str:
    """Return what a guard covers."""
    return secret("covered")


@tool
async def guarded() -> str:
    """Never run."""
    return secret("ran")


judged = partial(tool, description="Never run.")(name="judged")(lambda: secret("ran"))
refund = tool(name="refund", description="Never run.")(lambda: secret("ran"))


@tool
async def asks(cents: int = 1) -> ToolResult:
    """Ask first."""
    return ToolResult.text(f"Paid {cents}.")


class Hook:
    def __call__(self, seen):
        if seen.tool.name == "guarded":
            raise RuntimeError(secret("guard"))

    @staticmethod
    def after(seen):
        return Change(content="A clean text.") if seen.tool.name == "covered" else None


def condition(_facts):
    raise LookupError(secret("condition"))


RULES = [
    Rule(secret("deny-rule"), "deny", tool="refund", reason="Refunds are closed."),
    Rule(secret("broken-rule"), "deny", tool="judged", when=condition),
    Rule(secret("ask-rule"), "ask", tool="asks", reason=secret("ask-reason")),
]
TOOLS = [tells, raises, fails, again, breaks_off, odd, long, covered, guarded, judged, refund, asks]
CALLS = [("c1", "asks", '{"cents": 1}'), ("c2", "asks", '{"cents": 2}'), ("c3", "asks", '{"cents": 3}')]
CALLS += [(f"d{n}", one.name, "{}") for n, one in enumerate(TOOLS) if one is not asks]
ON_RECORD = (
    "details", "memo", "narration", "exception", "note", "cause", "data", "failed-details", "said",
    "partial", "midway", "kept", "covered", "guard", "condition", "deny-rule", "ask-rule", "ask-reason", "approver",
    "why-approved", "rejecter", "attribute", "other", "noted",
)  # fmt: skip  # names in rows


@law("2.6")
@wires
def test_nothing_of_the_other_half_is_in_any_request(tmp_path: Path, wire: str) -> None:
    plays = [
        Play("Of another conversation."),
        rate_limit(0),
        Play("Trying all.", calls=CALLS, reasoning="Hmm."),
        Refusal(500, "try again"),
        Play("All done."),
        Play("Once more.", calls=[("e1", "tells", "{}"), ("e2", "raises", '{"n": 1}')]),
        Play("", calls=[("e3", "read_result", '{"call_id": "d0"}'), ("e4", "asks", '{"cents": 4')], stop="length"),
        Play("Enough."),
    ]
    caller = Caller(user=secret("user"), roles=(secret("role"),), attributes={"a": secret("attribute")})

    async def main() -> None:
        async with ALL[wire].fake(plays, key=KEY) as server:
            agent = Agent(
                "desk", ALL[wire].model(server.base_url, KEY), "Be brief.", TOOLS, policy=Policy(RULES, default="allow")
            )
            hooks = Hooks(before_call=Hook(), after_call=Hook.after)
            path = tmp_path / "runs.db"
            options = {"agents": [agent], "hooks": hooks, "deps": lambda _: secret("deps"), "effects": Quick()}
            async with Runtime(f"sqlite:///{path}", **options) as runtime:
                await (await runtime.start("desk", secret("other"), caller=Caller("other-tenant"))).wait()
                assert CANARY.encode() in server.asked.pop().raw
                run = await (await runtime.start("desk", "Go", caller=caller)).wait()
                assert run.status == "paused"
            async with Runtime(f"sqlite:///{path}", **options) as runtime:
                run = await runtime.get(run.id)
                await run.approve("c1", by=secret("approver"), reason=secret("why-approved"))
                await run.approve("c2", by=secret("approver"), reason=secret("why-edited"), input={"cents": 20})
                await run.reject("c3", by=secret("rejecter"), reason="Not today.")
                await arrives(run, "completed")
                assert run.answer == "All done."
                await runtime.note(run.id, secret("noted"), by=secret("noter"))
                await run.send("And again", by=secret("sender"))
                limits = Limits(context_tokens=300)
                more = await runtime.start("desk", "Go on", interaction=run.interaction_id, limits=limits)
                assert (await more.wait()).answer == "Enough."
                assert (await runtime.verify()).ok
            await agent.model.aclose()
            assert server.faults == []
            asked = [one.raw for one in server.asked]
            assert len(asked) == len(plays) - 1
            for number, raw in enumerate(asked):
                assert CANARY.encode() not in raw, (number, raw[max(raw.index(CANARY.encode()) - 200, 0) :][:400])
                assert KEY.encode() not in raw
            for told in (b"Refunds are closed.", b"Not today.", b"A clean text.", b"It failed.", b"The second time."):
                assert told in asked[3], "what it may read reaches it"
            record = path.read_bytes()
            assert KEY.encode() not in record
            missing = [name for name in ON_RECORD if secret(name).encode() not in record]
            assert missing == [], "a canary that nobody sets free proves nothing"

    go(main())


@law("2.6")
@wires
def test_nothing_of_the_other_half_reaches_who_sums_up(wire: str) -> None:
    calls = [("d0", "tells", "{}"), ("d1", "raises", "{}"), ("d2", "fails", "{}")]
    plays = [Play("Trying.", calls=calls, reasoning="Hmm."), Play("Done."), Play("It told."), Play("Enough.")]
    plays = [Play("Of another conversation."), *plays]

    async def main() -> None:
        async with ALL[wire].fake(plays, key=KEY) as server:
            limits = Limits(context_tokens=2_000)
            model = ALL[wire].model(server.base_url, KEY)
            agent = Agent("desk", model, "Be brief.", [tells, raises, fails], summary=True, limits=limits)
            async with Runtime("memory://", agents=[agent], effects=Quick()) as runtime:
                await (await runtime.start("desk", secret("other"), caller=Caller("other-tenant"))).wait()
                server.asked.pop()
                run = await (await runtime.start("desk", "x" * 4000)).wait()
                await runtime.note(run.id, secret("noted"), by=secret("noter"))
                run = await (await runtime.start("desk", "y" * 12_000, interaction=run.interaction_id)).wait()
                assert [row.kind for row in await runtime.timeline(run.id)].count("summary") == 1
                assert (await runtime.verify()).ok
            await model.aclose()
            assert server.faults == []
            assert len(server.asked) == 4
            assert b"Told." in server.asked[2].raw
            assert b"It told." in server.asked[3].raw
            assert not any(CANARY.encode() in one.raw for one in server.asked)

    go(main())


@law("9.sees", "2.6")
@wires
def test_the_text_of_another_thread_is_in_no_request(wire: str) -> None:
    miner = author("Agent", "miner", "acme").id
    book = Book()
    book.begin("chief")
    book.message("Forge a ring.")
    book.turn(("dispatch", "{}"), ("dispatch", "{}"))
    for number, name in enumerate(("smith", "miner")):
        book.start(number, child=f"run-{name}")
    other = f"dispatch:{author('Agent', 'smith', 'acme').id}:run-smith"
    book.on("run-smith", other).begin("smith", parent="run-1", call=(1, 0))
    book.message(secret("task"), author_type="Agent", author_name="chief")
    book.turn(("heat", dumps({"at": secret("arguments")}).decode()), text=secret("text"), thought=secret("thought"))
    book.start()
    book.result(0, ToolResult.text(secret("result")))
    book.turn(text=secret("answer"))
    book.thread = f"private:{author('Agent', 'smith', 'acme').id}"
    book.message(secret("private"), author_type="Agent", author_name="chief")
    book.on("run-miner", f"dispatch:{miner}:run-miner").begin("miner", parent="run-1", call=(1, 1))
    book.message("Dig.", author_type="Agent", author_name="chief")

    async def main() -> None:
        async with ALL[wire].fake([Play("Gold."), Play("Mine.")], key=KEY) as server:
            model = ALL[wire].model(server.base_url, KEY)
            view = view_of(book.record, book.record.runs["run-miner"])
            assert view is not None
            mains = [item for item in book.record.items if isinstance(item, MessageEntry)]
            for items in (list(view.take()), mains):
                asked = ModelRequest("Be brief.", items, len(items), ())
                assert [event async for event in model.respond(asked)]
            await model.aclose()
            assert server.faults == []
            assert len(server.asked) == 2
            assert b"Dig." in server.asked[0].raw
            assert b"Forge a ring." in server.asked[1].raw
            assert not any(CANARY.encode() in one.raw for one in server.asked)

    go(main())


@wires
def test_a_key_is_in_no_record_no_error_and_no_log(
    tmp_path: Path, wire: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "runs.db"
    plays = [
        Refusal(401, f"the key {KEY} is wrong"),
        Refusal(400, f"Authorization: Bearer {KEY}; x-api-key={KEY}", code=KEY),
        Play("Hm.", then="drop"),
        Refusal(503, KEY),
        Refusal(503, KEY),
    ]
    reasons: list[str | None] = []

    async def main() -> None:
        async with ALL[wire].fake(plays, key=KEY) as server:
            agent = Agent("desk", ALL[wire].model(server.base_url, KEY))
            async with Runtime(f"sqlite:///{path}", agents=[agent], effects=Quick()) as runtime:
                for _ in range(3):
                    run = await (await runtime.start("desk", "Go")).wait()
                    reasons.append(run.reason)
            await agent.model.aclose()

    go(main())
    assert len(reasons) == 3
    assert all(reasons)
    for text in [*map(str, reasons), caplog.text, str(path.read_bytes())]:
        assert KEY not in text
        assert KEY[:12] not in text
        assert KEY[8:] not in text

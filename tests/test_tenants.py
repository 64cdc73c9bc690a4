"""Tenants (contract 10): what belongs to another one does not exist, whatever is asked."""

from __future__ import annotations

import pytest

from counterfoil import Caller, Limits, NotFound, ToolResult
from counterfoil.testing import call, say
from tests.helpers import agent, both, broken, counted, fine, go, pending
from tests.marks import case, law

ON_A_RUN = {
    "get": lambda r, run, t: r.get(run.id, tenant=t),
    "timeline": lambda r, run, t: r.timeline(run.id, tenant=t),
    "context": lambda r, run, t: r.context(run.id, tenant=t),
    "tool_result": lambda r, run, t: r.tool_result(run.id, run.results[0].sequence, tenant=t),
    "errors": lambda r, run, t: r.errors(run.id, tenant=t),
    "error_groups": lambda r, run, t: r.error_groups(run.id, tenant=t),
    "approvals": lambda r, run, t: r.approvals(run.id, tenant=t),
    "approve": lambda r, run, t: r.approve(run.id, "a", by="eve", tenant=t),
    "edit": lambda r, run, t: r.approve(run.id, "a", by="eve", input={"n": 2}, tenant=t),
    "reject": lambda r, run, t: r.reject(run.id, "a", by="eve", tenant=t),
    "rerun": lambda r, run, t: r.settle(run.id, "a", by="eve", rerun=True, tenant=t),
    "record": lambda r, run, t: r.settle(run.id, "a", by="eve", result=ToolResult.text("x"), tenant=t),
    "answer": lambda r, run, t: r.answer(run.id, "a", by="eve", text="x", tenant=t),
    "cancel": lambda r, run, t: r.cancel(run.id, tenant=t),
    "send": lambda r, run, t: r.send(run.id, "hello", tenant=t),
    "resume": lambda r, run, t: r.resume(run.id, limits=Limits(), tenant=t),
    "erase": lambda r, run, t: r.erase(run.id, tenant=t),
    "events": lambda r, run, t: anext(r.events(run.id, tenant=t)),
    "before": lambda r, run, t: r.runs(before=run.id, tenant=t),
    "go on": lambda r, run, t: r.start("desk", "go", interaction=run.interaction_id, caller=Caller(tenant=t)),
}


@both
@law("10.does-not-exist", "10.every-record")
@case("R079", "R080")
@pytest.mark.parametrize("name", ON_A_RUN)
def test_a_run_of_another_tenant_does_not_exist(place, name):
    pay, seen = counted("pay", needs_approval=True)
    desk = agent([[call("broken", id="b"), call("pay", id="a")], say("done")], pay, broken)

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go", caller=Caller(tenant="acme"))).wait()
            tip = len(await runtime.store.entries("acme", run.interaction_id))
            for tenant in ("default", "ACME", "acme "):
                with pytest.raises(NotFound):
                    await ON_A_RUN[name](runtime, run, tenant)
            assert len(await runtime.store.entries("acme", run.interaction_id)) == tip
            assert (await pending(run), seen, run.status) == (["a"], [], "paused")

    go(main())


@both
@law("10.does-not-exist")
def test_lists_show_the_tenants_own_alone(place):
    pay, _ = counted("pay", needs_approval=True)
    desk = agent([[call("broken"), call("pay", id="a")], say("done")], pay, broken)

    async def main():
        async with place.open(desk) as runtime:
            mine = await (await runtime.start("desk", "go", caller=Caller(tenant="acme"))).wait()
            other = await (await runtime.start("desk", "go", caller=Caller(tenant="globex"))).wait()
            for run in (mine, other):
                assert [r.run_id for r in await runtime.runs(tenant=run.tenant)] == [run.id]
                assert [a.run_id for a in await runtime.approvals(tenant=run.tenant)] == [run.id]
                assert {e.tenant_id for e in await runtime.errors(tenant=run.tenant)} == {run.tenant}
                assert [g.count for g in await runtime.error_groups(tenant=run.tenant)] == [1]
            assert await runtime.runs() == []
            assert await runtime.approvals() == []
            assert await runtime.errors() == await runtime.error_groups() == []

    go(main())


@both
@law("10.every-record", "2.7.lock")
@case("R190")
def test_locks_and_keys_are_each_tenants_own(place):
    from tests.helpers import Gate

    async def main():
        gate = Gate()
        hold = gate.tool("hold", lock="till")

        one = agent([[call("hold", at="one")], say("done")], hold, name="one")
        two = agent([[call("hold", at="two")], say("done")], hold, name="two")
        async with place.open(one, two) as runtime:
            first = await runtime.start("one", "go", caller=Caller(tenant="acme"), key="k")
            second = await runtime.start("two", "go", caller=Caller(tenant="globex"), key="k")
            await gate.began("one", "two")  # both at once
            assert first.id != second.id
            gate.open("one", "two")
            await first.wait()
            await second.wait()

    go(main())


@both
@law("10.every-record")
def test_nobody_is_no_tenant(place):
    for nobody in ("", "a\ud800"):
        with pytest.raises(ValueError, match="tenant"):
            Caller(tenant=nobody)

    async def main():
        async with place.open(agent([[call("fine")], say("done")], fine)) as runtime:
            from counterfoil.core.errors import UsageError

            run = await (await runtime.start("desk", "go")).wait()
            for read in (runtime.runs, runtime.approvals, runtime.errors):
                with pytest.raises(UsageError):
                    await read(tenant="")
            with pytest.raises((UsageError, NotFound)):
                await runtime.get(run.id, tenant="")

    go(main())

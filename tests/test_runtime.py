"""Runtimes on one record: who drives, who takes up, who only reads (contract 7 and 2.7; api.md, Runtime)."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from counterfoil import Caller, DecisionConflict, Limits, NotFound, NotPending, Runtime, ToolContext, ToolResult, tool
from counterfoil.core.errors import Conflict, DefinitionError, UsageError
from counterfoil.doors.cli.app import app
from counterfoil.testing import FrozenEffects, call, say
from tests import boundary_bodies as bodies
from tests.helpers import (
    Child,
    Gate,
    Place,
    agent,
    arrives,
    both,
    codes,
    content,
    counted,
    fine,
    go,
    outcomes,
    shared,
    the_approval,
    told,
    until,
)  # fmt: skip  # names in rows
from tests.marks import case, law
from tests.run_child import agents as child_agents


def paused_payer(place: Place) -> str:
    """The id of a paused run of the children's payer, of a tenant and user of its own."""

    async def main():
        async with Runtime(place.url, agents=child_agents()) as runtime:
            run = await (await runtime.start("payer", "go")).wait()
            assert run.status == "paused"
            return run.id

    return go(main())


# one key, one run


@both
@law("7.6")
def test_a_key_makes_a_repeat_return_the_first_run(place):
    desk = agent([say("done")])

    async def main():
        async with place.open(desk) as runtime:
            first = await runtime.start("desk", "go", key="k")
            again = await runtime.start("desk", "go", key="k")
            assert again.id == first.id
            await first.wait()
            later = await runtime.start("desk", "go", key="k")
            assert (later.id, later.status, later.answer) == (first.id, "completed", "done")
            with pytest.raises(Conflict):
                await runtime.start("desk", "something else", key="k")
            other = await runtime.start("desk", "go", key="k", caller=Caller(tenant="other"))
            assert other.id != first.id
            await other.wait()
            assert len(desk.model.requests) == 2

    go(main())


# two runtimes, one record


@both
@law("7.9")
def test_a_runtime_without_agents_drives_nothing(place):
    desk = agent([[call("pay", id="a")], say("done")], counted("pay", needs_approval=True)[0])

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
        async with place.open() as reader:
            again = await reader.get(run.id)
            assert again.status == "paused"
            assert [r.call_id for r in again.results] == []
            await again.approve("a", by="grace")
            with pytest.raises(TimeoutError):
                await again.wait(0.05)
            row = await reader.store.run("default", run.id)
            assert (row.owner, row.runnable, row.status) == (None, True, "paused")
            left = await reader.start("other", "leave it to a worker")
            with pytest.raises(TimeoutError):
                await left.wait(0.05)
        async with place.open(desk, agent([say("done")], name="other")) as worker:
            for one in (run, left):
                again = await worker.get(one.id)
                await again.wait()
                assert (again.status, again.answer) == ("completed", "done")

    go(main())


@both
@law("7.9", "10.every-record")
@case("R034")
def test_identity_limits_and_deps_survive_a_pause(place):
    pay, seen = counted("pay", needs_approval=True)
    made = []

    def deps(caller):
        made.append(caller.user)
        return f"db of {caller.user}, {len(made)}"

    caller = Caller(tenant="acme", user="ada", roles=("clerk",), attributes={"desk": 7})
    desk = agent([[call("pay", n=1, id="a"), call("pay", n=2, id="b")], say("never")], pay)

    async def main():
        async with place.open(desk, deps=deps) as runtime:
            run = await (await runtime.start("desk", "go", caller=caller, limits=Limits(steps=1, calls=9))).wait()
            await runtime.approve(run.id, "a", by="grace", tenant="acme")
            await run.wait()
        async with place.open(desk, deps=deps) as runtime:
            again = await runtime.get(run.id, tenant="acme")
            await again.approve("b", by="heidi")
            await again.wait()
            assert [x["caller"] for x in seen] == [caller, caller]
            assert [x["deps"] for x in seen] == ["db of ada, 1", "db of ada, 2"]
            assert (again.status, again.steps) == ("limited", 1)

    go(main())


@both
@law("7.6", "7.6.interrupted-ask", "1.2.call-part")
@case("R005", "R019")
@pytest.mark.parametrize("how", ["rerun", "record", "error"])
def test_a_body_that_died_waits_for_a_person_who_settles_it(place, how):
    async def main():
        gate = Gate()
        attempts = []

        @tool
        async def charge(ctx: ToolContext, at: str) -> str:
            """Charge."""
            attempts.append((ctx.attempt, ctx.idempotency_key))
            await gate.enter(at)
            return "charged"

        script = [[call("charge", at="x", id="c"), call("fine", id="f")], say("done")]
        async with place.runtime(agent(script, charge, fine)) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("x")
            await until(lambda: run.results)
        # closed in the middle of the body
        desk = agent(script, charge, fine)
        async with place.open(desk) as runtime:
            again = await runtime.get(run.id)
            await arrives(again, "paused")
            assert outcomes(again) == {"f": "Succeeded"}
            assert again.calls[0].state == "interrupted"
            approval = await the_approval(again)
            assert (approval.kind, approval.effective_input) == ("interrupted", {"at": "x"})
            assert desk.model.requests == []
            for wrong in (again.approve, again.reject):
                with pytest.raises(NotPending):
                    await wrong("c", by="grace")
            gate.open("x")
            if how == "rerun":
                await again.settle("c", by="grace", rerun=True)
                await again.settle("c", by="heidi", rerun=True)
                with pytest.raises(DecisionConflict):
                    await again.settle("c", by="heidi", result=ToolResult.text("no"))
            else:
                told_ = ToolResult.text("it went through") if how == "record" else ToolResult.error("it did not")
                await again.settle("c", by="grace", result=told_)
            await again.wait()
            assert again.answer == "done"
            part = again.results[0]
            if how == "rerun":
                assert part.output == "charged"
                assert [a for a, _ in attempts] == [1, 2]
                assert len({k for _, k in attempts}) == 1
            else:
                assert len(attempts) == 1
                assert part.author.type == "Human"
                assert part.author.name == "grace"
                assert told(desk)["c"] == ("it went through" if how == "record" else "it did not")
                assert part.failed == (how == "error")
            assert list(outcomes(again)) == ["c", "f"]

    go(main())


@shared
@law("7.6", "2.1")
@case("R005", "R019")
def test_every_reader_sees_one_state_of_a_call_that_a_kill_left_open_and_reading_repairs_nothing(place, tmp_path):
    run_id = killed_with_a_body(place, tmp_path, "hanger")

    async def look():
        """What each reader shows of the call: its part, the timeline, a client's items, events, the command line."""
        async with Runtime(place.url) as reader:
            run = await reader.get(run_id)
            items = await reader.context(run_id)
            tip = len(await reader.store.entries("default", run.interaction_id))
            states = [c.state for c in run.calls], [r.result.model_output for r in run.results]
            client = [i["result"] for i in items if i["kind"] == "ToolResult"]
            rows = [r for r in await reader.timeline(run_id) if r.kind == "call"]
            ended = [e async for e in reader.events(run_id) if type(e).__name__ == "CallEnded"]
            return tip, states, client, rows, len(ended)

    async def settle():
        async with Runtime(place.url, agents=child_agents()) as runtime:
            run = await arrives(await runtime.get(run_id), "paused")
            await run.settle("h", by="grace", result=ToolResult.text("it went through"))
            await run.wait()
            await content(runtime)

    go(settle())
    seen = go(look())
    assert seen[1:3] == ((["settled"], ["it went through"]), ["it went through"])
    assert len(seen[3]) == seen[4] == 1
    assert go(look()) == seen
    typed = CliRunner().invoke(app, ["show", run_id, "--store", place.url])
    assert "grace recorded what hang did" in typed.stdout
    assert go(look()) == seen


@both
@law("7.6.interrupted-tell", "3.5001")
def test_with_tell_the_model_is_told_that_nobody_knows(place):
    async def main():
        gate = Gate()
        script = [[call("work", at="x", id="c")], say("done")]
        async with place.runtime(agent(script, gate.tool(on_interrupted="tell"))) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("x")
        desk = agent(script, gate.tool(on_interrupted="tell"))
        async with place.open(desk) as runtime:
            again = await runtime.get(run.id)
            await arrives(again, "completed")
            assert codes(again) == {"c": 5001}
            assert "Nobody can say" in told(desk)["c"]
            assert [r.code for r in await again.errors()] == [5001]
            assert gate.log == ["+x", "-x"]

    go(main())


@both
@law("7.6.replay", "7.6")
def test_a_safe_body_runs_again_three_times_at_most(place):
    async def main():
        gate = Gate()
        attempts = []

        @tool(idempotent=True)
        async def put(ctx: ToolContext, at: str) -> str:
            """Put."""
            attempts.append((ctx.attempt, ctx.idempotency_key))
            await gate.enter(at)
            return "put"

        script = [[call("put", at="x", id="c")], say("done")]
        run_id = ""
        for number in range(3):
            async with place.runtime(agent(script, put)) as runtime:
                run = await runtime.start("desk", "go", key="one")
                run_id = run.id
                if number:
                    while len(attempts) <= number:
                        with pytest.raises(TimeoutError):
                            await run.wait(0.01)
                else:
                    await gate.began("x")
        assert [a for a, _ in attempts] == [1, 2, 3]
        assert len({k for _, k in attempts}) == 1
        async with place.open(agent(script, put)) as runtime:
            again = await runtime.get(run_id)
            await arrives(again, "paused")
            assert (await the_approval(again)).kind == "interrupted"

    go(main())


@both
@law("7.6")
@case("R040")
@pytest.mark.parametrize("where", ["thread", "process"])
@pytest.mark.parametrize("how", ["again", "rerun"])
def test_a_later_attempt_is_given_what_a_durable_sub_step_returned(place, tmp_path, where, how):
    effects = tmp_path / "effects"
    effects.touch()
    name = f"charge_in_{where}{'_again' if how == 'again' else ''}"
    script = [[call(name, effects=str(effects), id="c")], say("done")]

    async def main():
        async with place.runtime(agent(script, getattr(bodies, name))) as runtime:
            run = await runtime.start("desk", "go")
            await until(lambda: "attempt 1" in effects.read_text())
        desk = agent(script, getattr(bodies, name))
        async with place.open(desk) as runtime:
            again = await runtime.get(run.id)
            if how == "rerun":
                await arrives(again, "paused")
                await again.settle("c", by="grace", rerun=True)
            while "attempt 2" not in effects.read_text():
                with contextlib.suppress(TimeoutError):
                    await again.wait(0.01)  # without a sweep, whoever waits takes the run up
            with effects.open("a") as f:
                f.write("end\n")
            await arrives(again, "completed")
            assert (again.results[0].output, again.results[0].attempt) == ("charge 7", 2)
            (row,) = [row for row in await runtime.timeline(run.id) if row.kind == "call"]
            assert "took 2 attempts" in row.notes

    go(main())
    assert effects.read_text().splitlines()[:3] == ["charged", "attempt 1 has 7", "attempt 2 has 7"]


@both
@law("7.6")
@case("R026", "R025", "R028", "R040")
def test_what_had_ended_before_a_runtime_closed_never_runs_again(place):
    async def main():
        gate = Gate()
        count, seen = counted()
        script = [
            [call("count", n=1, id="a")],
            [call("count", n=2, id="b"), call("look", at="x", id="c"), call("count", n=3, id="d")],
            say("done"),
        ]
        async with place.runtime(agent(script, count, gate.tool("look", read_only=True))) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("x")
            await until(lambda: len(run.results) == 3)
        gate.open("x")
        desk = agent(script, count, gate.tool("look", read_only=True))
        async with place.open(desk) as runtime:
            again = await runtime.get(run.id)
            await arrives(again, "completed")
            assert [x["n"] for x in seen] == [1, 2, 3]
            assert [p.step_index for p in again.calls] == [0, 1, 1, 1]
            assert (again.steps, again.answer) == (3, "done")
            assert len(desk.model.requests) == 1

    go(main())


@both
@law("2.8", "2.1")
def test_calls_that_were_not_judged_before_a_crash_are_judged_after_it(place):
    async def main():
        stuck = asyncio.Event()

        async def slow(before):
            stuck.set()
            await asyncio.Event().wait()

        from counterfoil import Hooks

        script = [
            [call("fine", n=1, id="a"), call("fine", n=1, id="a"), call("fin", id="b"), call("fine", raw="{", id="c")],
            say("done"),
        ]
        async with place.runtime(agent(script, fine, hooks=Hooks(before_call=slow))) as runtime:
            run = await runtime.start("desk", "go")
            await stuck.wait()
        desk = agent(script, fine)
        async with place.open(desk) as runtime:
            again = await runtime.get(run.id)
            await arrives(again, "completed")
            assert [type(r.result.outcome).__name__ for r in again.results] == [
                "Succeeded",
                "Skipped",
                "Failed",
                "Failed",
            ]
            assert "fine" in told(desk)["b"]  # close matches are named as if nothing had happened

    go(main())


# times


@both
@law("7.9")
def test_a_run_for_later_begins_when_its_time_has_come(place):
    desk = agent([say("done")])

    async def main():
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go", not_before=datetime.now(UTC) + timedelta(seconds=0.05))
            assert desk.model.requests == []
            while (await run.refresh()).status != "completed":
                await asyncio.sleep(0.001)

    go(main())


@both
@law("7.9")
def test_a_run_of_another_pool_is_left_alone(place):
    desk = agent([say("done")])

    async def main():
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go", pool="night")
            with pytest.raises(TimeoutError):
                await run.wait(0.03)
            assert desk.model.requests == []
        async with place.open(desk, pool="night") as runtime:
            again = await runtime.get(run.id)
            await arrives(again, "completed")

    go(main())


@both
@law("2.7")
def test_a_process_runs_so_many_bodies_at_once_over_all_its_runs(place):
    async def main():
        gate = Gate()
        script = [[call("work", at=f"{i}", id=f"{i}") for i in range(3)], say("done")]
        async with place.open(agent(script, gate.tool()), concurrency=4) as runtime:
            runs = [await runtime.start("desk", "go") for _ in range(3)]
            await until(lambda: len([x for x in gate.log if x[0] == "+"]) == 4)
            await asyncio.sleep(0.02)
            assert len([x for x in gate.log if x[0] == "+"]) == 4
            gate.open("0", "1", "2")
            for run in runs:
                await run.wait()
                assert run.status == "completed"
            assert len([x for x in gate.log if x[0] == "+"]) == 9

    go(main())


# use


def test_a_runtime_must_be_open():
    async def main():
        runtime = Runtime(agents=[agent([say("x")])])
        with pytest.raises(UsageError, match="not open"):
            await runtime.start("desk", "go")
        async with runtime:
            await (await runtime.start("desk", "go")).wait()
        with pytest.raises(UsageError, match="not open"):
            await runtime.runs()

    go(main())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"on_disconnect": "stay"}, "'go-on' or 'cancel', got 'stay'"),
        ({"caller": "ada"}, "caller must be of Caller, got 'ada'"),
        ({"limits": {"steps": 3}}, "limits must be of Limits"),
        ({"not_before": "tomorrow"}, "not_before must be of datetime"),
        ({"key": 5}, "key must be of str"),
        ({"pool": 3}, "pool must be of str"),
        ({"priority": "high"}, "priority must be of int"),
    ],
)
def test_a_start_that_is_not_as_it_must_be_is_refused_before_it_is_on_record(given, said):
    async def main():
        async with Runtime(agents=[agent([say("a")])]) as runtime:
            with pytest.raises((TypeError, ValueError), match=said):
                await runtime.start("desk", "go", **given)
            assert await runtime.runs() == []
            with pytest.raises(ValueError, match="got 'done'"):
                await runtime.runs(status="done")

    go(main())


def test_two_agents_of_one_name_are_refused():
    with pytest.raises(DefinitionError, match="desk"):
        Runtime(agents=[agent([say("x")]), agent([say("x")])])
    with pytest.raises(DefinitionError, match="dispatch"):
        Runtime(dispatch="pigeon")


@both
def test_reads_of_what_is_not_there(place):
    async def main():
        async with place.open(agent([say("done")])) as runtime:
            for read in (
                runtime.get,
                runtime.timeline,
                runtime.context,
                runtime.errors,
                runtime.approvals,
                runtime.cancel,
            ):
                with pytest.raises(NotFound):
                    await read("no such run")
            with pytest.raises(NotFound):
                await runtime.start("desk", "go", interaction="no such interaction")
            run = await (await runtime.start("desk", "go")).wait()
            with pytest.raises(NotFound):
                await runtime.tool_result(run.id, 1)
            with pytest.raises(TypeError, match="prompt"):
                await runtime.start("desk", None)
            assert [r.run_id for r in await runtime.runs(status="completed", agent="desk")] == [run.id]
            assert await runtime.runs(status="failed") == []

    go(main())


# several processes


@shared
@law("7.5", "7.2")
@case("R076")
def test_the_same_approval_from_two_processes_runs_the_body_once(place, tmp_path):
    run_id = paused_payer(place)
    children = [Child(tmp_path, "approve", run_id, "a", "b", url=place.url) for _ in range(2)]
    for child in children:
        child.begin()
    ends = [child.end() for child in children]
    assert [e[0] for e in ends] == ["completed", "completed"]
    assert all(e[1:] == ["taken", "taken"] for e in ends)  # the later one is an equal repeat
    assert sorted(line.split()[1] for line in children[0].lines()) == ["1", "2"]

    async def main():
        async with Runtime(place.url) as reader:
            await content(reader)
            run = await reader.get(run_id)
            assert [r.output for r in run.results] == ["paid 1", "paid 2"]

    go(main())


@shared
@law("7.9")
@case("R034")
def test_another_process_resumes_with_the_identity_of_the_start(place, tmp_path):
    async def start():
        async with Runtime(place.url, agents=child_agents()) as runtime:
            run = await runtime.start("payer", "go", caller=Caller(user="ada", roles=("clerk",)))
            await run.wait()
            return run.id

    run_id = go(start())
    child = Child(tmp_path, "approve", run_id, "a", "b", url=place.url)
    child.begin()
    child.end()
    pid = str(child.process.pid)
    assert [line.split()[2:] for line in child.lines()] == [["default", "ada", f"deps-{pid}", pid]] * 2


@shared
@law("2.7.lock")
def test_calls_with_equal_locks_never_overlap_in_two_processes(place, tmp_path):
    children = [Child(tmp_path, "drive", "teller", url=place.url) for _ in range(2)]
    for child in children:
        child.begin()
    assert [child.end()[0] for child in children] == ["completed", "completed"]
    lines = children[0].lines()
    assert len(lines) == 24
    for begin, end in zip(lines[::2], lines[1::2], strict=True):
        assert begin[0] == "+"
        assert end == "-" + begin[1:]


def killed_with_a_body(place: Place, folder: Path, name: str) -> str:
    """The id of a run whose process was killed while its body ran."""
    child = Child(folder, "drive", name, url=place.url)
    child.begin()

    async def run_id():
        await until(child.lines)
        async with Runtime(place.url) as reader:
            return (await reader.runs())[0].run_id

    found = go(run_id())
    child.kill()
    return found


@shared
@law("2.7.lock")
def test_a_lock_whose_holder_was_killed_is_free(place, tmp_path):
    killed_with_a_body(place, tmp_path, "keeper")
    (tmp_path / "effects").write_text("")
    child = Child(tmp_path, "drive", "teller", url=place.url)
    child.begin()
    assert child.end()[0] == "completed"
    assert len(child.lines()) == 12


@shared
@law("7.6", "7.6.interrupted-ask")
@case("R002")
def test_a_dead_process_is_told_by_pid_and_start_time_and_its_run_taken_up(place, tmp_path):
    run_id = killed_with_a_body(place, tmp_path, "hanger")

    async def main():
        async with Runtime(place.url, agents=child_agents()) as runtime:
            run = await runtime.get(run_id)
            await arrives(run, "paused")
            assert (await the_approval(run)).kind == "interrupted"
            (tmp_path / "effects").write_text("end\n")
            import tests.run_child

            tests.run_child.EFFECTS = str(tmp_path / "effects")
            await run.settle("h", by="grace", rerun=True)
            await run.wait()
            assert (run.answer, run.results[0].output, run.results[0].attempt) == ("done", "hung 0", 2)
            await content(runtime)

    go(main())


@shared
@law("7.6", "7.6.interrupted-ask")
@case("R040", "R002")
def test_a_sub_step_that_is_on_record_survives_the_kill_of_its_process(place, tmp_path):
    child = Child(tmp_path, "drive", "charger", url=place.url)
    child.begin()

    async def main():
        await until(lambda: "attempt 1 has 7" in child.lines())
        child.kill()
        desk = agent([say("asked before"), say("done")], bodies.charge_in_thread, name="charger")
        async with place.open(desk) as runtime:
            run = await runtime.get((await runtime.runs())[0].run_id)
            await arrives(run, "paused")
            await run.settle("c", by="grace", rerun=True)
            await until(lambda: "attempt 2 has 7" in child.lines())
            with child.effects.open("a") as f:
                f.write("end\n")
            await arrives(run, "completed")
            assert (run.results[0].output, run.results[0].attempt) == ("charge 7", 2)

    go(main())
    assert child.lines().count("charged") == 1


@shared
@law("7.9")
def test_a_living_process_keeps_its_run(place, tmp_path):
    child = Child(tmp_path, "drive", "hanger", url=place.url)
    child.begin()

    async def main():
        await until(child.lines)
        async with Runtime(place.url, agents=child_agents()) as runtime:
            run = await runtime.get((await runtime.runs())[0].run_id)
            with pytest.raises(TimeoutError):
                await run.wait(0.3)
            assert (await runtime.store.run("default", run.id)).owner.pid == child.process.pid
            with child.effects.open("a") as f:
                f.write("end\n")
            await run.wait()
            assert run.answer == "done"

    go(main())
    assert child.end()[0] == "completed"
    assert len([line for line in child.lines() if line.startswith("hang")]) == 1


@shared
@law("7.8")
def test_a_cancel_from_another_process_reaches_the_body(place, tmp_path):
    child = Child(tmp_path, "drive", "hanger", url=place.url)
    child.begin()

    async def main():
        await until(child.lines)
        async with Runtime(place.url) as reader:
            run = await reader.get((await reader.runs())[0].run_id)
            assert await run.send("hello?") is True
            await run.cancel("enough")
            await run.wait()
            assert (run.status, run.reason) == ("cancelled", "enough")
            assert outcomes(run) == {"h": "Cancelled"}

    go(main())
    assert child.end()[0] == "cancelled"


@shared
@law("7.9")
def test_an_agent_that_comes_late_has_its_runs_taken_up_too(place, tmp_path):
    pay, seen = counted("pay", needs_approval=True)
    desk = agent([[call("pay", id="a")], say("done")], pay)

    async def main():
        async with Runtime(place.url) as runtime, Runtime(runtime.url) as reader:
            run = await (await runtime.start(desk, "go")).wait()
            await reader.approve(run.id, "a", by="grace")
            while (await run.refresh()).status != "completed":
                await asyncio.sleep(0.001)
            assert len(seen) == 1

    go(main())


@both
def test_runs_that_ended_before_a_time_are_told_and_no_others(place):
    effects = FrozenEffects()
    pay, _ = counted(needs_approval=True)
    desk, asks = agent([say("Done.")]), agent([call("count", id="a")], pay, name="asks")

    async def main():
        async with place.open(desk, asks, effects=effects) as runtime:
            old = await (await runtime.start("desk", "Go on")).wait()
            await (await runtime.start("asks", "Go on")).wait()
            await (await runtime.start("desk", "Go on", caller=Caller(tenant="acme"))).wait()
            cancelled = await runtime.start("asks", "Go on")
            await cancelled.wait()
            await cancelled.cancel()
            await cancelled.wait()
            effects.advance(3600)
            when = datetime.fromtimestamp(effects.now() / 1_000_000, UTC) - timedelta(seconds=1800)
            new = await (await runtime.start("desk", "Go on")).wait()
            assert await runtime.ended_before(when) == [cancelled.id, old.id]
            assert new.id in await runtime.ended_before(when + timedelta(days=1))
            await runtime.send(old.id, "Are you there?")
            assert await runtime.ended_before(when) == [cancelled.id]

    go(main())

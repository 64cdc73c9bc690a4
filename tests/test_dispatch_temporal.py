"""Temporal as the engine, on its own development server: the laws of `test_dispatch` through a real one."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from counterfoil import Caller, Limits, ToolResult
from counterfoil.adapters.dispatch import temporal, temporal_run
from counterfoil.core.entries import EndedEntry
from counterfoil.core.errors import DefinitionError, UsageError
from counterfoil.dispatch import REFUSED
from counterfoil.testing import call, say
from tests import helpers, run_child
from tests.floors import ROOT
from tests.helpers import Gate, Place, agent, arrives, content, counted, go, outcomes, pending, so, until
from tests.marks import law
from tests.temporal import serving
from tests.test_team import asks, needing, team

USE_EXISTING = temporal.WorkflowIDConflictPolicy.USE_EXISTING
ONE_CALL = [[call("count", n=1, id="c")], say("done")]


@pytest.fixture(scope="module")
def server():
    """The server of these tests."""
    with serving() as started:
        yield started


class Desk:
    """A record and a namespace for one test."""

    def __init__(self, server, folder):
        self.server = server
        self.place = Place("sqlite", folder)
        self.dispatch = server.fresh()
        self.effects = folder / "effects"
        self.effects.touch()

    def runtime(self, *agents, **options):
        """A Runtime on this record with this engine."""
        return self.place.runtime(*agents, dispatch=self.dispatch, **options)

    def lines(self):
        """What children did to the world."""
        return self.effects.read_text(encoding="utf-8").splitlines()

    @contextmanager
    def child(self, *words):
        """Another process: see `tests.engine_child`."""
        command = [sys.executable, "-m", "tests.engine_child", self.place.url, self.dispatch, str(self.effects), *words]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
            try:
                yield process
                if process.poll() is None:
                    process.communicate("\n")
            finally:
                process.kill()

    async def client(self):
        """The server, as its own users see it."""
        return await Client.connect(self.server.address, namespace=self.dispatch.rpartition("/")[2])

    async def workflow(self, run):
        """The run's workflow."""
        return (await self.client()).get_workflow_handle(f"default/{run.id}")

    async def ended(self, run):
        """Wait until the run's workflow is complete."""
        handle = await self.workflow(run)

        async def complete():
            return (await handle.describe()).status == WorkflowExecutionStatus.COMPLETED

        await so(complete)

    async def history(self, run):
        """The events of the run's workflow."""
        return [event async for event in (await self.workflow(run)).fetch_history_events()]


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Processes and a server start in these tests; a server that is slow for once is asked again at once."""
    monkeypatch.setattr(helpers, "SOON", 30.0)
    monkeypatch.setattr(temporal, "AWAY_SECONDS", 0.05)


@pytest.fixture
def desk(server, tmp_path, monkeypatch):
    made = Desk(server, tmp_path)
    monkeypatch.setattr(run_child, "EFFECTS", str(made.effects))
    return made


async def said(process):
    """The next line that a child prints."""
    return (await asyncio.to_thread(process.stdout.readline)).split()


def kinds(events):
    """How often each kind of event is in a history."""
    return Counter(event.WhichOneof("attributes").removesuffix("_event_attributes") for event in events)


# --------------------------------------------------------------------------------------- the laws of engines


@law("7.6", "7.9")
def test_a_process_without_agents_tells_and_a_worker_that_has_the_agent_drives(desk):
    tool, seen = counted()

    async def main():
        async with desk.runtime() as teller, desk.runtime(agent(name="other")) as other:
            asked = watch(other)
            await teller.store.beat(other.owner, agents=["desk", "other"])
            run = await teller.start("desk", "go")
            await until(lambda: run.id in teller.dispatch._told)
            assert (await (await desk.workflow(run)).describe()).status == WorkflowExecutionStatus.RUNNING
            assert (teller.dispatch._tasks, list(other.dispatch._tasks), seen) == ({}, ["other"], [])
            async with desk.runtime(agent(ONE_CALL, tool)):
                await arrives(run, "completed")
                await desk.ended(run)
            assert (run.answer, len(seen), asked) == ("done", 1, [])
            await content(teller)

    go(main())


@law("7.5", "7.6")
def test_a_segment_that_is_told_often_is_driven_once_and_is_one_activity(desk):
    gate = Gate()
    clerk = agent([[call("work", at="a", id="a")], say("done")], gate.tool())

    async def main():
        async with desk.runtime(clerk) as one, desk.runtime(clerk) as two:
            run = await one.start("desk", "go")
            row = await one.store.run("default", run.id)
            await asyncio.gather(*(r.dispatch._tell(row, USE_EXISTING) for r in (one, two) * 3))
            await gate.began("a")
            await two.dispatch._tell(row, USE_EXISTING)
            gate.open("a")
            await arrives(run, "completed")
            await desk.ended(run)
            assert gate.log == ["+a", "-a"]
            assert kinds(await desk.history(run))["activity_task_scheduled"] == 1
            await content(one)

    go(main())


@law("7.1", "7.2", "7.9")
def test_a_pause_keeps_nothing_but_a_waiting_workflow_and_a_decision_elsewhere_goes_on(desk):
    tool, seen = counted(needs_approval=True)

    async def main():
        async with desk.runtime(agent(ONE_CALL, tool)) as worker:
            run = await worker.start("desk", "go")
            await arrives(run, "paused")
            handle = await desk.workflow(run)
            await so(lambda: idle(handle))
            with desk.child("approve", run.id, "c") as decider:
                assert await said(decider) == ["approved"]
            await arrives(run, "completed")
            await desk.ended(run)
            assert [entry["attempt"] for entry in seen] == [1]
            assert kinds(await desk.history(run))["activity_task_completed"] == 2
            await content(worker)

    async def idle(handle):
        found = await handle.describe()
        assert found.status == WorkflowExecutionStatus.RUNNING
        raw = found.raw_description
        return not raw.pending_activities and not raw.HasField("pending_workflow_task")

    go(main())


@law("7.8")
def test_a_cancel_of_a_run_that_waits_ends_its_workflow_too(desk):
    tool, seen = counted(needs_approval=True)

    async def main():
        async with desk.runtime(agent(ONE_CALL, tool)) as worker, desk.runtime() as teller:
            run = await worker.start("desk", "go")
            await arrives(run, "paused")
            await (await teller.get(run.id)).cancel(reason="no longer")
            await arrives(run, "cancelled")
            await desk.ended(run)
            assert seen == []
            await content(worker)
            await teller.dispatch.forget(await teller.store.run("default", run.id))  # again, which is nothing

    go(main())


def test_a_limited_run_that_goes_on_has_a_workflow_again(desk):
    tool, seen = counted()

    async def main():
        async with desk.runtime(agent(ONE_CALL, tool)) as worker:
            run = await worker.start("desk", "go", limits=Limits(steps=1))
            await arrives(run, "limited")
            await desk.ended(run)
            run = await worker.resume(run.id, limits=Limits(steps=5))
            await arrives(run, "completed")
            assert len(seen) == 1
            await content(worker)

    go(main())


def test_an_agent_that_comes_later_is_worked_for(desk):
    tool, _ = counted()

    async def main():
        async with desk.runtime() as runtime:
            run = await runtime.start(agent(ONE_CALL, tool), "go")
            assert (await run.wait()).answer == "done"

    go(main())


def test_a_worker_is_given_the_runs_of_its_pool(desk):
    tool, _ = counted()
    clerk = agent(ONE_CALL, tool)

    async def main():
        async with desk.runtime(clerk) as one, desk.runtime(clerk, pool="night/shift") as two:
            asked = {name: watch(worker) for name, worker in (("one", one), ("two", two))}
            late = [await one.start("desk", "go", pool="night/shift") for _ in range(5)]
            for run in late:
                await arrives(run, "completed")
            assert asked["one"] == []
            assert sorted(asked["two"]) == sorted(run.id for run in late)

    go(main())


def test_a_worker_is_given_no_more_than_it_has_room_for_and_another_takes_the_rest(desk):
    gate = Gate()
    clerk = agent([[call("work", at="a", id="a")], say("done")], gate.tool())

    async def main():
        async with desk.runtime(clerk, max_runs=1) as full:
            asked = watch(full)
            first = await full.start("desk", "go")
            await gate.began("a")
            second = await full.start("desk", "go")
            await until(lambda: second.id in full.dispatch._told)
            await so(lambda: waits(second))
            async with desk.runtime(clerk) as other:
                await until(lambda: other.driving(second.id))
                gate.open("a")
                for run in (first, second):
                    await arrives(run, "completed")
            assert asked == [first.id]

    async def waits(run):
        return kinds(await desk.history(run))["activity_task_scheduled"]

    go(main())


def watch(runtime):
    """The runs that its engine asks it to drive, in order."""
    drive, asked = runtime.drive, []

    async def watched(tenant, run_id, segment):
        asked.append(run_id)
        return await drive(tenant, run_id, segment)

    runtime.drive = watched
    return asked


@law("2.3", "7.6")
def test_a_process_that_drains_ends_its_bodies_and_another_goes_on_at_once(desk, monkeypatch):
    monkeypatch.setattr(temporal_run, "BACK_OFF_SECONDS", (3600, 3600))
    gate = Gate()
    clerk = agent([[call("work", at="a", id="a")], [call("work", at="b", id="b")], say("done")], gate.tool())

    async def main():
        async with desk.runtime(clerk) as first:
            run = await first.start("desk", "go")
            await gate.began("a")
            assert not await first.drain(0.01)
            async with desk.runtime(clerk) as second:
                second.dispatch.enqueue = lost  # the server gives it on, not a sweep
                gate.open("a", "b")
                assert await first.drain()
                await arrives(await second.get(run.id), "completed")
                asked = watch(second)
                late = await first.start("desk", "later")
                await arrives(late, "completed")
                assert asked == [late.id]
                await content(second)
            assert gate.log == ["+a", "-a", "+b", "-b"] * 2

    go(main())


@law("2.3", "7.6")
def test_a_process_that_closes_gives_its_runs_back_and_another_goes_on(desk, monkeypatch):
    monkeypatch.setattr(temporal, "CLOSE_SECONDS", 3600)
    gate = Gate()
    clerk = agent([[call("look", at="a", id="a")], say("done")], gate.tool("look", read_only=True))

    async def main():
        first = desk.runtime(clerk)
        await first.open()
        run = await first.start("desk", "go")
        await gate.began("a")
        await first.close()
        gate.open("a")
        async with desk.runtime(clerk) as second:
            run = await arrives(await second.get(run.id), "completed")
            assert [r.attempt for r in run.results] == [2]
            await desk.ended(run)
            await content(second)
        async with first:  # it can be opened again
            assert (await (await first.start("desk", "go")).wait()).answer == "done"

    go(main())


async def lost(row):
    """What an engine is told, and does not pass on."""


# ------------------------------------------------------------------------------------------- two processes


@law("7.5", "7.6")
def test_two_processes_share_the_runs_and_each_call_runs_once(desk):
    async def main():
        with desk.child("work") as other:
            assert await said(other) == ["ready"]
            async with desk.runtime(*run_child.agents()) as here:
                runs = [await here.start("payer", "go") for _ in range(6)]
                for run in runs:
                    await arrives(run, "paused")
                    for call_id in await pending(run):
                        await run.approve(call_id, by="grace")
                for run in runs:
                    await arrives(run, "completed")
                await content(here)
        assert Counter(line.split()[1] for line in desk.lines()) == {"1": 6, "2": 6}

    go(main())


@law("7.6")
def test_a_worker_that_is_killed_inside_a_body_leaves_an_interrupted_call_and_another_goes_on(desk):
    async def main():
        async with desk.runtime() as teller:
            with desk.child("work") as first:
                await said(first)
                run = await teller.start("hanger", "go")
                await until(lambda: desk.lines() == ["hang 0 attempt 1"])
                first.kill()
            async with desk.runtime(*run_child.agents()):
                await arrives(run, "paused")
                assert [a.kind for a in await run.approvals()] == ["interrupted"]
                await run.settle("h", by="grace", rerun=True)
                await until(lambda: desk.lines() == ["hang 0 attempt 1", "hang 0 attempt 2"])
                run_child.effect("end")
                await arrives(run, "completed")
                await desk.ended(run)
                await content(teller)

    go(main())


@law("7.6")
def test_the_server_misses_a_dead_worker_and_gives_its_segment_on_though_nobody_tells_it(desk):
    async def main():
        async with desk.runtime() as teller:
            with desk.child("work", "missed") as first:
                await said(first)
                run = await teller.start("hanger", "go")
                await until(lambda: desk.lines() == ["hang 0 attempt 1"])
                first.kill()
            runtime = desk.runtime(*run_child.agents())
            runtime.dispatch.enqueue = lost
            async with runtime:
                await arrives(run, "paused")
                assert [a.kind for a in await run.approvals()] == ["interrupted"]
            await content(teller)

    go(main())


# ------------------------------------------------------------------------------------------------ teams


@law("9.dispatch", "9.pause", "9.ask", "7.2")
def test_each_run_of_a_team_has_a_workflow_and_people_help_from_elsewhere(desk):
    log = []
    miner = agent([call("blast", where="m", id="m1"), say("mined")], needing(log), name="miner")
    chief = team(miner, agent([say("forged")], name="smith"), then=[asks("ada", "Well?"), say("done")])

    async def main():
        async with desk.runtime(chief) as worker, desk.runtime(miner) as other, desk.runtime() as teller:
            run = await teller.start("chief", "Go.", caller=Caller(user="ada"))
            await arrives(run, "paused")
            assert await pending(run) == ["m1"]
            await run.approve("m1", by="grace")
            while await pending(run) != ["q"]:
                await arrives(run, "paused")
            await run.answer_question("q", by="ada", text="Well.")
            await arrives(run, "completed")
            assert outcomes(run) == {"miner": "Succeeded", "smith": "Succeeded", "q": "Succeeded"}
            assert log == ["m:1"]
            for row in await teller.runs():
                await desk.ended(await teller.get(row.run_id))
            assert (worker._drives, other._drives) == ({}, {})
            await content(teller)

    go(main())


@law("9.cancel", "7.8")
def test_a_cancel_ends_the_workflows_of_a_team_and_the_managers_run_last(desk):
    gate = Gate()
    miner = agent([call("work", at="m", id="w"), say("never")], gate.tool(), name="miner")
    smith = agent([call("blast", where="s", id="s1"), say("never")], needing([]), name="smith")

    async def main():
        async with desk.runtime(team(miner, smith)), desk.runtime() as teller:
            run = await teller.start("chief", "Go.")
            await gate.began("m")
            while await pending(run) != ["s1"]:
                await asyncio.sleep(0.01)
            await run.cancel("enough")
            await arrives(run, "cancelled")
            assert outcomes(run) == {"miner": "Cancelled", "smith": "Cancelled"}
            entries = await teller.store.entries("default", run.interaction_id)
            assert [e.run_id for e in entries if isinstance(e, EndedEntry)][-1] == run.id
            for row in await teller.runs():
                assert row.status == "cancelled"
                await desk.ended(await teller.get(row.run_id))
            await content(teller)

    go(main())


@law("7.6", "9.recovery")
def test_a_worker_that_is_killed_while_a_manager_waits_for_its_body_leaves_both_to_another(desk):
    async def main():
        async with desk.runtime() as teller:
            with desk.child("work") as first:
                await said(first)
                run = await teller.start("foreman", "go")
                await until(lambda: desk.lines() == ["hang 0 attempt 1"])
                first.kill()
            async with desk.runtime(*run_child.agents()):
                await arrives(run, "paused")
                assert [a.kind for a in await run.approvals()] == ["interrupted"]
                await run.settle("h", by="grace", result=ToolResult.text("seen to"))
                await arrives(run, "completed")
                assert outcomes(run) == {"d": "Succeeded"}
                for row in await teller.runs():
                    await desk.ended(await teller.get(row.run_id))
                await content(teller)

    go(main())


# --------------------------------------------------------------------------------- what the server holds


def test_the_history_holds_ids_and_nothing_that_people_or_models_wrote(desk, monkeypatch):
    tool, _ = counted(needs_approval=True)
    prompt = "PROMPT-OF-GRACE"
    script = [[call("count", n=77177, id="c")], say("ANSWER-OF-THE-MODEL")]

    async def main():
        async with desk.runtime(agent(script, tool)) as worker:
            drive, failed = worker.drive, []

            async def fails_once(*words):
                if not failed:
                    failed.append(words)
                    raise RuntimeError("ERROR-WITH-CONTENT")
                return await drive(*words)

            worker.drive = fails_once
            run = await worker.start("desk", prompt)
            await arrives(run, "paused")
            await run.approve("c", by="GRACE-HERSELF", reason="REASON-OF-GRACE")
            await arrives(run, "completed")
            await desk.ended(run)
            held = b"".join(event.SerializeToString() for event in await desk.history(run))
            assert failed == [("default", run.id, 0)]
            assert run.id.encode() in held
            assert b"RuntimeError" in held
            for text in (prompt, "77177", "count 77177", "ANSWER-OF", "GRACE", "REASON", "ERROR-WITH"):
                assert text.encode() not in held
            assert len(held) < 20_000

    go(main())


def test_a_long_history_is_begun_anew(desk, monkeypatch):
    monkeypatch.setattr(temporal_run, "LONG", 12)
    tool, seen = counted(needs_approval=True)
    script = [*([call("count", n=n, id=f"c{n}")] for n in range(3)), say("done")]

    async def main():
        async with desk.runtime(agent(script, tool)) as worker:
            run = await worker.start("desk", "go")
            for n in range(3):
                await so(lambda: pending(run))
                await run.approve(f"c{n}", by="grace")
            await arrives(run, "completed")
            await desk.ended(run)
            last = await (await desk.workflow(run)).describe()
            assert last.raw_description.workflow_execution_info.first_run_id != last.run_id
            assert last.history_length < 40
            assert len(seen) == 3
            await content(worker)

    go(main())


# ----------------------------------------------------------------------------------------- what goes wrong


@law("7.6")
def test_a_signal_that_was_lost_is_repaired_by_the_sweep(desk):
    tool, seen = counted(needs_approval=True)

    async def main():
        async with desk.runtime() as teller, desk.runtime(agent(ONE_CALL, tool)) as worker:
            teller.dispatch.enqueue = lost
            run = await teller.start("desk", "go")
            await arrives(run, "paused")
            await run.approve("c", by="grace")
            await arrives(run, "completed")
            assert len(seen) == 1
            await content(worker)

    go(main())


def test_what_the_server_has_already_is_not_told_again(desk):
    async def main():
        async with desk.runtime() as teller:
            run = await teller.start("desk", "go")  # its worker has not come
            row = await teller.store.run("default", run.id)
            await until(lambda: run.id in teller.dispatch._told)
            for other in (teller, desk.runtime()):
                if other is not teller:
                    await other.open()
                other.dispatch._told[run.id] = (row.epoch, 0.0, 1.0)  # long ago
                await other.dispatch.enqueue(row)
            await other.close()
            assert kinds(await desk.history(run))["workflow_execution_signaled"] == 1

    go(main())


def test_a_refused_segment_is_tried_again_when_it_is_told_again(desk):
    tool, _ = counted()

    async def main():
        async with desk.runtime(agent(ONE_CALL, tool)) as worker:
            drive, answers = worker.drive, []

            async def refuses_once(*words):
                answers.append(REFUSED if not answers else await drive(*words))
                return answers[-1]

            worker.drive = refuses_once
            run = await worker.start("desk", "go")
            await arrives(run, "completed")
            await until(lambda: answers == [REFUSED, "completed"])

    go(main())


def test_a_workflow_that_cannot_go_on_is_replaced(desk, monkeypatch, caplog):
    monkeypatch.setattr(temporal, "STUCK", 1)
    tool, _ = counted()

    async def main():
        async with desk.runtime() as teller:
            teller.dispatch.enqueue = lost
            run = await teller.start("desk", "go")
            queue = temporal._queue("default", "desk")
            await (await desk.client()).start_workflow("of another version", id=f"default/{run.id}", task_queue=queue)
            async with desk.runtime(agent(ONE_CALL, tool)):
                await arrives(run, "completed")
            assert "is started anew" in caplog.text

    go(main())


def test_a_run_whose_driver_fails_is_not_tried_without_end(desk, monkeypatch):
    monkeypatch.setattr(temporal_run, "BACK_OFF_SECONDS", (3600, 3600))
    tool, _ = counted()

    async def main():
        async with desk.runtime(agent(ONE_CALL, tool)) as worker:
            tries = []

            async def fails(*words):
                tries.append(words)
                return "running"

            worker.drive = fails
            run = await worker.start("desk", "go")
            handle = await desk.workflow(run)
            await so(lambda: waits(handle))
            assert len(tries) == 1

    async def waits(handle):
        try:
            events = [event async for event in handle.fetch_history_events()]
        except temporal.RPCError:
            return False
        return kinds(events)["timer_started"]

    go(main())


def test_a_run_of_another_record_is_left_alone(desk, caplog, tmp_path):
    tool, _ = counted()
    clerk = agent(ONE_CALL, tool)
    (tmp_path / "other").mkdir()

    async def main():
        elsewhere = Place("sqlite", tmp_path / "other").runtime(clerk, dispatch=desk.dispatch)
        async with desk.runtime() as teller, elsewhere:
            run = await teller.start("desk", "go")
            await until(lambda: "is not in this record" in caplog.text)
            await desk.ended(run)
            assert (await teller.store.run("default", run.id)).epoch == 0

    go(main())


def test_a_server_that_goes_away_loses_no_run_and_is_not_logged_at_every_try(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(temporal, "CALL_SECONDS", 0.5)
    tool, seen = counted()

    async def main(server):
        async with desk.runtime(agent(ONE_CALL, tool)) as worker:
            assert (await (await worker.start("desk", "go")).wait()).answer == "done"
            server.kill()
            tries = []
            away = worker.dispatch._away
            monkeypatch.setattr(worker.dispatch, "_away", lambda error: (tries.append(error), away(error)))
            run = await worker.start("desk", "go on")
            await until(lambda: len(tries) > 1)
            assert caplog.text.count("cannot be told of runs") == 1
            await asyncio.to_thread(server.start)
            await arrives(run, "completed")
            assert len(seen) == 2
            await content(worker)

    with serving() as own:
        desk = Desk(own, tmp_path)
        go(main(own))


def test_a_runtime_closes_though_the_server_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(temporal, "CLOSE_SECONDS", 0.3)
    gate = Gate()
    clerk = agent([[call("look", at="a", id="a")], say("done")], gate.tool("look", read_only=True))

    async def main(server):
        async with desk.runtime(clerk) as worker:
            run = await worker.start("desk", "go")
            await gate.began("a")
            server.kill()
        async with desk.place.runtime() as reader:
            row = await reader.store.run("default", run.id)
            assert (row.status, row.owner, row.runnable) == ("running", None, True)

    with serving() as own:
        desk = Desk(own, tmp_path)
        go(main(own))


@pytest.mark.parametrize("answers", [False, True])
def test_a_server_that_is_missing_or_mute_is_said_to_be_with_what_to_do(tmp_path, monkeypatch, answers):
    monkeypatch.setattr(temporal, "CONNECT_SECONDS", 0.3)

    async def main(port):
        runtime = Place("sqlite", tmp_path).runtime(dispatch=f"temporal:127.0.0.1:{port}/mine")
        with pytest.raises(UsageError) as refused:
            await runtime.open()
        for words in (f"127.0.0.1:{port}", "'mine'", "temporal server start-dev", "temporal:HOST:PORT/NAMESPACE"):
            assert words in str(refused.value)
        with pytest.raises(UsageError, match="open"):
            await runtime.start("desk", "go")

    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        if answers:
            mute.listen()
        go(main(mute.getsockname()[1]))


def test_a_namespace_that_is_not_there_is_named(desk):
    async def main():
        with pytest.raises(UsageError, match="'nowhere'"):
            await desk.place.runtime(dispatch=f"temporal:{desk.server.address}/nowhere").open()

    go(main())


def test_a_record_in_this_process_alone_is_refused():
    async def main():
        with pytest.raises(UsageError, match="memory:// is in this one alone"):
            await Place("memory", Path()).runtime(dispatch="temporal").open()

    go(main())


@pytest.mark.parametrize(
    ("name", "server", "namespace"),
    [
        ("temporal", "localhost:7233", "default"),
        ("temporal:far.example:7234", "far.example:7234", "default"),
        ("temporal:[::1]:7234/prod", "[::1]:7234", "prod"),
        ("temporal:far.example:7234/prod.abc", "far.example:7234", "prod.abc"),
    ],
)
def test_the_name_says_where_the_server_is(name, server, namespace):
    assert temporal._address(name) == (server, namespace)


@pytest.mark.parametrize(
    "name", ["temporal:", "temporal:host", "temporal:host:7233/", "temporal:host:x", "temporal:/a"]
)
def test_a_name_that_says_something_else_is_refused(name):
    with pytest.raises(DefinitionError, match=re.escape("'temporal:HOST:PORT/NAMESPACE'")):
        Place("sqlite", Path()).runtime(dispatch=name)

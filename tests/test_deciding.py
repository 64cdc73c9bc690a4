"""Decisions on one call from many processes at once: one counts, and its body starts once (contract 7.2 and 7.5)."""

from __future__ import annotations

from collections import Counter

from counterfoil import Runtime
from tests.helpers import Child, Place, content, go, shared
from tests.marks import case, law
from tests.run_child import agents as child_agents

PROCESSES = 8
DECISIONS = 50


@law("7.2", "7.5", "7.2.digest")
@case("R076", "R037")
@shared
def test_of_fifty_decisions_from_eight_processes_one_counts_and_its_body_starts_once(place: Place, tmp_path):
    async def pause():
        async with place.runtime(*child_agents()) as runtime:
            run = await (await runtime.start("payer", "go")).wait()
            assert run.status == "paused"
            return run.id

    run_id = go(pause())
    words = [("contest", run_id, str(i), str(PROCESSES), str(DECISIONS)) for i in range(PROCESSES)]
    children = [Child(tmp_path, *w, url=place.url) for w in words]
    for child in children:
        child.ready()
    for child in children:
        child.begin()
    ends = [child.end() for child in children]
    assert {end[0] for end in ends} == {"completed"}
    answers = Counter(answer for end in ends for answer in end[1:])
    assert sum(answers.values()) == 2 * DECISIONS

    async def look():
        async with Runtime(place.url) as reader:
            await content(reader)
            run = await reader.get(run_id)
            return run, await reader.store.entries("default", run.interaction_id)

    run, entries = go(look())
    calls = {call.call_id: call for call in run.calls}
    for call_id, kinds in {"a": ("approve", "reject"), "b": ("approve", "edit")}.items():
        (stands,) = [e for e in entries if e.kind == "decided" and e.call_id == call_id]
        won = "edit" if stands.decision.input is not None else stands.decision.choice
        (lost,) = {*kinds} - {won}
        # The one that counts and its equals were acknowledged, each of the others was a conflict.
        assert {key for key in answers if key.startswith(call_id)} == {
            f"{call_id}:{won}:taken",
            f"{call_id}:{lost}:conflict",
        }
        assert calls[call_id].approval.by == stands.decision.by
        started = [e for e in entries if e.kind == "start" and e.call_id == call_id]
        assert len(started) == (won != "reject")
        paid = 1 if call_id == "a" else 9 if won == "edit" else 2
        assert sum(line.startswith(f"pay {paid} ") for line in children[0].lines()) == len(started)

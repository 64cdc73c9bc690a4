"""Nothing lost, nothing twice: a process is killed at every boundary of a batch, the run driven again (contract 7)."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from tests.marks import case, law
from tests.rescue import Recovery, Story, stories_of
from tests.soak_judge import spread

SAFE = {"look", "put"}
ORDER = ["c-look", "c-put", "c-charge", "c-refund", "c-second"]
AFTERWARDS = Recovery()
THERE = Recovery(heartbeat=2.0)
ELSEWHERE = Recovery("elsewhere", heartbeat=1.0)


@pytest.fixture(scope="module", params=["sqlite", "postgres", "another worker", "dbos"])
def stories(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Story]:
    """One story for each point that a dry run counts; where it costs more time, for a part of them."""
    every, recoveries = {
        "sqlite": (1, (AFTERWARDS,)),
        "postgres": (5, (AFTERWARDS,)),
        "another worker": (3, (ELSEWHERE, THERE)),
        "dbos": (5, (Recovery(engine="dbos"),)),
    }[request.param]
    folder = tmp_path_factory.mktemp("crash")
    server = request.getfixturevalue("postgres") if request.param in ("postgres", "another worker") else None

    def fresh(name: str) -> str:
        return f"sqlite:///{folder}/{name}.db" if server is None else server.fresh()

    return stories_of(fresh, folder, *recoveries, every=every)


@law("7.6", "7.5")
@case("R002", "R025", "R040", "R077")
def test_a_process_can_die_at_every_boundary_and_the_run_comes_to_its_end(stories: list[Story]) -> None:
    assert len(stories) >= 7
    for s in stories:
        assert s.killed == -signal.SIGKILL, s.name
        assert s.status == "completed", s.name


@law("2.1")
@case("R013")
def test_every_call_has_exactly_one_result_after_every_kill(stories: list[Story]) -> None:
    for s in stories:
        assert list(s.results) == ORDER, s.name
        assert all(len(texts) == 1 for texts in s.results.values()), s.name


@law("2.3")
@case("R026")
def test_a_finished_call_is_never_repeated(stories: list[Story]) -> None:
    for s in stories:
        for call_id, text in s.finished_before.items():
            assert s.results[call_id] == [text], s.name
        done = {c.removeprefix("c-") for c in s.finished_before}
        if "second" in done:
            done.add("charge")
        before, after = Counter(e[1] for e in s.effects_before), Counter(e[1] for e in s.effects)
        for name, key, _ in s.effects_before:
            if name in done and name != "charge":
                assert after[key] == before[key], s.name


@law("7.6")
def test_an_effect_that_may_not_come_twice_comes_once_at_most(stories: list[Story]) -> None:
    for s in stories:
        times = Counter(e[1] for e in s.effects if e[0] not in SAFE)
        assert all(n == 1 for n in times.values()), f"{s.name}: {s.effects}"


@law("7.6")
def test_a_safe_body_that_died_runs_again_with_the_same_key(stories: list[Story]) -> None:
    repeated = 0
    for s in stories:
        for name in SAFE:
            keys = {e[1] for e in s.effects if e[0] == name}
            attempts = [e[2] for e in s.effects if e[0] == name]
            assert len(keys) == 1, s.name
            assert attempts == sorted(attempts), s.name
            repeated += len(attempts) > 1
    assert repeated > 0


@law("7.6")
def test_a_body_whose_end_nobody_saw_waits_for_a_person_and_says_so(stories: list[Story]) -> None:
    asked = 0
    for s in stories:
        for call_id, texts in s.results.items():
            lost = texts == ["looked: nobody knows"]
            name = "charge" if call_id == "c-second" else call_id.removeprefix("c-")
            assert not (lost and name in SAFE), s.name
            asked += lost
    assert asked > 0


@law("11.verify")
def test_verify_is_content_after_every_kill_and_recovery(stories: list[Story]) -> None:
    for s in stories:
        assert s.problems == [], s.name


@law("7.6", "7.9")
def test_a_worker_that_is_there_goes_on_with_what_a_dead_one_drove(stories: list[Story]) -> None:
    went_on = {s.recovery: s.seconds for s in stories if s.seconds is not None}
    assert went_on.keys() == {s.recovery for s in stories}
    for recovery in went_on:
        print(recovery, spread([s.seconds for s in stories if s.recovery == recovery and s.seconds is not None]))

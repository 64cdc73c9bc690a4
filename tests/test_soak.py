"""The soak in short: workers on one record are killed, frozen and closed, and the laws are kept (contract 7)."""

from __future__ import annotations

import asyncio

from tests.helpers import Place, shared
from tests.marks import case, law
from tests.soak import Plan, soak
from tests.soak_judge import Least

SHORT = Least(started=30, killed_in_a_body=1, killed_in_an_unsafe_body=1, frozen_until_dead=1)


@shared
@law("7.5", "7.6", "7.2", "2.1", "2.7.lock", "11.verify")
@case("R002", "R013", "R025")
def test_runs_come_to_their_ends_whatever_becomes_of_their_workers(place: Place, tmp_path) -> None:
    plan = Plan(place.url, tmp_path, seed=7, seconds=6, runs=30, workers=3, least=SHORT, heartbeat=0.5)
    verdict = asyncio.run(soak(plan))
    assert verdict.problems == [], verdict.figures

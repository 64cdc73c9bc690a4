"""What the stores in a database do alike, beside the store suite: several processes, and a life of open and close."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from counterfoil.core.errors import Fenced, UsageError
from counterfoil.registry import resolve
from counterfoil.store import Behind
from counterfoil.testing import records as r
from counterfoil.testing.store_bench import claimed, intact, kinds
from tests.marks import case, law

ROOT = Path(__file__).parent.parent


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'record.db'}"
    return f"{request.getfixturevalue('postgres').fresh()}&pool=2"


def open_store(url):
    return resolve("store", url.partition("://")[0])(url)


def using(url, body):
    """Run `body` with an open store."""

    async def run():
        store = open_store(url)
        await store.open()
        try:
            return await body(store)
        finally:
            await store.close()

    return asyncio.run(run())


def child(url, name, tasks, results):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.store_child", url, name, str(tasks), str(results)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@case("R188")
def test_sixteen_processes_open_a_fresh_store_at_once_and_write_a_hundred_results_each(url):
    children = [child(url, f"p{i}", 1, 100) for i in range(16)]
    ends = [(c.communicate(), c.returncode) for c in children]
    assert [error for (_, error), _ in ends] == [""] * 16
    assert [code for _, code in ends] == [0] * 16

    async def check(store):
        await intact(store)
        found = [row async for row in store.rows() if row.kind == "result"]
        assert len(found) == 1600
        assert len(await store.heads()) == 16

    using(url, check)


@law("2.3")
@pytest.mark.parametrize("tasks", [1, 20])
def test_what_was_acknowledged_survives_a_kill(url, tasks):
    writer = child(url, "p", tasks, 0)
    lines = [writer.stdout.readline() for _ in range(300)]
    writer.send_signal(signal.SIGKILL)
    lines += writer.communicate()[0].splitlines(keepends=True)
    acknowledged = {tuple(line.split()) for line in lines if line.endswith("\n")}
    assert len(acknowledged) >= 300

    async def check(store):
        await intact(store)
        results = {(row.run_id, str(row.entry)) async for row in store.rows() if row.kind == "result"}
        assert {(run_id, entry) for run_id, _, entry in acknowledged} <= results

    using(url, check)


def test_two_stores_in_one_place_see_each_other(url):
    async def body(one):
        two = open_store(url)
        await two.open()
        try:
            seen = await two.version()
            lease = await claimed(one)
            assert await two.version() != seen
            assert await kinds(two) == ["run", "message"]
            await two.post("acme", "run-1", r.cancel())
            with pytest.raises(Behind):
                await one.commit(lease, [r.turn()], expect=2)
            taken = await two.claim(await two.run("acme", "run-1"), r.OTHER_WORKER)
            with pytest.raises(Fenced):
                await one.commit(lease, [r.turn()])
            await two.commit(taken, [r.turn(), r.start()])
            with pytest.raises(Fenced):
                await one.commit(taken, [r.start()])
            await one.commit(taken, [r.result()])
            with pytest.raises(Fenced):
                await two.commit(taken, [r.result()])
            await intact(one)
        finally:
            await two.close()

    using(url, body)


def test_closing_waits_for_what_was_given_to_it(url):
    async def body(store):
        lease = await claimed(store)
        writes = [asyncio.ensure_future(store.commit(lease, [r.turn(step=i)])) for i in range(200)]
        await asyncio.sleep(0)
        await store.close()
        assert await asyncio.gather(*writes) == list(range(3, 203))

    using(url, body)

    async def check(store):
        assert (await kinds(store)).count("turn") == 200

    using(url, check)


def test_a_store_is_used_between_open_and_close(url):
    async def body():
        store = open_store(url)
        with pytest.raises(UsageError, match="open"):
            await store.run("acme", "run-1")
        await store.close()
        await store.open()
        await store.open()
        await claimed(store)
        await store.close()
        await store.close()
        with pytest.raises(UsageError, match="open"):
            await store.create(r.new_run("run-2", "talk-2"))
        await store.open()
        assert await kinds(store) == ["run", "message"]
        await store.close()

    asyncio.run(body())


def test_a_store_serves_one_loop_after_another(url):
    store = open_store(url)
    asyncio.run(store.open())
    lease = asyncio.run(claimed(store))
    assert asyncio.run(store.commit(lease, [r.turn()])) == 3
    asyncio.run(store.close())

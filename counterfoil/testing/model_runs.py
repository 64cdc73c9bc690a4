"""The model suite: whole runs of an agent on the wire."""

# ruff: noqa: S101, ARG001  # tests, as those in tests/

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import pytest
from pydantic import BaseModel

from counterfoil.agent import Agent
from counterfoil.core.errors import ToolError
from counterfoil.core.items import Message
from counterfoil.core.jsontext import JsonValue, dumps
from counterfoil.core.limits import Limits
from counterfoil.testing.fake_server import FakeServer, Play
from counterfoil.testing.model_bench import ModelBench, Serve, awaited
from counterfoil.tool import Tool, tool


@tool
def echo() -> str:
    """Echo."""
    return "echo"


class Part(BaseModel):
    """A nested input with fields that may be left out."""

    name: str
    count: int = 1
    note: str | None = None
    tags: dict[str, str] | None = None


class Plain(BaseModel):
    """As `Part`, without free keys."""

    name: str
    count: int = 1
    note: str | None = None


class Pick(BaseModel):
    """An answer with a bit of everything."""

    kind: Literal["a", "b"]
    part: Plain
    tags: list[Literal["p", "q"]]
    note: str | None = None
    count: int = 3


class Node(BaseModel):
    """An answer that refers to itself."""

    name: str
    children: list[Node] = []


FORMS: Final[Mapping[str, tuple[Any, JsonValue, JsonValue, JsonValue]]] = {
    "nested": (
        Pick,
        {"kind": "a", "part": {"name": "x"}, "tags": ["p"]},
        {
            "kind": "a", "part": {"name": "x", "count": None, "note": None}, "tags": ["p"], "note": None, "count": None,
        },
        {"kind": "a", "part": {"name": "x", "count": 1, "note": None}, "tags": ["p"], "note": None, "count": 3},
    ),
    "a list": (
        list[Plain], [{"name": "x"}], [{"name": "x", "count": None, "note": None}],
        [{"name": "x", "count": 1, "note": None}],
    ),
    "recursive": (
        Node, {"name": "a", "children": [{"name": "b"}]}, {"name": "a", "children": [{"name": "b", "children": None}]},
        {"name": "a", "children": [{"name": "b", "children": []}]},
    ),
    "a number": (int, 7, 7, 7),
    "a word": (Literal["yes", "no"], "yes", "yes", "yes"),
    "free keys": (dict[str, int], {"a": 1}, {"a": 1}, {"a": 1}),
    "one of two": (Plain | int, 5, 5, 5),
}  # fmt: skip  # rows by what belongs together
"""Output types, each with an answer, one as the strict dialect has it, and what the run gives."""


def answering(server: FakeServer, body: dict[str, Any], plain: JsonValue, strict: JsonValue) -> Play:
    """What a good model says: by call where it was given a tool for that, in the form that was asked for."""
    tool_ = server.tools(body).get("answer")
    form = server.form(body)
    schema = tool_ or (form[0] if form is not None else {})
    value = strict if form is not None and form[1] else plain
    value = {"answer": value} if list(schema.get("properties", ())) == ["answer"] else value
    said = dumps(value).decode()
    return Play(calls=[("a1", "answer", said)]) if tool_ else Play(said)


class RunTests(ModelBench):
    """Agents, tools with schemas of all kinds, and turns that must run nothing."""

    @awaited
    async def test_a_run_of_calls_and_an_answer(self, serve: Serve) -> None:
        @tool
        def double(n: int) -> int:
            """Double a number."""
            if n < 0:
                raise ToolError("Only numbers from 0.")
            return 2 * n

        calls = [("c1", "double", '{"n": 2}'), ("c2", "double", '{"n": -1}'), ("c2", "double", '{"n": 5}')]
        async with serve(Play(calls=calls), Play("4 and 10")) as at:
            run = await Agent("desk", at.model, tools=[double]).run("Double 2, -1 and 5")
            texts = [told.text for told in at.told if told.kind == "result"]
            assert at.server.faults == []
        assert (run.status, run.answer) == ("completed", "4 and 10")
        assert texts == ["4", "Only numbers from 0.", "10"]

    @pytest.mark.parametrize("stop", ["length", "refusal"])
    def test_a_turn_that_was_cut_off_or_refused_runs_nothing(self, serve: Serve, stop: str) -> None:
        ran = []

        @tool
        def refund(cents: int) -> str:
            """Refund."""
            ran.append(cents)
            return "done"

        play = Play("So,", calls=[("c1", "refund", '{"cents": 100}'), ("c2", "refund", '{"cents"')], stop=stop)

        @awaited
        async def main() -> None:
            async with serve(play, Play("Sorry.")) as at:
                run = await Agent("desk", at.model, tools=[refund]).run("Refund")
                assert at.server.faults == []
            assert ran == []
            assert run.answer == "Sorry."
            assert [type(part.result.outcome).__name__ for part in run.results] == ["Skipped", "Skipped"]

        main()

    @awaited
    async def test_null_means_the_default_where_the_field_takes_no_null(self, serve: Serve) -> None:
        seen = []

        @tool
        def order(part: Plain, count: int = 7, note: str | None = "n", parts: list[Plain] = []) -> str:  # noqa: B006  # as users write it
            """Order."""
            seen.append((part, count, note, parts))
            return "done"

        raw = '{"part": {"name": "a", "count": null, "note": null}, "count": null, "note": null, "parts": null}'
        more = '{"part": {"name": "a"}, "parts": [{"name": "b", "count": null, "note": null}]}'
        async with serve(Play(calls=[("c1", "order", raw), ("c2", "order", more)]), Play("fine")) as at:
            run = await Agent("desk", at.model, tools=[order]).run("Order")
            strict = self.is_strict(at.server.tools(at.last.body)["order"])
        if not strict:  # only the strict dialect makes a model write null deep inside
            return
        assert [part.error_code for part in run.results] == [None, None]
        assert seen[0] == (Plain(name="a"), 7, None, [])
        assert seen[1] == (Plain(name="a"), 7, "n", [Plain(name="b")])

    @staticmethod
    def is_strict(schema: dict[str, Any]) -> bool:
        """Whether a schema was offered in the strict dialect, in which all is required."""
        return sorted(schema["required"]) == sorted(schema["properties"])

    @awaited
    async def test_schemas_of_all_kinds_are_taken(self, serve: Serve) -> None:
        def free(  # its body is never run
            part: Part, table: dict[str, int], pair: tuple[int, str], either: int | Part, word: str = "a default"
        ) -> str:
            """Take what no strict dialect can say."""
            return "done"

        open_ = Tool("open", "Anything goes.", {"type": "object"}, lambda arguments: arguments)
        odd: dict[str, JsonValue] = {
            "type": "object",
            "properties": {
                "a": {"type": ["string", "null"], "minLength": 2, "default": "x"},
                "b": {"const": 3},
                "c": {"oneOf": [{"type": "integer"}, {"type": "array", "items": {"enum": ["p", "q"]}}]},
                "d": {"$ref": "#/$defs/node", "description": "a tree"},
                "e": {"type": "string", "format": "uri", "pattern": "^h(?=t)"},
                "f": {"allOf": [{"type": "number", "minimum": 0}]},
            },
            "required": ["b"],
            "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
        }
        closed = Tool("closed", "Of somebody else.", odd, lambda arguments: arguments)
        empty = Tool(
            "nothing",
            "No input.",
            {"type": "object", "properties": {}, "additionalProperties": False},
            lambda _: "done",
        )
        text: dict[str, JsonValue] = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
        number: dict[str, JsonValue] = {"type": "object", "properties": {"y": {"type": "integer"}}, "required": ["y"]}
        either = Tool("either", "One of two.", {"type": "object", "oneOf": [text, number]}, lambda _: "done")
        calls = [("c1", "nothing", ""), ("c2", "closed", '{"a":null,"b":3,"c":null,"d":{"next":null},"e":null,"f":0}')]
        async with serve(Play(calls=calls), Play("fine")) as at:
            run = await Agent("desk", at.model, tools=[tool(free), open_, closed, empty, either]).run("Go")
            assert at.server.faults == []
            offered = at.server.tools(at.last.body)
        assert list(offered) == ["free", "open", "closed", "nothing", "either"]
        assert run.answer == "fine"
        assert run.results[0].error_code is None
        if self.is_strict(offered["closed"]):
            assert run.results[1].output == {"a": None, "b": 3, "d": {}, "f": 0}

    @awaited
    async def test_an_answer_has_the_form_that_was_asked_for(self, serve: Serve) -> None:
        async with serve(Play('{"name": "W100", "count": 2, "note": null}')) as at:
            run = await Agent("desk", at.model, output_type=Plain, limits=Limits(steps=1)).run("Which?")
            assert at.server.faults == []
        assert run.output == {"name": "W100", "count": 2, "note": None}

    @pytest.mark.parametrize("name", list(FORMS))
    def test_answers_of_every_form_are_asked_for_and_read_and_a_miss_is_mended_on_record(
        self, serve: Serve, name: str
    ) -> None:
        kind, plain, strict, output = FORMS[name]

        @awaited
        async def main() -> None:
            def good(body: dict[str, Any]) -> Play:
                return answering(at.server, body, plain, strict)

            async with serve(good, Play("no JSON"), good, Play(calls=[("c1", "echo", "{}")]), good) as at:
                desk = Agent("desk", at.model, output_type=kind)
                run = await desk.run("Which?")
                assert (run.output, run.steps) == (output, 1)
                mended = await desk.run("Which?")
                assert (mended.output, mended.steps) == (output, 2)
                notes = [item for item in mended.items if isinstance(item, Message) and item.author.type == "System"]
                assert len(notes) == 1
                assert "does not have the required form" in notes[0].text
                assert notes[0].text in str(at.told)
                called = await Agent("desk", at.model, tools=[echo], output_type=kind).run("Which?")
                assert (called.output, len(called.results)) == (output, 1)
                assert at.server.faults == []

        main()

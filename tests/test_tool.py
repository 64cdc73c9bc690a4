"""What a developer writes: settings, names and what is refused when a tool is defined."""

import asyncio
from typing import Annotated, Any

import pytest

from counterfoil import Agent, Tool, ToolContext, tool
from counterfoil.core.errors import DefinitionError
from counterfoil.testing import ScriptedModel, call, say
from counterfoil.tool import SETTINGS, Deps, as_tools
from tests.boundary import go
from tests.marks import case, law


def echo(word: str) -> str:
    """Say it again.

    Args:
        word: what to say.
    """
    return word


@law("6.reserved-names")
@pytest.mark.parametrize("name", ["read_result", "dispatch", "ask"])
def test_a_name_of_a_built_in_tool_is_refused_with_what_to_do(name):
    with pytest.raises(DefinitionError, match=rf"^{name}: .*name="):
        tool(name=name)(echo)
    with pytest.raises(DefinitionError, match=rf"^{name}: "):
        Tool(name, "Mine.", {"type": "object"}, lambda given: given)

    def fn() -> str:
        return ""

    fn.__name__ = name
    with pytest.raises(DefinitionError, match=rf"^{name}: "):
        Agent("desk", ScriptedModel([say("x")]), tools=[fn])


@case("R184")
def test_two_tools_of_one_name_are_refused_in_either_order_and_never_renamed():
    one, other = tool(echo), tool(name="echo")(lambda x: x)
    for tools in ([one, other], [other, one], [echo, one]):
        with pytest.raises(DefinitionError, match=r"^echo: two tools have this name"):
            Agent("desk", ScriptedModel([say("x")]), tools=tools)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"timeout": 0}, "timeout must be seconds over 0"),
        ({"timeout": -1}, "timeout must be seconds over 0"),
        ({"timeout": float("nan")}, "timeout must be seconds over 0"),
        ({"max_output_bytes": 0}, "max_output_bytes must be over 0"),
        ({"retries": 1}, "retries need read_only=True or idempotent=True"),
        ({"read_only": "no"}, "read_only must be True or False"),
        ({"ends_run": 1}, "ends_run must be True or False"),
        ({"retries": True, "read_only": True}, "retries must be at least 0"),
        ({"retries": -1, "read_only": True}, "retries must be at least 0"),
        ({"on_oversize": "cut"}, "on_oversize must be one of 'keep', 'fail'"),
        ({"on_interrupted": "guess"}, "on_interrupted must be one of 'ask', 'tell'"),
        ({"isolation": "container"}, "isolation must be one of 'thread', 'process'"),
        ({"lock": "order:{order}"}, "is none of: word"),
        ({"lock": "{word!r}"}, "may name parameters"),
        ({"lock": "{word.name}"}, "is none of: word"),
        ({"parallel": True}, "unknown setting 'parallel'"),
        ({"expose": ("ValueError",)}, "expose takes exception classes"),
        ({"expose": int}, "expose takes exception classes"),
        ({"needs_approval": "always"}, "needs_approval must be"),
        ({"offered": True}, "offered must be"),
        ({"approvers": "grace"}, "approvers must be a list of names"),
        ({"approvers": ["grace", " "]}, "approvers must be a list of names"),
        ({"not_caller": "yes"}, "not_caller must be True or False"),
        ({"timeout": "5"}, "timeout must be seconds over 0"),
    ],
    ids=str,
)
def test_a_setting_that_makes_no_sense_is_refused_by_name_when_the_tool_is_defined(settings, said):
    with pytest.raises(DefinitionError) as refused:
        tool(**settings)(echo)
    assert str(refused.value).startswith("echo: ")
    assert said in str(refused.value)


def test_settings_are_attributes_with_their_defaults():
    plain = tool(echo)
    expected = {
        "read_only": False, "idempotent": False, "destructive": False, "needs_approval": False, "ends_run": False,
        "advisory": False, "sequential": False, "lock": None, "on_interrupted": "ask", "timeout": None,
        "max_output_bytes": None, "on_oversize": "keep", "expose": (), "isolation": "thread", "retries": 0,
        "offered": None, "approvers": (), "not_caller": False,
    }  # fmt: skip
    assert {name: getattr(plain, name) for name in SETTINGS} == expected
    assert tool(read_only=True)(echo).safe
    assert tool(idempotent=True)(echo).safe
    assert not plain.safe
    assert tool(expose=OSError)(echo).expose == tool(expose=[OSError])(echo).expose == (OSError,)


def test_a_tool_is_named_described_and_called_as_its_function():
    made = tool(echo)
    assert (made.name, made.description, made("hi")) == ("echo", "Say it again.", "hi")
    assert made.input_schema["properties"] == {"word": {"type": "string", "description": "what to say."}}
    renamed = tool(name="say", description="Says.")(echo)
    assert (renamed.name, renamed.description, repr(renamed)) == ("say", "Says.", "Tool('say')")
    assert as_tools([echo])["echo"].name == "echo"


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name

    @tool(read_only=True)
    def sign(self, ctx: ToolContext[Any]) -> str:
        """The shop's sign."""
        return f"{self.name} for {ctx.caller.tenant}"


def test_a_tool_in_a_class_is_one_for_each_instance_with_its_settings():
    one, other = Shop("one"), Shop("other")
    assert one.sign.read_only
    assert go([one.sign], call("sign")).read == "one for default"
    assert go([other.sign], call("sign")).read == "other for default"


@case("R173", "R176")
@pytest.mark.parametrize("position", ["first", "last", "keyword-only"])
def test_context_and_deps_are_injected_at_any_place_and_never_in_the_schema(position):
    def first(ctx: ToolContext[Any], word: str) -> str:
        return f"{word} {ctx.attempt}"

    def last(word: str, ctx: ToolContext[Any]) -> str:
        return f"{word} {ctx.attempt}"

    def keyword(word: str, *, ctx: ToolContext[Any]) -> str:
        return f"{word} {ctx.attempt}"

    fn = {"first": first, "last": last, "keyword-only": keyword}[position]
    seen = go([tool(name="fn")(fn)], call("fn", word="a"))
    assert seen.read == "a 1"
    assert list(seen.model.requests[0].tools[0]["input_schema"]["properties"]) == ["word"]  # type: ignore[index,call-overload]


def test_deps_cannot_cross_into_a_process_and_that_is_said_when_the_tool_is_defined():
    def wants(shop: Annotated[Any, Deps]) -> str:
        return str(shop)

    with pytest.raises(DefinitionError, match=r"^wants: deps cannot cross"):
        tool(isolation="process")(wants)


@case("R181")
def test_a_schema_that_the_author_gave_goes_out_unchanged_and_is_what_validates():
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 3, "x-note": "kept"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    made = Tool("count", "Counts.", schema, lambda given: given["n"], read_only=True)
    seen = go([made], [call("count", n=3), call("count", n=2), call("count", n=3, m=1)])
    assert seen.model.requests[0].tools[0]["input_schema"] == schema
    assert [p.error_code for p in seen.results] == [None, 4003, 4003]
    assert seen.results[0].output == 3


@case("R091")
def test_a_tool_that_calls_tools_tells_a_wrong_inner_name_in_words_of_its_own_and_a_right_one_runs():
    inner = as_tools([echo])

    @tool
    def dispatcher(name: str, word: str) -> Any:
        found = inner.get(name)
        if found is None:
            from counterfoil import ToolError

            raise ToolError(f"There is no tool named {name}. The tools are: {', '.join(inner)}.")
        return found(word)

    seen = go([dispatcher], [call("dispatcher", name="eco", word="a"), call("dispatcher", name="echo", word="a")])
    assert seen.reads == ["There is no tool named eco. The tools are: echo.", "a"]
    direct = go([echo], call("zz", word="a"))
    assert direct.read == "There is no tool named zz. Nothing ran. The tools are: echo."


def test_a_tool_is_used_by_many_runs_at_once_and_each_gets_its_own_context():
    @tool
    async def who(ctx: ToolContext[Any]) -> str:
        await asyncio.sleep(0)
        return ctx.run_id

    async def one() -> tuple[str, Any]:
        agent = Agent("desk", ScriptedModel([call("who"), say("done")]), tools=[who])
        run = await agent.run("Go.")
        return run.id, run.results[0].output

    async def many() -> list[tuple[str, Any]]:
        return await asyncio.gather(*(one() for _ in range(20)))

    found = asyncio.run(many())
    assert all(run == output for run, output in found)
    assert len({run for run, _ in found}) == 20

"""OpenAI's strict dialect: what of a schema can be said in it, and the way back."""

from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from counterfoil.adapters.models.shared.strict import Dialect
from counterfoil.core.call import Offer
from counterfoil.core.jsontext import dumps
from counterfoil.model import ModelCall, ModelRequest, ModelTurn
from counterfoil.testing.strict_dialect import dialect_fault
from tests.marks import case

STRICT = Dialect(strict=True, said=True)


def closed(**properties: Any) -> dict[str, Any]:
    """An object schema in which all is required."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def optional(**properties: Any) -> dict[str, Any]:
    return {**closed(**properties), "required": []}


def written(schema: dict[str, Any], *, answer: bool = False) -> dict[str, Any]:
    """The schema in the dialect, which the server takes."""
    out = STRICT.output(schema) if answer else STRICT.tool(schema)
    assert out.strict
    assert dialect_fault(out.schema, "x") is None
    return out.schema


NUMBER = {"type": "integer"}


@case("R179")
def test_what_may_be_left_out_is_required_and_takes_null_and_its_default_is_told() -> None:
    assert written(optional(n={"type": "integer", "default": 5, "description": "How many."})) == closed(
        n={"anyOf": [NUMBER, {"type": "null"}], "description": "How many. (default: 5)"}
    )


@pytest.mark.parametrize(
    ("given", "out"),
    [
        pytest.param(NUMBER, NUMBER, id="as it is"),
        pytest.param(
            {"type": "string", "maxLength": 3}, {"type": "string", "description": "(maxLength: 3)"}, id="told"
        ),
        pytest.param(
            {"type": "string", "format": "date"}, {"type": "string", "format": "date"}, id="a format it knows"
        ),
        pytest.param(
            {"type": "string", "format": "uri"}, {"type": "string", "description": '(format: "uri")'}, id="not"
        ),
        pytest.param({"const": "x"}, {"enum": ["x"], "type": "string"}, id="a constant"),
        pytest.param(
            {"enum": [1, "a", None]}, {"enum": [1, "a", None], "type": ["integer", "string", "null"]}, id="enum"
        ),
        pytest.param({"oneOf": [NUMBER]}, {"anyOf": [NUMBER]}, id="one of"),
        pytest.param({"allOf": [NUMBER], "title": "T"}, {"anyOf": [NUMBER]}, id="all of one"),
        pytest.param({"type": "array", "items": NUMBER}, {"type": "array", "items": NUMBER}, id="a list"),
        pytest.param(
            {"properties": {"a": NUMBER}, "required": ["a"]}, closed(a=NUMBER), id="an object that is open by silence"
        ),
        pytest.param({"type": "integer", "not": {"const": 3}, "examples": [1]}, NUMBER, id="what only we check"),
    ],
)
def test_a_schema_is_written_in_the_dialect(given: dict[str, Any], out: dict[str, Any]) -> None:
    assert written(closed(a=given)) == closed(a=out)


def test_a_reference_stays_one_and_recursion_with_it() -> None:
    node = optional(next={"$ref": "#/$defs/node", "description": "the rest", "default": None})
    out = written({**closed(first={"$ref": "#/$defs/node"}), "$defs": {"node": node}})
    assert out["properties"]["first"] == {"$ref": "#/$defs/node"}
    assert out["$defs"]["node"]["properties"]["next"] == {
        "anyOf": [{"anyOf": [{"$ref": "#/$defs/node"}]}, {"type": "null"}],
        "description": "the rest (default: null)",
    }


@pytest.mark.parametrize(
    "inner",
    [
        pytest.param({}, id="any value"),
        pytest.param({"type": "object"}, id="free keys"),
        pytest.param({"type": "object", "additionalProperties": NUMBER}, id="keys of a kind"),
        pytest.param({"type": "object", "properties": {"a": NUMBER}, "additionalProperties": True}, id="more keys"),
        pytest.param({"type": "object", "properties": {}, "patternProperties": {"a": NUMBER}}, id="patterns of keys"),
        pytest.param({"type": "array", "prefixItems": [NUMBER]}, id="a tuple"),
        pytest.param({"type": "array"}, id="a list of anything"),
        pytest.param({"allOf": [NUMBER, {"minimum": 3}]}, id="all of several"),
        pytest.param({"anyOf": [{"required": ["a"]}, NUMBER]}, id="a branch that says no type"),
        pytest.param({"type": ["object", "string"], "properties": {"a": NUMBER}}, id="object or text"),
        pytest.param({"$ref": "other.json"}, id="a reference elsewhere"),
        pytest.param(True, id="true"),
        pytest.param({"enum": list(range(2000))}, id="too many values"),
    ],
)
def test_what_the_dialect_cannot_say_is_offered_as_it_is(inner: Any) -> None:
    for schema in (closed(a=inner), closed(a={"type": "array", "items": closed(b=inner)})):
        out = STRICT.tool(schema)
        assert (out.schema, out.strict) == (schema, False)


def test_a_schema_that_nests_too_deep_is_offered_as_it_is() -> None:
    schema = NUMBER
    for _ in range(12):
        schema = closed(a=schema)
    assert STRICT.tool(schema).strict is False


def test_the_schema_that_was_given_is_left_alone_and_written_once() -> None:
    schema = optional(n={"type": "integer", "default": 5})
    before = repr(schema)
    assert STRICT.tool(schema) is STRICT.tool(schema)
    assert repr(schema) == before


@pytest.mark.parametrize("dialect", [STRICT, Dialect(strict=False)])
def test_what_no_provider_takes_at_the_top_of_a_tool_is_told_in_words(dialect: Dialect) -> None:
    one, two = closed(kind={"const": "a"}, x=NUMBER), closed(kind={"const": "b"}, x=NUMBER)
    given = {"type": "object", "properties": {"n": NUMBER}, "oneOf": [{"$ref": "#/$defs/one"}, two]}
    out = dialect.tool({**given, "$defs": {"one": one}, "required": ["n"]})
    told = dumps(given["oneOf"]).decode()
    assert out.schema == {
        "type": "object",
        "description": f"(oneOf: {told})",
        "properties": {"n": NUMBER, "kind": {"anyOf": [{"const": "a"}, {"const": "b"}]}, "x": NUMBER},
        "$defs": {"one": one},
        "required": ["n"],
    }
    assert not out.strict


def test_branches_that_refer_to_each_other_in_circles_are_read_once() -> None:
    circle = {"anyOf": [{"$ref": "#/$defs/a"}] * 9}
    out = Dialect(strict=False).tool({"type": "object", **circle, "$defs": {"a": circle}})
    assert out.schema["properties"] == {}


@pytest.mark.parametrize(
    ("strict", "said", "fields"), [(False, False, ["schema"]), (False, True, ["schema", "strict"])]
)
def test_without_the_dialect_nothing_is_changed(strict: bool, said: bool, fields: list[str]) -> None:
    schema = optional(n=NUMBER)
    out = Dialect(strict=strict, said=said).tool(schema)
    assert out.schema is schema
    assert list(out.fields("schema")) == fields


def test_an_answer_that_is_no_object_is_wrapped_on_openais_wires_without_the_dialect_too() -> None:
    wrapped = closed(answer=NUMBER)
    assert Dialect(strict=False, said=True).output(NUMBER).fields("schema") == {"schema": wrapped, "strict": False}
    assert Dialect(strict=False).output(NUMBER).fields("schema") == {"schema": NUMBER}
    asked = ModelRequest("", [], 0, (), output_schema=NUMBER)
    assert Dialect(strict=False, said=True).restored(ModelTurn('{"answer": 7}'), asked).text == "7"


class Line(BaseModel):
    """A line of an order."""

    item: str
    count: int = 1
    note: str | None = "none"


class Order(BaseModel):
    """An order."""

    lines: list[Line] = []
    extra: Line | int = 3


def turned(text: str = "", arguments: str = "", *, output: Any = None, schema: Any = None) -> ModelTurn:
    """What becomes of an answer, or of a call's arguments."""
    offers = () if schema is None else (Offer("order", "", schema),)
    asked = ModelRequest("", [], 0, offers, output_schema=output)
    calls = (ModelCall("c", "order", arguments),) if arguments else ()
    return STRICT.restored(ModelTurn(text, calls), asked)


@pytest.mark.parametrize(
    ("wrote", "meant"),
    [
        ('{"order":{"lines":null}}', '{"order":{}}'),
        (
            '{"order":{"lines":[{"item":"a","count":null,"note":null}],"extra":null}}',
            '{"order":{"lines":[{"item":"a","note":null}]}}',
        ),
        ('{"order":{"extra":{"item":"a","count":null}}}', '{"order":{"extra":{"item":"a"}}}'),
        ('{"order": {"lines": []},  "n": null}', '{"order": {"lines": []},  "n": null}'),
        ('{"order":{"lines":[{"item":null}]}}', '{"order":{"lines":[{"item":null}]}}'),
        ('{"order":{"nonsense":null}}', '{"order":{"nonsense":null}}'),
        ('{"order": [1', '{"order": [1'),
        ("null", "null"),
        ('{"n":12345678901234567890123,"order":{"extra":null}}', '{"n":12345678901234567890123,"order":{}}'),
    ],
)
def test_a_null_deep_inside_that_means_left_out_is_taken_out_and_the_top_is_the_gateways(
    wrote: str, meant: str
) -> None:
    schema = optional(order={"$ref": "#/$defs/Order"}, n=NUMBER)
    schema |= {"$defs": {**Order.model_json_schema()["$defs"], "Order": Order.model_json_schema()}}
    del schema["$defs"]["Order"]["$defs"]
    assert turned(arguments=wrote, schema=schema).calls[0].arguments == meant


def test_text_and_calls_of_tools_that_need_nothing_taken_out_are_the_very_same() -> None:
    wrote = '{ "a" : null }'
    assert turned(arguments=wrote, schema=optional(a=NUMBER)).calls[0].arguments is wrote
    assert turned("plain text").text == "plain text"


@pytest.mark.parametrize(
    ("kind", "wrote", "meant"),
    [
        (Order, '{"lines":null,"extra":null}', "{}"),
        (Order, "not JSON", "not JSON"),
        (list[Line], '{"answer":[{"item":"a","count":null,"note":null}]}', '[{"item":"a","note":null}]'),
        (int, '{"answer":7}', "7"),
        (int | None, '{"answer":null}', "null"),
        (int, '{"other":7}', '{"other":7}'),
        (dict[str, int], '{"a":1}', '{"a":1}'),
    ],
)
def test_an_answer_of_any_type_is_asked_for_as_an_object_and_taken_out_of_it(kind: Any, wrote: str, meant: str) -> None:
    schema = TypeAdapter(kind).json_schema()
    out = STRICT.output(schema)
    assert out.schema["type"] == "object"
    assert not out.strict or dialect_fault(out.schema, "x") is None
    assert turned(wrote, output=schema).text == meant

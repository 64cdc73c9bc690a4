from __future__ import annotations

import base64
import dataclasses
import enum
import functools
import inspect
import json
import math
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, Optional, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr
from typing_extensions import TypedDict

from counterfoil.core.jsontext import dumps
from counterfoil.schema import (
    Complaint,
    FunctionSchema,
    InvalidArguments,
    NotAnObject,
    SchemaError,
    inspect_function,
)

T = TypeVar("T")


class Context(Generic[T]):
    """Stands for the ToolContext."""


class OwnContext(Context[int]):
    pass


class Deps:
    """Stands for the marker of the deps."""


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    S = 1
    L = 2


class Mixed(enum.Enum):
    A = "a"
    TWO = 2


class Node(BaseModel):
    name: str
    kids: list[Node] = []


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Pair(NamedTuple):
    left: int
    right: str = "r"


class Row(TypedDict):
    key: str
    note: NotRequired[str]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


def schema_of(fn: Any, **more: Any) -> FunctionSchema:
    return inspect_function(fn, context_types=(Context,), deps_marker=Deps, **more)


def property_of(fn: Any, name: str) -> dict[str, Any]:
    return schema_of(fn).json_schema["properties"][name]


def complaints(fn: Any, arguments: object) -> list[tuple[str, str, str]]:
    with pytest.raises(InvalidArguments) as refused:
        schema_of(fn).parse(json.dumps(arguments))
    return [(c.path, c.expected, c.got) for c in refused.value.complaints]


def call(fn: Callable[..., Any], raw: str | None, context: object = None, deps: object = None) -> Any:
    schema = schema_of(fn)
    args, kwargs = schema.bind(schema.parse(raw), context, deps)
    return fn(*args, **kwargs)


# ------------------------------------------------------------------------------------- what is offered


def test_the_schema_says_what_the_signature_says():
    def refund(order_id: str, cents: Annotated[int, Field(gt=0)], note: str | None = None, *, dry: bool = False):
        """Refund an order.

        Args:
            order_id: the order's id
            note: for the books
        """

    schema = schema_of(refund)
    assert (schema.name, schema.description) == ("refund", "Refund an order.")
    assert schema.json_schema == {
        "type": "object",
        "properties": {
            "order_id": {"type": "string", "description": "the order's id"},
            "cents": {"type": "integer", "exclusiveMinimum": 0},
            "note": {
                "anyOf": [{"type": "string"}, {"type": "null"}],
                "default": None,
                "description": "for the books",
            },
            "dry": {"type": "boolean", "default": False},
        },
        "required": ["order_id", "cents"],
        "additionalProperties": False,
    }


def test_a_description_of_the_field_is_nearer_than_the_docstring():
    def find(
        a: Annotated[int, Field(description="from the field")],
        b: Annotated[int, "from the annotation"],
        c: int = Field(3, description="from the default"),
    ):
        """Find.

        Args:
            a: from the docstring
            b: from the docstring
            c: from the docstring
        """

    properties = schema_of(find).json_schema["properties"]
    assert [properties[p]["description"] for p in "abc"] == [
        "from the field",
        "from the annotation",
        "from the default",
    ]
    assert schema_of(find).parse('{"a": 1, "b": 2}')["c"] == 3


def test_name_and_description_can_be_given():
    def find(a: int):
        """From the docstring."""

    schema = schema_of(find, name="look_up", description="Given.")
    assert (schema.name, schema.description) == ("look_up", "Given.")


def test_titles_are_left_out_but_a_field_named_title_stays():
    class Book(BaseModel):
        title: str

    def add(title: str, book: Book): ...

    schema = schema_of(add).json_schema
    assert set(schema["properties"]) == {"title", "book"}
    assert schema["$defs"]["Book"]["properties"] == {"title": {"type": "string"}}
    assert '"title": "' not in json.dumps(schema)


@pytest.mark.case("R178")
def test_enumerations_have_the_type_that_fits():
    def pick(
        a: Literal["a", "b"],
        b: Literal[1, 2],
        c: Literal["a", 1],
        d: Colour,
        e: Size,
        f: Mixed,
        g: Literal["x"],
        h: Literal[True],
    ): ...

    schema = schema_of(pick).json_schema
    types = {name: p.get("type") for name, p in schema["properties"].items() if "$ref" not in p}
    assert types == {"a": "string", "b": "integer", "c": None, "g": "string", "h": "boolean"}
    assert {name: d.get("type") for name, d in schema["$defs"].items()} == {
        "Colour": "string",
        "Size": "integer",
        "Mixed": None,
    }


@pytest.mark.case("R175")
def test_positional_only_parameters_have_names_like_all_others():
    def divide(a: int, b: int = 2, /, c: int = 3, *, d: int = 4):
        return a, b, c, d

    assert list(schema_of(divide).json_schema["properties"]) == ["a", "b", "c", "d"]
    assert call(divide, '{"a": 1}') == (1, 2, 3, 4)
    assert call(divide, '{"a": 1, "c": 7, "b": 8, "d": 9}') == (1, 8, 7, 9)


HARD_NAMES = [
    "self",
    "cls",
    "ctx",
    "json",
    "schema",
    "validate",
    "model_config",
    "_private",
    "parse",
    "name",
    "args",
    "kwargs",
    "arguments",
    "context",
]


@pytest.mark.parametrize("name", HARD_NAMES)
def test_no_name_of_a_parameter_is_taken(name):
    scope: dict[str, Any] = {}
    exec(f"def tool({name}: int, other=0): return {name}, other", scope)  # noqa: S102
    assert call(scope["tool"], json.dumps({name: "5", "other": [1]})) == (5, [1])


def test_a_parameter_without_annotation_takes_anything():
    def keep(ctx, value=None):
        return ctx, value

    assert schema_of(keep).context is None
    assert schema_of(keep).json_schema["required"] == ["ctx"]
    assert call(keep, '{"ctx": {"a": [1, "b", null]}}') == ({"a": [1, "b", None]}, None)


# ------------------------------------------------------------------------------------------- defaults


def test_defaults_are_offered_and_filled_in():
    def paint(
        made: Annotated[list[int], Field(default_factory=list)],
        colour: Colour = Colour.RED,
        at: Point = Point(1),  # noqa: B008
        tree: Node = Node(name="root"),  # noqa: B008
        tags: list[str] = [],  # noqa: B006
        size: Size = Size.L,
    ): ...

    schema = schema_of(paint)
    offered = {name: p["default"] for name, p in schema.json_schema["properties"].items() if name != "made"}
    assert offered == {
        "colour": "red",
        "at": {"x": 1, "y": 0},
        "tree": {"name": "root", "kids": []},
        "tags": [],
        "size": 2,
    }
    assert schema.parse("{}") == {
        "colour": Colour.RED,
        "at": Point(1),
        "tree": Node(name="root"),
        "tags": [],
        "size": Size.L,
        "made": [],
    }
    assert schema.json_schema["required"] == []


def test_a_mutable_default_is_a_new_one_for_each_call():
    def collect(item: str, into: list[str] = []):  # noqa: B006
        into.append(item)
        return into

    assert call(collect, '{"item": "a"}') == ["a"]
    schema = schema_of(collect)
    schema.parse('{"item": "b"}')["into"].append("b")
    assert schema.parse('{"item": "c"}')["into"] == []


@pytest.mark.parametrize("default", [object(), math.inf, math.nan, lambda: 0, [object()], "\ud800", ..., b"\xff"])
def test_a_default_that_is_no_json_is_not_offered_and_the_function_fills_it_in(default):
    def wait(x: int, seconds: float = default, /, more: Any = default):
        return x, seconds, more

    schema = schema_of(wait)
    assert schema.json_schema["required"] == ["x"]
    assert "default" not in json.dumps(schema.json_schema)
    assert schema.parse('{"x": 1}') == {"x": 1}
    assert call(wait, '{"x": 1, "seconds": null}') == (1, default, default)
    assert call(wait, '{"x": 1, "seconds": 2}') == (1, 2.0, default)


@pytest.mark.case("R134")
def test_null_for_what_may_be_left_out_means_the_default():
    def f(x: int, d: str = "z", *, e: list[int] = [1], n: int = None):  # noqa: B006, RUF013
        return x, d, e, n

    assert call(f, '{"x": 1, "d": null, "e": null, "n": null}') == (1, "z", [1], None)
    assert complaints(f, {"x": None, "d": None}) == [("x", "an integer", "null")]


def test_null_stays_null_where_the_type_takes_it():
    def f(d: str | None = "z", e: Any = 3):
        return d, e

    assert call(f, '{"d": null, "e": null}') == (None, None)


# ------------------------------------------------------------------------------------ what a model sends


@pytest.mark.case("R119")
@pytest.mark.law("3.4000")
@pytest.mark.parametrize("raw", ["", "  ", "\n\t", None, "{}", "null", " null "])
def test_nothing_counts_as_no_arguments(raw):
    def ping():
        return "pong"

    assert call(ping, raw) == "pong"


@pytest.mark.case("R121")
@pytest.mark.parametrize("text", ['{"a":1}', "[1]", "12", "null", "true", '"x"', ""])
def test_text_that_happens_to_be_json_stays_text(text):
    def f(body: str | None): ...

    assert schema_of(f).parse(json.dumps({"body": text})) == {"body": text}


@pytest.mark.case("R124")
@pytest.mark.parametrize("sent", ["2512292042121000001", '"2512292042121000001"'])
@pytest.mark.parametrize("kind", [int, Annotated[int, Field(gt=0)], Optional[int], Any], ids=str)  # noqa: UP045
def test_long_integers_keep_all_digits(kind, sent):
    def f(number, spare: int = 0): ...

    f.__annotations__["number"] = kind
    schema = schema_of(f)
    for raw in (f'{{"number": {sent}}}', f'{{"number": {sent}, "spare": null}}'):
        parsed = schema.parse(raw)
        assert str(parsed["number"]) == "2512292042121000001"
        assert "2512292042121000001" in json.dumps(schema.dump(parsed))


def test_the_last_of_two_equal_keys_counts():
    def f(a: int, b: Any = None): ...

    assert schema_of(f).parse('{"a": 1, "a": 2, "b": {"c": 1, "c": 2}}') == {"a": 2, "b": {"c": 2}}


@pytest.mark.law("3.4000")
@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("[1]", "expected a JSON object, got a list of 1 item"),
        ('"{}"', "expected a JSON object, got '{}' (a string)"),
        ("12", "expected a JSON object, got 12 (an integer)"),
        ('{"a": 1', "the JSON is cut off"),
        ('{"a": [1, 2', "the JSON is cut off"),
        ("{'a': 1}", "no valid JSON"),
        ('{"a": 1} trailing', "no valid JSON"),
        ('{"a": NaN}', "NaN and infinities are no JSON"),
        ('{"a": -Infinity}', "NaN and infinities are no JSON"),
        ('{"a": ' + "[" * 201 + "]" * 201 + "}", "nested over 200 levels"),
        ('{"a": "\\ud800"}', "surrogate"),
        ('{"a": "\ud800"}', "surrogate"),
        ('{"\udfff": 1}', "surrogate"),
    ],
)
def test_what_is_no_json_object_is_refused_with_the_reason(raw, reason):
    def f(a: Any): ...

    with pytest.raises(NotAnObject) as refused:
        schema_of(f).parse(raw)
    assert reason in refused.value.reason


def test_the_word_nan_in_a_text_is_a_text():
    def f(a: str): ...

    assert schema_of(f).parse('{"a": "NaN, Infinity"}') == {"a": "NaN, Infinity"}


@pytest.mark.parametrize("sent", ['"nan"', '"inf"', "1e999", "-1e999"])
def test_a_number_is_finite(sent):
    def f(price: float): ...

    with pytest.raises(InvalidArguments) as refused:
        schema_of(f).parse(f'{{"price": {sent}}}')
    assert refused.value.complaints[0].expected == "a finite number"


# ----------------------------------------------------------------------------------------- complaints


@pytest.mark.case("R122")
@pytest.mark.law("3.4003")
def test_an_unknown_name_is_refused_with_the_names_that_are_known():
    def read(topic: str = "", page: int = 1): ...

    assert complaints(read, {"path": "x"}) == [
        ("path", "no such field; the fields are: topic, page", "'x' (a string)"),
    ]


@pytest.mark.law("3.4003")
def test_an_unknown_name_inside_a_model_is_refused_too():
    def grow(tree: Node, at: Point, row: Row): ...

    found = complaints(
        grow,
        {"tree": {"name": "a", "kids": [{"nam": "b"}]}, "at": {"x": 1, "z": 2}, "row": {"key": "k", "x": 1}},
    )
    assert found == [
        ("tree.kids.0.name", "a string", "nothing (it is missing)"),
        ("tree.kids.0.nam", "no such field; the fields are: name, kids", "'b' (a string)"),
        ("at.z", "no such field; the fields are: x, y", "2 (an integer)"),
        ("row.x", "no such field; the fields are: key, note", "1 (an integer)"),
    ]
    assert all(d["additionalProperties"] is False for d in schema_of(grow).json_schema["$defs"].values())


def test_a_model_that_takes_further_fields_takes_them():
    def keep(thing: Open): ...

    assert schema_of(keep).parse('{"thing": {"name": "a", "more": 1}}')["thing"].more == 1
    assert schema_of(keep).json_schema["$defs"]["Open"]["additionalProperties"] is True
    assert complaints(keep, {"thing": {"name": "a"}, "x": 1})[0][0] == "x"


@pytest.mark.case("R163")
@pytest.mark.parametrize(
    ("kind", "value", "expected", "got"),
    [
        (int, "seven", "an integer", "'seven' (a string)"),
        (int, 1.5, "an integer", "1.5 (a number)"),
        (int, None, "an integer", "null"),
        (str, 7, "a string", "7 (an integer)"),
        (bool, "maybe", "true or false", "'maybe' (a string)"),
        (float, [], "a number", "a list of 0 items"),
        (list[int], {"a": 1}, "a list", "an object with the fields a"),
        (dict[str, int], [1, 2], "an object", "a list of 2 items"),
        (Colour, "green", "one of 'red', 'blue'", "'green' (a string)"),
        (Literal["a"], "b", "exactly 'a'", "'b' (a string)"),
        (Annotated[int, Field(gt=0)], 0, "greater than 0", "0 (an integer)"),
        (
            Annotated[str, Field(max_length=2)],
            "abc",
            "a string should have at most 2 characters",
            "'abc' (a string)",
        ),
        (int | list[str], {}, "an integer or a list", "an empty object"),
        (Node, 5, "an object", "5 (an integer)"),
        (date, "soon", "a valid date or datetime, input is too short", "'soon' (a string)"),
        (str, 10**400, "a string", "an integer of about 401 digits"),
    ],
    ids=str,
)
def test_a_complaint_says_what_was_expected_and_what_came(kind, value, expected, got):
    def f(a): ...

    f.__annotations__["a"] = kind
    assert complaints(f, {"a": value}) == [("a", expected, got)]


@pytest.mark.parametrize(
    ("kind", "value", "path"),
    [
        (list[Row], [{"key": "a"}, {"key": 1}], "a.1.key"),
        (dict[str, list[int]], {"int": ["x"]}, "a.int.0"),
        (int | list[int], ["x"], "a.0"),
        (Pair, {"left": "x"}, "a.left"),
        (Cat | Dog, {"kind": "cat", "lives": "x", "name": "n"}, "a.lives"),
        (tuple[int, str], [1], "a.1"),
    ],
    ids=str,
)
def test_a_path_has_the_steps_of_the_input_only(kind, value, path):
    def f(a): ...

    f.__annotations__["a"] = kind
    assert path in [c[0] for c in complaints(f, {"a": value})]


def test_a_wrong_tag_is_named():
    def f(pet: Annotated[Cat | Dog, Field(discriminator="kind")]): ...

    assert complaints(f, {"pet": {"kind": "cow"}})[0][1] == "an object whose 'kind' is one of 'cat', 'dog'"
    assert complaints(f, {"pet": {}})[0][1] == "an object with the field 'kind'"
    assert complaints(f, {"pet": {"kind": "cat", "lives": "x"}}) == [("pet.lives", "an integer", "'x' (a string)")]


def test_a_wrong_key_is_told_from_a_wrong_value():
    def f(a: dict[int, int]): ...

    assert complaints(f, {"a": {"x": 1, "1": "y"}}) == [
        ("a.x", "a field name that is an integer", "'x' (a string)"),
        ("a.1", "an integer", "'y' (a string)"),
    ]


@given(st.text(min_size=1) | st.integers() | st.lists(st.none()) | st.dictionaries(st.text(), st.none()))
def test_what_came_is_described_in_80_characters(value):
    with pytest.raises(InvalidArguments) as refused:
        schema_of(_takes_a_date).validate({"day": value, "more": {"x" * 200: 1}})
    assert all(0 < len(c.got) <= 80 for c in refused.value.complaints)


def _takes_a_date(day: Annotated[date, AfterValidator(lambda _: 1 / 0)]): ...


def test_a_long_text_is_cut_between_characters():
    def f(a: int): ...

    ((_, _, got),) = complaints(f, {"a": "🍸" * 500})
    assert got == repr("🍸" * 45)[:-1] + "'… (a string of 500 characters)" or got.endswith(
        "(a string of 500 characters)"
    )
    assert len(got) <= 80
    assert set(got.partition("…")[0]) == {"'", "🍸"}


@pytest.mark.case("R163")
def test_a_secret_value_is_not_repeated():
    def login(
        password: Annotated[SecretStr, Field(max_length=4)],
        pin: Annotated[str, Field(max_length=2, json_schema_extra={"writeOnly": True})],
    ): ...

    found = complaints(login, {"password": "hunter2hunter2", "pin": "1234"})
    assert [c[0] for c in found] == ["password", "pin"]
    assert "hunter2" not in str(found)
    assert "1234" not in str(found)


def test_complaints_are_bounded():
    def f(a: list[int]): ...

    with pytest.raises(InvalidArguments) as refused:
        schema_of(f).parse(json.dumps({"a": ["x"] * 10_000}))
    assert len(refused.value.complaints) == 50
    assert refused.value.left_out == 9_950
    assert str(refused.value).endswith("; and 9950 more")


def test_a_validator_that_breaks_is_a_refusal_without_its_text():
    def check(value: str) -> str:
        raise KeyError("/secret/path")

    def f(a: Annotated[str, AfterValidator(check)]): ...

    f.__annotations__["a"] = Annotated[str, AfterValidator(check)]
    with pytest.raises(InvalidArguments) as refused:
        schema_of(f).parse('{"a": "x"}')
    assert isinstance(refused.value.__cause__, KeyError)
    assert "KeyError" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_the_text_of_an_authors_own_check_reaches_the_model():
    def check(value: str) -> str:
        raise ValueError("an id that begins with W")

    def f(a): ...

    f.__annotations__["a"] = Annotated[str, AfterValidator(check)]
    assert complaints(f, {"a": "x"}) == [("a", "an id that begins with W", "'x' (a string)")]


def test_the_errors_survive_pickling():
    import pickle

    refused = InvalidArguments([Complaint("a", "an integer", "null")], 3)
    again = pickle.loads(pickle.dumps(refused))  # noqa: S301
    assert (again.complaints, again.left_out, str(again)) == (refused.complaints, 3, str(refused))
    assert pickle.loads(pickle.dumps(NotAnObject("why"))).reason == "why"  # noqa: S301


# ------------------------------------------------------------------------------- context, deps, wiring


@pytest.mark.case("R173", "R176")
def test_the_context_is_injected_wherever_it_stands_and_never_offered():
    def first(ctx: Context, a: int):
        return ctx, a

    def last(a: int, ctx: Context[int]):
        return ctx, a

    def keyword(a: int, *, c: Context[int] | None = None):
        return c, a

    def union(a: int, c: Context | None = None):
        return c, a

    def annotated(a: int, c: Annotated[Context[str], "the context"]):
        return c, a

    def subclass(a: int, c: OwnContext):
        return c, a

    def positional(c: Context, a: int, /):
        return c, a

    def quoted(a: int, c: Context[int] | None = None):
        return c, a

    context = Context()
    for fn in (first, last, keyword, union, annotated, subclass, positional, quoted):
        schema = schema_of(fn)
        assert list(schema.json_schema["properties"]) == ["a"], fn
        assert call(fn, '{"a": 1}', context) == (context, 1), fn
        assert complaints(fn, {"a": 1, schema.context: 1})[0][1] == "no such field; the fields are: a", fn


@pytest.mark.case("R173")
def test_the_context_is_known_by_name_where_it_is_imported_for_types_alone():
    scope: dict[str, Any] = {}
    exec(  # noqa: S102
        "from __future__ import annotations\ndef tool(a: int, c: Context[int] | None = None): return c, a",
        scope,
    )
    assert schema_of(scope["tool"]).context == "c"


def test_deps_are_injected_by_their_mark():
    def with_type(a: int, db: Annotated[dict, Deps]):
        return db, a

    def with_instance(db: Annotated[dict, Deps()], a: int, ctx: Context):
        return db, a

    def optional(a: int, *, db: Annotated[dict, Deps()] | None = None):
        return db, a

    for fn in (with_type, with_instance, optional):
        schema = schema_of(fn)
        assert schema.deps == "db"
        assert list(schema.json_schema["properties"]) == ["a"]
        assert call(fn, '{"a": 1}', "the context", "the deps") == ("the deps", 1)


def test_two_contexts_are_a_fault_of_wiring():
    def f(a: Context, b: OwnContext): ...

    with pytest.raises(SchemaError, match=r"^f: expected one parameter for the context, got a, b"):
        schema_of(f)


def test_all_that_can_be_called_by_name_is_a_tool():
    class Shop:
        def __init__(self, factor: int = 2):
            self.factor = factor

        def times(self, a: int) -> int:
            """Multiply."""
            return a * self.factor

        @classmethod
        def named(cls, a: int) -> int:
            """Of the class."""
            return a

        @staticmethod
        def plain(a: int) -> int:
            return a

        async def later(self, a: int): ...

        def __call__(self, a: int) -> int:
            """Called."""
            return a + 1

    def add(a: int, b: int, c: int = 0):
        """Add."""
        return a + b + c

    def wraps(fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            return fn(*args, **kwargs)

        return wrapper

    shop = Shop()
    assert (schema_of(shop.times).name, schema_of(shop.times).description) == ("times", "Multiply.")
    assert (schema_of(shop).name, schema_of(shop).description) == ("Shop", "Called.")
    assert call(shop.times, '{"a": 4}') == 8
    assert call(Shop.named, '{"a": 4}') == 4
    assert call(Shop.plain, '{"a": 4}') == 4
    assert call(Shop.__dict__["plain"], '{"a": 4}') == 4
    assert call(shop, '{"a": 4}') == 5
    assert call(wraps(add), '{"a": 4, "b": 1}') == 5
    assert schema_of(shop.later).is_async
    assert schema_of(functools.partial(shop.later, a=1)).is_async


def test_what_a_partial_binds_is_fixed():
    def pay(account: str, cents: int, note: str = ""):
        """Pay."""
        return account, cents, note

    fixed = functools.partial(pay, account="ours")
    schema = schema_of(fixed)
    assert (schema.name, schema.description) == ("pay", "Pay.")
    assert list(schema.json_schema["properties"]) == ["cents", "note"]
    assert call(fixed, '{"cents": 1}') == ("ours", 1, "")
    assert complaints(fixed, {"cents": 1, "account": "mine"})[0][0] == "account"
    assert call(functools.partial(pay, "ours"), '{"cents": 1}') == ("ours", 1, "")


def test_the_kind_of_function_is_known():
    async def coroutine(): ...
    def generator():
        yield

    async def asyncgen():
        yield

    def plain(): ...

    kinds = [
        (s.is_async, s.is_generator, s.is_async_generator)
        for s in map(schema_of, (plain, coroutine, generator, asyncgen))
    ]
    assert kinds == [(False, False, False), (True, False, False), (False, True, False), (False, False, True)]


# ------------------------------------------------------------------------------- faults at definition


@pytest.mark.case("R172")
def test_a_type_that_is_missing_at_run_time_fails_at_definition_by_name():
    scope: dict[str, Any] = {"Annotated": Annotated}
    exec(  # noqa: S102
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from shop import Order\n"
        "def ship(order: list[Order], a: int): ...",
        scope,
    )
    with pytest.raises(SchemaError, match=r"^ship: the parameter 'order' .*'Order' is not defined.*TYPE_CHECKING"):
        schema_of(scope["ship"])


@pytest.mark.case("R172")
def test_a_return_type_that_is_missing_at_run_time_does_no_harm():
    def ship(a: int) -> Order: ...  # noqa: F821

    assert schema_of(ship).parse('{"a": 1}') == {"a": 1}


@pytest.mark.case("R172")
def test_types_of_the_function_around_are_found():
    class Order(BaseModel):
        id: str
        parts: list[Order] = []

    def ship(order: Order, more: list[Order] | None = None):
        return order.id

    class Desk:
        class Label(BaseModel):
            text: str

        def stick(self, label: Label, order: Order):
            return label.text

        schema = schema_of(stick, name="stick")

    assert call(ship, '{"order": {"id": "W1", "parts": [{"id": "W2"}]}}') == "W1"
    assert set(Desk.schema.json_schema["$defs"]) == {"Label", "Order"}


@pytest.mark.case("R172")
def test_a_local_tool_that_calls_itself_is_built_before_its_name_is_bound():
    class Order(BaseModel):
        id: str

    built = []

    def keep(fn):
        built.append(schema_of(fn))
        return fn

    @keep
    def walk(order: Order, depth: int = 0):
        return walk(order, depth + 1) if depth < 3 else order.id

    assert list(built[0].json_schema["properties"]) == ["order", "depth"]


@pytest.mark.case("R172")
def test_a_model_that_is_not_complete_fails_at_definition_by_name():
    class Order(BaseModel):
        parts: list[Part]  # noqa: F821

    def ship(ok: int, order: Order): ...

    with pytest.raises(SchemaError, match=r"^ship: the parameter 'order' .*Part"):
        schema_of(ship)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def tool(*files: str): ...", r"got \*files"),
        ("def tool(**options: int): ...", r"got \*\*options"),
        ("def tool(a: 5): ...", "the parameter 'a'"),
        ("def tool(ok: int, a: object()): ...", "the parameter 'a'"),
        ("import threading\ndef tool(ok: int, a: threading.Lock): ...", "the parameter 'a'"),
        (
            "import collections.abc\ndef tool(a: collections.abc.Callable[[int], int]): ...",
            "the parameter 'a'",
        ),
        ("def tool(a: 'list[int'): ...", "the parameter 'a'"),
        ("class tool: ...", "expected a function"),
        ("tool = classmethod(lambda cls: 0)", "tool: expected a function, got a classmethod"),
        ("tool = 5", "expected a function"),
        ("tool = lambda a: a", "letters, digits"),
    ],
)
def test_what_cannot_be_a_tool_fails_at_definition_by_name(source, says):
    scope: dict[str, Any] = {}
    exec(source, scope)  # noqa: S102
    with pytest.raises(SchemaError, match=says) as refused:
        schema_of(scope["tool"], **({} if "lambda a" in source else {"name": "tool"}))
    if "lambda a" not in source:
        assert str(refused.value).startswith("tool: ")
    assert isinstance(refused.value, TypeError)


@pytest.mark.parametrize("name", ["", "9a", "a b", "a.b", "-a", "a" * 65, "é", "a\n", "a/b"])
def test_a_name_that_a_provider_would_refuse_is_refused_at_definition(name):
    def f(): ...

    with pytest.raises(SchemaError, match="letters, digits"):
        schema_of(f, name=name)


@pytest.mark.parametrize("name", ["a", "_a", "A-b_9", "a" * 64])
def test_a_legal_name_is_taken(name):
    def f(): ...

    assert schema_of(f, name=name).name == name


# --------------------------------------------------------------------------------------- dump, validate


def _everything(
    text: str,
    when: datetime,
    day: date,
    wait: timedelta,
    id: uuid.UUID,
    price: Decimal,
    colour: Colour,
    tree: Node,
    at: Point,
    pair: Pair,
    row: Row,
    path: Path,
    tags: set[str],
    many: dict[int, frozenset[str]],
    fixed: tuple[int, ...],
    data: bytes,
    password: SecretStr,
    named: Annotated[int, Field(alias="Named")],
    either: int | str | None,
    anything: Any = None,
): ...


EVERYTHING = {
    "text": "x",
    "when": "2026-10-26T12:00:00Z",
    "day": "2026-10-26",
    "wait": "PT5S",
    "id": "12345678-1234-5678-1234-567812345678",
    "price": "1.10",
    "colour": "red",
    "tree": {"name": "a", "kids": [{"name": "b", "kids": []}]},
    "at": {"x": 1, "y": 2},
    "pair": [1, "x"],
    "row": {"key": "k"},
    "path": "/tmp/x",  # noqa: S108
    "tags": ["a", "b", "c"],
    "many": {"1": ["x", "y", "z"]},
    "fixed": [1, 2],
    "data": "bytes",
    "password": "hunter2",
    "Named": 7,
    "either": "5",
    "anything": {"deep": [1, {"x": None}]},
}


def test_dump_is_what_parse_takes():
    schema = schema_of(_everything)
    parsed = schema.parse(json.dumps(EVERYTHING))
    assert parsed["when"] == datetime(2026, 10, 26, 12, tzinfo=UTC)
    assert parsed["tags"] == {"a", "b", "c"}
    assert parsed["password"].get_secret_value() == "hunter2"
    assert schema.dump(parsed) == EVERYTHING
    assert schema.write(parsed) == dumps(EVERYTHING)
    assert schema.parse(json.dumps(schema.dump(parsed))) == parsed
    assert schema.parse(schema.write(parsed).decode()) == parsed
    assert schema.validate(schema.dump(parsed)) == parsed


def test_dump_is_the_same_in_every_process():
    source = (
        "import json; from counterfoil.schema import inspect_function\n"
        "def f(tags: set[str], deep: list[dict[str, frozenset[str]]]): ...\n"
        "s = inspect_function(f, context_types=())\n"
        "words = ['%d' % n for n in range(50)]\n"
        "print(json.dumps(s.dump(s.validate({'tags': words, 'deep': [{'a': words}]}))))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", source],
            capture_output=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
        ).stdout
        for seed in range(1, 4)
    }
    assert len(said) == 1


def test_a_decoded_object_goes_the_same_way():
    def f(a: int, b: str = "z"): ...

    schema = schema_of(f)
    value = {"a": "5", "b": None}
    assert schema.validate(value) == {"a": 5, "b": "z"}
    assert value == {"a": "5", "b": None}
    for bad in ({"a": 1, "c": 2}, {"a": [1]}):
        with pytest.raises(InvalidArguments):
            schema.validate(bad)
    cycle: dict[str, Any] = {}
    cycle["a"] = cycle
    for bad in ([1], None, "x", {"a": "\ud800"}, {"a": math.nan}, {"a": object()}, cycle):
        with pytest.raises(NotAnObject):
            schema.validate(bad)  # type: ignore[arg-type]


@given(
    st.fixed_dictionaries(
        {
            "n": st.integers(),
            "t": st.text(st.characters(exclude_categories=["Cs"])),
            "x": st.floats(allow_nan=False, allow_infinity=False),
        },
        optional={
            "tags": st.frozensets(st.integers()),
            "any": st.recursive(st.none() | st.booleans() | st.integers(), st.lists),
        },
    )
)
def test_parse_after_dump_changes_nothing(arguments):
    schema = _PROPERTY_SCHEMA
    parsed = schema.parse(json.dumps(arguments, default=list))
    assert schema.parse(json.dumps(schema.dump(parsed))) == parsed
    assert schema.write(parsed) == dumps(schema.dump(parsed))


def _property(n: int, t: str, x: float, tags: frozenset[int] = frozenset(), any: Any = None): ...


_PROPERTY_SCHEMA = schema_of(_property)


# ------------------------------------------------------------------------------------------- hostility


def _hostile() -> Path:
    shared = Path(os.environ.get("COUNTERFOIL_SHARED", Path(__file__).parents[2] / "shared"))
    path = shared / "data" / "hostile" / "jsontestsuite.jsonl"
    if not path.exists():
        pytest.skip(f"no {path}: the JSON suite is not part of the repository (set COUNTERFOIL_SHARED)")
    return path


def test_no_text_crashes_the_reader():
    def anything(a: Any = None, b: int = 0): ...

    schema = schema_of(anything)
    for line in _hostile().read_text(encoding="utf-8").splitlines():
        sample = json.loads(line)
        data = base64.b64decode(sample["b64"])
        for text in (data.decode("utf-8", "surrogateescape"), data.decode("latin-1")):
            for raw in (text, f'{{"a": {text}}}', f'{{"b": {text}}}'):
                try:
                    assert isinstance(schema.parse(raw), dict), sample["name"]
                except (NotAnObject, InvalidArguments):
                    continue


def test_the_suite_of_valid_and_invalid_json_is_told_apart():
    def anything(a: Any): ...

    schema = schema_of(anything)
    for line in _hostile().read_text(encoding="utf-8").splitlines():
        sample = json.loads(line)
        if sample["set"] != "test_parsing" or sample["expect"] not in ("accept", "reject"):
            continue
        text = base64.b64decode(sample["b64"]).decode("utf-8", "surrogateescape")
        if sample["expect"] == "accept":
            assert schema.parse(f'{{"a": {text}}}')["a"] == json.loads(text), sample["name"]
        else:
            with pytest.raises(NotAnObject):
                schema.parse(f'{{"a": {text}}}')


def test_a_parse_of_good_input_calls_next_to_nothing():
    def f(a: str, b: int, c: bool = False): ...

    schema = schema_of(f)
    calls = 0

    def count(frame, event, arg):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        schema.parse('{"a": "x", "b": 1}')
    finally:
        sys.setprofile(None)
    assert calls <= 5


def test_binding_does_not_inspect(monkeypatch):
    def f(a: int, /, *, c: Context):
        return a

    schema = schema_of(f)
    monkeypatch.setattr(inspect, "signature", lambda *_: pytest.fail("inspected"))
    assert schema.bind({"a": 1}, "c", None) == ((1,), {"c": "c"})

import base64
import collections
import dataclasses
import datetime as dt
import enum
import json
import math
import os
import subprocess
import sys
import types
import typing
import uuid
from decimal import Decimal
from pathlib import Path, PureWindowsPath

import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from counterfoil.core.content import Audio, File, Image, Json, Kept, Link, Text
from counterfoil.core.parts import output_of
from counterfoil.core.result import NO_OUTPUT, ToolResult, seal
from counterfoil.render import Unrenderable, combine, content_size, render
from tests.marks import case, law
from tests.promises import shared

NAN, INF = math.nan, math.inf
ANY_TEXT = st.text(alphabet=st.characters())
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=40,
)


def text_of(value) -> str:
    """The JSON text that a value is rendered to."""
    (block,) = render(value)
    assert isinstance(block, Json)
    return block.text


def named_strings() -> list[str]:
    folder = shared()
    if folder is None:
        pytest.skip("the naughty strings lie beside the design's papers, which are not here")
    return json.loads((folder / "data" / "hostile" / "blns.json").read_text(encoding="utf-8"))


# --------------------------------------------------------------------------------------------------- text


@law("8.str")
@pytest.mark.parametrize("text", ["", "hello", '{"a": 1}', "null", " \n", "漢字 👩‍👩‍👧", "a\0b"])
def test_a_text_is_verbatim_and_never_parsed_again(text):
    assert render(text) == (Text(text),)


@law("8.str")
def test_naughty_strings_are_verbatim_as_text_and_equal_as_json():
    for text in named_strings():
        assert render(text) == (Text(text),)
        assert json.loads(text_of({text: [text]})) == {text: [text]}


class Shout(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "REPLACED"


class Colour(str, enum.Enum):  # noqa: UP042  # the older way, which is still met
    RED = "red"


@law("8.str")
@pytest.mark.parametrize(("value", "text"), [(Shout("quiet"), "quiet"), (Colour.RED, "red"), (np.str_("x"), "x")])
def test_a_subclass_of_str_is_the_text_that_it_holds(value, text):
    (block,) = render(value)
    assert block == Text(text)
    assert type(block.text) is str
    assert text_of({"v": value, value: 1}) == f'{{"v":"{text}","{text}":1}}'


@law("8.None")
@case("R151")
def test_none_is_no_output_and_its_json_is_the_empty_text():
    result = seal(render(None), ToolResult.text("").outcome)
    assert result.model_output == NO_OUTPUT
    assert output_of(result) == ""
    assert text_of([None]) == "[null]"


# --------------------------------------------------------------------------------------------------- JSON


@law("8.same-bytes")
@given(JSON_VALUES)
def test_a_json_value_comes_back_equal(value):
    if not isinstance(value, str) and value is not None:
        assert json.loads(text_of(value)) == value


@law("8.same-bytes")
@given(JSON_VALUES)
def test_the_bytes_are_the_writer_s_own_where_no_rule_differs(value):
    assert text_of([value]) == to_json([value]).decode()


@law("8.same-bytes")
@given(JSON_VALUES)
def test_a_value_that_takes_the_exact_way_gives_the_same_bytes(value):
    # A set sends all that is beside it the exact way.
    assert text_of([value, {1}]) == to_json([value, [1]]).decode()


@law("8.nan")
@case("R142", "R143")
@pytest.mark.parametrize(
    "bad", [NAN, INF, -INF, Decimal("NaN"), Decimal("-Infinity"), np.float64(NAN), np.float32(INF)]
)
def test_nan_and_infinities_are_null_at_any_depth(bad):
    assert text_of({"x": bad, "y": [[bad]], "z": {1, 2}}) == '{"x":null,"y":[[null]],"z":[1,2]}'
    assert text_of({"x": bad, "y": [bad, 1.5]}) == '{"x":null,"y":[null,1.5]}'
    assert text_of(bad) == "null"


class Count(int):
    __slots__ = ()


@law("8.big-int")
@pytest.mark.parametrize("number", [2**53 + 1, -(2**64), 10**400])
def test_integers_of_any_size_are_exact(number):
    for same in (number, Count(number)):
        assert text_of([same]) == f"[{number}]"
        assert text_of([same, {1}]) == f"[{number},[1]]"


@law("8.surrogate")
@case("R133", "R139")
def test_a_lone_surrogate_becomes_ufffd_in_texts_and_keys_and_a_pair_becomes_its_character():
    assert render("a\ud800b") == (Text("a\ufffdb"),)
    assert text_of({"a\udfff": ["\ud800", "\ud83d\ude00"]}) == '{"a\ufffd":["\ufffd","😀"]}'
    assert text_of({("\ud800", 1): {"\ud800"}}) == '{"\ufffd,1":["\ufffd"]}'


@law("8.surrogate")
@given(st.recursive(ANY_TEXT, lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner), max_leaves=10))
def test_any_text_can_be_encoded_once_it_is_rendered(value):
    (block,) = render(value)
    block.text.encode()


@law("8.same-bytes")
@pytest.mark.parametrize("place", [0, 1, 150, 299])
@pytest.mark.parametrize("column", ["id", "name", "tags"])
@pytest.mark.parametrize(
    "odd",
    [
        b"\xff\xfe",
        Decimal("NaN"),
        Decimal(1),
        {2, 1},
        Shout("x"),
        Colour.RED,
        Count(3),
        np.float32(1),
        10**400,
        [None],
    ],
)
def test_one_odd_value_in_a_large_table_is_found(place, column, odd):
    rows = [{"id": i, "name": f"name {i}", "tags": ["a", "b"]} for i in range(300)]
    rows[place][column] = odd
    for value in (rows, {"rows": rows}, [row[column] for row in rows]):
        parts = value["rows"] if isinstance(value, dict) else value
        whole = f"[{','.join(text_of([part])[1:-1] for part in parts)}]"
        assert text_of(value) == (f'{{"rows":{whole}}}' if isinstance(value, dict) else whole)


@case("R136")
def test_nul_is_kept_in_texts_keys_and_values():
    assert render("a\0b") == (Text("a\0b"),)
    assert json.loads(text_of({"a\0b": "c\0d"})) == {"a\0b": "c\0d"}


# -------------------------------------------------------------------------------------------------- forms


class Point(typing.NamedTuple):
    x: float
    y: float = 2.0


@dataclasses.dataclass
class Order:
    id: int
    tags: set[str] = dataclasses.field(default_factory=set)
    note: object = None
    _hidden: int = 0


class Suit(enum.Enum):
    HEARTS = "h"
    PAIR = (1, 2)
    NOTHING = NAN


class Level(enum.IntEnum):
    LOW = 1


@law("8.namedtuple", "8.tuple")
def test_tuples_named_or_not_are_arrays():
    assert text_of((1, "a")) == '[1,"a"]'
    assert text_of(Point(1.5)) == "[1.5,2.0]"


@law("8.dataclass")
def test_a_dataclass_is_an_object_of_all_its_fields():
    order = Order(1, {"b", "a"}, Order(2, note=NAN))
    inner = '{"id":2,"tags":[],"note":null,"_hidden":0}'
    assert text_of(order) == f'{{"id":1,"tags":["a","b"],"note":{inner},"_hidden":0}}'


@law("8.enum")
def test_an_enum_is_its_value():
    assert text_of([Suit.HEARTS, Suit.PAIR, Suit.NOTHING, Level.LOW]) == '["h",[1,2],null,1]'
    assert text_of(Suit.HEARTS) == '"h"'
    assert text_of({Suit.HEARTS: 1, Level.LOW: 2}) == '{"h":1,"1":2}'


@law("8.date", "8.UUID", "8.Decimal", "8.Path")
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (dt.date(2026, 1, 2), "2026-01-02"),
        (dt.datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=dt.UTC), "2026-01-02T03:04:05.000678Z"),
        (dt.time(3, 4), "03:04:00"),
        (dt.timedelta(days=1, seconds=3.5), "P1DT3.5S"),
        (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (Decimal("1.10"), "1.10"),
        (Path("/a/b"), "/a/b"),
        (PureWindowsPath("c:\\x"), "c:\\x"),
    ],
)
def test_a_date_a_uuid_a_decimal_and_a_path_are_texts_also_as_keys(value, text):
    assert json.loads(text_of(value)) == text
    assert json.loads(text_of({value: [value]})) == {text: [text]}
    assert json.loads(text_of([value, {1}])) == [text, [1]]


@law("8.set")
def test_a_set_is_sorted_by_the_json_bytes_of_its_items_at_any_depth():
    value = {"s": {10, 9, "b", (1, frozenset({"y", "x"}))}, "f": frozenset({frozenset({2, 1}), frozenset()})}
    assert text_of(value) == '{"s":["b",10,9,[1,["x","y"]]],"f":[[1,2],[]]}'


@law("8.set")
@given(st.sets(st.integers() | st.text()))
def test_a_set_of_anything_is_sorted_by_the_json_bytes_of_its_items(value):
    expected = b"[" + b",".join(sorted(to_json(item) for item in value)) + b"]"
    assert text_of(value) == expected.decode()


SEED_PROGRAM = """
import dataclasses, sys, pydantic
from counterfoil.render import render
class Key(pydantic.BaseModel, frozen=True):
    names: frozenset[str]
class Model(pydantic.BaseModel):
    tags: set[str]
    deep: dict[str, list[frozenset[str]]]
    any: object
    keys: set[Key]
    @pydantic.computed_field
    @property
    def made(self) -> set[str]:
        return self.tags | {"more"}
@dataclasses.dataclass
class Data:
    tags: set[str]
words = {"alpha", "beta", "gamma", "delta"}
keys = {Key(names=frozenset(words)), Key(names=frozenset())}
model = Model(tags=words, deep={"k": [frozenset(words)]}, any=words, keys=keys)
for value in (words, [{"x": words}], {frozenset(words), frozenset()}, model, [model], Data(words)):
    print(render(value)[0].text)
"""


@law("8.same-bytes", "8.set")
def test_sets_give_the_same_bytes_whatever_the_seed_of_the_hashes():
    def run(seed: int) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        command = [sys.executable, "-c", SEED_PROGRAM]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    first, *others = map(run, range(1, 5))
    assert '["alpha","beta","delta","gamma"]' in first
    assert others == [first] * 3


@law("8.bytes")
@given(st.binary())
def test_bytes_are_a_file_and_base64_inside_a_value(data):
    assert render(data) == render(bytearray(data)) == render(memoryview(data)) == (File(data),)
    encoded = base64.b64encode(data).decode()
    assert json.loads(text_of({"a": [data], "b": bytearray(data)})) == {"a": [encoded], "b": encoded}
    assert json.loads(text_of({data: 1})) == {encoded: 1}


@law("8.numpy")
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.int64(3), "3"),
        (np.uint8(3), "3"),
        (np.float64(1.5), "1.5"),
        (np.float32(1.5), "1.5"),
        (np.longdouble(1.5), "1.5"),
        (np.bool_(True), "true"),
        (np.arange(6).reshape(2, 3), "[[0,1,2],[3,4,5]]"),
        (np.array(5), "5"),
        (np.array([1.0, NAN, INF]), "[1.0,null,null]"),
        (np.array(["a", "b"]), '["a","b"]'),
        (np.array([b"\xff"]), '["/w=="]'),
        (np.array([{1, 0}, None], dtype=object), "[[0,1],null]"),
        (np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]), "[[1,2.5]]"),
        (np.ma.array([1, 2], mask=[0, 1]), "[1,null]"),
        (np.datetime64("2026-01-02T03:04:05.123456789"), '"2026-01-02T03:04:05.123456789"'),
        (np.array(["2026-01-02", "NaT"], dtype="M8[D]"), '["2026-01-02",null]'),
        (np.timedelta64(90, "s"), '"PT1M30S"'),
    ],
)
def test_numpy_scalars_and_arrays_are_what_they_hold(value, text):
    assert text_of(value) == text
    assert text_of({"v": [value]}) == f'{{"v":[{text}]}}'


@law("8.numpy")
def test_numpy_is_never_imported():
    program = "import sys, counterfoil.render as r; r.render({1: {2}, 'a': [3j]}); print('numpy' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


@pytest.mark.parametrize(
    "value",
    [
        collections.OrderedDict(a=[1]),
        collections.defaultdict(list, a=[1]),
        types.MappingProxyType({"a": [1]}),
        collections.ChainMap({"a": [1]}),
        collections.UserDict(a=[1]),
        {"a": collections.deque([1])},
        {"a": range(1, 2)},
        {"a": {1: 0}.keys()},
        {"a": {0: 1}.values()},
    ],
)
def test_mappings_and_sequences_of_any_kind_are_objects_and_arrays(value):
    assert text_of(value) == '{"a":[1]}'


def test_keys_that_are_the_same_in_json_are_both_written_as_the_writer_does():
    assert text_of({1: "a", "1": "b"}) == '{"1":"a","1":"b"}'
    assert text_of({1: "a", "1": {"b"}}) == '{"1":"a","1":["b"]}'


ODDS = [
    None, 1, NAN, "\ud800", b"\xff", Decimal("NaN"), uuid.UUID(int=1), Suit.PAIR, Point(1, NAN), Colour.RED,
    Order(1, {"a"}), np.arange(2), np.float32(1), object(), len, int, Path(), range(3), 1j, open, types,
    ValueError(), Text("t"), ToolResult.text("t"), iter([1]), math, frozenset({1}), ..., dt.UTC,
]  # fmt: skip


@given(
    st.recursive(
        st.sampled_from(ODDS),
        lambda inner: (
            st.lists(inner)
            | st.tuples(inner)
            | st.dictionaries(st.text() | st.integers(), inner)
            | st.builds(Order, st.integers(), note=inner)
        ),
        max_leaves=10,
    )
)
def test_any_value_is_rendered_to_json_or_refused_and_nothing_else(value):
    try:
        blocks = render(value)
    except Unrenderable:
        return
    assert blocks  # several, where the value is a list of blocks
    for block in blocks:
        if isinstance(block, Json):
            json.loads(block.text, parse_constant=pytest.fail)


# ------------------------------------------------------------------------------------------------- models


class Item(pydantic.BaseModel):
    id: int = pydantic.Field(1, serialization_alias="itemId")
    price: float = NAN
    exact: Decimal = Decimal("Infinity")
    data: bytes = b"abc"
    tags: set[str] = {"b", "a"}
    secret: int = pydantic.Field(7, exclude=True)
    when: dt.date = dt.date(2026, 1, 2)


class Shelf(pydantic.BaseModel, arbitrary_types_allowed=True, extra="allow"):
    items: list[Item] = [Item()]
    array: np.ndarray = np.arange(2)
    anything: object = None


@law("8.pydantic", "8.nan", "8.bytes", "8.set")
def test_a_model_is_written_by_its_own_serializer_and_our_rules_hold_inside():
    item = '{"itemId":1,"price":null,"exact":null,"data":"YWJj","tags":["a","b"],"when":"2026-01-02"}'
    assert text_of(Item()) == item
    assert text_of({"x": [Item()]}) == f'{{"x":[{item}]}}'
    assert text_of(Shelf(anything={2, 1}, more={"d", "c"})) == (
        f'{{"items":[{item}],"array":[0,1],"anything":[1,2],"more":["c","d"]}}'
    )


@law("8.pydantic", "8.bytes")
def test_bytes_that_are_no_text_do_not_stop_a_model_and_what_it_excludes_stays_out():
    assert json.loads(text_of(Item(data=b"\xff")))["data"] == "/w=="
    assert "secret" not in json.loads(text_of(Item(data=b"\xff")))


class Hexed(pydantic.BaseModel, ser_json_bytes="base64", ser_json_timedelta="float"):
    data: bytes = b"\xff\xfe"
    span: dt.timedelta = dt.timedelta(seconds=2)
    hidden: pydantic.SecretStr = pydantic.SecretStr("canary")
    code: int = 10

    @pydantic.field_serializer("code")
    def write(self, code: int) -> str:
        return hex(code)


@law("8.pydantic")
def test_what_a_model_says_of_its_own_form_holds():
    assert text_of(Hexed()) == to_json(Hexed()).decode()


@law("8.pydantic", "8.nan")
@pytest.mark.parametrize("mode", ["constants", "strings", "null"])
def test_a_model_cannot_write_what_is_no_json(mode):
    model = pydantic.create_model("M", __config__={"ser_json_inf_nan": mode}, x=(float, NAN), y=(object, INF))
    assert text_of(model()) == '{"x":null,"y":null}'
    assert text_of([model()]) == '[{"x":null,"y":null}]'


@law("8.pydantic", "8.surrogate")
def test_a_lone_surrogate_in_a_model_becomes_ufffd_in_texts_and_keys():
    model = pydantic.create_model("M", x=(str, "\ud800"), y=(dict[str, int], {"\ud800": 1}))
    assert text_of(model()) == '{"x":"\ufffd","y":{"\ufffd":1}}'


@law("8.pydantic")
def test_a_root_model_and_a_dataclass_of_pydantic_are_models_too():
    root = pydantic.RootModel[set[str]]({"b", "a"})
    made = pydantic.dataclasses.dataclass(Order)(1, {"b", "a"})
    assert text_of([root]) == '[["a","b"]]'
    assert text_of(made) == '{"id":1,"tags":["a","b"],"note":null,"_hidden":0}'


class Broken(pydantic.BaseModel):
    x: int = 1

    @pydantic.field_serializer("x")
    def write(self, x: int) -> str:
        raise LookupError("canary")


@law("8.pydantic")
@case("R146")
def test_a_serializer_that_raises_is_refused_by_name_with_the_cause_and_without_its_message():
    with pytest.raises(Unrenderable, match=r"Broken.*LookupError.*value\['b'\]\[0\]") as refused:
        render({"b": [Broken()]})
    assert isinstance(refused.value.__cause__, LookupError)
    assert "canary" not in str(refused.value)


# ------------------------------------------------------------------------------------------------ refusals


def nested(levels: int, wrap) -> object:
    value = wrap(None)
    for _ in range(levels - 1):
        value = wrap(value)
    return value


class Link_(pydantic.BaseModel):  # noqa: N801  # Link is a block
    next: object = None


WRAPS = {
    "list": lambda inner: [] if inner is None else [inner],
    "tuple": lambda inner: (inner,),
    "dict": lambda inner: {"a": inner},
    "dataclass": lambda inner: Order(1, note=inner),
    "model": lambda inner: Link_(next=inner),
    "set": lambda inner: frozenset({inner}),
}


@law("8.cycle")
@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_200_levels_are_rendered_and_one_more_is_refused(wrap):
    # A dataclass holds an empty set beside the next one, which is a level more at the bottom.
    deepest = 199 if wrap is WRAPS["dataclass"] else 200
    assert text_of(nested(deepest, wrap))
    with pytest.raises(Unrenderable, match="200 levels"):
        render(nested(deepest + 1, wrap))


def cyclic_list() -> object:
    value: list[object] = [1]
    value.append(value)
    return value


def cyclic_wide() -> object:
    parent: list[object] = []
    parent.extend({"parent": parent} for _ in range(2000))
    return {"rows": parent}


def cyclic_model() -> object:
    value = Link_()
    value.next = [value]
    return value


def cyclic_with_a_set() -> object:
    value: dict[str, object] = {"s": {1}}
    value["self"] = [value] * 100
    return value


def cyclic_array() -> object:
    value = np.array([None], dtype=object)
    value[0] = value
    return value


@law("8.cycle")
@pytest.mark.parametrize("make", [cyclic_list, cyclic_wide, cyclic_model, cyclic_with_a_set, cyclic_array])
def test_a_value_that_holds_itself_is_refused(make):
    with pytest.raises(Unrenderable, match="holds itself"):
        render(make())


@law("8.cycle")
def test_a_value_that_is_held_twice_is_no_cycle():
    twice = [1]
    assert text_of([twice, {"a": twice}]) == '[[1],{"a":[1]}]'
    assert text_of([twice, {"a": twice, "s": {1}}]) == '[[1],{"a":[1],"s":[1]}]'


def test_a_few_objects_that_would_be_written_without_an_end_are_refused():
    value: object = [1]
    for _ in range(60):
        value = [value, value]
    with pytest.raises(Unrenderable, match="more than 100,000,000 values"):
        render(value)


class Bare:
    def __repr__(self) -> str:
        return "canary"


async def coroutine() -> None: ...


FORMLESS = [
    object(), Bare(), len, lambda: 1, int, Bare, Suit, json, ..., NotImplemented, ValueError("canary"),
    dt.UTC, types.SimpleNamespace(a=1), list[int], np.dtype("i4"), np.random.default_rng(1),
    ToolResult.text("canary"),
]  # fmt: skip


@law("8.no-repr")
@case("R146")
@pytest.mark.parametrize("value", FORMLESS)
@pytest.mark.parametrize(
    "wrap",
    [
        lambda value: value,
        lambda value: [value],
        lambda value: {"k": value},
        lambda value: Order(1, note=value),
        lambda value: Link_(next=value),
        lambda value: [{1}, value],
    ],
    ids=["bare", "list", "dict", "dataclass", "model", "exact way"],
)
def test_an_object_without_a_form_is_refused_at_any_depth_and_its_repr_is_never_used(value, wrap):
    with pytest.raises(Unrenderable) as refused:
        render(wrap(value))
    assert "canary" not in str(refused.value)
    assert " at 0x" not in str(refused.value)


@law("8.generator")
def test_an_iterator_inside_a_value_is_refused_unread():
    numbers = iter([1, 2])
    generator = (n for n in [1, 2])
    with Path(__file__).open(encoding="utf-8") as file:
        for value in (numbers, generator, file, map(str, numbers)):
            with pytest.raises(Unrenderable, match=r"value\['a'\]: read it first"):
                render({"a": value})
        assert file.tell() == 0
    assert list(numbers) == list(generator) == [1, 2]


@law("8.no-repr")
def test_a_coroutine_is_refused_with_the_advice_to_await_it():
    waiting = coroutine()
    with pytest.raises(Unrenderable, match=r"coroutine at value\[0\]: await it"):
        render([waiting])
    waiting.close()


@law("8.no-repr")
@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (
            {"rows": [1, {"x": Bare()}]},
            r"an object of type Bare at value\['rows'\]\[1\]\['x'\]: return JSON types",
        ),
        ([Bare], r"the class Bare at value\[0\]: return a value"),
        ({frozenset({1}): 1}, "a key of type frozenset .*: use text as keys"),
        ({"r": ToolResult.text("x")}, r"a ToolResult .* at value\['r'\]: return the ToolResult itself"),
    ],
)
def test_a_refusal_says_what_came_where_and_what_to_do(value, sentence):
    with pytest.raises(Unrenderable, match=sentence):
        render(value)


# ------------------------------------------------------------------------------------------------- blocks

MEDIA = (Image(b"png"), Audio(b"wav"), File(b"zip", name="a.zip"))


@law("1.1.plain-value")
def test_a_block_and_a_list_or_tuple_of_blocks_alone_are_content_as_they_are():
    assert render(MEDIA[0]) == (MEDIA[0],)
    assert render(list(MEDIA)) == render(MEDIA) == MEDIA
    assert render([]) == (Json([]),)


@law("1.1.plain-value")
def test_a_block_inside_another_value_has_its_json_form():
    assert text_of(["see", Text("a")]) == '["see",{"type":"text","text":"a"}]'
    assert json.loads(text_of({"i": Image(b"\xff")})) == {"i": {"type": "image", "data": "/w==", "mime": "image/png"}}


@law("1.2.resultSize")
def test_the_size_of_a_content_is_the_bytes_of_the_whole():
    blocks = (Text("é"), Json("é"), Image(b"12345"), Link("u:é", "title"), Kept("id", 1000, "short"))
    assert content_size(blocks) == 2 + 4 + 5 + 4 + 1000
    assert [content_size([block]) for block in blocks] == [2, 4, 5, 4, 1000]


@law("8.generator")
def test_what_a_generator_gave_joins_as_text_or_is_an_array_and_a_final_result_is_the_result():
    result = ToolResult.text("done")
    assert combine(["a", "b"]) == "ab"
    assert combine([1, "b"]) == [1, "b"]
    assert combine([{"a": 1}]) == [{"a": 1}]
    assert combine(["a", 1, result]) is result
    assert combine([]) is None

"""A policy as people rely on it: what wins, what refuses, how long it may take, what is on record."""

import asyncio
import functools
import inspect
import itertools
import selectors
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.core.errors import DefinitionError
from counterfoil.core.policy import KNOWN_KEYS, Facts, Rule, RuleSet
from counterfoil.core.verdict import Verdict, strictest, unmatched
from counterfoil.policy import Policy, no_policy
from tests.marks import case, law


def facts(tool="refund", input=None, **run):
    return Facts(
        tool={"name": tool, "read_only": False, "idempotent": False, "destructive": False},
        input={"cents": 2000} if input is None else input,
        caller={"tenant": "acme", "user": "ada", "roles": ["support"], "attributes": {"team": "eu"}},
        run={
            "id": "r1",
            "agent": "support",
            "step": 0,
            "calls": 0,
            "hour": 12,
            "weekday": 0,
            "parent": None,
            "depth": 0,
        }
        | run,
        thread={"id": None, "kind": "main"},
    )


def judged(policy, seen=None, *, read_only=False, needs_approval=False) -> Verdict:
    """The verdict, awaited where a condition asks for it."""
    verdict = policy.judge(seen or facts(), read_only=read_only, needs_approval=needs_approval)
    return asyncio.run(_wait(verdict)) if inspect.isawaitable(verdict) else verdict


async def _wait(verdict: Awaitable[Verdict]) -> Verdict:
    return await verdict


def raising(_facts):
    raise LookupError("no such desk")


async def raising_later(_facts):
    raise LookupError("no such desk")


# --------------------------------------------------------------------------- where no rule matches


@pytest.mark.parametrize(
    ("default", "read_only", "needs_approval", "verdict"),
    [
        ("ask", False, False, "ask"),
        ("ask", True, False, "allow"),
        ("ask", True, True, "ask"),
        ("ask", False, True, "ask"),
        ("allow", False, False, "allow"),
        ("allow", False, True, "ask"),
        ("deny", False, False, "deny"),
        ("deny", True, False, "allow"),
        ("deny", True, True, "ask"),
        ("deny", False, True, "deny"),
    ],
)
def test_without_a_match_a_read_only_tool_is_allowed_others_follow_the_default_and_needs_approval_asks(
    default, read_only, needs_approval, verdict
):
    policy = Policy([Rule("other", "deny", tool="other")], default=default)
    got = judged(policy, read_only=read_only, needs_approval=needs_approval)
    assert got == Verdict(verdict, None, None, policy.revision)


def test_a_policy_without_rules_asks_for_what_is_not_read_only():
    assert judged(Policy()).verdict == "ask"
    assert judged(Policy(), read_only=True).verdict == "allow"


def test_without_a_policy_every_call_is_allowed_but_those_that_need_approval():
    assert no_policy(read_only=False, needs_approval=False) == Verdict("allow", None, None, None)
    assert no_policy(read_only=True, needs_approval=True) == Verdict("ask", None, None, None)


def test_a_rule_that_allows_takes_the_approval_away_and_a_rule_that_asks_binds_a_read_only_tool():
    assert judged(Policy([Rule("free", "allow")]), needs_approval=True).verdict == "allow"
    assert judged(Policy([Rule("watched", "ask")]), read_only=True).rule == "watched"


# ------------------------------------------------------------------------------------- what wins


ORDERS = list(itertools.permutations([Rule("a", "allow"), Rule("b", "ask"), Rule("c", "deny")]))


@pytest.mark.parametrize("rules", ORDERS)
def test_deny_beats_ask_and_ask_beats_allow_in_any_order(rules):
    assert judged(Policy(rules)).rule == "c"
    assert judged(Policy([rule for rule in rules if rule.then != "deny"])).rule == "b"


def test_of_equally_strict_rules_the_first_gives_name_reason_and_expiry():
    policy = Policy(
        [
            Rule("free", "allow", reason="free"),
            Rule("first", "ask", reason="one", expires_in=60),
            Rule("second", "ask", reason="two", expires_in=5),
        ]
    )
    verdict = judged(policy)
    assert (verdict.rule, verdict.reason, verdict.expires_in) == ("first", "one", 60)


@law("3.5003")
@pytest.mark.parametrize("then", ["allow", "ask", "deny"])
def test_an_error_beats_ask_and_allow_and_names_the_rule_that_failed(then):
    policy = Policy([Rule("free", "allow"), Rule("watched", "ask"), Rule("broken", then, when=raising)])
    assert judged(policy) == Verdict("deny", "broken", None, policy.revision, "LookupError: no such desk")


@law("3.5003")
@pytest.mark.parametrize("broken_first", [True, False])
def test_a_deny_that_matched_beats_an_error(broken_first):
    rules = [Rule("broken", "deny", when=raising), Rule("never", "deny", reason="Never.")]
    verdict = judged(Policy(rules if broken_first else rules[::-1]))
    assert (verdict.rule, verdict.reason, verdict.error) == ("never", "Never.", None)


VERDICTS = st.builds(
    lambda then, error: Verdict(then, "r", None, None, error),
    st.sampled_from(["allow", "ask", "deny"]),
    st.sampled_from([None, "broken"]),
)


@given(st.lists(VERDICTS))
def test_the_strictest_is_among_the_given_and_nothing_stricter_is(verdicts):
    otherwise = Verdict("ask", None, None, None)
    won = strictest(verdicts, otherwise)
    order = ["allow", "ask", "error", "deny"]
    ranks = [order.index("error" if v.error else v.verdict) for v in verdicts]
    assert won is (verdicts[ranks.index(max(ranks))] if verdicts else otherwise)


# ------------------------------------------------------------------------------- the tool's glob


@pytest.mark.parametrize(
    ("glob", "tool", "matches"),
    [
        ("*", "refund", True),
        ("refund", "refund", True),
        ("refund", "refunds", False),
        ("delete_*", "delete_order", True),
        ("delete_*", "Delete_order", False),
        ("DELETE_*", "delete_order", False),
        ("get_?", "get_a", True),
        ("get_?", "get_", False),
        ("[ab]_x", "b_x", True),
        ("[!ab]_x", "b_x", False),
        ("a/b\\c", "a/b\\c", True),
        ("refund", "refund\n", False),
    ],
)
def test_a_glob_covers_the_whole_name_and_case_counts(glob, tool, matches):
    policy = Policy([Rule("hit", "deny", tool=glob)], default="allow")
    assert (judged(policy, facts(tool)).rule == "hit") is matches


def test_the_glob_is_looked_at_before_the_condition():
    policy = Policy([Rule("broken", "deny", tool="other", when=raising)], default="allow")
    assert judged(policy).error is None


# -------------------------------------------------------------------------- conditions in Python


def test_a_condition_in_python_sees_the_facts_by_name():
    seen = []
    policy = Policy([Rule("look", "deny", when=lambda f: bool(seen.append(f)))])
    given_facts = facts(hour=3)
    judged(policy, given_facts)
    assert seen == [given_facts]
    assert {name: tuple(getattr(given_facts, name)) for name in KNOWN_KEYS} == dict(KNOWN_KEYS)


@law("3.no-rewrite")
def test_what_a_condition_changes_in_its_facts_changes_nothing():
    def meddle(f):
        f.input["cents"] = 1
        f.caller["roles"].append("admin")
        return False

    given_facts = facts()
    policy = Policy([Rule("meddle", "deny", when=meddle), Rule("small", "allow", when="input.cents < 2")])
    assert judged(policy, given_facts).verdict == "ask"
    assert given_facts == facts()


@pytest.mark.parametrize("answer", [True, False])
def test_a_condition_may_be_async_and_only_then_must_its_verdict_be_awaited(answer):
    async def later(_facts):
        return answer

    policy = Policy([Rule("now", "ask", when=lambda _: True), Rule("later", "deny", when=later, tool="r*")])
    assert isinstance(policy.judge(facts("get"), read_only=False, needs_approval=False), Verdict)
    assert judged(policy, facts("refund")).rule == ("later" if answer else "now")


@law("3.5003")
@case("R086")
@pytest.mark.parametrize("junk", [None, 1, 0, "True", [], object(), "deny"])
def test_a_condition_that_gives_no_bool_refuses_the_call(junk):
    async def later(_facts):
        return junk

    for when in (lambda _facts: junk, later):
        verdict = judged(Policy([Rule("junk", "allow", when=when)], default="allow"))
        assert (verdict.verdict, verdict.rule) == ("deny", "junk")
        assert type(junk).__name__ in verdict.error


@law("3.5003")
@case("R086")
@pytest.mark.parametrize("when", [raising, raising_later])
def test_a_condition_that_raises_refuses_the_call(when):
    verdict = judged(Policy([Rule("broken", "allow", when=when)], default="allow"))
    assert (verdict.verdict, verdict.error) == ("deny", "LookupError: no such desk")


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("not even this")


@case("R086")
@pytest.mark.parametrize("error", [Unspeakable(), RecursionError("deep"), asyncio.CancelledError(), MemoryError()])
def test_a_condition_refuses_the_call_however_strange_its_exception(error):
    def now(_facts):
        raise error

    async def later(_facts):
        raise error

    for when in (now, later):
        verdict = judged(Policy([Rule("broken", "allow", when=when)]))
        assert (verdict.verdict, verdict.error is not None) == ("deny", True)


def test_a_condition_that_ends_the_program_ends_it():
    def stop(_facts):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judged(Policy([Rule("stop", "allow", when=stop)]))


# ------------------------------------------------------------------------------------ time limits


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class _Selector(selectors.SelectSelector):
    """Lets a wait take no time: the clock jumps to its end."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def select(self, timeout: float | None = None):
        if timeout:
            self.clock.now += timeout
        return super().select(0)


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose time is that of a `Clock`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        super().__init__(_Selector(clock))

    def time(self) -> float:
        return self._clock.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def run(clock) -> Iterator[Callable]:
    with asyncio.Runner(loop_factory=lambda: Loop(clock)) as runner:
        yield runner.run


@law("3.5003")
@case("R086")
def test_an_async_condition_is_cancelled_at_its_limit_and_refuses_the_call(run, clock):
    ended = []

    async def slow(_facts):
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(clock.now)

    async def judge():
        policy = Policy([Rule("slow", "allow", when=slow)], seconds=2, clock=clock)
        verdict = await policy.judge(facts(), read_only=True, needs_approval=False)
        await asyncio.sleep(0)
        return verdict

    verdict = run(judge())
    assert (verdict.verdict, verdict.rule) == ("deny", "slow")
    assert "longer than 2 s" in verdict.error
    assert ended == [102.0]


@case("R086")
def test_a_condition_that_will_not_be_cancelled_is_not_waited_for(run, clock):
    release = asyncio.Event()

    async def stubborn(_facts):
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        raise LookupError("nobody reads this any more")

    async def judge():
        policy = Policy([Rule("stubborn", "allow", when=stubborn)], seconds=2, clock=clock)
        verdict = await policy.judge(facts(), read_only=True, needs_approval=False)
        release.set()
        await asyncio.sleep(0)
        return verdict

    assert "longer than 2 s" in run(judge()).error
    assert clock.now == 102.0


@law("3.5003")
@case("R086")
@pytest.mark.parametrize("is_async", [False, True])
def test_an_answer_that_came_too_late_does_not_count_even_where_nothing_could_be_cancelled(run, clock, is_async):
    def late(_facts):
        clock.now += 3
        return True

    async def late_async(_facts):
        return late(_facts)

    async def judge():
        policy = Policy([Rule("late", "allow", when=late_async if is_async else late)], seconds=2, clock=clock)
        verdict = policy.judge(facts(), read_only=True, needs_approval=False)
        return await verdict if inspect.isawaitable(verdict) else verdict

    verdict = run(judge())
    assert (verdict.verdict, "longer than 2 s" in verdict.error) == ("deny", True)


@case("R088")
def test_the_limit_starts_when_that_check_starts(run, clock):
    turn = asyncio.Lock()

    async def one_after_another(judge):
        async with turn:
            return await judge()

    async def takes_200_ms(_facts):
        await asyncio.sleep(0.2)
        return True

    policy = Policy([Rule("looked at", "allow", when=takes_200_ms)], seconds=1, clock=clock)

    async def judge():
        return await policy.judge(facts(), read_only=False, needs_approval=False)

    async def both():
        together = await asyncio.gather(*(judge() for _ in range(40)))
        queued = await asyncio.gather(*(one_after_another(judge) for _ in range(40)))
        return together + queued

    assert {(v.verdict, v.rule, v.error) for v in run(both())} == {("allow", "looked at", None)}


@case("R088")
def test_each_condition_of_a_call_has_a_limit_of_its_own(run, clock):
    async def takes_800_ms(_facts):
        await asyncio.sleep(0.8)
        return True

    policy = Policy([Rule(str(n), "allow", when=takes_800_ms) for n in range(5)], seconds=1, clock=clock)

    async def judge():
        return await policy.judge(facts(), read_only=False, needs_approval=False)

    assert run(judge()).verdict == "allow"


def test_cancelling_the_judge_cancels_the_condition(run):
    ended = []

    async def forever(_facts):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def judge():
        policy = Policy([Rule("forever", "allow", when=forever)])
        task = asyncio.ensure_future(policy.judge(facts(), read_only=True, needs_approval=False))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)

    run(judge())
    assert ended == ["cancelled"]


# --------------------------------------------------------------------------------- rules as written


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": ""}, ["needs a name"]),
        ({"name": "  "}, ["needs a name"]),
        ({"name": 7}, ["needs a name", "7"]),
        ({"then": "allowed"}, ["'r'", "then", "'allow', 'ask' or 'deny'", "'allowed'"]),
        ({"then": None}, ["'r'", "then"]),
        ({"then": ["deny"]}, ["'r'", "then"]),
        ({"tool": ""}, ["'r'", "tool", "glob"]),
        ({"tool": ["a"]}, ["'r'", "tool", "glob"]),
        ({"when": " "}, ["'r'", "when"]),
        ({"when": True}, ["'r'", "when", "True"]),
        ({"reason": 5}, ["'r'", "reason", "5"]),
        ({"expires_in": 0}, ["'r'", "expires_in", "above 0"]),
        ({"expires_in": True}, ["'r'", "expires_in", "True"]),
        ({"expires_in": float("nan")}, ["'r'", "expires_in", "nan"]),
        ({"expires_in": "1h"}, ["'r'", "expires_in", "'1h'"]),
        ({"expires_in": 5, "then": "deny"}, ["'r'", "expires_in", "'deny'"]),
    ],
)
def test_a_rule_that_cannot_be_used_says_so_at_its_making(fields, words):
    with pytest.raises(DefinitionError) as refused:
        Rule(**{"name": "r", "then": "ask"} | fields)
    assert [word for word in words if word not in str(refused.value)] == []


def test_two_rules_of_one_name_are_refused():
    with pytest.raises(DefinitionError, match="two rules have the name 'a'"):
        Policy([Rule("a", "ask"), Rule("a", "deny")])


@pytest.mark.parametrize(
    "broken",
    [
        lambda: Policy(default="maybe"),
        lambda: Policy(default=None),
        lambda: Policy(repeat_block=1),
        lambda: Policy(["deny"]),
        lambda: Policy(seconds=0),
    ],
)
def test_a_policy_that_cannot_be_used_says_so_at_its_making(broken):
    with pytest.raises(DefinitionError):
        broken()


def test_a_condition_that_does_not_compile_fails_at_once_and_names_its_rule():
    with pytest.raises(DefinitionError, match=r"rule 'night'.*run\.huor.*did you mean run\.hour"):
        Policy([Rule("night", "deny", when="run.huor < 6")])


def test_a_name_keeps_no_lone_surrogate_since_it_goes_on_record():
    rule = Rule("a\ud800", "ask", reason="b\udfff")
    assert (rule.name, rule.reason) == ("a\ufffd", "b\ufffd")


# ------------------------------------------------------------------------------------ the revision


def at_night(f):
    return f.run["hour"] < 6


def over(limit):
    return lambda f: f.input["cents"] > limit


class AtNight:
    def __call__(self, f):
        return f.run["hour"] < 6


@pytest.mark.parametrize(
    "other",
    [
        Policy([Rule("a", "deny", "x", "run.hour < 7", "b")]),
        Policy([Rule("a", "deny", "x", "run.hour < 6", "c")]),
        Policy([Rule("a", "deny", "y", "run.hour < 6", "b")]),
        Policy([Rule("a", "allow", "x", "run.hour < 6", "b")]),
        Policy([Rule("c", "deny", "x", "run.hour < 6", "b")]),
        Policy([Rule("a", "deny", "x", "run.hour < 6", "b"), Rule("z", "ask")]),
        Policy([Rule("a", "deny", "x", "run.hour < 6", "b")], default="deny"),
        Policy([Rule("a", "deny", "x", "run.hour < 6", "b")], repeat_block=True),
        Policy([Rule("a", "deny", "x", at_night, "b")]),
    ],
)
def test_whatever_differs_in_the_rules_gives_another_revision(other):
    policy = Policy([Rule("a", "deny", "x", "run.hour < 6", "b")])
    assert policy.revision == Policy(policy.rules).revision
    assert other.revision != policy.revision


def test_functions_with_other_values_inside_give_another_revision():
    def revision(when):
        return Policy([Rule("a", "deny", when=when)]).revision

    made = [over(5), over(6), at_night, functools.partial(at_night), AtNight(), AtNight().__call__]
    assert len({revision(when) for when in made}) == len(made)
    assert revision(over(5)) == revision(over(5))


PROGRAM = """
from counterfoil.policy import Policy, Rule
from tests.test_policy import AtNight, at_night, over
rules = [Rule("a", "deny", when=at_night), Rule("b", "ask", when=over(5)), Rule("c", "ask", when=AtNight())]
exec("def made(f): return f.run['hour'] < 6")
print(Policy([*rules, Rule("d", "deny", when=made), Rule("e", "allow", when="run.hour < 6")]).revision)
"""


def test_the_revision_is_the_same_in_every_process():
    revisions = {
        subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert len(revisions) == 1
    assert len(revisions.pop().strip()) == 64


def test_a_rule_is_known_again_when_other_rules_changed():
    watched = Rule("watched", "ask")
    before, after = judged(Policy([watched])), judged(Policy([watched, Rule("x", "deny", tool="x")]))
    assert before.revision != after.revision
    assert before.rule_digest == after.rule_digest
    assert judged(Policy([Rule("watched", "ask", reason="new")])).rule_digest != before.rule_digest


# ----------------------------------------------------------------------- verdicts and explanations


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict("ask", "r", "why", "rev", None, 60.0, "d"),
        Verdict("deny", "r", None, "rev", "KeyError: 'x'"),
        unmatched("allow", "rev", read_only=False, needs_approval=False),
        no_policy(read_only=False, needs_approval=False),
    ],
)
def test_a_verdict_comes_back_from_its_json(verdict):
    assert Verdict.from_json(verdict.to_json()) == verdict


def test_what_is_no_verdict_is_refused():
    with pytest.raises(ValueError, match="'perhaps'"):
        Verdict.from_json({"verdict": "perhaps"})


def test_evaluate_tells_of_each_rule_in_their_order_and_passes_none_over():
    async def later(_facts):
        return True

    policy = Policy(
        [
            Rule("free", "allow", when="input.cents > 1"),
            Rule("never", "deny"),
            Rule("night", "deny", when="run.hour < 6"),
            Rule("elsewhere", "ask", tool="get_*", when=raising),
            Rule("broken", "ask", when="input.cnts > 1"),
            Rule("later", "ask", when=later),
        ]
    )
    checks = asyncio.run(policy.evaluate(facts()))
    assert [(check.rule, check.then, check.result) for check in checks] == [
        ("free", "allow", "matched"),
        ("never", "deny", "matched"),
        ("night", "deny", "not matched"),
        ("elsewhere", "ask", "other tool"),
        ("broken", "ask", "error"),
        ("later", "ask", "matched"),
    ]
    assert "cnts" in checks[4].error


def test_a_policy_without_conditions_in_cel_loads_no_cel():
    program = (
        "import sys; from counterfoil.policy import Policy, Rule; Policy([Rule('a', 'ask', when=bool)]); "
        "print(*{'cel_expr_python', 'tomllib'} & set(sys.modules))"
    )
    got = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert got.stdout.split() == []


def test_a_rule_set_is_checked_before_anything_is_compiled():
    with pytest.raises(DefinitionError, match="rules must be Rule"):
        RuleSet(("deny",))

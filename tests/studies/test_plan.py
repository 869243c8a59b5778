"""Plans: what is refused, what is filled in, and that JSON loses nothing."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaone.errors import StudyError
from kappaone.studies import Contrast, Plan, TargetRule
from kappaone.studies.plan import DEFAULT_CELLS, EFFECTS, fill_command, plan_differences

FOUR = tuple(DEFAULT_CELLS.values())


def make(**changes):
    given = {"name": "s", "arms": ("default", "conditioned"), "seeds": range(8), "margin": 0.01}
    return Plan(**{**given, **changes})


names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12).filter(str.strip)
finite = st.floats(-1e6, 1e6).filter(lambda x: abs(x) > 1e-3)


@st.composite
def plans(draw):
    arms = draw(st.lists(names, min_size=2, max_size=6, unique=True))
    own = draw(st.booleans())
    contrasts = ()
    if own:
        pairs = draw(st.lists(st.permutations(arms).map(lambda p: p[:2]), min_size=1, max_size=3))
        weights = draw(st.lists(finite, min_size=len(pairs), max_size=len(pairs)))
        contrasts = tuple(
            Contrast(f"c{i}", draw(st.sampled_from(["arm", "causal"])), {a: w, b: -w})
            for i, ((a, b), w) in enumerate(zip(pairs, weights, strict=True))
        )
    grid = draw(
        st.none()
        | st.integers(1, 100)
        | st.lists(st.integers(0, 1000), min_size=1, max_size=4, unique=True).map(sorted).map(tuple)
    )
    options = draw(st.dictionaries(names, st.none() | st.booleans() | st.integers() | finite | names, max_size=3))
    return Plan(
        name=draw(names),
        arms=arms,
        seeds=draw(st.lists(st.integers(0, 10**6), min_size=2, max_size=6, unique=True)),
        margin=draw(st.floats(1e-6, 1e6)),
        reference=arms[0],
        noise_arm=draw(st.sampled_from([None, arms[1]])),
        metric=draw(names),
        higher_is_better=draw(st.booleans()),
        contrasts=contrasts,
        target=draw(st.none() | st.builds(TargetRule, grid=st.just(grid), window=st.integers(1, 9), tail=st.just(0.1))),
        tracked=draw(st.lists(names, max_size=2, unique=True)),
        diverged_value=draw(st.none() | finite),
        runner=draw(
            st.just({"callable": "a.b:c", "options": options})
            | st.just({"command": ["x", "{spec}"], "options": options})
        ),
    )


@settings(max_examples=60, deadline=None)
@given(plans())
def test_json_round_trip(plan):
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict(), allow_nan=False)))
    assert again == plan
    assert again.digest == plan.digest
    assert plan_differences(plan, again) == []


def test_hash_sees_every_entry():
    base = make(tracked=("a",))
    changes = [
        make(tracked=("b",)),
        make(seeds=range(9)),
        make(margin=0.02),
        make(target=TargetRule(window=4)),
        make(diverged_value=0.0),
        make(higher_is_better=False),
        make(name="t"),
        make(runner={"callable": "kappaone.recipes.images:run", "options": {"x": 1}}),
    ]
    assert len({p.digest for p in [base, *changes]}) == len(changes) + 1


def test_defaults_without_the_four_arms():
    plan = make(arms=("default", "a", "default(redraw)"))
    assert plan.noise_arm == "default(redraw)"
    assert plan.cells is None
    assert [(c.name, c.kind) for c in plan.contrasts] == [
        ("a vs default", "arm"),
        ("default(redraw) vs default", "arm"),
    ]
    assert plan.target.metric == "test_accuracy"
    assert plan.target.higher_is_better is True


def test_the_two_by_two_is_the_issues():
    plan = make(arms=FOUR)
    causal = {c.name: c.weights for c in plan.contrasts if c.kind == "causal"}
    cL, cS, dL, dS = FOUR
    assert causal == {
        "scale": {cL: 0.5, cS: -0.5, dL: 0.5, dS: -0.5},
        "spectrum": {cL: 0.5, dL: -0.5, cS: 0.5, dS: -0.5},
        "interaction": {cL: 1, cS: -1, dL: -1, dS: 1},
    }
    assert set(EFFECTS) == set(causal)
    other = dict(zip(("cL", "cS", "dL", "dS"), ("p", "q", "r", "s"), strict=True))
    assert make(arms=tuple("pqrs"), reference="s", cells=other).cells == other


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"arms": ("default",)}, "at least two"),
        ({"arms": "default"}, "expected a list"),
        ({"arms": ("default", "default")}, "different"),
        ({"arms": ("a", "b")}, "reference 'default' is not among"),
        ({"seeds": (1,)}, "at least two"),
        ({"seeds": (1, 1)}, "doubled"),
        ({"seeds": (1, -1)}, "none negative"),
        ({"seeds": (1, True)}, "whole numbers"),
        ({"margin": 0}, "margin"),
        ({"margin": float("nan")}, "margin"),
        ({"noise_arm": "x"}, "noise arm 'x'"),
        ({"noise_arm": "default"}, "other than the reference"),
        ({"cells": {"cL": "default"}}, "expected cL, cS, dL and dS"),
        ({"metric": ""}, "metric"),
        ({"diverged_value": float("inf")}, "diverged_value"),
        ({"contrasts": (Contrast("c", "arm", {"x": 1, "default": -1}),)}, "uses ['x']"),
        ({"contrasts": (Contrast("c", "arm", {"conditioned": 1, "default": -1}),) * 2}, "share a name"),
        ({"target": TargetRule(metric="loss")}, "whether higher is better"),
        ({"runner": {}}, "expected 'callable' or 'command'"),
        ({"runner": {"callable": "a:b", "command": ["x"]}}, "expected 'callable' or 'command'"),
        ({"runner": {"callable": "a:b", "opts": {}}}, "unknown: ['opts']"),
        ({"runner": {"callable": "nocolon"}}, "package.module:function"),
        ({"runner": {"command": "python x.py {spec}"}}, "list of words"),
        ({"runner": {"command": ["x", "{arm}"]}}, "which arm and seed"),
        ({"runner": {"callable": "a:b", "options": {"x": {1, 2}}}}, "plain JSON"),
    ],
)
def test_refusals_say_what_is_wrong(changes, said):
    with pytest.raises(StudyError) as caught:
        make(**changes)
    assert said in str(caught.value)
    assert caught.value.todo


@pytest.mark.parametrize(
    ("weights", "said"),
    [({"a": 1}, "at least two"), ({"a": 1, "b": 0}, "other than 0"), ({"a": 1, "b": -0.5}, "sum to 0.5")],
)
def test_contrast_weights(weights, said):
    with pytest.raises(StudyError, match=said):
        Contrast("c", "arm", weights)


@pytest.mark.parametrize("changes", [{"grid": 0}, {"grid": (3, 2)}, {"window": 0}, {"consecutive": 0}, {"tail": 0}])
def test_target_rule_refusals(changes):
    with pytest.raises(StudyError, match="target rule"):
        TargetRule(**changes)


def test_from_dict_refuses_what_it_does_not_know():
    data = make().to_dict()
    with pytest.raises(StudyError, match="schema 7"):
        Plan.from_dict({**data, "schema": 7})
    with pytest.raises(StudyError, match="unknown entries"):
        Plan.from_dict({**data, "colour": "red"})
    del data["arms"]
    with pytest.raises(StudyError, match="incomplete"):
        Plan.from_dict(data)


def test_differences_name_the_entry_and_both_values():
    assert plan_differences(make(), make(margin=0.5)) == ["margin: 0.01 in the folder, 0.5 now"]


def test_fill_command_leaves_other_braces_and_does_not_fill_twice():
    values = {"arm": "{seed}", "seed": "3", "out": "o", "spec": "s"}
    assert fill_command(["{arm}-{seed}", "{}", '{"arm": 1}'], values) == ["{seed}-3", "{}", '{"arm": 1}']

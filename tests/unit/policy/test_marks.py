"""Which class a transfer has where programs mark it themselves, and the variable that says so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfsd.policy import Stage
from mfsd.policy.mark_text import mark_text, parse_marks
from mfsd.policy.marks import ROLES, MarkRule, Marks, StageClasses, checked, divided


@pytest.mark.parametrize(
    ("classes", "wanted"),
    [
        (1, StageClasses(0, (0,), (0,), 0)),
        (2, StageClasses(0, (1,), (1,), 1)),
        (3, StageClasses(0, (1,), (1,), 2)),
        (4, StageClasses(0, (1,), (2,), 3)),
        (8, StageClasses(0, (1, 2, 3), (4, 5, 6), 7)),
    ],
)
def test_collectives_first_then_loads_then_last_stages_then_background(classes: int, wanted: StageClasses) -> None:
    assert divided(classes) == wanted


@pytest.mark.parametrize(("classes", "loads", "last"), [(8, 4, 3), (4, 2, 1), (3, 1, 1), (2, 1, 1)])
def test_without_background_the_lowest_class_is_the_last_stages(classes: int, loads: int, last: int) -> None:
    found = divided(classes, background=False)
    assert (len(found.reuse), len(found.p2d)) == (loads, last)
    assert found.p2d[-1] == found.background == classes - 1


@pytest.mark.parametrize("classes", [0, 9])
def test_a_fabric_has_one_to_eight_classes(classes: int) -> None:
    with pytest.raises(ValueError, match=f"classes is {classes}: use 1 to 8"):
        divided(classes)


EIGHT = Marks((56, 48, 40, 32, 24, 16, 8, 0), divided(8).by_stage(), {Stage.REUSE: (100, 1000), Stage.P2D: (5000,)})


@pytest.mark.parametrize(
    ("stage", "size_bytes", "wire_class"),
    [
        (Stage.CONTROL, 1, 0),
        (Stage.COLLECTIVE, 10**9, 0),
        (Stage.REUSE, 0, 1),
        (Stage.REUSE, 100, 1),
        (Stage.REUSE, 101, 2),
        (Stage.REUSE, 1001, 3),
        (Stage.REUSE, None, 3),
        (Stage.P2D, 5000, 4),
        (Stage.P2D, 10**12, 5),
        (Stage.P2D, None, 5),
        (Stage.BACKGROUND, 1, 7),
        (6, 1, 7),
    ],
)
def test_the_smaller_a_transfer_the_higher_its_class(stage: int, size_bytes: int | None, wire_class: int) -> None:
    assert EIGHT.wire_class(stage, size_bytes) == wire_class


texts = st.text(min_size=1, max_size=12).filter(lambda text: "\0" not in text)
rules = st.builds(
    MarkRule,
    library=st.just("") | texts,
    process=st.just("") | texts,
    communicator=st.just("") | texts,
    peer=st.sampled_from(["", "10.1.0.0/16", "fe80::/10"]),
    role=st.sampled_from(ROLES),
    dscp=st.none() | st.integers(0, 63),
)


@given(st.lists(rules, max_size=5))
def test_the_variable_says_all_of_it(some: list[MarkRule]) -> None:
    marks = EIGHT._replace(rules=tuple(some), dscp=(46, None, *EIGHT.dscp[2:]))
    text = mark_text(marks)
    assert parse_marks(text) == marks
    assert text.isascii() and text.isprintable() and " " not in text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "dscp names 0 classes: use 1 to 8"),
        ("dscp=64", "'64' is not a whole number from 0 to 63"),
        ("dscp=46", "stages: background is missing; name its class"),
        ("dscp=46;stages=background:1", r"stages: background has classes \[1\]: use rising ones below 1"),
        ("dscp=46,8;stages=background:1,reuse:1+0", r"reuse has classes \[1, 0\]: use rising ones below 2"),
        ("dscp=46;stages=lunch:0", "'lunch' is none of control, reuse, collective, p2d, background"),
        ("dscp=46;stages=BACKGROUND:0", "'BACKGROUND' is none of"),
        ("dscp=46;stages=background:0;sizes=background:1", "sizes: background has none; use reuse or p2d"),
        ("dscp=1,2;stages=background:0,p2d:0+1;sizes=p2d:5+5", r"p2d has \[5, 5\]: use rising sizes above 0"),
        ("dscp=1,2;stages=background:0,p2d:0+1;sizes=p2d:0", r"p2d has \[0\]: use rising sizes above 0"),
        ("dscp=1,2;stages=background:0,p2d:0;sizes=p2d:5", "p2d has one class here, whatever the size: leave p2d out"),
        ("dscp=1,2;stages=background:0,p2d:0+1;sizes=p2d:5+6", "p2d has 2 of them for 2 classes; use at most 1"),
        ("dscp=1;stages=background:0;rule=role:boss", "role 'boss' is none of"),
        ("dscp=1;stages=background:0;rule=color:red", "'color' is none of library"),
        ("dscp=1;stages=background:0;rule=library:%4", "a % without two hexadecimal digits"),
        ("dscp=1;stages=background:0;rule=library:%+1", "a % without two hexadecimal digits"),
        ("dscp=1;color=red", "'color=red': no such part; there are dscp, stages, sizes and rule"),
        ("dscp=1;stages=background:0" + ";rule=dscp:1" * 65, "65 rules: use at most 64"),
    ],
)
def test_what_cannot_be_is_named_with_a_remedy(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_marks(text)


def test_marks_made_by_hand_are_held_to_the_same() -> None:
    with pytest.raises(ValueError, match="use at most 1"):
        checked(EIGHT._replace(stages=divided(6).by_stage(), sizes={Stage.P2D: (1, 2)}))

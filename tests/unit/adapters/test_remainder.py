"""What calls have still to ask for, by request."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mooncake_adapter.remainder import Key, Remainder, Remainders

keys = st.tuples(st.integers(0, 2), st.sampled_from([None, 1, 3]), st.booleans())
calls = st.lists(st.lists(st.tuples(keys, st.integers(1, 9)), min_size=1, max_size=6), min_size=1, max_size=4)


@given(calls, st.data())
def test_each_piece_has_what_is_left_of_its_request_in_all_calls(
    calls: list[list[tuple[Key, int]]], data: st.DataObject
) -> None:
    """The calls of several threads, their pieces in any order among each other; some end before they have asked for
    all. Of a request that is not known there is the call alone."""
    others = Remainders()
    remainders = [Remainder(others, pieces) for pieces in calls]
    todo = [list(pieces) for pieces in calls]
    while any(todo):
        i = data.draw(st.sampled_from([i for i, pieces in enumerate(todo) if pieces]))
        if data.draw(st.integers(0, 4)) == 0:
            remainders[i].close()
            todo[i] = []
            continue
        key, size_bytes = todo[i][0]
        seen = todo if key[0] else [todo[i]]
        left_bytes = sum(size for pieces in seen for found, size in pieces if found == key)
        assert remainders[i].ask(key, size_bytes) == left_bytes
        todo[i].pop(0)
    for remainder in remainders:
        remainder.close()
        remainder.close()
    assert Remainder(others, [((1, 3, False), 5)]).ask((1, 3, False), 5) == 5

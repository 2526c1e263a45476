"""Text from elsewhere."""

from __future__ import annotations

import pytest

from mfsd.text import whole_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("007", 7),
        ("100", 100),
        ("101", None),
        ("1" * 5000, None),
        ("0" * 5000 + "7", 7),
        ("", None),
        ("-1", None),
        ("1e1", None),
        ("٣", None),
    ],
)
def test_a_whole_number_is_digits_up_to_a_limit(text: str, number: int | None) -> None:
    """Python itself refuses to read more than 4,300 digits."""
    assert whole_number(text, 100) == number

"""MFS_SERVICE_LEVELS: what is written is read, and what cannot be read is named."""

from __future__ import annotations

import pytest

from mfsd.fabric.libraries import service_levels
from mfsd.fabric.policy import load_profile
from mfsd.policy.service_levels import parse_levels


def test_a_profiles_levels_are_read_as_they_are_written() -> None:
    profile = load_profile("paper-k8")
    assert parse_levels(service_levels(profile)) == {one.dscp: one.priority for one in profile.classes}
    assert parse_levels("") == {} and parse_levels("46:5!,34:4,") == {46: 5, 34: 4}


@pytest.mark.parametrize(
    "text", ["46", "46:", ":5", "64:5", "46:16", "46:-1", "46:5;34:4", ",", "²:5", "46:5!!", "9" * 99]
)
def test_what_cannot_be_read_is_named_with_a_remedy(text: str) -> None:
    with pytest.raises(ValueError, match=r"MFS_SERVICE_LEVELS: '.*' is not DSCP:LEVEL; write entries") as raised:
        parse_levels(text)
    assert len(str(raised.value)) < 130

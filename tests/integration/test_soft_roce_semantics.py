"""Each promise of RC and UD queue pairs, by the cases of tests/native/soft_roce_cases.c."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "native/soft_roce_cases.c"
CASES = re.findall(r'^\t\{ "(\w+)", \1 \},$', SOURCE.read_text(), re.MULTILINE)


def test_the_program_has_the_cases(soft_roce, native):
    listed = soft_roce.run(native("soft_roce_cases", "-libverbs", "-lpthread")).stdout.split()
    assert listed == CASES


@pytest.mark.parametrize("case", CASES)
def test_case(soft_roce, native, case):
    soft_roce.run(native("soft_roce_cases", "-libverbs", "-lpthread"), case)

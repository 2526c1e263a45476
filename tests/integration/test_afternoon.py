"""The first half of docs/afternoon.md, run as it stands in a clean system; `make afternoon` runs all of it.

What was installed of the very same sources is taken where it is there; the first time it is installed as the page says.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.afternoon import console, page
from tests.afternoon.runner import Runner, ran
from tests.support.clean_system import missing


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_the_first_half_is_as_the_page_says(folder: Path) -> None:
    steps = page.first_half(console.read(page.PAGE.read_text()).steps)
    with page.clean_system(folder) as system:
        installed = page.restore(system, folder)
        problems = []
        for step, answered in ran(Runner(system), page.without_install(steps) if installed else steps):
            problems.append(console.differs(step, answered))
            if step.line == page.INSTALLED and not installed:
                page.keep(system, folder)
    assert not list(filter(None, problems)), "\n\n".join(filter(None, problems))
    assert len(problems) > 30

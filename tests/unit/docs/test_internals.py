"""Pages about the rooms: every room has one with its invariants, every file and every test that is named exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted((ROOT / "docs" / "internals").glob("*.md"))
ARCHITECTURE = ROOT / "docs" / "internals" / "architecture.md"
ROOMS = [
    *("csrc", "csrc/soft_roce", "nccl_shim", "mooncake_adapter", "bench"),
    *(f"mfsd/{folder.name}" for folder in sorted((ROOT / "mfsd").iterdir()) if (folder / "__init__.py").exists()),
]
BELOW_ANOTHER = {"mfsd/soft_roce": "csrc/soft_roce"}
TESTS = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))


def house() -> dict[str, str]:
    """Folder -> the last cell of its row in the table of rooms."""
    rooms: dict[str, str] = {}
    for row in re.findall(r"^\| (`.*) \|$", ARCHITECTURE.read_text(), re.MULTILINE):
        first, *_, last = row.split(" | ")
        rooms |= {name.rstrip("/"): last for name in re.findall(r"`([^`]+)`", first)}
    return rooms


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_is_in_the_house_and_has_a_page(room: str) -> None:
    rooms = house()
    page = rooms[BELOW_ANOTHER.get(room, room)]
    if room == "mfsd/cli":
        return  # command lines over the other rooms; their help is their page
    links = re.findall(r"\(([\w-]+\.md)\)", page)
    assert links, f"{room}: no page"
    for link in links:
        assert (ARCHITECTURE.parent / link).exists()


@pytest.mark.parametrize("page", [p for p in PAGES if p != ARCHITECTURE], ids=lambda p: str(p.name))
def test_a_page_says_what_always_holds(page: Path) -> None:
    assert re.search(r"^## Invariants", page.read_text(), re.MULTILINE), f"{page.name} has no invariants"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.name))
def test_tests_that_are_named_exist(page: Path) -> None:
    for name in re.findall(r"`(test_\w+)`", page.read_text()):
        assert f"def {name}(" in TESTS, f"{page.name} names {name}"


@pytest.mark.parametrize("page", [*PAGES, *sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))], ids=str)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"

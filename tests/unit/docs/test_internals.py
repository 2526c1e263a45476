"""Pages about the rooms: every room has one with its invariants, every file and every test that is named exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted((ROOT / "docs" / "internals").glob("*.md"))
ARCHITECTURE = ROOT / "docs" / "internals" / "architecture.md"
GLOSSARY = ROOT / "docs" / "internals" / "glossary.md"
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


@pytest.mark.parametrize("page", [p for p in PAGES if p not in (ARCHITECTURE, GLOSSARY)], ids=lambda p: str(p.name))
def test_a_page_says_what_always_holds(page: Path) -> None:
    assert re.search(r"^## Invariants", page.read_text(), re.MULTILINE), f"{page.name} has no invariants"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.name))
def test_tests_that_are_named_exist(page: Path) -> None:
    for name in re.findall(r"`(test_\w+)`", page.read_text()):
        assert f"def {name}(" in TESTS, f"{page.name} names {name}"


BUILT = {"mfsd/_headers.pxi", "mfsd/capi.c"}
SOURCES = {
    parts[at:]
    for top in ("csrc", "mfsd", "nccl_shim", "mooncake_adapter", "bench", "tests", "tools", "deploy")
    for path in (ROOT / top).rglob("*.*")
    for parts in (path.relative_to(ROOT).parts,)
    for at in range(len(parts))
}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.name))
def test_files_that_are_named_exist(page: Path) -> None:
    """Links have a test of their own, and headers of a diff (a/..., b/...) are no names."""
    for name in re.findall(r"(?<![\w/.-])((?:\w+/)*\w+\.(?:py|pxi|pyx|c|h|pml|proto))(?![\w/.])", page.read_text()):
        if not name.startswith(("a/", "b/")) and name not in BUILT:
            assert tuple(name.split("/")) in SOURCES, f"{page.name} names {name}"


def test_functions_that_a_transfer_and_a_batch_pass_are_in_the_files_that_are_linked() -> None:
    text = ARCHITECTURE.read_text()
    linked = re.findall(r"\[`([\w.]+)\(\)`\]\(([^)]+)\)", text)
    assert len(linked) > 20
    for name, target in linked:
        owner, _, function = name.rpartition(".")
        source = (ARCHITECTURE.parent / target).read_text()
        assert re.search(rf"^[^#/*]*\b{function}\(", source, re.MULTILINE), f"{target} has no {name}"
        assert not owner or re.search(rf"^class {owner}\b", source, re.MULTILINE), f"{target} has no class {owner}"
    files = (file for part in ("csrc", "nccl_shim") for file in (ROOT / part).rglob("*.[ch]"))
    sources = "".join(file.read_text() for file in files)
    for name in re.findall(r"(?<!\[)`(\w+)\(\)`", text):
        assert f"{name}(" in sources, f"nothing is called {name}"


def test_what_the_glossary_names_exists() -> None:
    places = re.findall(r"\| `([^`]+)` \|$", GLOSSARY.read_text(), re.MULTILINE)
    assert len(places) > 50
    for place in places:
        assert (ROOT / place).exists(), place


LINKING = [
    *PAGES,
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "results").glob("*.md")),
]


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKING, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)", page.read_text()):
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{page.name} links to {target}#{anchor}, which has no such heading"

"""Functions, classes, modules and C functions that nothing uses: python tools/unused.py.

Three questions, each with its exceptions and their reasons. An exception that excuses nothing must be taken off:
- what does no file name at all (Python by vulture, C by its own rule: named only where it is defined and declared)?
- what of the package and of bench/ do only tests name? Code for tests belongs to tests/.
- which Python module does no other file import or name?
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path

import vulture

KINDS = {"function", "method", "class", "property", "import", "unreachable_code"}
"""Kinds of vulture's findings that count here; fields of structs are for readers of the JSON."""
SHIPPED = ("mfsd/", "nccl_shim/", "mooncake_adapter/", "bench/", "setup.py", "tools/")
BY_DECORATOR = ["@*.command", "@*.command_of", "@register", "@pytest.fixture", "@rule", "@invariant", "@fixture"]
BY_NAME = {
    # pattern of a name: who calls it
    "action_*": "textual, by key",
    "compose": "textual",
    "on_*": "textual, by event",
    "do_POST": "http.server",
    "http*_open": "urllib.request",
    "log_message": "http.server",
    "get_buffer": "asyncio",
    "buffer_updated": "asyncio",
    "__getattr__": "Python",
    "pytest_configure": "pytest",
    "pytest_collection_modifyitems": "pytest",
    "pytest_collection_finish": "pytest",
    "visit_*": "pycparser, by the type of a node",
    "teardown": "hypothesis",
}
UNUSED = {
    # file and name: who uses it
    "bench/programs/nccl_ranks.py all_*": "its own main, by the names on its command line",
    "bench/programs/nccl_ranks.py send_receive": "the same",
    "bench/sim/serving/memory.py make_room": "the step in C (mfsd/_serving_step.pxi)",
    "bench/sim/serving/replica.py begins": "the same",
    "bench/sim/serving/replica.py ends_now": "the same",
    "bench/sim/serving/replica.py noise_observed": "the same",
    "mfsd/fabric/dcb.py DCBX_CEE": "one of the four values of the kernel's word, named together",
    "mooncake_adapter/vllm/connector.py requires_piecewise_for_cudagraph": "vLLM",
    "mooncake_adapter/vllm/waiting.py *_request*": "vLLM, in its own walk",
    "tests/e2e/sglang_program.py batch_register": "SGLang's manager, of its engine",
    "tests/e2e/test_vllm_v2.py test_every_byte_is_accounted_for": "pytest: a test under a second name",
    "tests/e2e/triton_interpreted/sitecustomize.py is_active": "Triton",
    "tests/unit/doctor/test_registry.py raise": "a yield behind it makes the function a generator",
}
ONLY_TESTS = {
    "mfsd/client/session.py memory_range": "for engines: docs/api.md",
    "mooncake_adapter/protocol.py EngineAdapter": "what the modules of engines have to fill: a type for tests",
    "mooncake_adapter/middleware.py SloHeaders": "for vLLM's --middleware: docs/adapters.md",
}
MODULES = {
    # pattern of a path: who imports it
    "bench/sim/policies/*.py": "bench/sim/policies/__init__.py, all of the folder",
    "tests/e2e/triton_interpreted/sitecustomize.py": "Python",
}
HERE = "tools/unused.py"
C_FUNCTION = re.compile(r"^[a-z_][\w\t *]*?[\t *]([a-z]\w+)\(")
IN_C = {
    "nccl_shim/src/profiler.c init_v*": "the macro that makes the tables of functions",
    "tests/unit/plan/plan_fuzz.c fuzz_*": "csrc, in place of malloc",
}


def tracked(*patterns: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", "--", *patterns], capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split() if "_pb2" not in name and Path(name).is_file()]


def in_python(names: Iterable[str]) -> list[tuple[str, str, int]]:
    """Returns (file, name, line) of what vulture calls unused in these files."""
    found = vulture.Vulture(ignore_decorators=BY_DECORATOR)
    found.scavenge([str(Path(name)) for name in names])
    root = Path.cwd()
    return [
        (str(Path(item.filename).resolve().relative_to(root)), item.name, item.first_lineno)
        for item in found.get_unused_code(min_confidence=60)
        if item.typ in KINDS or (item.typ == "variable" and _at_top(item.filename, item.first_lineno))
    ]


def _at_top(name: str | Path, line: int) -> bool:
    return not Path(name).read_text().splitlines()[line - 1].startswith((" ", "\t"))


def in_c() -> Iterator[tuple[str, str, int]]:
    """The same for C functions. A function of a public header counts as used if a page of docs/ names it."""
    named: Counter[str] = Counter()
    defined: dict[str, tuple[str, int]] = {}
    for name in tracked("*.c", "*.h", "*.cpp", "*.pyx", "*.pxi", "*.map", "docs/*.md"):
        for number, line in enumerate(_without_comments(Path(name)).splitlines(), 1):
            words = re.findall(r"\w+", line)
            at = C_FUNCTION.match(line) if name.endswith((".c", ".h", ".cpp")) else None
            if at and not line.startswith("typedef"):
                words.remove(at[1])
                if not line.rstrip().endswith(";"):
                    defined.setdefault(at[1], (name, number))
            named.update(words)
    return ((name, function, line) for function, (name, line) in defined.items() if not named[function])


def _without_comments(path: Path) -> str:
    text = path.read_text()
    if path.suffix == ".md":
        return text
    return re.sub(r"/\*.*?\*/|//[^\n]*", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)


def modules() -> Iterator[tuple[str, str, int]]:
    """Yields Python modules whose name appears in no other file, neither as a module nor as a file."""
    words = {name: set(re.findall(r"\w+", _text(name))) for name in tracked("*") if name != HERE}
    files = Counter(word for inside in words.values() for word in inside)
    for name in tracked("*.py"):
        stem = Path(name).stem
        if stem.startswith(("test_", "__")) or stem == "conftest":
            continue
        if name != HERE and files[stem] == (stem in words[name]):
            yield name, stem, 1


def _text(name: str) -> str:
    try:
        return Path(name).read_text()
    except UnicodeDecodeError:
        return ""


def remaining(found: Iterable[tuple[str, str, int]], excused: dict[str, str], hits: set[str]) -> list[str]:
    """Returns what no exception excuses. Adds the exceptions that excused something to `hits`."""
    left = []
    for name, item, line in found:
        by = [key for key in excused if fnmatch(f"{name} {item}", key) or fnmatch(item, key) or fnmatch(name, key)]
        hits.update(by)
        if not by:
            left.append(f"{name}:{line}: {item}")
    return left


def main() -> int:
    hits: set[str] = set()
    python = tracked("*.py")
    everywhere = in_python(python)
    shipped = in_python(name for name in python if name.startswith(SHIPPED))
    unused = remaining(everywhere, BY_NAME | UNUSED, hits) + remaining(in_c(), IN_C, hits)
    only_tests = [
        found for found in remaining(shipped, BY_NAME | UNUSED | ONLY_TESTS, hits) if found not in set(unused)
    ]
    orphans = remaining(modules(), MODULES, hits)
    wrong = [f"{found}: nothing uses it: delete it" for found in unused]
    wrong += [f"{found}: only tests use it: move it to tests/ or delete it" for found in only_tests]
    wrong += [f"{found}: no file imports or names it: delete it" for found in orphans]
    idle = (BY_NAME | UNUSED | ONLY_TESTS | IN_C | MODULES).keys() - hits
    wrong += [f"tools/unused.py: {key}: it excuses nothing (any more): take it off" for key in sorted(idle)]
    print("\n".join(wrong) or "Unused functions and modules: none.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

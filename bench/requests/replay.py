"""python -m bench requests replay FILE: makes the plans of a live engine again and says whether they are the same.

FILE is the record that an engine wrote while it served (of a folder, all files in it, rotated ones too): its
configuration and, for each step, what it saw and what was planned. A plan is a function of these alone, so it must come
out equal to the bit, on any machine. The command exits with 1 when a plan differs."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from bench.requests.errors import UsageError
from mfsd.serve.records import Difference, RecordError, replay


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m bench requests replay",
        description=__doc__,
        epilog="""example:
  python -m bench requests replay decisions.jsonl""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("file", type=Path, metavar="FILE", help="a record, or a folder of records")
    return p


def describe(found: Difference) -> str:
    """Returns the first field in which the plans differ."""
    at = f"{found.path}:{found.line}"
    if found.replayed is None:
        return f"{at}: the plan fails here: {found.error}"
    recorded, again = msgspec.to_builtins(found.recorded), msgspec.to_builtins(found.replayed)
    name = next(field for field in recorded if recorded[field] != again[field])
    return f"{at}: {name} was {recorded[name]!r:.120}, is {again[name]!r:.120}"


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    try:
        found = replay(options.file)
    except RecordError as error:
        raise UsageError(str(error)) from error
    for path in found.cut:
        print(f"{path}: its last line is not whole and was left out")
    if found.steps == 0:
        raise UsageError(f"{options.file}: holds no plan; record plans while an engine serves")
    equal = found.steps - found.differing
    print(f"{equal} of {found.steps} plans in {found.files} file(s) are equal to the bit")
    if found.first is not None:
        print(describe(found.first))
    return 0 if found.equal else 1

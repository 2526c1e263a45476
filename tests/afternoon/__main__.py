"""Runs docs/afternoon.md as it stands: `python -m tests.afternoon`; with --write the page gets the answers."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.afternoon import console
from tests.afternoon.page import INSTALLED, PAGE, clean_system, keep, restore, without_install
from tests.afternoon.runner import Runner, ran
from tests.support.clean_system import missing


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.afternoon", description=__doc__)
    parser.add_argument(
        "--write", action="store_true", help="write the answers into the page instead of comparing them"
    )
    parser.add_argument(
        "--installed", action="store_true", help="take what was installed before, if nothing has changed"
    )
    arguments = parser.parse_args()
    write = arguments.write
    if why := missing():
        print(f"not possible here: {why}", file=sys.stderr)
        return 1
    page = console.read(PAGE.read_text())
    problems = []
    with tempfile.TemporaryDirectory(prefix="mfs-") as folder, clean_system(Path(folder)) as system:
        begin_s = time.monotonic()
        steps = page.steps
        if arguments.installed and restore(system, Path(folder)):
            steps = without_install(steps)
        for step, answered in ran(Runner(system), steps):
            if step.line == INSTALLED:
                keep(system, Path(folder))
            problem = "" if write else console.differs(step, answered)
            print(
                f"{time.monotonic() - begin_s:6.1f} s  {'DIFFERS' if problem else 'ok':8}{step.place}$ {step.line}",
                flush=True,
            )
            problems += [problem] if problem else []
            if write:
                step.answer = console.shown(step, answered)
    for step in page.steps:
        if step.skipped:
            print(f"not run   {'needs ' + step.notes['needs'] if 'needs' in step.notes else step.skipped}: {step.line}")
    if write:
        PAGE.write_text(console.written(page, lambda step: step.answer))
    print("\n\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

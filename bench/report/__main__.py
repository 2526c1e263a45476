"""python -m bench.report: runs every benchmark, one after the other, and writes docs/benchmarks.md."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from bench.report.page import page

ROOT = Path(__file__).resolve().parents[2]
NAMES = (
    *("ring", "rmlq", "permit", "permits", "shim", "idle", "fluid", "plan"),
    *("coordinator", "mooncake", "nixl", "nixl_plugin", "gate", "window", "nixl_beside"),
    *("gateway", "binding", "vectors"),
)


@click.command()
@click.option(
    "--only", multiple=True, type=click.Choice(NAMES), help="Run this benchmark; keep the others' last figures."
)
@click.option("--folder", default="out/bench", show_default=True, type=click.Path(path_type=Path))
@click.option("--page", "page_file", default="docs/benchmarks.md", show_default=True, type=click.Path(path_type=Path))
def main(only: tuple[str, ...], folder: Path, page_file: Path) -> None:
    """Run the benchmarks and write their figures as JSON (one file each) and as a page of tables.

    Exits 1 when a benchmark fails to run; a missed bar is shown in the page, not hidden in an exit code.
    """
    folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in only or NAMES:
        click.echo(f"measuring {name} ...", err=True)
        command = [sys.executable, "-m", "bench", "micro", name, "--json", str(folder / f"{name}.json")]
        if subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode != 0:
            failed.append(name)
    files = [folder / f"{name}.json" for name in NAMES]
    reports: dict[str, dict[str, Any]] = {file.stem: json.loads(file.read_text()) for file in files if file.exists()}
    page_file.write_text(page(reports))
    click.echo(f"wrote {page_file}" + (f"; failed: {', '.join(failed)}" if failed else ""), err=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

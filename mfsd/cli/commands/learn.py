"""``mfsctl learn``: makes a model of tool use and output lengths from recorded requests. Asks no daemon."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from mfsd.cli.daemon_call import EXIT_REFUSED
from mfsd.serve.learn.model import write
from mfsd.serve.learn.rows import RowsError, read_rows


@click.command(
    epilog="""\b
Examples:
  mfsctl learn --requests requests.jsonl --out lengths.model
  mfsctl learn --requests requests.jsonl --out lengths.model --json

\b
Each line of the requests is a JSON object with session_id, timestamp (s),
input_length and output_length (tokens), and where known role,
tools (how many the call may use), after_tool, tool_call (true or false) and
group (sessions that belong together). Requests of a session are in order of time.
A gateway records them, and predicts with the model ([predict] of its configuration).
Training needs the extra "learn": pip install 'mfsd[learn]'.
""",
)
@click.option(
    "--requests",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="Recorded requests, JSON lines.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="FILE", help="The model file to write.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def learn(requests: Path, out: Path, as_json: bool) -> None:
    """Learn from recorded requests whether a call uses a tool and how long its answer is.

    A fifth of the sessions is kept for the report: area under the curve (AUC) and F1 of tool use, mean error (MAE) and
    R2 of the tokens, and how many answers stay within their bounds."""
    try:
        train = importlib.import_module("mfsd.serve.learn.train")
        measure = importlib.import_module("mfsd.serve.learn.measure")
    except ImportError as error:
        _refused(f"learning needs {error.name}: pip install 'mfsd[learn]'")
    try:
        rows = read_rows(requests)
        if out.exists() and out.samefile(requests):
            _refused(f"--out {out} would replace the file of --requests: name another file")
        learned = train.learn(rows, lambda line: click.echo(line, err=True))
        measures = measure.measure(learned.model, learned.test)
        write(out, learned.model)
    except RowsError as error:
        _refused(str(error))
    except OSError as error:
        _refused(f"--out {out}: {error.strerror}; name a file that can be written")
    report = {"model": str(out), "learned_from": len(rows), **measure.as_json(measures)}
    click.echo(json.dumps(report) if as_json else text(report))


def _refused(problem: str) -> NoReturn:
    click.echo(f"mfsctl learn: {problem}", err=True)
    sys.exit(EXIT_REFUSED)


def text(report: dict[str, Any]) -> str:
    """Formats the report as lines."""
    lines = [f"{report['model']}: from {report['learned_from']} requests; measured on {report['requests']} others"]
    if report["auc"] is None:
        lines.append("tool use    not learned")
    else:
        lines.append(f"tool use    AUC {report['auc']:.3f}  F1 {report['f1']:.3f}  log loss {report['log_loss']:.3f}")
    lines.append(f"tokens      MAE {report['mae']:.0f}  R2 {report['r2']:.2f}")
    lines += [
        f"bound {1 - c['epsilon']:4.0%}  covers {c['covered']:.1%} of {c['bounded']}, in the mean "
        f"{c['mean_bound_tokens']:.0f} tokens"
        for c in report["coverage"]
    ]
    return "\n".join(lines)

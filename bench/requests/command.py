"""python -m bench requests: requests with deadlines, and programs of requests, on simulated engines.

The production rules (mfsd.policy.serve) plan which requests an engine computes next, and how many tokens of each; the
engines, their step times and the arrivals are simulated. docs/requests.md has the results and their limits."""

from __future__ import annotations

import importlib
import sys

from bench.requests.errors import UsageError
from bench.sim.cluster import ConfigError
from bench.sim.workload import TraceError

COMMANDS = {
    "run": "rows of a workload under policies, rates and seeds: who was late, and what the policy did",
    "capacity": "the most requests/s of which at most 1 % are late",
    "claims": "every claim of the papers and of ours: measured, against its bar",
    "replay": "whether recorded decisions come out the same again, to the bit",
    "compare": "a live engine's record beside the simulator: plans, steps, order of first tokens",
    "live": "two tiers at overload on a real vLLM on the CPU: its own scheduler and MFS's",
}


GOES_ON = "the --json file keeps finished parts, and the same command resumes from there"
STOPPED = {
    "replay": "nothing is kept; the same command starts again",
    "compare": "nothing is kept; the same command starts again",
    "live": "with --json its file keeps the finished pairs; the same command starts again and replaces it",
}
"""What Ctrl-C leaves, if that differs from the other commands."""


def usage() -> str:
    lines = [__doc__ or "", "", "usage: python -m bench requests COMMAND ... (each has --help)", ""]
    lines += [f"  {name:9} {purpose}" for name, purpose in COMMANDS.items()]
    lines += [
        "",
        "examples:",
        "  python -m bench requests run --policy fcfs,edf,qoserve --qps 2,3",
        "  python -m bench requests capacity --policy fcfs,edf,srpf,qoserve",
        "  python -m bench requests claims --quick",
    ]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    command = arguments[0] if arguments else "--help"
    if command not in COMMANDS:
        asked = command in ("-h", "--help")
        if not asked:
            print(f"bench requests {command}: no such command; use {', '.join(COMMANDS)}", file=sys.stderr)
            return 2
        print(usage())
        return 0
    try:
        return int(importlib.import_module(f"bench.requests.{command}").main(arguments[1:]))
    except (UsageError, ConfigError, TraceError, OSError) as error:
        print(f"bench requests {command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"bench requests {command}: stopped; {STOPPED.get(command, GOES_ON)}", file=sys.stderr)
        return 130

"""python -m bench {micro,sim,requests,testbed} ...: benchmarks, the cluster simulator, requests, the testbed."""

from __future__ import annotations

import importlib.util
import sys

COMMANDS = {
    "micro": "speed of one native part or of the coordinator",
    "sim": "a cluster in one process, running the production scheduler",
    "requests": "engines that serve requests with deadlines, planned by the production rules",
    "testbed": "real bytes between network namespaces",
}


def main(arguments: list[str]) -> int:
    command = arguments[0] if arguments else "--help"
    if command in COMMANDS and importlib.util.find_spec(f"bench.{command}.command") is not None:
        return int(importlib.import_module(f"bench.{command}.command").main(arguments[1:]))
    print("usage: python -m bench COMMAND ... (each has --help)\n")
    print("\n".join(f"  {name:8} {purpose}" for name, purpose in COMMANDS.items()))
    return 0 if command in ("-h", "--help") else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

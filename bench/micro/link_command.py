"""What `gate` and `window` share: their options, their progress, and how a case is kept when another one fails."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.micro.link import LinkError
from bench.sim.cluster import ConfigError
from bench.testbed.scale import parse_rate

ALMOST = 0.9
"""Of what a program could have: what MFS must leave it."""
_SIZE = re.compile(r"(\d+)\s*(kib|mib)", re.IGNORECASE)


def chosen(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Reads a list such as a,b: values that are known, each once."""

    def read(text: str) -> list[str]:
        for word in text.split(","):
            if word not in known:
                raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(known)}")
        return list(dict.fromkeys(text.split(",")))

    return read


def numbers(text: str) -> list[float]:
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write numbers separated by commas") from None
    if any(not 0 <= number < float("inf") for number in found):
        raise argparse.ArgumentTypeError(f"{text!r}: use 0 or more")
    return list(dict.fromkeys(found))


def counts(text: str) -> list[int]:
    found = numbers(text)
    if any(number != int(number) for number in found):
        raise argparse.ArgumentTypeError(f"{text!r}: use whole numbers")
    return [int(number) for number in found]


def sizes(text: str) -> list[int]:
    """Bytes of a list such as 256kib,1mib."""
    found = []
    for word in text.split(","):
        match = _SIZE.fullmatch(word.strip())
        if match is None or not int(match[1]):
            raise argparse.ArgumentTypeError(f"{word!r}: write a number and kib or mib, for example 256kib")
        found.append(int(match[1]) << (10 if match[2].lower() == "kib" else 20))
    return list(dict.fromkeys(found))


def seconds(text: str) -> float:
    found = numbers(text)[0]
    if found == 0:
        raise argparse.ArgumentTypeError("use more than 0 seconds")
    return found


def rate(text: str) -> float:
    try:
        return parse_rate(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error).replace("--link ", "")) from None


def size_text(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 and count % (1 << 20) == 0 else f"{count >> 10} KiB"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure_all(
    cases: Mapping[str, Callable[[], dict[str, Any]]],
    line_of: Callable[[dict[str, Any]], str],
    kept: Callable[[dict[str, Any]], object],
) -> dict[str, Any]:
    """Rows by name. `line_of` says a row in a line; `kept` gets all of them after each one. A case that cannot be
    measured says why and ends no other."""
    rows: dict[str, Any] = {}
    for number, (name, measure) in enumerate(cases.items(), 1):
        began_s = time.monotonic()
        try:
            rows[name] = measure()
            line = line_of(rows[name])
        except LinkError as error:
            rows[name] = {"failed": str(error)}
            line = f"not measured: {error}"
        kept(rows)
        say(f"[{number}/{len(cases)}] {name} ({time.monotonic() - began_s:.0f} s): {line}")
    return rows


def verdict(met: bool | None) -> str:
    return "nothing to judge" if met is None else "met" if met else "missed"


def tally(rows: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """How many cases met each bar, and how many could not be measured."""
    found: dict[str, Any] = {
        key: {
            word.replace(" ", "_"): sum(row.get(key) == word for row in rows.values())
            for word in ("met", "missed", "nothing to judge")
        }
        for key in keys
    }
    return found | {"failed": sum("failed" in row for row in rows.values())}

"""What replicas serve: calls that arrive at given times, and programs whose calls follow one another."""

from __future__ import annotations

import msgspec


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Raises ValueError naming the field if no engine could serve it."""

    prompt_tokens: int
    output_tokens: int
    """At least 1: the prefill makes the first."""
    arrival_s: float = 0.0
    """For a call in an open loop; a program's calls follow `Program.arrival_s`, `after` and `gap_s`."""
    tier: str = ""
    """Name under which measures are grouped."""
    model: str = ""
    """The model that it asks for, on a node of several (`node.model_name`)."""
    app: str = ""
    """Application whose history of output lengths the engine uses for this call; the tier if empty."""
    expected_tokens: float | None = None
    """What the engine expects of its output, if that is known, as for a recorded call."""
    ttft_s: float | None = None
    tbt_s: float | None = None
    ttlt_s: float | None = None
    importance: int = 1
    """Greater is more important; 1 and above count as important in measures."""
    tenant: str = ""
    weight: float = 1.0
    prefix_tokens: int = 0
    """Leading prompt tokens that earlier calls of the program had in their prompts or produced, which its cache may
    hold."""
    shared: str = ""
    shared_tokens: int = 0
    """Leading prompt tokens that all calls with the same `shared` have, of any program (a system prompt)."""
    after: tuple[int, ...] = ()
    """In a program: indices of the calls that must have ended before (several: a join). Empty: begins with the
    program."""
    then: str = ""
    """What runs after it, as an engine reads it from the output: a tool's name; empty: unknown."""
    gap_s: float = 0.0
    """From the last end among `after`, or from the program's arrival, to the call's arrival: thinking, tools."""

    def __post_init__(self) -> None:
        for name, low in (("prompt_tokens", 1), ("output_tokens", 1), ("prefix_tokens", 0), ("shared_tokens", 0)):
            if getattr(self, name) < low:
                raise ValueError(f"{name} is {getattr(self, name)}: use {low} or more")
        for name in ("arrival_s", "gap_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}: use seconds, 0 or more")


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """Calls that follow one another: chains (`after` the one before), fans and joins."""

    arrival_s: float
    calls: tuple[Call, ...]
    name: str = ""

    def __post_init__(self) -> None:
        if not self.calls:
            raise ValueError("calls is empty: a program has at least one call")
        for number, call in enumerate(self.calls):
            if any(not 0 <= before < number for before in call.after):
                raise ValueError(
                    f"calls[{number}].after is {call.after}: name calls that come before it in the program"
                )


def chain(arrival_s: float, calls: tuple[Call, ...], name: str = "") -> Program:
    """Returns a program of one call after the other, whatever their `after` says."""
    linked = tuple(msgspec.structs.replace(c, after=(n - 1,) if n else ()) for n, c in enumerate(calls))
    return Program(arrival_s=arrival_s, calls=linked, name=name)

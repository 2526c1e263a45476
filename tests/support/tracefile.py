"""Checks files in the Trace Event Format for what its readers need, and reads their events."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

Json = dict[str, Any]
NEEDED = {
    "X": {"name", "ts", "dur", "pid", "tid"},
    "b": {"name", "ts", "pid", "cat", "id2"},
    "e": {"name", "ts", "pid", "cat", "id2"},
    "n": {"name", "ts", "pid", "cat", "id2"},
    "C": {"name", "ts", "pid", "args"},
    "i": {"name", "ts", "pid", "tid", "s"},
    "M": {"name", "pid", "args"},
}


class TraceFile:
    """A checked file: every event has the fields that its phase needs, and the slices of every track nest."""

    def __init__(self, path: Path) -> None:
        self.document: Json = json.loads(path.read_text())
        self.events: list[Json] = self.document["traceEvents"]
        self.about: Json = self.document["mfs"]
        for event in self.events:
            assert event["ph"] in NEEDED, event
            assert NEEDED[event["ph"]] <= event.keys(), event
            assert isinstance(event["pid"], int) and isinstance(event.get("ts", 0.0), (int, float)), event
            if event["ph"] == "C":
                assert event["args"] and all(isinstance(v, (int, float)) for v in event["args"].values()), event
            if event["ph"] == "X":
                assert event["dur"] >= 0, event
        named = {e["pid"] for e in self.events if e["ph"] == "M" and e["name"] == "process_name"}
        assert {e["pid"] for e in self.events} == named == {n["pid"] for n in self.about["nodes"]}
        self.tracks = self._tracks()

    def _tracks(self) -> dict[tuple[int, str, str], list[Json]]:
        tracks: defaultdict[tuple[int, str, str], list[Json]] = defaultdict(list)
        for event in self.events:
            if event["ph"] in "ben":
                tracks[event["pid"], event["cat"], event["id2"]["local"]].append(event)
        for key, events in tracks.items():
            open_slices: list[Json] = []
            for event in sorted(events, key=lambda e: e["ts"]):  # stable: events of equal time keep their order
                if event["ph"] == "b":
                    open_slices.append(event)
                elif event["ph"] == "e":
                    assert open_slices and open_slices.pop()["name"] == event["name"], (key, event)
            assert not open_slices, key
        return tracks

    def flows(self) -> list[Json]:
        """Returns the flows, each with its args and with `submit`, `permit` and `over` in us (None: not recorded)."""
        found = []
        for (pid, category, _), events in self.tracks.items():
            if category == "flow":
                at = {(e["ph"], e["name"]): e["ts"] for e in events}
                whole = events[0]
                found.append(
                    {
                        **whole["args"],
                        "pid": pid,
                        "submit": at.get(("b", "wait")),
                        "permit": at.get(("b", "send")),
                        "over": at["e", whole["name"]],
                    }
                )
        return found

    def layers(self, batch: int) -> list[Json]:
        return sorted(
            (e for e in self.events if e["ph"] == "X" and e["args"]["batch"] == str(batch)), key=lambda e: e["ts"]
        )

    def request(self, request: int, pid: int = 1) -> dict[str, Json]:
        """Returns the events of a request by phase and name."""
        return {
            f"{e['ph']} {e['name']}": e
            for (p, category, local), events in self.tracks.items()
            if p == pid and category == "request" and local.endswith(f"-{request}")
            for e in events
        }

"""Which wait of a request is remembered, and behind whom it was."""

from __future__ import annotations

from mfsd.node.why import _longer, _Wait


def wait(task: str, waited_ns: int, ahead_tasks: int, rule: str) -> _Wait:
    return _Wait(waited_ns, 1, 11, task, "reuse", 100, waited_ns, ahead_tasks, 100 * ahead_tasks, rule, rule)


def test_the_longest_is_kept_with_the_most_that_was_ahead_of_it() -> None:
    behind, alone, other = wait("1:0:1", 5, 1, "RLI 3 before 5"), wait("1:0:1", 9, 0, ""), wait("1:1:1", 9, 0, "")
    assert _longer(behind, alone) == behind._replace(at_ns=9, waited_ns=9)
    assert _longer(behind, other) == other and _longer(other, behind) == other
    assert _longer(alone, wait("1:0:1", 9, 2, "rank 1 before 2")).ahead_tasks == 2

"""While a playground with a load runs: how many requests were in time lately, so that a change of mode is seen."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from mfsd.node.address import control_beside
from mfsd.node.control import StatusReply, StatusRequest
from mfsd.node.control_client import Refused, Unreachable, ask

EVERY_S = 10.0


def start(sockets: Sequence[Path], say: Callable[[str], None], every_s: float = EVERY_S) -> None:
    """Says a line each `every_s`, in a thread of its own, for as long as the process lives."""
    threading.Thread(target=_report, args=(sockets, say, every_s), daemon=True).start()


def _report(sockets: Sequence[Path], say: Callable[[str], None], every_s: float) -> None:
    before = seen(sockets)
    while True:
        time.sleep(every_s)
        now = seen(sockets)
        if line := lately(before, now, every_s):
            try:
                say(line)
            except OSError:  # the reader has gone, as `head` does; the playground is used by others, too
                return
        before = now


def seen(sockets: Sequence[Path]) -> list[StatusReply]:
    """Of the daemons that answer. sockets: those that programs attach to."""
    found = []
    for path in sockets:
        try:
            reply = ask(control_beside(path), StatusRequest())
        except (Unreachable, Refused):  # killed, and on its way back
            continue
        if isinstance(reply, StatusReply):
            found.append(reply)
    return found


def lately(before: Sequence[StatusReply], now: Sequence[StatusReply], seconds: float) -> str:
    """Of daemons that were there all the time; empty when none of their requests ended."""
    ended: Counter[str] = Counter()
    earlier = {reply.daemon.epoch: reply for reply in before}
    for reply in now:
        if (old := earlier.get(reply.daemon.epoch)) is not None:
            ended.update({k: n - old.events.get("ended", {}).get(k, 0) for k, n in reply.events["ended"].items()})
    counted = ended["met"] + ended["missed"]
    if not counted:
        return ""
    modes = "/".join(sorted({reply.daemon.mode for reply in now if reply.clients}))
    return f"{modes}: {ended['met'] / counted:.0%} of {counted} requests in time in the last {seconds:g} s"

"""Whether this user may use a scheduling policy."""

from __future__ import annotations

import os


def may(scheduler: int) -> bool:
    """Lets a child try the policy."""
    child = os.fork()
    if child == 0:
        try:
            os.sched_setscheduler(0, scheduler, os.sched_param(os.sched_get_priority_min(scheduler)))
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0

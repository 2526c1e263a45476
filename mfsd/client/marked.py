"""What `mfs-run --mode mark` has put into the environment of a process that marks its transfers itself."""

from __future__ import annotations

import logging
import os

from mfsd.policy.mark_text import VARIABLE, parse_marks
from mfsd.policy.marks import CLASSES_MAX, Marks, divided

log = logging.getLogger("mfsd.client")


def marks_of_environment() -> Marks | None:
    """The marks of `MFS_MARK`; None outside of mode mark. Text that cannot be read marks nothing, with a warning: a
    process in mode mark never asks a daemon."""
    if os.environ.get("MFS_MODE") != "mark":
        return None
    try:
        return parse_marks(os.environ.get(VARIABLE, ""))
    except ValueError as error:
        log.warning("%s: %s; nothing is marked: start the program with mfs-run --mode mark", VARIABLE, error)
        return Marks((None,) * CLASSES_MAX, divided(CLASSES_MAX).by_stage(), {})

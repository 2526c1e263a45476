"""Reads the marks that `mfs-run --mode mark` has put into the environment of a process."""

from __future__ import annotations

import logging
import os

from mfsd.policy.mark_text import VARIABLE, parse_marks
from mfsd.policy.marks import CLASSES_MAX, Marks, divided

log = logging.getLogger("mfsd.client")


def marks_of_environment() -> Marks | None:
    """Returns the marks of `MFS_MARK`, or None outside of mode mark.

    If they cannot be read, nothing is marked and a warning is logged: a process in mode mark never asks a daemon.
    """
    if os.environ.get("MFS_MODE") != "mark":
        return None
    try:
        return parse_marks(os.environ.get(VARIABLE, ""))
    except ValueError as error:
        log.warning("%s: %s; nothing is marked: start the program with mfs-run --mode mark", VARIABLE, error)
        return Marks((None,) * CLASSES_MAX, divided(CLASSES_MAX).by_stage(), {})

"""Starts modules of this installation as programs, whatever the current folder is.

``python -m`` searches the current folder first. Started as root in another user's folder, it would run that user's
``mfsd``, or a module there with the name of one of the standard library.
"""

from __future__ import annotations

import sys
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
"""The folder that contains this package: of the installation, or a checkout."""
_START = (
    "import sys; "
    "sys.path[:] = [p for p in sys.path if p]; "  # the current folder; `python -P` is of 3.11 and later
    "home, name = sys.argv.pop(1), sys.argv.pop(1); "
    "home in sys.path or sys.path.insert(0, home); "
    "import runpy; runpy.run_module(name, run_name='__main__', alter_sys=True)"
)


def python_module(name: str) -> list[str]:
    """Returns the command that runs the module with this Python, from any folder. Append the module's arguments."""
    return [sys.executable, "-c", _START, str(HOME), name]

"""How this installation starts modules of its own as programs.

``python -m`` looks for modules in the current folder first. Started as root in another user's folder it would run that
one's ``mfsd``, or any module of a name that the standard library has.
"""

from __future__ import annotations

import sys
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
"""Where this package is: the installation's folder, or a checkout."""
_START = (
    "import sys; "
    "sys.path[:] = [p for p in sys.path if p]; "  # the current folder; `python -P` is of 3.11 and later
    "home, name = sys.argv.pop(1), sys.argv.pop(1); "
    "home in sys.path or sys.path.insert(0, home); "
    "import runpy; runpy.run_module(name, run_name='__main__', alter_sys=True)"
)


def python_module(name: str) -> list[str]:
    """The command that runs the module with this Python, wherever it is started; its arguments come after."""
    return [sys.executable, "-c", _START, str(HOME), name]

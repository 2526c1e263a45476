"""The C interface of MFS (mfs/api.h, mfs/client.h, mfs/abi.h) for Python, made by cffi from the installed headers.

``lib`` has the functions, constants and enumerations; ``ffi`` makes and reads structures. docs/api.md has an example. A
program that attaches with this module needs nothing else of the package. mfsd/_build/capi.py writes it in the build.
"""

from typing import Any

ffi: Any
lib: Any

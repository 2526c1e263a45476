"""The C interface of MFS (mfs/api.h, mfs/client.h, mfs/abi.h) for Python, by cffi from the installed headers.

``lib`` has the functions, constants and enumerations, ``ffi`` makes and reads structures: docs/api.md has an example. A
program that attaches by it needs nothing else of this package. Written by mfsd/_build/capi.py when MFS is built.
"""

from typing import Any

ffi: Any
lib: Any

# cython: language_level=3, boundscheck=False, wraparound=False
"""Native parts of MFS for Python."""

include "_fluid.pxi"

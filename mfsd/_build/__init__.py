"""Generates binding sources from the headers in csrc/include/mfs. For setup.py and tests; not in the wheel."""

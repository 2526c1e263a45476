"""What the build makes of the headers in csrc/include/mfs. Used by setup.py and tests; not in the wheel."""

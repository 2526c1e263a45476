"""Launcher of a software RoCE device for any Linux host. The device itself is in csrc/soft_roce."""

"""A RoCE device in software for any Linux host: its launcher. The device itself is csrc/soft_roce."""

"""A RoCE device in software for any Linux host: the launcher and what it sets up (the device itself is csrc/soft_roce)."""

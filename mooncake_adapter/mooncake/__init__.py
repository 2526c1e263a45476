"""Mooncake: transfers of its engine and of its store are permitted before they are issued."""

"""What a port has still to receive, between two readings of it."""

from mfsd.serve.gateway.owed import ANNOUNCED_S, Owed


def test_what_was_sent_counts_until_readings_have_it() -> None:
    owed = Owed()
    owed.send(5, 9.0)
    assert owed.expected_bytes is None, "nothing is known to add it to"
    owed.read(100, 1000, 10.0)
    assert owed.expected_bytes == 100
    owed.send(7, 10.0)
    owed.send(0, 10.0)
    assert (owed.expected_bytes, owed.read_bytes) == (107, 100)
    owed.read(100, 1000, 10.0 + ANNOUNCED_S)
    assert owed.expected_bytes == 107, "too early to have it"
    owed.read(107, 2000, 10.01 + ANNOUNCED_S)
    assert (owed.expected_bytes, owed.rate_bytes_per_s) == (107, 2000)
    owed.send(3, 11.0)
    owed.forget()
    assert owed.expected_bytes is None
    owed.read(1, 1000, 11.0)
    assert owed.expected_bytes == 1

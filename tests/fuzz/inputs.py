"""Inputs for the targets in Python: mutations of good messages, each known by its seed and number alone."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

BETWEEN = b"\x00|\x00"
"""Stands between the messages of one input, for targets that read several."""
INPUT_BYTES_MAX = 65536
WORDS = (
    *(
        b"\x00",
        b"\xff",
        b"\x80",
        b"\n",
        b"\r\n",
        b"\x1b[31m",
        b'"',
        b"'",
        b"{",
        b"}",
        b"[",
        b"]",
        b"]]",
        b"=",
        b"-",
        b".",
        b",",
    ),
    *(b"0", b"-1", b"1e999", b"nan", b"inf", b"true", b"null", b"9" * 400, b"9" * 5000, b"18446744073709551616"),
    *(
        b"[" * 3000,
        b'{"a":' * 3000,
        b"\xed\xa0\x80",
        b"\xf0\x9f\x92\xa9",
        "\u2028".encode(),
        b"../",
        b"%s%n",
        b"A" * 300,
    ),
)


def messages(data: bytes) -> list[bytes]:
    return data.split(BETWEEN)


def mutations(good: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """Endless. The good ones come first, as they are."""
    yield from good
    number = 0
    while True:
        number += 1
        chance = random.Random(seed << 32 | number)
        data = bytearray(chance.choice(good))
        for _ in range(chance.choice((1, 1, 1, 2, 3, 5, 8))):
            _mutate(data, good, chance)
        yield bytes(data[:INPUT_BYTES_MAX])


def _mutate(data: bytearray, good: Sequence[bytes], chance: random.Random) -> None:
    at = chance.randrange(len(data) + 1)
    end = min(len(data), at + chance.choice((1, 1, 2, 4, 8, 32)))
    kind = chance.randrange(9)
    if kind == 0 and at < len(data):
        data[at] ^= 1 << chance.randrange(8)
    elif kind == 1:
        data[at:end] = chance.randbytes(end - at)
    elif kind == 2:
        del data[at:end]
    elif kind == 3:
        data[at:at] = chance.choice(WORDS)
    elif kind == 4:
        data[at:end] = chance.choice(WORDS)
    elif kind == 5:
        del data[at:]
    elif kind == 6:
        data[at:at] = data[at:end] * chance.choice((1, 2, 50))
    elif kind == 7:  # the beginning of one, the end of another
        other = chance.choice(good)
        data[at:] = other[chance.randrange(len(other) + 1) :]
    else:  # a word of the text, or a number, becomes another
        _mutate_word(data, chance)


def _mutate_word(data: bytearray, chance: random.Random) -> None:
    text = data.decode("latin-1")
    words = [word for word in text.replace("\n", " ").split(" ") if word]
    if words:
        word = chance.choice(words)
        at = text.find(word)
        new = chance.choice((chance.choice(words).encode("latin-1"), chance.choice(WORDS), b""))
        data[at : at + len(word)] = new

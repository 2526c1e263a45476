"""Makes the words of a request safe to use. An impossible value is counted and becomes a default, with one warning per
kind."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from mfsd.policy.serve.config import DAY_S
from mfsd.serve.settings import IMPORTANCE_MAX, NO_TIER, Settings, Tier

NAME_MAX: Final = 64
"""Most characters of a session, tenant, role or application. Longer names are cut, and a digest keeps them different.
"""
IMPORTANCE: Final = {"low": -1, "normal": 0, "high": 1}
TOKENS_MAX: Final = 1 << 30
_DAY_MS: Final = DAY_S * 1e3

Warn = Callable[[str, str], object]
"""Called with kind and text; the receiver reports each kind once."""


class Words(NamedTuple):
    """The words of a request, unchecked."""

    ttft_ms: object = None
    tbt_ms: object = None
    ttlt_ms: object = None
    tier: object = ""
    importance: object = None
    tenant: object = ""
    session: object = ""
    parent: object = ""
    """The session that started this one."""
    role: object = ""
    application: object = ""
    expected_output_tokens: object = None


class Wanted(NamedTuple):
    """The checked values that apply to a request."""

    ttft_s: float | None = None
    tbt_s: float | None = None
    ttlt_s: float | None = None
    tier: str = NO_TIER
    importance: int = 0
    tenant: str = ""
    weight: float = 1.0
    session: str = ""
    parent: str = ""
    role: str = ""
    application: str = ""
    expected_output_tokens: float | None = None
    """0: the request's value cannot be used; None: it has none."""


class Reader:
    """Turns Words into Wanted by the configured tiers, and counts values that it cannot use."""

    def __init__(self, settings: Settings, warn: Warn) -> None:
        self._settings, self._warn = settings, warn
        self.unusable: Counter[str] = Counter()
        """Number of unusable values, by word."""

    def wanted(self, words: Words, decode_step_s: float = 0.0) -> Wanted:
        """Checks the words of a request. decode_step_s: the shortest possible time between tokens."""
        name, tier = self._tier(words.tier)
        tenant = self._name("tenant", words.tenant)
        return Wanted(
            ttft_s=self._slo("ttft", words.ttft_ms, tier.ttft_ms),
            tbt_s=self._slo("tbt", words.tbt_ms, tier.tbt_ms, decode_step_s),
            ttlt_s=self._slo("ttlt", words.ttlt_ms, tier.ttlt_ms),
            tier=name,
            importance=self._importance(words.importance, tier.importance),
            tenant=tenant,
            weight=self._settings.tenants.get(tenant, 1.0),
            session=self._name("session", words.session),
            parent=self._name("parent", words.parent),
            role=self._name("role", words.role),
            application=self._name("application", words.application),
            expected_output_tokens=self._tokens(words.expected_output_tokens),
        )

    def _cannot_use(self, word: str, text: str) -> None:
        self.unusable[word] += 1
        self._warn(f"serve-{word}", text)

    def _slo(self, word: str, value: object, of_tier_ms: float | None, at_least_s: float = 0.0) -> float | None:
        """Returns a target in seconds. An impossible value means no deadline, not that of the tier."""
        name = f"{word}_slo_ms"
        number = of_tier_ms if value is None else _number(value)
        if number is None:
            if value is not None:
                self._cannot_use(word, f"{name} is {value!r:.40}: use milliseconds; the request has no such deadline")
            return None
        if not 0 < number < _DAY_MS:  # written so that NaN fails
            allowed = f"milliseconds above 0 and below {_DAY_MS:g}"
            self._cannot_use(word, f"{name} is {value!r:.40}: use {allowed}; the request has no such deadline")
            return None
        if number < at_least_s * 1e3:
            least = f"nothing is faster than {at_least_s * 1e3:.3g} ms here, which is used"
            self._cannot_use(word, f"{name} is {number:g}: {least}")
            return at_least_s
        return number / 1e3

    def _tokens(self, value: object) -> float | None:
        if value in ("", None):
            return None
        number = _number(value)
        if number is not None and 1 <= number <= TOKENS_MAX:  # written so that NaN fails
            return number
        text = f"expected_output_tokens is {value!r:.40}: use 1 to {TOKENS_MAX}; its length counts as unknown"
        self._cannot_use("expected_output_tokens", text)
        return 0.0

    def _tier(self, value: object) -> tuple[str, Tier]:
        if value in ("", None):
            return NO_TIER, self._settings.default
        tier = self._settings.tiers.get(value) if isinstance(value, str) else None
        if tier is None:
            known = ", ".join(self._settings.tiers) or "none is configured"
            self._cannot_use("tier", f"tier is {value!r:.80}: not one of the tiers ({known}); the default holds")
            return NO_TIER, self._settings.default
        return str(value), tier

    def _importance(self, value: object, of_tier: int) -> int:
        if value in ("", None):
            return of_tier
        if isinstance(value, str):
            word = value.strip().lower()
            if word in IMPORTANCE:
                return IMPORTANCE[word]
            digits = word.removeprefix("-").removeprefix("+")
            number = int(word) if digits.isascii() and digits.isdigit() and len(digits) < 6 else None
        elif isinstance(value, float):
            number = int(value) if value.is_integer() else None
        else:
            number = value if isinstance(value, int) and not isinstance(value, bool) else None
        if number is None or abs(number) > IMPORTANCE_MAX:
            allowed = f"low, normal, high or {-IMPORTANCE_MAX} to {IMPORTANCE_MAX}"
            self._cannot_use("importance", f"importance is {value!r:.80}: use {allowed}; the tier's holds")
            return of_tier
        return number

    def _name(self, word: str, value: object) -> str:
        """Returns one printable line of at most NAME_MAX characters."""
        if value in ("", None):
            return ""
        if not isinstance(value, str | int) or isinstance(value, bool):
            self._cannot_use(word, f"{word} is {value!r:.80}: use text; the request has none")
            return ""
        text = str(value)
        if len(text) <= NAME_MAX and text.isprintable():
            return text
        self._cannot_use(word, f"{word} has {len(text)} characters or some that cannot be printed; it is shortened")
        kept = "".join(c if c.isprintable() else "?" for c in text[: NAME_MAX - 9])
        return f"{kept}~{hashlib.blake2b(text.encode(errors='replace'), digest_size=4).hexdigest()}"


def _number(value: object) -> float | None:
    """Returns the number that the value is, or that its text has; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None

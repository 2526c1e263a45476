"""Where the daemon takes its devices' rates from."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from mfsd.node import discovery
from mfsd.node.discovery import Discovery
from mfsd.verbs.ask import Device, Devices, Port, VerbsFailed, VerbsMissing


class Lines:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **values: object) -> None:
        self.lines.append((event, {name: str(value) for name, value in values.items()}))


def answer(**rates: int) -> Devices:
    return Devices("Python", {n: Device(ports={1: Port("ACTIVE", "Ethernet", r, 4096, {})}) for n, r in rates.items()})


class Verbs:
    """Answers in their order; the last again and again."""

    def __init__(self, *answers: Devices | Exception) -> None:
        self.answers = [*answers]
        self.asked = 0

    async def __call__(self) -> Devices:
        one = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        if isinstance(one, Exception):
            raise one
        return one


def kept(verbs: Verbs, sysfs: dict[str, int], then: Callable[[Discovery], Awaitable[None]], monkeypatch) -> Lines:
    monkeypatch.setattr(discovery, "INTERVAL_S", 0.0)
    lines = Lines()

    async def main() -> None:
        found = Discovery(lines, verbs, lambda: dict(sysfs))
        changes: list[dict[str, int]] = []
        found.changes = changes  # type: ignore[attr-defined]
        task = asyncio.create_task(found.keep(lambda: changes.append(found.rates())))
        await then(found)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), 60))
    return lines


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


def test_libibverbs_goes_before_sysfs(monkeypatch) -> None:
    sysfs = {"a": 1, "b": 2, "unopened": 3}
    verbs = Verbs(answer(a=10, b=0, elsewhere=7))

    async def then(found: Discovery) -> None:
        assert found.rates() == sysfs, "until it has answered"
        await until(lambda: bool(found.changes))  # type: ignore[attr-defined]
        assert found.rates() == {"a": 10, "b": 2, "unopened": 3}

    lines = kept(verbs, sysfs, then, monkeypatch)
    assert lines.lines == [("devices", {"source": "libibverbs", "python": "Python"})]


def test_a_rate_that_changes_is_noticed_when_rates_are_asked_for(monkeypatch) -> None:
    async def then(found: Discovery) -> None:
        await until(lambda: len(found.changes) == 1)  # type: ignore[attr-defined]
        found.rates()
        await until(lambda: len(found.changes) == 2)  # type: ignore[attr-defined]
        assert found.rates() == {"a": 20}

    assert len(kept(Verbs(answer(a=10), answer(a=20)), {"a": 1}, then, monkeypatch).lines) == 1


def test_without_pyverbs_sysfs_is_used_and_nothing_is_tried_again(monkeypatch) -> None:
    verbs = Verbs(VerbsMissing("no pyverbs"))

    async def then(found: Discovery) -> None:
        await until(lambda: verbs.asked == 1)
        for _ in range(100):
            assert found.rates() == {"a": 1}
            await asyncio.sleep(0)

    assert kept(verbs, {"a": 1}, then, monkeypatch).lines == [("devices", {"source": "sysfs", "why": "no pyverbs"})]
    assert verbs.asked == 1


def test_a_failure_is_said_once_and_tried_again(monkeypatch) -> None:
    verbs = Verbs(VerbsFailed("hangs"), VerbsFailed("hangs"), answer(a=5))

    async def then(found: Discovery) -> None:
        while not found.changes:  # type: ignore[attr-defined]
            found.rates()
            await asyncio.sleep(0)

    lines = kept(verbs, {"a": 1}, then, monkeypatch)
    assert [values["source"] for _, values in lines.lines] == ["sysfs", "libibverbs"]


def test_a_host_without_devices_is_not_asked_about(monkeypatch) -> None:
    verbs = Verbs(answer())

    async def then(found: Discovery) -> None:
        for _ in range(100):
            found.rates()
            await asyncio.sleep(0)

    assert kept(verbs, {}, then, monkeypatch).lines == [] and verbs.asked == 0

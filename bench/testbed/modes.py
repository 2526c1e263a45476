"""The modes that are compared: who decides the order in which bytes leave, and the priority on which they travel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from bench.sim.cluster import ConfigError
from bench.sim.serve import SCHEDULERS
from mfsd.policy.marks import divided
from mfsd.policy.types import NS_PER_S

CLASSES = 8
BY_SIZE = divided(CLASSES, background=False)
"""Classes of the mode that marks by stage and size: nothing here is background traffic."""


class Mode(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    says: str
    reuse_class: int = CLASSES - 1
    collective_class: int = 0
    p2d_class: int = CLASSES - 1
    policy: dict[str, Any] | None = None
    """The [policy] table of the daemons, durations in the cluster's time; None: no daemon."""
    coordinator: bool = False
    by_size: bool = False
    """Whether the sender also marks a transfer by its size, without a daemon."""
    scheduler: str = "fcfs"
    """Which queued requests a unit computes together: one of SCHEDULERS."""
    reuse: str = "always"
    """Whether reused KV is fetched or computed again: one of REUSE."""
    loads_alone: bool = False
    """Whether loads of queued requests are announced as batches of one, so that variant `paper` ranks them."""
    by_backlog: bool = False
    """Whether a request's decode worker is chosen as it arrives, by what the workers' ports owe."""
    apart: bool = True
    """Whether classes travel separately; if not, each stage has one lane, and all lanes have one class."""

    @property
    def scheduled(self) -> bool:
        return self.policy is not None

    def lanes(self, stage: int) -> list[int]:
        """Returns the classes that messages of the stage may travel on."""
        if stage == 2:
            return [self.collective_class]
        if self.scheduled and self.apart:
            return list(range(CLASSES))
        if self.by_size:
            return list(BY_SIZE.reuse if stage == 1 else BY_SIZE.p2d)
        return [self.reuse_class if stage == 1 else self.p2d_class]


MODES = {
    mode.name: mode
    for mode in (
        Mode(name="fifo", says="no scheduler: one queue for all", collective_class=CLASSES - 1),
        Mode(name="dscp", says="a fixed priority for each stage on the wire", reuse_class=1, p2d_class=2),
        Mode(
            name="dscp-size",
            says="a priority on the wire by stage and size, four classes of loads and three of last stages; no daemon",
            collective_class=BY_SIZE.collective,
            reuse_class=BY_SIZE.reuse[-1],
            p2d_class=BY_SIZE.p2d[-1],
            by_size=True,
        ),
        Mode(
            name="static",
            says="stage order in host queue and on the wire, deadlines among stage 3; no coordinator",
            policy={"variant": "mfs", "critical_laxity_share": 0.0, "soon_ns": 0, "drop_budget": 0.0},
        ),
        Mode(
            name="paper",
            says="the paper's rule calibrated as in the simulator, with coordinator",
            collective_class=1,
            policy={"variant": "paper", "threshold_top": 1.0, "load_time_constant_ns": NS_PER_S},
            coordinator=True,
            loads_alone=True,
        ),
        Mode(
            name="paper-defaults",
            says="the paper's rule with the daemon's defaults, with coordinator",
            collective_class=1,
            policy={"variant": "paper"},
            coordinator=True,
        ),
        Mode(name="mfs", says="MFS's default rule, with coordinator", policy={"variant": "mfs"}, coordinator=True),
    )
}


WIRE_ONLY = ("dscp", "dscp-size")
"""Modes that have no effect without classes on the wire."""


REUSE = {
    "always": "it is fetched",
    "slo": "computed again where the outlook page says that it would be late, and it is in time without",
    "cost": "computed again where that gains more time than it takes of the requests that queue",
}
"""Rules of `mfsd.policy.serve.fetch`; each prefill worker reads the outlook page of its node's daemon."""
BACKLOG = "backlog"
"""Suffix of modes that choose decode workers."""
BACKLOG_SAYS = "decode workers by what their ports owe, as the coordinator says"
WITH_REQUESTS = "mfs+fit+slo"
"""The network and the requests: MFS, batches by deadline, and reuse by what the network owes."""


def with_requests(mode: Mode, scheduler: str, reuse: str) -> Mode:
    """Returns the mode with another order of requests. Raises ConfigError."""
    if scheduler not in SCHEDULERS:
        raise ConfigError(f"--scheduler {scheduler}: use one of {', '.join(SCHEDULERS)}")
    if reuse not in REUSE:
        raise ConfigError(f"--reuse {reuse}: use one of {', '.join(REUSE)}")
    return msgspec.structs.replace(mode, scheduler=scheduler, reuse=reuse)


def _found(name: str, scheduler: str, reuse: str) -> Mode | None:
    """Returns a mode by its name, such as mfs, mfs+fit+slo or mfs+backlog."""
    network, *added = name.split("+")
    if network not in MODES or not all(word in SCHEDULERS or word in REUSE or word == BACKLOG for word in added):
        return None
    says = [MODES[network].says]
    for word in added:
        if word == BACKLOG:
            says.append(BACKLOG_SAYS)
        elif word in SCHEDULERS:
            scheduler = word
            says.append(f"units fill batches by {word}: {SCHEDULERS[word][0]}")
        else:
            reuse = word
            says.append(f"reuse by {word}: {REUSE[word]}")
    mode = with_requests(MODES[network], scheduler, reuse)
    return msgspec.structs.replace(mode, name=name, says="; ".join(says), by_backlog=BACKLOG in added)


def parse_modes(text: str | None, lanes: bool = True, scheduler: str = "fcfs", reuse: str = "always") -> list[Mode]:
    """Returns the modes of a list such as fifo,mfs,mfs+fit+slo, each once; None: all. `scheduler` and `reuse` apply to
    names that have none. Raises ConfigError naming the modes that exist."""
    if text is None:
        text = ",".join(name for name in MODES if lanes or name not in WIRE_ONLY)
    names = list(dict.fromkeys(text.split(",")))
    modes = []
    for name in names:
        mode = _found(name, scheduler, reuse)
        if mode is None:
            raise ConfigError(
                f"--modes {text}: {name!r} is none of {', '.join(MODES)}, alone or with +SCHEDULER, +REUSE and "
                f"+{BACKLOG}, such as {WITH_REQUESTS}"
            )
        if mode.by_backlog and not mode.coordinator:
            known = ", ".join(each.name for each in MODES.values() if each.coordinator)
            raise ConfigError(f"--modes {text}: {name!r} has no coordinator that says what ports owe; use {known}")
        if name.partition("+")[0] in WIRE_ONLY and not lanes:
            raise ConfigError(f"--modes {text}: {name!r} is priorities on the wire, which --no-lanes takes away")
        modes.append(mode if lanes else on_one_lane(mode))
    return modes


def on_one_lane(mode: Mode) -> Mode:
    """Returns the mode with all traffic on one class: only the hosts' order is left."""
    lowest = CLASSES - 1
    return msgspec.structs.replace(
        mode,
        says=mode.says.replace(" and on the wire", ""),
        apart=False,
        reuse_class=lowest,
        collective_class=lowest,
        p2d_class=lowest,
    )


def check_fetch(modes: Sequence[Mode], fetch: str) -> None:
    """Raises ConfigError if a mode decides about reuse that is fetched layer by layer, and so cannot wait for it, or if
    it has no daemon, which would know what the network owes."""
    for mode in modes:
        if mode.reuse == "always":
            continue
        if fetch != "loaded":
            raise ConfigError(
                f"mode {mode.name}, reuse {mode.reuse}, --fetch {fetch}: what is fetched layer by layer is computed "
                "with; use --fetch loaded"
            )
        if not mode.scheduled:
            known = ", ".join(name for name, each in MODES.items() if each.scheduled)
            raise ConfigError(f"mode {mode.name}, reuse {mode.reuse}: nothing knows what the network owes; use {known}")


def rotated(modes: list[Mode], turn: int) -> list[Mode]:
    """Returns the order of a round: every mode gets every place in turn, so that a drift of the machine affects all
    alike."""
    return modes[turn % len(modes) :] + modes[: turn % len(modes)]

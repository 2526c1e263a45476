"""Models that take turns in the memory of units: how many there are, which one a request asks for, and how fast
weights load. Which unit a request goes to is in routing.py, the run in activations.py."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

from mfsd.policy.workflow import ModelProfile, TierSpeeds, only_memory

if TYPE_CHECKING:
    from bench.sim.profile import Model
    from bench.sim.workload import Row

WEIGHTS_FROM = {
    "units": "from the memory of another unit, over the NICs",
    "host": "from the unit's own host memory, which has all models; nothing crosses the network",
}


class UnitModels(msgspec.Struct, frozen=True, kw_only=True):
    """Models of one shape that every unit may run."""

    count: int = 4
    running: int = 1
    """How many a unit has memory for at once. It computes one at a time."""
    skew: float = 1.0
    """The k-th model has 1 / k^skew of the first one's requests."""
    weights_from: str = "units"
    """See WEIGHTS_FROM."""
    start_s: float = 0.3
    """Of every activation beside its weights; the contexts of all models stay."""
    host_bytes_per_s: int = 20_000_000_000
    """From host memory to a GPU."""

    @property
    def problem(self) -> str | None:
        """What is wrong with a value: its name, the value and the remedy."""
        if self.count < 2:
            return f"count {self.count}: use at least 2"
        if not 1 <= self.running <= self.count:
            return f"running {self.running}: use 1 to count, {self.count}"
        if not 0 <= self.skew < float("inf"):
            return f"skew {self.skew:g}: use a number of at least 0"
        if self.weights_from not in WEIGHTS_FROM:
            return f"weights_from {self.weights_from}: use one of {', '.join(WEIGHTS_FROM)}"
        if not 0 <= self.start_s < float("inf"):
            return f"start_s {self.start_s:g}: use a number of at least 0"
        if self.host_bytes_per_s < 1:
            return f"host_bytes_per_s {self.host_bytes_per_s}: use at least 1"
        return None


def model_of(models: UnitModels, row: Row, seed: int) -> int:
    """Returns the model that the request asks for, by its first block: models share no KV."""
    prompt = row.blocks[0] if row.blocks else f"session {row.session}"
    shares = [(k + 1) ** -models.skew for k in range(models.count)]
    return random.Random(f"unit model {seed} {prompt}").choices(range(models.count), shares)[0]


def profile_of(model: Model) -> ModelProfile:
    """Returns what residency and activations depend on."""
    return only_memory("", model.weights_bytes)


def speeds_of(models: UnitModels, model: Model, remote_bytes_per_s: float) -> TierSpeeds:
    """Returns the speeds of a unit, each of whose GPUs loads its part of the weights; given that of all its NICs."""
    return TierSpeeds(
        host_bytes_per_s=models.host_bytes_per_s * model.instance_gpus,
        remote_bytes_per_s=round(remote_bytes_per_s),
        wake_s=models.start_s,
        start_s=models.start_s,
    )

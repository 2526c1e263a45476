"""Links of a cluster and the paths that flows take over them.

NIC numbers: prefill GPUs 0..P-1 (one NIC each, or several GPUs of a server share the first one's), decode NICs
P..P+D-1, then those of a KV store. Links: every NIC's egress and ingress, every prefill GPU's NVSwitch port in both
directions and, on a fat-tree, the links between racks and cores, which ECMP chooses by hash. A non-blocking fabric
without collisions ("nic-only") has only the NICs' links.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from mfsd._native import Fluid, FluidPath

NVSWITCH_BYTES_PER_S = 450e9  # one direction


class Path(msgspec.Struct):
    """A flow's links with its share on each, and the rate it gets alone."""

    native: FluidPath
    shares: dict[int, float]
    isolated_rate: float  # bytes/s
    connections: float  # flows it stands for on its busiest link; determines its weight under fair sharing
    source: int  # first NIC it leaves from, in whose host queue it waits

    @property
    def weight(self) -> float:
        return self.connections / max(self.shares.values())


class Topology:
    """A cluster of prefill servers and decode NICs around one fabric."""

    def __init__(
        self,
        prefill_nics: int,
        decode_nics: int,
        link_bytes_per_s: float,
        server_gpus: int = 8,
        fabric: str = "nic-only",
        oversubscription: float = 1.0,
        rack_nics: int = 32,
        seed: int = 0,
        store_nics: int = 0,
        nics_per_server: int | None = None,
    ) -> None:
        self.prefill_nics = prefill_nics
        self.nics = prefill_nics + decode_nics + store_nics
        self.first_store_nic = prefill_nics + decode_nics
        self.shared_by = server_gpus // nics_per_server if nics_per_server else 1  # GPUs to a NIC
        self.link = link_bytes_per_s
        self.server_gpus = server_gpus
        self.fabric = fabric
        self.seed = seed
        self.capacities = [link_bytes_per_s] * (2 * self.nics) + [NVSWITCH_BYTES_PER_S] * (2 * prefill_nics)
        self.rack_nics = rack_nics
        if fabric == "fat-tree":
            # Each rack reaches each spine by as many links of NIC speed as keep the wanted ratio.
            self.racks = -(-self.nics // rack_nics)
            self.spines = max(1, round(rack_nics / oversubscription))
            self.first_uplink = len(self.capacities)
            self.capacities += [link_bytes_per_s] * (2 * self.racks * self.spines)
        elif fabric != "nic-only":
            raise ValueError(f"fabric is {fabric!r}: use nic-only or fat-tree")

    def network(self) -> Fluid:
        return Fluid(self.capacities)

    def port(self, nic: int) -> int:
        """Returns the NIC that has this number's link: if GPUs of a server share one, the first of them."""
        if self.shared_by == 1 or nic >= self.first_store_nic:
            return nic
        first = self.prefill_nics if nic >= self.prefill_nics else 0
        return nic - (nic - first) % self.shared_by

    def ports(self, nics: Iterable[int]) -> int:
        """Returns how many links these NICs have."""
        return len({self.port(nic) for nic in nics})

    def _pair(self, source: int, target: int, salt: int) -> tuple[int, ...]:
        p = self.prefill_nics
        if source < p and target < p and source // self.server_gpus == target // self.server_gpus:
            return (2 * self.nics + source, 2 * self.nics + p + target)
        links = [self.port(source), self.nics + self.port(target)]
        if self.fabric == "fat-tree":
            rack, other = source // self.rack_nics, target // self.rack_nics
            if rack != other:
                spine = hash((self.seed, source, target, salt)) % self.spines  # ECMP: a flow keeps its path
                links.append(self.first_uplink + rack * self.spines + spine)
                links.append(self.first_uplink + (self.racks + other) * self.spines + spine)
        return tuple(links)

    def path(self, pairs: Iterable[tuple[int, int, float]], connections: float = 1.0, salt: int = 0) -> Path:
        """Returns a coupled flow over (source NIC, target NIC, share of the bytes): all parts progress together."""
        shares: dict[int, float] = {}
        first = -1
        for source, target, share in pairs:
            if share <= 0:
                continue
            first = self.port(source) if first < 0 else first
            for link in self._pair(source, target, salt):
                shares[link] = shares.get(link, 0.0) + share
        return self._finish(shares, connections, first)

    def hose(self, out: Mapping[int, float], into: Mapping[int, float], connections: float, salt: int = 0) -> Path:
        """Returns a coupled flow whose sources spread over targets as `into` says (each sums to 1), but only between
        servers: traffic inside one uses NVSwitch. `connections` is the number of flows it stands for on its busiest
        NIC."""
        server = self.server_gpus
        out_of: dict[int, float] = {}
        into_of: dict[int, float] = {}
        for nic, share in out.items():
            out_of[nic // server] = out_of.get(nic // server, 0.0) + share
        for nic, share in into.items():
            into_of[nic // server] = into_of.get(nic // server, 0.0) + share
        crossing = 1 - sum(share * into_of.get(s, 0.0) for s, share in out_of.items())
        if self.fabric == "fat-tree":
            pairs = [
                (source, target, share * part / crossing)
                for source, share in out.items()
                for target, part in into.items()
                if source // server != target // server
            ]
            return self.path(pairs, connections, salt)
        shares: dict[int, float] = {}
        for ends, other, base in ((out, into_of, 0), (into, out_of, self.nics)):
            for nic, share in ends.items():
                link = base + self.port(nic)
                shares[link] = shares.get(link, 0.0) + share * _outside(other, nic // server) / crossing
        source = self.port(min(out))
        return self._finish({link: share for link, share in shares.items() if share > 0}, connections, source)

    def _finish(self, shares: dict[int, float], connections: float, source: int) -> Path:
        rate = min(self.capacities[link] / share for link, share in shares.items())
        return Path(FluidPath(list(shares), list(shares.values())), shares, rate, connections, source)


def _outside(of: Mapping[int, float], server: int) -> float:
    """Returns the share outside this server. If nothing is outside, rounding leaves 1e-16, and the flow would share a
    link that it never uses and be slowed by its load; that is cut to 0."""
    outside = 1 - of.get(server, 0.0)
    return outside if outside > 1e-12 else 0.0

"""What a reload takes over is what the declaration of each key says."""

from __future__ import annotations

from mfsd.node.config import Config
from mfsd.node.config_file import parse
from mfsd.node.reload import reloaded

NEW = """
mode = "observe"
log_level = "debug"
[socket]
path = "/tmp/other.sock"
clients_max = 8
[arbiter]
window = "5ms"
[policy]
drop_budget = 0.5
[wire]
profile = "paper-k8"
[nic.b]
rate = "1gbit"
[coordinator]
grace = "9s"
lease = "9s"
"""


def test_a_daemon_takes_over_what_concerns_it_and_the_rest_waits() -> None:
    old, new = Config(), parse(NEW, "mfsd.toml")
    config, applied, waiting = reloaded(old, new, "daemon")
    assert applied == ["mode", "log_level", "socket.clients_max", "wire.profile", "nic"]
    assert waiting == ["socket.path", "arbiter.window", "policy.drop_budget", "coordinator.lease", "coordinator.grace"]
    assert (config.mode, config.socket.clients_max, config.wire, config.nic) == ("observe", 8, new.wire, new.nic)
    assert (config.socket.path, config.arbiter, config.policy) == (old.socket.path, old.arbiter, old.policy)


def test_a_coordinator_takes_over_its_policy_and_grace() -> None:
    old, new = Config(), parse(NEW, "mfsd.toml")
    config, applied, waiting = reloaded(old, new, "coordinator")
    assert applied == ["log_level", "policy.drop_budget", "coordinator.grace"]
    assert "coordinator.lease" in waiting and "mode" in waiting
    assert (config.policy, config.coordinator.grace_ns) == (new.policy, new.coordinator.grace_ns)
    assert config.coordinator.lease_ns == old.coordinator.lease_ns


def test_what_waits_is_still_waiting_at_the_next_reload() -> None:
    new = parse(NEW, "mfsd.toml")
    config, _, waiting = reloaded(Config(), new, "daemon")
    assert reloaded(config, new, "daemon") == (config, [], waiting)

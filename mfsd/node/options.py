"""The command line of ``mfsd``, applied over its configuration file."""

from __future__ import annotations

from pathlib import Path

from msgspec import UNSET, Struct
from msgspec.structs import replace

from mfsd.node.config import Config, Mode
from mfsd.node.config_file import ConfigError, control_problem, load, socket_path_problem
from mfsd.node.values import HostPort


class Options(Struct, frozen=True, kw_only=True):
    """Settings from the command line, which override the file."""

    config_file: Path | None = None
    """None: the built-in defaults."""
    socket: Path | None = None
    mode: Mode | None = None
    coordinators: list[HostPort] | None = None
    listen: HostPort | None = None
    advertise: HostPort | None = None
    etcd: list[HostPort] | None = None
    metrics_listen: HostPort | None = None

    def configuration(self) -> Config:
        """Reads the file, if there is one, and applies the command line. Raises ConfigError."""
        config = load(self.config_file) if self.config_file else Config()
        if self.socket is not None:
            if (problem := socket_path_problem(str(self.socket))) is not None:
                raise ConfigError(f"--socket {self.socket}", "", UNSET, problem)
            config = replace(config, socket=replace(config.socket, path=str(self.socket)))
            if (problem := control_problem(config.socket)) is not None:
                raise ConfigError(str(self.config_file), "socket.control", config.socket.control, problem)
        if self.mode is not None:
            config = replace(config, mode=self.mode)
        if self.coordinators is not None:
            config = replace(config, cluster=replace(config.cluster, coordinators=self.coordinators))
        if self.metrics_listen is not None:
            config = replace(config, metrics=replace(config.metrics, listen=self.metrics_listen))
        given = {n: v for n in ("listen", "advertise", "etcd") if (v := getattr(self, n)) is not None}
        if given:
            config = replace(config, coordinator=replace(config.coordinator, **given))
        return config


def address(option: str, text: str | None) -> HostPort | None:
    """Parses an option like --listen. Raises ConfigError."""
    if text is None:
        return None
    try:
        return HostPort.parse(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text}", "", UNSET, str(error)) from error


def addresses(option: str, text: str | None) -> list[HostPort] | None:
    """Parses an option like --etcd: addresses separated by commas. Raises ConfigError."""
    if text is None:
        return None
    found = [address(option, part.strip()) for part in text.split(",") if part.strip()]
    return [a for a in found if a is not None]

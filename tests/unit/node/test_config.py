"""The configuration file: what is accepted, and the exact words of every refusal."""

from __future__ import annotations

import datetime
import os
import re
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mfsd import _native
from mfsd.node.config import Config, RuleConfig
from mfsd.node.config_file import ConfigError, load, parse, problems
from mfsd.node.reference import default_toml, updated
from mfsd.node.rules import native
from mfsd.node.schema import keys, struct_of
from mfsd.node.values import DurationNs, FileMode, PeerNetwork, RateBytesPerS, SizeBytes


def problem(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, "mfsd.toml")
    return str(caught.value)


def test_an_empty_file_is_the_default() -> None:
    assert parse("", "mfsd.toml") == Config()


def test_the_printed_default_is_the_default() -> None:
    assert parse(default_toml(), "mfsd.toml") == Config()


def test_the_printed_default_names_every_key() -> None:
    text = default_toml()
    for key in keys(Config):
        struct = struct_of(key.type)
        for name in [key.name] if struct is None else [k.name for k in keys(struct)]:
            assert f"\n{name} = " in text or f"\n# {name} =" in text or f"\n# {name}: " in text, name


def test_all_kinds_of_values() -> None:
    config = parse(
        """
        mode = "observe"
        log_level = "debug"
        [socket]
        path = "/tmp/m.sock"
        mode = "0600"
        group = "root"
        allowed_uids = ["root", 1000]
        allowed_gids = []
        [arbiter]
        window = "2ms"
        window_min = "1.5MiB"
        rate_default = "0.5 gbit"
        [wire]
        profile = "rocev2-lossy-ecn"
        [nic."mlx5_0"]
        rate = "400gbit"
        [[rule]]
        library = "libuct_ib"
        peer = "10.1.0.0/16"
        action = "hold"
        stage = "p2d"
        class = 2
        """,
        "mfsd.toml",
    )
    assert (config.mode, config.log_level) == ("observe", "debug")
    assert (config.socket.mode, config.socket.group, config.socket.allowed_uids) == (0o600, 0, [0, 1000])
    assert config.arbiter.window_ns == 2_000_000
    assert config.arbiter.window_bytes_min == 3 * 2**19
    assert config.arbiter.rate_default_bytes_per_s == 62_500_000
    assert config.nic["mlx5_0"].rate_bytes_per_s == 50_000_000_000
    assert config.rule == [
        RuleConfig(library="libuct_ib", peer=PeerNetwork("10.1.0.0/16"), action="hold", stage="p2d", wire_class=2)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('mode = "x"', 'mode = "x": must be one of "off", "observe", "enforce"'),
        ("mode = 1979-05-27", 'mode = 1979-05-27: must be one of "off", "observe", "enforce"'),
        (
            "[arbiter]\nwindw = 1",
            'arbiter.windw = 1: unknown key; did you mean "window"? Allowed here: heartbeat, stale_after, '
            "max_hold, window, window_min, quiet, gate_max, spin, cpus, torn_slot, rate_default, tasks_max",
        ),
        (
            '[arbiter]\nwindow = "2 parsecs"',
            'arbiter.window = "2 parsecs": not a duration; write a number and one of ns, us, ms, s, for example "2ms"',
        ),
        (
            "[arbiter]\nwindow = 2",
            'arbiter.window = 2: not a duration; write a number and one of ns, us, ms, s, for example "2ms"',
        ),
        (
            '[arbiter]\nwindow = "2s"',
            'arbiter.window = "2s": must be a duration from 1us to 1s, for example "2ms"',
        ),
        *(
            (
                f'[arbiter]\n{key} = "{value}"',
                f'arbiter.{key} = "{value}": must be a duration from {least} to {most}, for example "2ms"',
            )
            for key, least, most, values in (
                ("gate_max", "100us", "1s", ("0ns", "99us", "1001ms")),
                ("max_hold", "1ms", "5s", ("0ns", "999us", "5001ms")),
                ("quiet", "0ns", "1s", ("2s",)),
            )
            for value in values
        ),
        (
            "[arbiter]\nmax_hold = -1",
            'arbiter.max_hold = -1: not a duration; write a number and one of ns, us, ms, s, for example "2ms"',
        ),
        (
            '[arbiter]\nstale_after = "15ms"',
            'arbiter.stale_after = "15ms": must be at least twice arbiter.heartbeat (10ms), '
            "or programs take a living daemon for dead",
        ),
        (
            "[arbiter]\ntasks_max = 1",
            "arbiter.tasks_max = 1: must be a whole number from 64 to 1048576",
        ),
        (
            '[nic."a.b"]\nrte = 1',
            'nic."a.b".rte = 1: unknown key; did you mean "rate"? Allowed here: rate, port, address',
        ),
        (
            '[nic.mlx5_0]\nrate = "10gbit"\n[nic.mlx5_1]\nrate = "fast"',
            'nic."mlx5_1".rate = "fast": not a rate; write a number and one of bit, kbit, mbit, gbit, tbit, '
            'for example "100gbit"',
        ),
        (
            '[nic.mlx5_1]\nrate = "1kbit"',
            'nic."mlx5_1".rate = "1kbit": must be a rate from 1mbit to 10tbit, for example "100gbit"',
        ),
        (
            "[nic.mlx5_1]",
            'nic."mlx5_1".rate: missing; must be a rate from 1mbit to 10tbit, for example "100gbit"',
        ),
        (
            '[nic.mlx5_7]\nport = "mlx5_7"',
            'nic."mlx5_7".port = "mlx5_7": must be the device that has the port itself, not one that shares it',
        ),
        (
            '[nic.mlx5_7]\nport = "mlx5_6"\n[nic.mlx5_6]\nport = "mlx5_0"',
            'nic."mlx5_7".port = "mlx5_6": must be the device that has the port itself, not one that shares it',
        ),
        (
            '[nic.mlx5_7]\nport = "mlx5_0"\nrate = "1gbit"',
            'nic."mlx5_7".port = "mlx5_0": a function that shares a port has its rate and address: leave those of '
            "mlx5_7 out",
        ),
        (
            '[nic.mlx5_7]\nport = ""',
            'nic."mlx5_7".port = "": a device name has 1 to 31 bytes (see ibv_devices)',
        ),
        ("nic = 3", "nic = 3: must be a table"),
        ("[nic]\nx = 1", 'nic."x" = 1: must be a table'),
        (
            '[nic."' + "n" * 32 + '"]\nrate = "1gbit"',
            'nic."' + "n" * 32 + '" = {rate = "1gbit"}: a device name has 1 to 31 bytes (see ibv_devices)',
        ),
        ("rule = [7]", "rule[0] = 7: must be a table"),
        ("[[rule]]", 'rule[0].action: missing; must be one of "pass", "hold"'),
        (
            '[[rule]]\naction = "pass"\n[[rule]]\naction = "pass"\npeer = "10.0.0.1/8"',
            'rule[1].peer = "10.0.0.1/8": 10.0.0.1/8 has host bits set; write an address or a network, '
            'for example "10.1.0.0/16" or "fe80::/10"',
        ),
        (
            '[[rule]]\naction = "hold"\nstage = "collective"',
            'rule[0].stage = "collective": "collective" never waits; use action = "pass", '
            'or stage "reuse", "p2d" or "background"',
        ),
        (
            '[[rule]]\naction = "pass"\nlibrary = "' + "x" * 32 + '"',
            f'rule[0].library = "{"x" * 32}": is 32 bytes long; at most 31, none of them zero',
        ),
        (
            '[[rule]]\naction = "pass"\nclass = 2',
            "rule[0].class = 2: no class has a DSCP; name a profile in wire.profile, or use dscp",
        ),
        (
            '[wire]\nprofile = "paper-k8"\n[[rule]]\naction = "pass"\nclass = 0\ndscp = 3',
            "rule[0].class = 0: give class or dscp, not both",
        ),
        (
            '[policy]\nclasses = 4\n[wire]\nprofile = "paper-k8"\n[[rule]]\naction = "pass"\nclass = 4',
            "rule[0].class = 4: policy.classes is 4: use 0 to 3",
        ),
        (
            "[wire]\ndscp = [46, 34]",
            "wire.dscp = [46, 34]: is no key any more: the fabric policy has the DSCPs, which hosts and switches "
            'share. Name its profile in wire.profile, for example "rocev2-lossy-ecn" (mfsctl switch policy lists '
            "them). For other DSCPs copy the shipped policy file, change the classes, and name the copy in "
            "wire.policy_file",
        ),
        (
            '[wire]\nprofile = "mine"\npolicy_file = "policy.toml"',
            'wire.policy_file = "policy.toml": must be an absolute path, for example "/etc/mfs/policy.toml"',
        ),
        (
            '[wire]\npolicy_file = "/etc/mfs/policy.toml"',
            "wire.profile: name the profile of wire.policy_file that is used",
        ),
        (
            "[socket]\nmode = 660",
            'socket.mode = 660: not a file mode; write three octal digits as text, for example "0660"',
        ),
        (
            '[socket]\nallowed_uids = ["root", "no one at all"]',
            'socket.allowed_uids[1] = "no one at all": no such user on this host; write a user\'s name or number',
        ),
        (
            '[socket]\ngroup = "none such"',
            'socket.group = "none such": no such group on this host; write a group\'s name or number',
        ),
        (
            '[socket]\npath = "m.sock"',
            'socket.path = "m.sock": must be an absolute path, for example "/run/mfs/mfsd.sock"',
        ),
        (
            '[metrics]\nlisten = ":9464"',
            'metrics.listen = ":9464": not an address; host or port is missing; write host and port, for example '
            '"coord-1:7400"',
        ),
        (
            '[socket]\ncontrol = "/run/mfs/inner/c.sock"',
            'socket.control = "/run/mfs/inner/c.sock": lies in the folder of socket.path (/run/mfs), which containers '
            "mount: root in any of them could switch this node; choose another folder, for example "
            '"/run/mfs-control/mfsd.sock"',
        ),
        (
            f'[socket]\npath = "/{"p" * 76}/{"p" * 30}"',
            f'socket.path = "/{"p" * 75}...: is 108 bytes long; a socket path has at most 99',
        ),
    ],
)
def test_a_refusal_says_where_what_and_what_is_allowed(text: str, expected: str) -> None:
    assert problem(text) == f"mfsd.toml: {expected}"


def test_what_is_wrong_is_not_missing_too(tmp_path: Path) -> None:
    file = tmp_path / "mfsd.toml"
    file.write_text(
        '[nic.mlx5_0]\nrate = "fast"\n[nic.mlx5_1]\n[wire]\nprofile = 3\npolicy_file = "/etc/mfs/policy.toml"'
    )
    found = [error.key for error in problems(file)]
    assert sorted(found) == ['nic."mlx5_0".rate', 'nic."mlx5_1".rate', "wire.profile"]


def test_what_is_not_toml() -> None:
    assert problem('mode = "off"\nmode = ').startswith("mfsd.toml: not TOML: ")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mfsd\.toml: cannot be read: No such file or directory$"):
        load(tmp_path / "mfsd.toml")
    (tmp_path / "mfsd.toml").write_bytes(b'mode = "\xff"')
    with pytest.raises(ConfigError, match=r"mfsd\.toml: byte 8 is not UTF-8; TOML files are UTF-8$"):
        load(tmp_path / "mfsd.toml")


# Any value that TOML can hold.
toml_values = st.recursive(
    st.none().flatmap(
        lambda _: st.one_of(
            st.booleans(),
            st.integers(-(2**63), 2**63 - 1),
            st.floats(),
            st.text(max_size=12),
            st.sampled_from(["2ms", "10gbit", "4kib", "0660", "root", "10.0.0.0/8", "enforce", "hold", "kv", "1e9s"]),
            st.dates().map(lambda d: datetime.datetime(d.year, d.month, d.day)),
        )
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)
leaf_keys = [
    (key.name, inner.name)
    for key in keys(Config)
    if (struct := struct_of(key.type)) is not None
    for inner in keys(struct)
]


@settings(max_examples=400, deadline=None)
@given(
    place=st.sampled_from([*leaf_keys, ("mode",), ("log_level",), ("nic",), ("rule",), ("?", "?")]),
    value=toml_values,
)
@example(place=("arbiter", "window"), value="9" * 400 + "s")
@example(place=("arbiter", "window"), value="²ms")
@example(place=("rule", "peer"), value="::/129")
@example(place=("socket", "path"), value="/a\0b")
@example(place=("nic", "rate"), value={"`$.x` - at `$.rule": 1})
def test_any_value_is_taken_or_refused_in_one_line(place: tuple[str, ...], value: Any) -> None:
    raw: Any = value
    if len(place) == 2:
        raw = {place[1]: value}
        if place[0] == "nic":
            raw = {"some nic": raw}
        if place[0] == "rule":
            raw = [{"action": "pass", **raw}]
    try:
        config = parse_raw({place[0]: raw})
    except ConfigError as error:
        assert str(error).startswith("mfsd.toml: ")
        assert "\n" not in str(error).replace(repr(value), "")
        assert place[0] in str(error)
    else:
        assert isinstance(config, Config)


def parse_raw(raw: dict[str, Any]) -> Config:
    """As parse(), from what the TOML reader would give: dates and special floats have no shorter way in."""
    from unittest import mock

    with mock.patch("mfsd.node.config_file.parse_toml", return_value=raw):
        return parse("", "mfsd.toml")


@given(st.integers(0, 10**15))
def test_quantities_read_what_they_write(value: int) -> None:
    for kind in (DurationNs, RateBytesPerS, SizeBytes):
        written = str(kind(value))
        assert abs(kind.parse(written) - value) <= value / 1000, written
        assert str(kind.parse(written)) == written


def test_quantities_written_by_hand() -> None:
    assert str(DurationNs(2_500_000)) == "2.5ms"
    assert str(RateBytesPerS(12_500_000_000)) == "100gbit"
    assert str(SizeBytes(131072)) == "128kib"
    assert DurationNs.parse("0ns") == 0
    assert FileMode.parse("660") == FileMode.parse("0660") == 0o660
    for bad in ("", "ms", "-1ms", "1e3ms", "1 m s", ".5ms", "1.ms", "0x10ms"):
        with pytest.raises(ValueError, match="not a duration"):
            DurationNs.parse(bad)


def test_a_peer_becomes_a_gid_prefix() -> None:
    assert PeerNetwork.parse("10.1.0.0/16").gid_prefix() == (bytes(10) + b"\xff\xff\x0a\x01\0\0", 112)
    assert PeerNetwork.parse("fe80::/10").gid_prefix() == (b"\xfe\x80" + bytes(14), 10)
    assert PeerNetwork.parse("192.0.2.1").gid_prefix() == (bytes(10) + b"\xff\xff\xc0\x00\x02\x01", 128)


def test_structs_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Config().mode = "off"
    assert msgspec.structs.replace(Config(), mode="off").mode == "off"


def test_the_reference_page_is_what_the_structs_say() -> None:
    page = Path(__file__).parents[3] / "docs" / "configuration.md"
    assert page.read_text() == updated(page.read_text()), "run: python -m mfsd.node.reference docs/configuration.md"


def test_the_recipes_of_the_page_are_good() -> None:
    page = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
    recipes = page.partition("## Recipes")[2].partition("## Reference")[0]
    blocks = re.findall(r"((?:^(?:    .*)?\n)+)", recipes, re.MULTILINE)
    texts = [text for block in blocks if (text := textwrap.dedent(block).replace('"llm"', '"root"')).strip()]
    assert len(texts) == 4
    for text in texts:
        parse(text, "configuration.md")


def test_a_duration_that_no_float_holds_is_one_that_is_too_long() -> None:
    for key in ("arbiter.heartbeat", "policy.soon"):
        table, name = key.split(".")
        assert "must be a duration from" in problem(f'[{table}]\n{name} = "{"9" * 400}ms"')


def test_the_policy_section_is_checked_like_the_rest() -> None:
    assert problem("[policy]\nlevels = 9") == "mfsd.toml: policy.levels = 9: use 1 to 8"
    assert problem('[policy]\nvariant = "best"') == (
        'mfsd.toml: policy.variant = "best": must be one of "mfs", "paper"'
    )
    assert parse('[policy]\nearly_order = "rank"', "mfsd.toml").policy.early_order.value == "rank"
    assert problem('[policy]\nearly_order = "best"').startswith(
        'mfsd.toml: policy.early_order = "best": must be one of'
    )
    assert problem("[policy]\nsoon_ns = 5").startswith("mfsd.toml: policy.soon_ns = 5: is a duration now: write for ")
    assert problem("[policy]\nsoon = 5").startswith("mfsd.toml: policy.soon = 5: not a duration; write a number and ")
    assert problem('[policy]\nload_time_constant = "0ns"') == (
        'mfsd.toml: policy.load_time_constant = "0ns": must be a duration from 1ns to 3600s, for example "2ms"'
    )
    assert parse('[policy]\nshort_load = "64ms"', "mfsd.toml").policy.short_load_ns == 64_000_000
    assert problem("[policy]\nclases = 4").startswith(
        'mfsd.toml: policy.clases = 4: unknown key; did you mean "classes"?'
    )


def test_all_rules_fit_the_table_of_a_client() -> None:
    text = '[[rule]]\naction = "pass"\n' * 48
    assert len(native(parse(text, "mfsd.toml").rule, ())) <= _native.RULES_MAX
    assert problem(text + '[[rule]]\naction = "pass"\n').startswith("mfsd.toml: rule = ")


@pytest.mark.parametrize(
    "listen", ["9464", "localhost", ":9464", "::1:9464", "[::1]", "localhost:http", "localhost:65536", ""]
)
def test_an_address_to_listen_on_needs_host_and_port(listen: str) -> None:
    text = problem(f'[metrics]\nlisten = "{listen}"')
    assert "metrics.listen" in text and "host and port" in text


@pytest.mark.parametrize(
    ("cpus", "message"),
    [
        ("9999", "CPU 9999 does not exist; write some of {usable}, or nothing for any of them"),
        ("3-2", 'no CPU is in it; write the smaller number of a range first, for example "2-3"'),
        ("2..3", 'not a list of CPUs; write numbers and ranges, for example "2-3,8"'),
    ],
)
def test_cpus_that_cannot_be(cpus: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2, 3, 8})
    expected = message.format(usable="0,2-3,8")
    assert problem(f'[arbiter]\ncpus = "{cpus}"') == f'mfsd.toml: arbiter.cpus = "{cpus}": {expected}'


def test_cpus_that_others_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {9998})
    assert "CPU 0 is not among those that mfsd may use; write some of 9998" in problem('[arbiter]\ncpus = "0"')


def test_cpus_are_numbers_and_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    assert parse('[arbiter]\ncpus = "2-4,8"', "mfsd.toml").arbiter.cpus.numbers() == {2, 3, 4, 8}
    assert parse("", "mfsd.toml").arbiter.cpus.numbers() == set()

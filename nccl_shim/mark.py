"""``mfs-run --mode mark``: derives marks, and variables for libraries that the shim cannot see, from a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mfsd.fabric.libraries import dangerous_classes, kept, operators, service_levels, traffic_classes, variables
from mfsd.fabric.library_files import set_in_files
from mfsd.fabric.link_layer import infiniband_ports
from mfsd.fabric.policy import PolicyError, Profile, load_profile
from mfsd.fabric.wire_table import wire_table
from mfsd.node.config import RuleConfig
from mfsd.node.config_file import ConfigError, load
from mfsd.node.rules import BUILT_IN, dscp_of
from mfsd.node.values import SizeBytes
from mfsd.policy.mark_text import SET_BY_US, mark_text, parse_marks
from mfsd.policy.marks import SIZED, MarkRule, Marks, checked
from mfsd.policy.service_levels import SERVICE_LEVELS
from mfsd.policy.types import Stage


class MarkError(ValueError):
    """Marks cannot be used. The message is one line."""


def marks_for(policy: str, policy_file: Path | None, sizes: Sequence[str], rules_file: Path | None) -> Marks:
    """Returns the marks of this profile of a fabric policy, with rules. MarkError."""
    try:
        profile = load_profile(policy, policy_file)
        config = load(rules_file) if rules_file is not None else None
    except (PolicyError, ConfigError) as error:
        raise MarkError(str(error)) from error
    marks = of_profile(profile, sizes)
    own = [_own_rule(rule, marks) for rule in config.rule] if config else []
    built_in = [_built_in_rule(rule, marks) for rule in BUILT_IN]
    return _checked(marks._replace(rules=(*own, *built_in)))


def of_profile(profile: Profile, sizes: Sequence[str] = ()) -> Marks:
    """Returns the profile's classes by stage and size, without rules. Lanes have the same numbers and DSCPs as with a
    daemon, so that a node without a daemon and a node with one understand each other. MarkError."""
    table = wire_table(profile)
    return _checked(Marks(table.dscp, table.stages, dict(map(_sizes, sizes))))


def inherited(text: str) -> Marks:
    """Parses the marks that the environment already has. MarkError."""
    try:
        return parse_marks(text)
    except ValueError as error:
        raise MarkError(f"MFS_MARK: {error}; unset it and give --policy") from error


def environment_of(marks: Marks, classes: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that mode mark sets: the marks and the classes of libraries."""
    return {"MFS_MARK": mark_text(marks)} | unless_set(classes, before)


def classes_of(marks: Marks) -> dict[str, str]:
    """Returns variable and value for each library that reads the class of its RoCE packets from a variable."""
    return traffic_classes({stage: marks.dscp[marks.wire_class(stage)] for stage in Stage})


def usable(classes: Mapping[str, str], before: Mapping[str, str], say: Callable[[str], None]) -> dict[str, str]:
    """Returns the variables that may be set, and reports why others are left out. A variable is left out if a port of
    this host does not allow it, or if it would override a setting of the operator in the environment or in a library's
    file."""
    dangerous = dangerous_classes(infiniband_ports())
    for name, why in dangerous.items():
        if before.get(name):
            say(f"warning: {name}={before[name]} is set, unset it: {why}")
        elif name in classes:
            say(f"{name} is left out: {why}")
    of_operator = kept([name for name in classes if name not in dangerous], operators(before, set_in_files(before)))
    for name, why in of_operator.items():
        if not before.get(name):
            say(f"{name} is left out: {why}")
    return {name: value for name, value in classes.items() if name not in dangerous | of_operator}


def levels_of(policy: str, policy_file: Path | None) -> dict[str, str]:
    """Returns the variables for InfiniBand: service levels, for the libraries and for queue pairs that the shim sees.
    MarkError."""
    try:
        profile = load_profile(policy, policy_file)
    except PolicyError as error:
        raise MarkError(str(error)) from error
    own = {SERVICE_LEVELS: service_levels(profile)}
    return own | {one.name: one.value for one in variables(profile, infiniband=True)}


def unless_set(classes: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that are not set yet, and one that lists them, for adapters that have a better value."""
    found = {name: value for name, value in classes.items() if not before.get(name)}
    ours = dict.fromkeys([*before.get(SET_BY_US, "").split(), *found])
    return found | {SET_BY_US: " ".join(ours)}


def names_communicators(marks: Marks) -> bool:
    """Whether a rule names a communicator, so that the shim must be NCCL's profiler plugin."""
    return any(rule.communicator for rule in marks.rules)


def _checked(marks: Marks) -> Marks:
    try:
        return checked(marks)
    except ValueError as error:
        raise MarkError(f"--sizes: {error}") from error


def _sizes(text: str) -> tuple[Stage, tuple[int, ...]]:
    name, equals, values = text.partition("=")
    stages = {stage.name.lower(): stage for stage in SIZED}
    if name not in stages or not equals:
        raise MarkError(f"--sizes {text}: write {' or '.join(stages)}, =, and sizes, for example reuse=1mib,16mib")
    try:
        return stages[name], tuple(int(SizeBytes.parse(one)) for one in values.split(","))
    except ValueError as error:
        raise MarkError(f"--sizes {text}: {error}") from error


def _own_rule(rule: RuleConfig, marks: Marks) -> MarkRule:
    """Returns the mark rule for a rule of a configuration file. If that has no DSCP or class, the DSCP is that of its
    stage where the rule holds, else unchanged."""
    dscp = dscp_of(rule, marks.dscp)
    if dscp is None and rule.action == "hold":
        dscp = _of_stage(rule, marks)
    return _rule(rule, dscp)


def _built_in_rule(rule: RuleConfig, marks: Marks) -> MarkRule:
    """Returns the mark rule for a built-in rule. Queue pairs that only the last, general rule matches keep their
    DSCP."""
    anything = not (rule.library or rule.process or rule.communicator or rule.peer) and rule.role == "any"
    return _rule(rule, None if anything else _of_stage(rule, marks))


def _of_stage(rule: RuleConfig, marks: Marks) -> int | None:
    return marks.dscp[marks.wire_class(Stage[rule.stage.upper()])]


def _rule(rule: RuleConfig, dscp: int | None) -> MarkRule:
    peer = str(rule.peer) if rule.peer is not None else ""
    return MarkRule(rule.library, rule.process, rule.communicator, peer, rule.role, dscp)

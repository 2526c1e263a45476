"""Which versions of NIXL were tested, and whether the one here has the same methods."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import metadata

from mooncake_adapter.protocol import tested
from mooncake_adapter.warn_once import WarnOnce

TESTED_INTERFACES = ("1.4", "1.5")
"""Major and minor versions."""
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "__init__": ("agent_name", "nixl_conf", "instantiate_all"),
    "create_backend": ("backend", "initParams"),
    "register_memory": ("reg_list", "mem_type", "backends"),
    "deregister_memory": ("dereg_list", "backends"),
    "make_connection": ("remote_agent", "backends"),
    "prep_xfer_dlist": ("agent_name", "xfer_list", "mem_type", "backends"),
    "make_prepped_xfer": (
        *("operation", "local_xfer_side", "local_indices", "remote_xfer_side", "remote_indices"),
        *("notif_msg", "backends", "skip_desc_merge"),
    ),
    "initialize_xfer": ("operation", "local_descs", "remote_descs", "remote_agent", "notif_msg", "backends"),
    "transfer": ("handle", "notif_msg"),
    "check_xfer_state": ("handle",),
    "get_xfer_telemetry": ("handle",),
    "get_new_notifs": ("backends",),
    "update_notifs": ("backends",),
    "check_remote_xfer_done": ("remote_agent_name", "lookup_tag", "backends", "tag_is_prefix"),
    "send_notif": ("remote_agent_name", "notif_msg", "backend"),
    "get_partial_agent_metadata": ("descs", "inc_conn_info", "backends"),
    "add_remote_agent": ("metadata",),
    "remove_remote_agent": ("agent",),
}
"""Methods that are replaced or whose arguments are read, with their parameters after `self`."""


def distribution_version(module: str) -> str:
    """Returns the version of the distribution that provides the module's package; "" if none is known."""
    try:
        return metadata.version(module.partition(".")[0].replace("_", "-"))
    except metadata.PackageNotFoundError:
        return ""


def changed_method(base: type) -> str | None:
    """Returns the first method that is missing or takes other parameters than in the tested versions; None if there is
    none."""
    for name, parameters in PARAMETERS.items():
        method = getattr(base, name, None)
        if method is None or tuple(inspect.signature(method).parameters)[1:] != parameters:
            return name
    return None


def supported(base: type, once: WarnOnce) -> bool:
    """Whether this agent may be adapted; if not, warns once with the reason. A build without a version is judged by its
    methods."""
    version = distribution_version(base.__module__)
    interface = ".".join(version.split(".")[:2]) or TESTED_INTERFACES[-1]
    if not tested("NIXL", version, interface, TESTED_INTERFACES, "its transfers run unscheduled", once):
        return False
    changed = changed_method(base)
    if changed is not None:
        once.warn("nixl", "NIXL %s: nixl_agent.%s is not as it was; its transfers run unscheduled", version, changed)
    return changed is None

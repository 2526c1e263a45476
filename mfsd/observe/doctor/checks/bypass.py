"""Paths on which the GPU or a library drives the NIC itself, past libibverbs and so past the shim.

Seen by the environment (of --pid, else of this shell), by what --pid has mapped, by packages, by the driver, and by the
counters of ports that the daemon reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from mfsd.fabric.libraries import LIBRARIES, Library
from mfsd.observe.doctor.checks.lanes import asked_for
from mfsd.observe.doctor.elf import read_elf
from mfsd.observe.doctor.finding import Finding, Kind
from mfsd.observe.doctor.host import Host, NoAnswer, read_line
from mfsd.observe.doctor.launching import ask_probe, python
from mfsd.observe.doctor.running import mapped_files
from nccl_shim.run import LIBRARY

TITLE = "Paths past the shim"
TRUE = ("1", "true", "yes", "on", "y", "t")
UCX_VERBS = {"rc_verbs", "ud_verbs", "rc_v", "ud_v"}
UCX_SRD = {"srd"}
UCX_TCP = {"tcp"}
UCX_WITHIN = {"sm", "shm", "mm", "posix", "sysv", "self", "cma", "knem", "xpmem"}
UCX_WITHIN |= {"cuda", "cuda_copy", "cuda_ipc", "gdr_copy", "rocm", "rocm_copy", "rocm_ipc"}
"""Transports within one host, which pass no NIC."""
CLASS_OF_COLLECTIVES = "give it the class of collectives (mfs-run --policy NAME, or mfsctl host env)"
FOR_NIXL = (
    "for NIXL's transfers from Python: MFS_NIXL=1 (docs/nixl.md); from C++ and Rust: mfs-run --nixl-backend UCX; "
    "for other programs of UCX: "
)

IBGDA = Kind(
    "bypass.ibgda",
    "fail",
    "NVSHMEM's IBGDA lets GPU threads ring the NIC's doorbell: those bytes are neither counted nor held.",
    f"{CLASS_OF_COLLECTIVES}, so that KV does not go before it; "
    "NVSHMEM_IB_ENABLE_IBGDA=0 has a thread of the host post instead",
)
GIN = Kind(
    "bypass.nccl-gin",
    "fail",
    "NCCL's GPU-initiated networking posts from the GPU (GDAKI): those bytes are neither counted nor held.",
    f"{CLASS_OF_COLLECTIVES}; NCCL_GIN_TYPE=2 has NCCL's own proxy thread post instead, through libibverbs",
)
GIN_POSSIBLE = Kind(
    "bypass.nccl-gin-possible",
    "info",
    "This NCCL chooses by itself whether device-side collectives post from the GPU. Ordinary collectives never do.",
    "if kernels use NCCL's device API: NCCL_GIN_TYPE=2; otherwise do nothing",
)
MORI = Kind(
    "bypass.mori",
    "warn",
    "MoRI's kernels post from the GPU; MFS sees neither their bytes nor their stage. MoRI-IO, which loads the same "
    "libraries, posts through libibverbs and is seen.",
    f"{CLASS_OF_COLLECTIVES}; nothing, if only MoRI-IO is used",
)
DEEPEP = Kind(
    "bypass.deepep",
    "warn",
    "DeepEP's all-to-all posts from the GPU (IBGDA or GIN); MFS sees neither its bytes nor its stage.",
    f"{CLASS_OF_COLLECTIVES}, or use an all-to-all backend on NCCL or CPU-driven verbs",
)
UCX = Kind(
    "bypass.ucx",
    "warn",
    "UCX's rc_mlx5 and dc_mlx5, its choice on ConnectX, write to the NIC's queues past libibverbs: neither counted, "
    "marked nor held.",
    FOR_NIXL + "UCX_TLS=rc_verbs,cuda,sm,self",
)
UCX_BY_SRD = Kind(
    "bypass.ucx-srd",
    "warn",
    "The queue pairs of UCX's SRD (EFA) are made by the provider's own call: neither counted, marked nor held.",
    FOR_NIXL + "none, UCX has no other transport on EFA that MFS sees",
)
UCX_BY_TCP = Kind(
    "bypass.ucx-tcp",
    "warn",
    "UCX is left with TCP, which has no queue pairs and to whose sockets UCX gives no class: neither counted, marked "
    "nor held.",
    FOR_NIXL + "UCX_TLS=rc_verbs,cuda,sm,self where there is RDMA",
)
UCX_BY_VERBS = Kind(
    "bypass.ucx-verbs",
    "info",
    "UCX's rc_verbs and ud_verbs post through libibverbs: counted and marked, and held where a rule says so.",
    'to have them held, add a [[rule]] with library = "libuct_ib" (docs/configuration.md)',
)
NIXL = Kind(
    "bypass.nixl-plugin",
    "ok",
    "NIXL's backend asks for permits itself, whatever UCX does below it.",
)
NIXL_ADAPTED = Kind(
    "bypass.nixl-adapted",
    "ok",
    "NIXL's transfers from Python ask for permits themselves, whatever UCX does below them.",
)
NIXL_UNSCHEDULED = Kind(
    "bypass.nixl-unscheduled",
    "warn",
    "The process has loaded NIXL, but nothing asks for permits for its transfers: only work requests that UCX posts "
    "through libibverbs are counted, and held where a rule says so.",
    "start it with MFS_NIXL=1 mfs-run (Python), or with mfs-run --nixl-backend UCX (C++ and Rust)",
)
NIXL_POSSIBLE = Kind(
    "bypass.nixl-possible",
    "info",
    "NIXL is installed, but this environment does not ask for its transfers to be scheduled.",
    "to have them scheduled: MFS_NIXL=1 (docs/nixl.md says what it costs); otherwise do nothing",
)
DIRECT = Kind(
    "bypass.direct-mapped",
    "fail",
    "The process has mapped a library that drives the NIC from the GPU.",
    "see bypass.ibgda and bypass.nccl-gin for the switches of each library",
)
ASYNC = Kind(
    "bypass.gpu-async",
    "info",
    "The GPU driver lets GPU threads write to the NIC (PeerMappingOverride), as IBGDA and GPUDirect Async need.",
    'do nothing if no program uses them; the driver option is NVreg_RegistryDwords="PeerMappingOverride=1;"',
)
UNREADABLE = Kind(
    "bypass.unreadable",
    "unknown",
    "This user may not read the variables or mapped files of the process, which may drive the NIC past the shim.",
    "run the doctor as root or as the program's user",
)
MEASURED = Kind(
    "bypass.measured",
    "warn",
    "The port sends more than a tenth of its rate that no program with the shim on this node has posted.",
    "start every program with mfs-run, and see the other findings of this check; bytes that peers read from here "
    "(RDMA READ) are counted too, and need no action",
)
MEASURED_SHARE = 0.1
NONE = Kind("bypass.none", "ok", "No program was seen that drives the NIC past the shim.")
NIXL_PLUGIN = "libplugin_MFS.so"
NIXL_LIBRARY = "/libnixl.so"
ADAPTER = "/mfsd/_native."
"""Part of a mapped file's name if a Python program has the adapter, or another client of MFS."""
MAPPED_DIRECT = ("nvshmem_transport_ibgda", "libdoca_gpunetio", "deep_ep_cpp")


def run(host: Host) -> Iterator[Finding]:
    owner, environ = host.program_environ
    mapped, unread = [], host.environ_problem
    try:
        mapped = _mapped(host)
    except OSError as error:
        unread = unread or f"{host.proc / str(host.pid) / 'maps'}: {error.strerror}"
    problems = [*_nvshmem(environ, owner), *_gin(environ, owner, mapped)]
    nixl = [*_nixl(host, environ, owner, mapped)]
    problems += nixl
    if not any(one.severity == "ok" for one in nixl):
        problems += _ucx(host, environ, owner, mapped)
    problems += _direct(mapped, host.pid)
    problems += _mori(mapped)
    problems += _deepep(host)
    problems += _driver(host)
    problems += _measured(host)
    yield from problems
    if unread:
        yield UNREADABLE(unread, owner)
    elif not any(p.severity in ("fail", "warn") for p in problems):
        yield NONE(f"environment of {owner}" + (f", {len(mapped)} mapped files" if mapped else ""))


def bypassing(host: Host) -> frozenset[Library]:
    """Libraries of collectives that drive the NIC past the shim.

    They are turned on by the environment, mapped by the process, or, if no process is examined, installed with no other
    use.
    """
    _, environ = host.program_environ
    try:
        mapped = _mapped(host)
    except OSError:
        mapped = []
    names = set()
    if environ.get("NVSHMEM_IB_ENABLE_IBGDA", "").lower() in TRUE or any(MAPPED_DIRECT[0] in name for name in mapped):
        names.add("NVSHMEM_IB_TRAFFIC_CLASS")
    if environ.get("NCCL_GIN_TYPE") == "3" and environ.get("NCCL_GIN_ENABLE", "1") != "0":
        names.add("NCCL_GIN_IB_TC")
    if any("deep_ep_cpp" in name for name in mapped):
        names.add(_under_deepep(any("nvshmem" in name for name in mapped)))
    if any("/libmori_" in name for name in mapped):
        names.add("MORI_RDMA_TC")
    if folder := _installed(host, "deep_ep"):
        names.add(_under_deepep(_needs_nvshmem(Path(folder))))
    return frozenset(library for library in LIBRARIES if library.traffic_class in names)


def _under_deepep(nvshmem: bool) -> str:
    """DeepEP's first version posts by NVSHMEM, its second by NCCL's GIN."""
    return "NVSHMEM_IB_TRAFFIC_CLASS" if nvshmem else "NCCL_GIN_IB_TC"


def _needs_nvshmem(package: Path) -> bool:
    """Whether DeepEP's extension, beside or in its package, is linked with NVSHMEM."""
    for file in sorted({*package.parent.glob("deep_ep_cpp*.so"), *package.rglob("*.so")}):
        try:
            elf = read_elf(file)
        except (OSError, ValueError):
            continue
        if elf and any("nvshmem" in name for name in elf.needed):
            return True
    return False


def _installed(host: Host, package: str) -> str:
    """The package's folder for the command's Python. Empty if there is none, and for a process, which has its own."""
    if host.pid is not None or not LIBRARY.is_file():
        return ""
    try:
        return ask_probe(host).packages.get(package, "")
    except NoAnswer:
        return ""  # preload.probe-failed reports it


def _mapped(host: Host) -> list[str]:
    """Raises OSError."""
    return [] if host.pid is None else [str(m.path) for m in mapped_files(host.proc / str(host.pid))]


def _nvshmem(environ: Mapping[str, str], owner: str) -> Iterator[Finding]:
    value = environ.get("NVSHMEM_IB_ENABLE_IBGDA", "")
    if value.lower() in TRUE:
        yield IBGDA(f"NVSHMEM_IB_ENABLE_IBGDA={value} ({owner})", "NVSHMEM")


def _gin(environ: Mapping[str, str], owner: str, mapped: list[str]) -> Iterator[Finding]:
    kind = environ.get("NCCL_GIN_TYPE", "")
    enabled = environ.get("NCCL_GIN_ENABLE", "1") != "0"
    if enabled and kind == "3":
        yield GIN(f"NCCL_GIN_TYPE=3 ({owner})", "NCCL")
    elif enabled and kind in ("", "-1") and any("libnccl.so" in name for name in mapped):
        yield GIN_POSSIBLE("libnccl is mapped, NCCL_GIN_TYPE is not set", "NCCL")


def _nixl(host: Host, environ: Mapping[str, str], owner: str, mapped: list[str]) -> Iterator[Finding]:
    plugin = [name for name in mapped if name.endswith(NIXL_PLUGIN)]
    folder = environ.get("NIXL_PLUGIN_DIR", "")
    loaded = [name for name in mapped if NIXL_LIBRARY in name]
    asked = asked_for(environ) and environ.get("MFS_MODE") != "off"
    asks = f"MFS_NIXL={environ.get('MFS_NIXL', '')}" + (
        f", MFS_MODE={environ['MFS_MODE']}" if "MFS_MODE" in environ else ""
    )
    if plugin or (folder and (Path(folder) / NIXL_PLUGIN).is_file()):
        yield NIXL(f"{plugin[0]} is mapped" if plugin else f"NIXL_PLUGIN_DIR={folder} ({owner})", "NIXL")
    elif asked and (host.pid is None or (loaded and any(ADAPTER in name for name in mapped))):
        yield NIXL_ADAPTED(f"{asks} ({owner})", "NIXL")
    elif loaded:
        why = "the adapter is not in it" if asked else f"{asks} ({owner})"
        yield NIXL_UNSCHEDULED(f"{loaded[0]} is mapped, {why}", "NIXL")
    elif found := _installed(host, "nixl"):
        yield NIXL_POSSIBLE(f"{found} is installed for {python(host)}, {asks} ({owner})", "NIXL")


def _ucx(host: Host, environ: Mapping[str, str], owner: str, mapped: list[str]) -> Iterator[Finding]:
    """One finding for each transport that may carry bytes. TCP beside RDMA only connects."""
    text = environ.get("UCX_TLS", "")
    named = {one.strip() for one in text.lower().split(",") if one.strip()}
    reason = f"UCX_TLS={text} ({owner})"
    if not named or any(one.startswith("^") for one in named):
        libraries = [name for name in mapped if "libuct_ib" in name]
        if not named and not libraries:
            return
        efa = [one for one in host.devices if driver_of(host, one) == "efa"]
        reason = reason if named else f"{libraries[0]} is mapped, UCX_TLS is not set"
        if efa:
            yield UCX_BY_SRD(f"{reason}, {efa[0]} is an EFA", "UCX")
        if not efa or len(efa) < len(host.devices):
            yield UCX(reason, "UCX")
        return
    if named - UCX_VERBS - UCX_SRD - UCX_TCP - UCX_WITHIN:
        yield UCX(reason, "UCX")
    if named & UCX_SRD:
        yield UCX_BY_SRD(reason, "UCX")
    if named & UCX_VERBS:
        yield UCX_BY_VERBS(reason, "UCX")
    if named & UCX_TCP and not named - UCX_TCP - UCX_WITHIN:
        yield UCX_BY_TCP(reason, "UCX")


def driver_of(host: Host, device: str) -> str:
    link = host.sys / "class/infiniband" / device / "device/driver"
    return link.readlink().name if link.is_symlink() else ""


def _mori(mapped: list[str]) -> Iterator[Finding]:
    for name in [name for name in mapped if "/libmori_" in name][:1]:
        yield MORI(f"{name} is mapped", "MoRI")


def _direct(mapped: list[str], pid: int | None) -> Iterator[Finding]:
    for name in mapped:
        if any(part in name for part in MAPPED_DIRECT):
            yield DIRECT(f"{name} is mapped", f"pid {pid}")


def _deepep(host: Host) -> Iterator[Finding]:
    if folder := _installed(host, "deep_ep"):
        yield DEEPEP(f"{folder} is installed for {python(host)}", "DeepEP")


def _measured(host: Host) -> Iterator[Finding]:
    daemon = host.daemon()
    for nic in daemon.nics if daemon is not None else ():
        if nic.port is not None and nic.port.bypass_bytes_per_s > MEASURED_SHARE * nic.rate_bytes_per_s:
            rates = f"{nic.port.bypass_bytes_per_s / 1e6:.0f} of {nic.rate_bytes_per_s / 1e6:.0f} MB/s"
            yield MEASURED(f"{rates}, by the port's counters less what programs posted", nic.name)


def _driver(host: Host) -> Iterator[Finding]:
    parameters = read_line(host.proc / "driver/nvidia/params")
    if (found := re.search(r"PeerMappingOverride=(\d+)", parameters)) and found[1] != "0":
        yield ASYNC(f"{host.proc / 'driver/nvidia/params'}: PeerMappingOverride={found[1]}", "GPU driver")

"""``mfs-run``: starts a program with the shim preloaded, and reports what it has set."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mfsd.policy.marks import Marks

LIBRARY = Path(__file__).with_name("libmfs_shim.so")
NIXL_PLUGINS = Path(__file__).parents[1] / "mooncake_adapter/nixl_plugins"
NCCL_DEFAULT_PLUGIN = "libnccl-profiler.so"
DEFAULT_SOCKET = "/run/mfs/mfsd.sock"
MODES = ("enforce", "observe", "mark", "off")
ELFCLASS64, PT_INTERP = 2, 3
OWN_ERROR, CANNOT_EXECUTE, NOT_FOUND = 125, 126, 127  # exit statuses of env(1) and shells


def preload(library: Path, before: str | None) -> str:
    """Returns the value of LD_PRELOAD with the library first, then the libraries that were there, each once."""
    others = [part for part in (before or "").replace(":", " ").split() if part != str(library)]
    return " ".join([str(library), *others])


def other_profiler(environment: Mapping[str, str]) -> str | None:
    """Says in words which other plugin keeps the shim from being NCCL's profiler plugin; None if there is none."""
    if plugin := environment.get("NCCL_PROFILER_PLUGIN"):
        return None if plugin == str(LIBRARY) else f"NCCL_PROFILER_PLUGIN={plugin} is set"
    for folder in environment.get("LD_LIBRARY_PATH", "").split(":"):
        if folder and (found := Path(folder) / NCCL_DEFAULT_PLUGIN).is_file():
            return f"NCCL would load {found}"
    return None


def unreachable(program: Path) -> str | None:
    """Returns why the dynamic loader would ignore LD_PRELOAD for this program; None if it would not."""
    mode = program.stat().st_mode
    if mode & stat.S_ISUID or (mode & stat.S_ISGID and mode & stat.S_IXGRP):
        return "is setuid or setgid: the loader ignores LD_PRELOAD for such programs"
    try:
        with program.open("rb") as file:
            image = file.read(1 << 16)
    except OSError:
        return None
    if image[:4] != b"\x7fELF" or image[4] != ELFCLASS64:
        return None  # a script, or a kind of program that is not examined
    (headers,) = struct.unpack_from("=Q", image, 32)
    size, count = struct.unpack_from("=HH", image, 54)
    kinds = [struct.unpack_from("=I", image, at)[0] for at in range(headers, headers + size * count, size)]
    if PT_INTERP not in kinds:
        return "is statically linked: no library can be preloaded into it"
    return None


def warnings(command: str, socket: str, mode: str) -> list[str]:
    """Returns the reasons why the program will not be scheduled, each with the remedy."""
    found = []
    where = shutil.which(command)
    if where is not None and (reason := unreachable(Path(where))):
        found.append(f"{where} {reason}; it will run unscheduled")
    if mode not in ("off", "mark") and (problem := _unusable(socket)):
        found.append(problem)
    return found


def _unusable(socket: str) -> str | None:
    """Returns why a program of this user could not reach a daemon at this socket; None if it could."""
    try:
        there = stat.S_ISSOCK(Path(socket).stat().st_mode)
    except PermissionError:
        there = True
    except OSError:
        there = False
    if not there:
        return f"no daemon listens at {socket}; the program runs unscheduled until mfsd starts there (or give --socket)"
    if not os.access(socket, os.W_OK):
        return (
            f"this user may not open the daemon's socket {socket}; the program runs unscheduled: have the daemon give "
            "the socket to a group of this user (socket.group in mfsd.toml), or give --socket"
        )
    return None


def _profiles(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Completes profiles of the policy file in a shell. Errors are not shown: they would be within the command line."""
    from mfsd.fabric.policy import PolicyError, load_profiles

    try:
        return [name for name in load_profiles(context.params.get("policy_file")) if name.startswith(incomplete)]
    except PolicyError:
        return []


def marks_by(policy: str | None, policy_file: Path | None, sizes: Sequence[str], rules: Path | None) -> Marks:
    """Returns the marks of the policy, else those that the environment already has. ValueError with one line."""
    from nccl_shim import mark  # the other modes read no files

    if policy is not None:
        return mark.marks_for(policy, policy_file, sizes, rules)
    if text := os.environ.get("MFS_MARK"):
        return mark.inherited(text)
    raise ValueError(
        "--mode mark needs --policy NAME, the profile that switches and hosts use; mfsctl switch policy lists the "
        "profiles"
    )


def marks_of(
    mode: str,
    given: Mapping[str, object],
    policy: str | None,
    policy_file: Path | None,
    sizes: Sequence[str],
    rules: Path | None,
) -> Marks | None:
    """Returns the marks for the options. ValueError with one line if the mode has no use for one in `given`."""
    useful = {"mark": tuple(given), "enforce": ("--policy", "--policy-file")}.get(mode, ())
    for name, value in given.items():
        if value and name not in useful:
            modes = "--mode enforce and --mode mark" if name.startswith("--policy") else "--mode mark"
            raise ValueError(f"{name} is only for {modes}, not for --mode {mode}")
        if value and policy is None:
            raise ValueError(f"{name}: needs --policy" + ("; without it MFS_MARK is used as it is" * (mode == "mark")))
    return marks_by(policy, policy_file, sizes, rules) if mode == "mark" or policy else None


def nixl_environment(backend: str | None, mode: str, before: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that make NIXL's backend ask for permits. NIXL's own plugins are found beside its library,
    or where NIXL_PLUGIN_DIR pointed before. ValueError with one line."""
    if backend is None:
        return {}
    if mode != "enforce":
        raise ValueError(f"--nixl-backend is only for --mode enforce, not for --mode {mode}")
    known = sorted(path.stem.removeprefix("libplugin_") for path in NIXL_PLUGINS.glob("libplugin_*.so"))
    if backend not in known or backend == "MFS":
        names = ", ".join(name for name in known if name != "MFS") or "none: the native parts were not built"
        raise ValueError(f"--nixl-backend {backend}: not a known backend; there is {names}")
    found = {"NIXL_PLUGIN_DIR": str(NIXL_PLUGINS), "MFS_NIXL_BACKEND": backend}
    folder = before.get("NIXL_PLUGIN_DIR")
    return found | ({"MFS_NIXL_PLUGIN_DIR": folder} if folder and folder != str(NIXL_PLUGINS) else {})


def levels_by(infiniband: bool, mode: str, policy: str | None, policy_file: Path | None) -> dict[str, str] | None:
    """Returns the service levels that --infiniband asks for; None if it was not given. ValueError with one line."""
    if not infiniband:
        return None
    if mode not in ("enforce", "mark"):
        raise ValueError(f"--infiniband is only for --mode enforce and --mode mark, not for --mode {mode}")
    if policy is None:
        raise ValueError("--infiniband: needs --policy, whose priorities are the service levels")
    from nccl_shim.mark import levels_of

    return levels_of(policy, policy_file)


def _prepared(mode: str, marks: Marks | None, levels: Mapping[str, str] | None, say: Callable[[str], None]) -> str:
    """Sets the other variables of COMMAND's environment. Returns all that were set, as one line of shell syntax."""
    names = ["LD_PRELOAD", "MFS_MODE"]
    plugin = mode != "off"
    if mode != "mark":
        names.append("MFS_SOCKET")
    if marks is not None:
        from nccl_shim.mark import classes_of, environment_of, names_communicators, unless_set, usable

        classes = usable(classes_of(marks) if levels is None else levels, os.environ, say)
        added = environment_of(marks, classes, os.environ) if mode == "mark" else unless_set(classes, os.environ)
        os.environ.update(added)
        names += added
        plugin = plugin and (mode != "mark" or names_communicators(marks))
    if plugin:
        if (other := other_profiler(os.environ)) is None:
            os.environ["NCCL_PROFILER_PLUGIN"] = str(LIBRARY)
        else:
            say(f"{other}: left as it is; NCCL's traffic is scheduled, but not distinguished by communicator and batch")
    return _assignments({name: os.environ[name] for name in names})


def _assignments(variables: Mapping[str, str]) -> str:
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())


@click.command(
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": ["-h", "--help"],
    }
)
@click.option(
    "--mode",
    type=click.Choice(MODES),
    help="enforce: work requests wait for permits. observe: work requests are counted, never held. mark: no daemon; "
    "each transfer travels in the class of its stage and size, and nothing waits. off: the shim does nothing. "
    "Default: $MFS_MODE, else enforce. The daemon may lower the mode, never raise it.",
)
@click.option(
    "--socket",
    metavar="PATH",
    help=f"The daemon's socket. Default: $MFS_SOCKET, else {DEFAULT_SOCKET}.",
)
@click.option(
    "--policy",
    metavar="NAME",
    shell_complete=_profiles,
    help="Profile of the fabric policy whose classes to use; mfsctl switch policy lists the profiles. --mode mark "
    "needs it unless MFS_MARK is set; with --mode enforce it sets the classes of libraries that post past the shim.",
)
@click.option(
    "--policy-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Policy file with that profile. Default: the one that comes with MFS.",
)
@click.option(
    "--sizes",
    multiple=True,
    metavar="STAGE=SIZE,...",
    help="For --mode mark: limits up to which transfers of a stage (reuse, p2d) go in its higher classes, for "
    "example reuse=1mib,16mib. May be given for each stage; a stage without limits has one class for all sizes.",
)
@click.option(
    "--rules",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="For --mode mark: configuration file of mfsd whose [[rule]] entries go before the built-in rules.",
)
@click.option(
    "--infiniband",
    is_flag=True,
    help="Mark for InfiniBand, which has service levels in place of DSCPs: each class gets the level of its priority "
    "in the policy. The subnet manager must map the levels. Needs --policy.",
)
@click.option(
    "--nixl-backend",
    metavar="NAME",
    help="Make NIXL's backend of this name (UCX, LIBFABRIC) ask for permits, whatever language its agents are "
    "written in; the program loads it as usual. Needs --mode enforce.",
)
@click.option("--quiet", is_flag=True, help="Print nothing, and let the shim print nothing either (MFS_LOG=quiet).")
@click.version_option(package_name="mfsd")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def main(
    mode: str | None,
    socket: str | None,
    policy: str | None,
    policy_file: Path | None,
    sizes: tuple[str, ...],
    rules: Path | None,
    infiniband: bool,
    nixl_backend: str | None,
    quiet: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND so that its RDMA traffic is scheduled by this node's mfsd.

    mfs-run preloads libmfs_shim.so (LD_PRELOAD, in front of what is there), sets MFS_MODE and MFS_SOCKET, and names
    the same library to NCCL as its profiler plugin (NCCL_PROFILER_PLUGIN) unless there is another; children of
    COMMAND inherit these variables. Nothing else changes: without a daemon the program runs as it would alone, and
    it is scheduled as soon as a daemon starts.

    With --mode mark there is no daemon, and no socket is opened: the shim gives each queue pair the DSCP of its
    use, adapters choose a lane for each transfer by its stage and size, and libraries that the shim does not see
    get their traffic class from their own variables (NCCL_IB_TC, UCX_IB_TRAFFIC_CLASS and the like), unless those
    are set. NVSHMEM's variable is left out where a port of this host is InfiniBand, since some versions of NVSHMEM
    end with an error there. --policy sets the same variables with --mode enforce; mfsctl host env prints them for
    systemd and Kubernetes.

    \b
    mfs-run -- vllm serve MODEL --kv-transfer-config ...
    mfs-run --mode observe -- ib_write_bw -d mlx5_0 HOST
    mfs-run --policy rocev2-lossy-ecn -- vllm serve MODEL ...     (NVSHMEM, DeepEP or GIN beside KV)
    mfs-run --mode mark --policy rocev2-lossy-ecn -- vllm serve MODEL ...
    mfs-run --policy paper-k8 --infiniband -- vllm serve MODEL ...
    mfs-run --nixl-backend UCX -- ./worker                        (NIXL from C++ or Rust)
    mfs-soft-roce -- mfs-run -- python3 worker.py       (no RDMA hardware)

    `mfsctl status` shows what the daemon does with the program. The exit status is that of COMMAND; 125: mfs-run
    itself failed, 126: COMMAND cannot be run, 127: COMMAND was not found.
    """
    mode = mode or os.environ.get("MFS_MODE") or "enforce"
    socket = socket or os.environ.get("MFS_SOCKET") or DEFAULT_SOCKET

    def say(text: str) -> None:
        if not quiet:
            click.echo(f"mfs-run: {text}", err=True)

    if mode not in MODES:
        click.echo(f"mfs-run: MFS_MODE={mode} is not one of {', '.join(MODES)}; set it or give --mode", err=True)
        sys.exit(OWN_ERROR)
    if not LIBRARY.is_file():
        click.echo(f"mfs-run: {LIBRARY} is missing: the native parts were not built; run: pip install .", err=True)
        sys.exit(OWN_ERROR)
    if " " in str(LIBRARY) or ":" in str(LIBRARY):
        click.echo(
            f"mfs-run: {LIBRARY}: the loader cannot preload from a path with a space or a colon; install it elsewhere",
            err=True,
        )
        sys.exit(OWN_ERROR)
    marks: Marks | None = None
    given = {"--policy": policy, "--policy-file": policy_file, "--sizes": sizes, "--rules": rules}
    try:
        marks = marks_of(mode, given, policy, policy_file, sizes, rules)
        levels = levels_by(infiniband, mode, policy, policy_file)
        nixl = nixl_environment(nixl_backend, mode, os.environ)
    except ValueError as error:
        click.echo(f"mfs-run: {error}", err=True)
        sys.exit(OWN_ERROR)
    os.environ["LD_PRELOAD"] = preload(LIBRARY, os.environ.get("LD_PRELOAD"))
    os.environ["MFS_MODE"] = mode
    if mode != "mark":
        os.environ["MFS_SOCKET"] = str(Path.cwd() / socket)
    if quiet:
        os.environ["MFS_LOG"] = "quiet"
    os.environ.update(nixl)
    say(f"{_prepared(mode, marks, levels, say)} {_assignments(nixl)}".rstrip())
    for warning in warnings(command[0], socket, mode):
        say(f"warning: {warning}")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        click.echo(f"mfs-run: {command[0]}: {error.strerror}", err=True)
        sys.exit(NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_EXECUTE)


if __name__ == "__main__":
    main()

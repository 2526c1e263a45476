"""Builds the native parts of MFS: two Python bindings and plain shared libraries.

Each library is listed once in LIBRARIES, BINDING or CAPI. Sources that do not exist fail the build by name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))  # for mfsd._build; a build in an environment of its own does not have it there
CFLAGS = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-Icsrc/include"]

SAME = ["-ffp-contract=off"]
"""Sums of doubles are what Python makes of them, on every machine (mfsd/_serving.pxi)."""


class SharedLibrary(Extension):
    """A plain shared library (no Python in it) placed inside a package under its own file name."""

    def __init__(self, path: str, sources: list[str], symbol_map: str, libraries: list[str], depends: list[str]):
        package, _, file_name = path.rpartition("/")
        super().__init__(
            name=f"{package.replace('/', '.')}.{file_name.removesuffix('.so').replace('-', '_')}",
            sources=sources,
            extra_compile_args=CFLAGS,
            extra_link_args=[f"-Wl,--version-script={symbol_map}", "-Wl,-z,defs,-z,now,-z,relro"],
            libraries=libraries,
            depends=[*depends, symbol_map],
            py_limited_api=False,
        )
        self.file_name = file_name


CORE = ("queue", "client", "arbiter", "plan", "fluid")
HEADERS = sorted(str(p.relative_to(ROOT)) for part in ("include", "base") for p in (ROOT / "csrc" / part).rglob("*.h"))


def sources(*patterns: str) -> list[str]:
    found = [str(p.relative_to(ROOT)) for pattern in patterns for p in sorted(ROOT.glob(pattern))]
    return found


BUILD = sources("mfsd/_build/*.py")
BINDING = Extension(
    "mfsd._native",
    ["mfsd/_native.pyx", *sources(*(f"csrc/{folder}/*.c" for folder in CORE))],
    libraries=["m"],
    extra_compile_args=[*CFLAGS, "-Wno-unused-parameter", "-Wno-sign-compare", "-Wno-unused-function", *SAME],
    depends=[*HEADERS, *BUILD, *sources("mfsd/*.pxi", "csrc/*/*.h")],
)
CAPI = Extension(
    "mfsd.capi",
    ["mfsd/capi.c", *sources("csrc/client/*.c")],
    extra_compile_args=[
        *CFLAGS,
        "-Wno-unused-parameter",
        "-Wno-incompatible-pointer-types",
    ],  # of atomics, to plain ones
    depends=[*HEADERS, *BUILD, *sources("csrc/client/*.h")],
)
NIXL_PLUGINS = "mooncake_adapter/nixl_plugins"
STAND_INS = (  # the plugins of NIXL's wheels, 1.4 and 1.5: NIXL looks for plugins in one folder alone
    *(f"plugin_{name}" for name in ("UCX", "LIBFABRIC", "POSIX", "GDS", "GDS_MT", "OBJ", "AZURE_BLOB")),
    *(f"plugin_{name}" for name in ("GPUNETIO", "GUSLI", "INFINIA")),
    *(f"telemetry_exporter_{name}" for name in ("prometheus", "prometheus_mp", "doca")),
)
LIBRARIES = [
    SharedLibrary(
        "nccl_shim/libmfs_shim.so",
        [*sources("nccl_shim/src/*.c", "csrc/client/*.c")],
        "nccl_shim/src/libmfs_shim.map",
        ["dl", "pthread"],
        HEADERS + sources("nccl_shim/src/*.h", "csrc/client/*.h"),
    ),
    SharedLibrary(
        "mfsd/soft_roce/libmfs-rdmav34.so",
        sources("csrc/soft_roce/*.c"),
        "csrc/soft_roce/provider.map",
        ["ibverbs", "pthread"],
        HEADERS + sources("csrc/soft_roce/*.h"),
    ),
    SharedLibrary(
        f"{NIXL_PLUGINS}/libplugin_MFS.so",
        sources("csrc/nixl/*.c", "csrc/client/*.c"),
        "csrc/nixl/plugin.map",
        ["dl", "pthread"],
        HEADERS + sources("csrc/nixl/*.h", "csrc/client/*.h"),
    ),
    *(
        SharedLibrary(
            f"{NIXL_PLUGINS}/lib{name}.so",
            sources("csrc/nixl_stand_in/*.c"),
            "csrc/nixl_stand_in/stand_in.map",
            ["dl"],
            [],
        )
        for name in STAND_INS
    ),
]


def require_toolchain() -> None:
    """Stops with the remedy when a compiler, the verbs headers or those of Python are missing."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        sys.exit("mfsd: no C compiler found; install one: apt-get install gcc (or dnf install gcc)")
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "probe.c"
        probe.write_text("#include <infiniband/verbs.h>\nint main(void) { return 0; }\n")
        result = subprocess.run([compiler, "-c", str(probe), "-o", f"{folder}/probe.o"], capture_output=True)
    if result.returncode != 0:
        sys.exit(
            "mfsd: the libibverbs headers are missing (infiniband/verbs.h); install them: "
            "apt-get install libibverbs-dev (or dnf install rdma-core-devel)"
        )
    headers = [sysconfig.get_config_var("INCLUDEPY"), sysconfig.get_path("include"), sysconfig.get_path("platinclude")]
    if not any((Path(folder) / "Python.h").is_file() for folder in headers if folder):
        sys.exit(
            f"mfsd: the headers of {sys.executable} are missing (Python.h); install them: "
            "apt-get install python3-dev (or dnf install python3-devel), as for a Python of the distribution"
        )


def write_bindings() -> None:
    """The parts of the Python bindings that are made from the headers."""
    from mfsd._build import capi, extern
    from mfsd._build.declarations import HeaderError

    try:
        extern.write(ROOT / "mfsd/_headers.pxi")
        capi.write(ROOT / "mfsd/capi.c")
    except HeaderError as error:
        sys.exit(str(error))


class Build(build_ext):
    def run(self) -> None:
        require_toolchain()
        write_bindings()
        super().run()

    def get_ext_filename(self, fullname: str) -> str:
        """The library's own file name; with its folder when asked for by its full name."""
        for library in LIBRARIES:
            if fullname == library.name:
                return str(Path(*library.name.split(".")[:-1]) / library.file_name)
            if fullname == library.name.rpartition(".")[2]:
                return library.file_name
        return str(super().get_ext_filename(fullname))

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return [] if isinstance(ext, SharedLibrary) else super().get_export_symbols(ext)


class BuildPython(build_py):
    """Puts the line that adapts Mooncake under mfs-run where Python looks for such lines at its start."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            self.copy_file("mooncake_adapter/mfs_adapter.pth", str(Path(self.build_lib) / "mfs_adapter.pth"))


setup(ext_modules=[BINDING, CAPI, *LIBRARIES], cmdclass={"build_ext": Build, "build_py": BuildPython})

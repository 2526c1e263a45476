"""The folder that NIXL_PLUGIN_DIR names: backend MFS, and stand-ins for NIXL's own plugins, so that it hides none."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
LIBRARY = FOLDER / "libplugin_MFS.so"

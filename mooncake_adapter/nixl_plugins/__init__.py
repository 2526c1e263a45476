"""The folder that NIXL_PLUGIN_DIR names: NIXL's backend MFS, and stand-ins for NIXL's own plugins, so that none is hidden."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
LIBRARY = FOLDER / "libplugin_MFS.so"

"""The page of alerts, and the panel of the dashboard that repeats it.

``python -m tests.unit.deploy.runbook`` brings the panel up to date.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "alerts.md"
DASHBOARD = ROOT / "deploy" / "grafana" / "mfs.json"
BEGIN, END = "<!-- begin of alerts -->", "<!-- end of alerts -->"
PARTS = ("Meaning", "Likely causes", "Look at", "Do")
"""What each section says, in this order."""


def sections() -> dict[str, str]:
    """Name of each alert -> the text of its section."""
    inner = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    _, *found = re.split(r"^## (\w+)\n", inner, flags=re.MULTILINE)
    return dict(zip(found[::2], (text.strip() for text in found[1::2]), strict=True))


def panel_text() -> str:
    return "\n\n".join(f"## {name}\n\n{text}" for name, text in sections().items()) + "\n"


def panel(dashboard: dict[str, Any]) -> dict[str, Any]:
    (found,) = [panel for panel in dashboard["panels"] if panel["type"] == "text"]
    return found


if __name__ == "__main__":
    made = json.loads(DASHBOARD.read_text())
    panel(made)["options"]["content"] = panel_text()
    DASHBOARD.write_text(json.dumps(made, indent=1) + "\n")

"""Numbers of the command line that would otherwise be refused only later, without a clear message."""

from __future__ import annotations

import math
from typing import Any

import click

from mfsd.node.control import ID_MAX

ID = click.IntRange(1, ID_MAX)
"""Number of a request or a batch."""


class Seconds(click.FloatRange):
    """A time within limits. "nan", which compares with neither limit, is refused."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        seconds: float = super().convert(value, parameter, context)
        if math.isnan(seconds):
            self.fail(f"{value} is not in the range {self._describe_range()}.", parameter, context)
        return seconds

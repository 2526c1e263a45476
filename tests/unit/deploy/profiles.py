"""The chart's copies of what each shipped profile gives libraries.

``python -m tests.unit.deploy.profiles`` brings them up to date.
"""

from __future__ import annotations

from mfsd.fabric.libraries import service_levels, variables
from mfsd.fabric.policy import Profile, load_profiles
from mfsd.policy.service_levels import SERVICE_LEVELS
from tests.support.chart import CHART

FOLDER = CHART / "profiles"


def text_of(profile: Profile) -> str:
    """`unless`: the variable by which the library goes where its own is not set."""
    lines = ["# Written from the code: python -m tests.unit.deploy.profiles", "roce:"]
    for one in variables(profile):
        unless = f", unless: {one.library.otherwise}" if one.library.otherwise else ""
        lines.append(f'  - {{name: {one.name}, value: "{one.value}"{unless}}}')
    lines.append("infiniband:")
    lines += [f'  - {{name: {one.name}, value: "{one.value}"}}' for one in variables(profile, infiniband=True)]
    lines.append(f'  - {{name: {SERVICE_LEVELS}, value: "{service_levels(profile)}"}}')
    return "\n".join(lines) + "\n"


def texts() -> dict[str, str]:
    """Name of each file -> its text."""
    return {f"{name}.yaml": text_of(profile) for name, profile in load_profiles().items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text)

"""Prints the requirements of this project with the given extras: python tools/dependencies.py bench,dev. With
"build-system" it prints those of the build alone.

The Makefile uses it to install packages before or during the build, so that a change of C source reinstalls nothing
else.
"""

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

content = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
if sys.argv[1:] == ["build-system"]:
    print(*content["build-system"]["requires"], sep="\n")
    sys.exit()
project = content["project"]
for requirement in project["dependencies"]:
    print(requirement)
for extra in filter(None, sys.argv[1].split(",") if len(sys.argv) > 1 else []):
    print(*project["optional-dependencies"][extra], sep="\n")

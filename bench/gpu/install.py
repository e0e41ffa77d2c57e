"""Install this repository's distributions into a new environment, without a network or a builder.

It writes what an editable install leaves behind: a .pth file with the source folders, and for each
distribution its metadata, so that its plugins are found. Everything else comes from the Python that
runs this.
"""

from __future__ import annotations

import json
import sys
import venv
from email.message import Message
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[2]
MEMBERS = {
    ".": ".",
    "plugins/coregrad-cpu": "plugins/coregrad-cpu/src",
    "plugins/coregrad-cuda": "plugins/coregrad-cuda/src",
    "conformance": "conformance/src",
    "tools/coregrad_simt": "tools/coregrad_simt/src",
}


def main(folder: Path) -> None:
    venv.create(folder, system_site_packages=True, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    sources = [str(ROOT / source) for source in MEMBERS.values()]
    inherited = [path for path in sys.path if path.endswith("-packages")]
    (packages / "coregrad.pth").write_text("\n".join(sources + inherited) + "\n")
    for member in MEMBERS:
        describe(ROOT / member, packages)
    print(f"{len(MEMBERS)} distributions in {folder}")


def describe(member: Path, packages: Path) -> None:
    """What Python's own importlib.metadata reads of an installed distribution."""
    project = tomllib.loads((member / "pyproject.toml").read_text())["project"]
    name = project["name"].replace("-", "_")
    folder = packages / f"{name}-{project['version']}.dist-info"
    folder.mkdir()
    metadata = Message()
    metadata["Metadata-Version"] = "2.1"
    metadata["Name"], metadata["Version"] = project["name"], project["version"]
    (folder / "METADATA").write_text(str(metadata))
    editable = {"url": member.as_uri(), "dir_info": {"editable": True}}
    (folder / "direct_url.json").write_text(json.dumps(editable))
    points = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
        for group, entries in project.get("entry-points", {}).items()
    ]
    (folder / "entry_points.txt").write_text("\n".join(points))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

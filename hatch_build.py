"""Compiles `runs.c` while Stoker is installed. Without a compiler nothing is missing but some speed: see runs.py."""

import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = "src/stoker/loader/source"


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]  # a name that hatchling looks for
    """One shared library, with no Python in it: it fits every version of Python on its platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile it, and let the wheel carry it."""
        folder = Path(self.root, FOLDER)
        library = folder / "libruns.so"
        new = library.with_suffix(f".{os.getpid()}")  # somebody may be using the one that is there
        words = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-o", str(new), str(folder / "runs.c")]
        try:
            subprocess.run(words, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            library.unlink(missing_ok=True)
            return
        new.replace(library)
        build_data["artifacts"].append(f"{FOLDER}/{library.name}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

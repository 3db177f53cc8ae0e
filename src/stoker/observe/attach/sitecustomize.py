"""Loaded by the child's interpreter at start-up, because `stoker` put this folder first on its path.

It takes itself off the path, hides its traces from `os.environ`, starts the observer, and hands over to the
`sitecustomize` that would have been loaded without it. Nothing that goes wrong here reaches the user's script.
"""

import os
import sys


def _open_house(root: str) -> None:
    """Make `import stoker` find the Stoker that started this process, whatever the child's environment has."""
    import importlib.util
    from importlib.machinery import ModuleSpec
    from typing import Any

    class Finder:
        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG004
            if name != "stoker":
                return None
            home = os.path.join(root, "stoker")  # noqa: PTH118
            init = os.path.join(home, "__init__.py")  # noqa: PTH118
            return importlib.util.spec_from_file_location(name, init, submodule_search_locations=[home])

    sys.meta_path.insert(0, Finder)


def _start(here: str) -> None:
    root = os.path.dirname(os.path.dirname(os.path.dirname(here)))  # noqa: PTH120
    _open_house(root)
    from stoker.observe import child

    child.attach()


def _hand_over(here: str) -> None:
    import importlib.machinery
    import importlib.util

    sys.path[:] = [path for path in sys.path if path != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH120, PTH100
try:
    _start(_HERE)
except BaseException as error:  # noqa: BLE001  the user's script runs, whatever happens here
    try:
        with open(os.path.join(os.environ["STOKER_RUN"], "attach-failed.txt"), "a") as file:  # noqa: PTH118, PTH123
            file.write(f"{type(error).__name__}: {error}\n")
    except (OSError, KeyError):
        pass
_hand_over(_HERE)

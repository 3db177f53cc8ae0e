"""What was touched, so that it can be put back."""

import sys
from collections.abc import Callable, MutableSequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

ABSENT = object()


def put(owner: Any, name: str, value: Any) -> None:
    """Make an attribute of the owner's own what it was."""
    if value is ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


class Patches:
    """Attributes replaced and hooks registered; `restore` puts everything back, last one first."""

    def __init__(self) -> None:
        self.replaced: list[tuple[Any, str, Any]] = []
        """Each owner, the name of its attribute, and what that was before (`ABSENT`: inherited)."""
        self._undo: list[Callable[[], None]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute; one that was inherited is removed again on restore.

        A function is replaced in the module that it says it is from, too: pickle looks it up there.
        """
        home = sys.modules.get(getattr(value, "__module__", None) or "")
        if home is not None and home is not owner and _wraps(value, vars(home).get(name)):
            self._replace(home, name, value)
        self._replace(owner, name, value)

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        before = vars(owner).get(name, ABSENT)
        self.replaced.append((owner, name, before))
        setattr(owner, name, value)
        self._undo.append(lambda: put(owner, name, before))

    def set_awake(self, owner: Any, name: str, value: Any, changed: list[Callable[[int], None]]) -> None:
        """Replace an attribute of the owner's own, but not while hooks doze: then a wrapper would only pass calls on.

        `changed` is told of that (1: they doze). Whatever somebody else puts there meanwhile stays.
        """
        plain = vars(owner)[name]
        self.set(owner, name, value)

        def change(asleep: int) -> None:
            if vars(owner).get(name) is (value if asleep else plain):
                setattr(owner, name, plain if asleep else value)

        changed.append(change)
        self.on_restore(lambda: changed.remove(change))

    def add(self, items: MutableSequence[Any], item: Any) -> None:
        """Append to a list of callbacks."""
        items.append(item)
        self.on_restore(lambda: items.remove(item) if item in items else None)

    def on_restore(self, undo: Callable[[], None]) -> None:
        """Remember how something else is put back."""
        self._undo.append(undo)

    def restore(self) -> None:
        """Put everything back."""
        while self._undo:
            self._undo.pop()()


def _wraps(value: Any, original: Any) -> bool:
    """True if this was wrapped around that, by however many wrappers."""
    while (value := getattr(value, "__wrapped__", None)) is not None:
        if value is original:
            return True
    return False


class Imports(MetaPathFinder):
    """Calls back right after certain modules have been imported, and stays out of all other imports."""

    def __init__(self, wanted: dict[str, Callable[[ModuleType], None]], failed: Callable[[str], None]) -> None:
        self._wanted = wanted
        self._failed = failed

    def install(self, patches: Patches) -> None:
        """Serve what is imported already, and listen for the rest."""
        for name in list(self._wanted):
            if name in sys.modules:
                self._serve(sys.modules[name])
        sys.meta_path.insert(0, self)
        patches.on_restore(lambda: sys.meta_path.remove(self) if self in sys.meta_path else None)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec another finder has, with a loader that calls us once it is done."""
        if name not in self._wanted:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            self._listen(spec.loader)
        return spec

    def _listen(self, loader: Loader) -> None:
        """Only this one loader object is changed, and only until it has done its work."""
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            original(module)
            self._serve(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]

    def _serve(self, module: ModuleType) -> None:
        callback = self._wanted.pop(module.__name__, None)
        try:
            if callback is not None:
                callback(module)
        except Exception as error:  # noqa: BLE001  the user's import must succeed
            self._failed(f"could not instrument {module.__name__}: {error!r}")

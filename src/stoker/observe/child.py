"""The child's side: attach at start-up, instrument torch when it is imported, let go at the end."""

import atexit
import os
import sys
from _thread import get_ident
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stoker.observe import hooks, loaders, loggers, probe_starts, workers
from stoker.observe.idling import fork_s, spun_s
from stoker.observe.losses import Losses, seed_all
from stoker.observe.opened import Opened
from stoker.observe.options import Options
from stoker.observe.originals import Originals
from stoker.observe.pace import Pace
from stoker.observe.patches import Imports, Patches
from stoker.observe.probe import Probes
from stoker.observe.probe_gather import compiled
from stoker.observe.pulse import Pulses, watch_values
from stoker.observe.recorder import SLOWEST_SAMPLE_S, Recorder, about_process
from stoker.observe.restore import began_s
from stoker.observe.saves import Saves
from stoker.observe.settings import Settings
from stoker.records.observed import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from stoker.observe.replayed import Replayed

RUN = "STOKER_RUN"
NEW_FILES = 50
"""How many names of new files are kept for the report."""


class Observer:
    """Everything Stoker has inside one process."""

    def __init__(self, directory: Path, options: Options) -> None:
        self.recorder = Recorder(directory)
        self.options = options
        self.patches = Patches()
        self.pace = Pace(options, self.recorder, directory)
        self.originals = None if options.whole else Originals(directory, began_s(directory))
        self.saves = Saves(self.recorder, directory, self.patches, self.pace, self.originals)
        self._losses = Losses(self.recorder, options.losses) if options.losses else None
        self._opened = Opened(self.recorder.note) if options.files else None
        self._replayed: Replayed | None = None
        self._closed = False
        if options.live:
            self.recorder.sample_s = SLOWEST_SAMPLE_S
            self.recorder.beat = Pulses(self.recorder.note).beat

    def start(self) -> None:
        """Begin to write down, and wait for torch."""
        recorder = self.recorder
        recorder.note("process", argv=sys.argv, **about_process())
        recorder.pause.install(self.patches)
        recorder.ensure_running()
        if self._opened is not None:
            self._opened.start()
        os.register_at_fork(
            before=recorder.before_fork, after_in_parent=recorder.after_fork_here, after_in_child=self._after_fork
        )
        atexit.register(self.finish)
        self._patch_exit()
        self.saves.watch_syncs()
        if self.originals is not None:
            self.originals.start()
        wanted: dict[str, Callable[[ModuleType], None]] = {
            "torch": self._instrument,
            "stoker.sim.device": lambda module: hooks.watch_simulated(module, recorder, self.patches),
            "safetensors.torch": self.saves.watch_safetensors,
            **{name: self._logger(name) for name in loggers.KNOWN},
        }
        Imports(wanted, lambda text: recorder.note("trouble", text=text)).install(self.patches)

    def _instrument(self, torch: ModuleType) -> None:
        """Each part by itself: one that a new torch breaks leaves the others standing."""
        recorder, patches, pace = self.recorder, self.patches, self.pace
        parts: list[Callable[[], None]] = [
            partial(self._prepare_trial, torch),
            partial(Settings(self.options.knobs, recorder.note).install, torch, patches),
            *(partial(part, torch, recorder, patches, pace) for part in hooks.PARTS),
            partial(loaders.install, torch, recorder, patches, pace),
            partial(workers.install, torch, recorder, patches),
            partial(self.saves.install, torch),
            partial(self._prepare_probes, torch),
            partial(self._prepare_live, torch),
            self._prepare_doze,
        ]
        for part in parts:
            try:
                part()
            except Exception as error:  # noqa: BLE001  the user's import must succeed
                recorder.note("trouble", text=f"torch {torch.__version__} is not fully seen: {error!r}")
        recorder.note("torch", version=str(torch.__version__))

    def _prepare_trial(self, torch: ModuleType) -> None:
        """What makes runs comparable: one seed, the first losses, and the device they are to run on."""
        if self.options.seed is not None:
            seed_all(self.options.seed, torch)
        if self.options.device_profile is not None:
            from stoker.observe.replayed import Replayed

            self._replayed = Replayed(self.options.device_profile, self.recorder)
            self._replayed.install(torch, self.patches)
        if self._losses is not None:
            self._losses.install(torch, self.patches)

    def _prepare_probes(self, torch: ModuleType) -> None:
        """Experiments only where the run is a diagnostic one."""
        if self.options.probe and not self.options.whole:
            self.pace.probes = Probes(torch, self.recorder, self.options.budget_s, self.recorder.directory)
            self.pace.trying = True
            probe_starts.install(self.recorder, self.patches)

    def _prepare_live(self, torch: ModuleType) -> None:
        if self.options.live:
            watch_values(torch, self.recorder, self.patches)

    def _prepare_doze(self) -> None:
        """Not in a live view, which shows what comes; not while experiments look; and compiled code would notice."""
        if not self.options.live:
            self.recorder.doze.may = lambda: not (self.pace.trying or compiled())

    def _logger(self, name: str) -> Any:
        return lambda module: loggers.install(name, module, self.recorder, self.patches)

    def _patch_exit(self) -> None:
        """`os._exit` skips all farewells; what was seen is written before."""
        leave = os._exit

        def _exit(status: int) -> None:
            trains = self.recorder.home[0]
            if trains == get_ident() or trains not in sys._current_frames():  # noqa: SLF001  nobody else writes events
                self.recorder.doze.wake()
                self.recorder.mark(Kind.EXIT)
            self.saves.clean()
            self.recorder.close()
            leave(status)

        self.patches.set(os, "_exit", _exit)

    def _after_fork(self) -> None:
        if self._closed:
            self.recorder.after_fork_here()
        else:
            self.recorder.after_fork()
            self.saves.after_fork()

    def finish(self) -> None:
        """The script's own code has ended: write the rest, put everything back."""
        if self._closed:
            return
        self._closed = True
        if self.pace.probes is not None:
            self.recorder.attempt(self.pace.probes.finish)
        self.recorder.doze.wake()
        self.recorder.mark(Kind.EXIT)
        self.recorder.marks.read()
        if self._losses is not None:
            self._losses.tell()
        if self._opened is not None:
            self._opened.finish()
        if self.pace.feeds_itself and not self.options.live and not self.options.whole:
            self.recorder.note("idling", fork_s=self.recorder.attempt(fork_s), spun_s=self.recorder.attempt(spun_s))
        self.recorder.note("device", **(self._replayed.facts() if self._replayed else hooks.device_facts()))
        self.saves.clean()
        if self.originals is not None:
            self.originals.stop()
            made = self.originals.new_files()
            self.recorder.note("made", paths=made[:NEW_FILES], count=len(made))
        self.recorder.close()
        self.patches.restore()
        atexit.unregister(self.finish)


def attach() -> None:
    """Called once by `attach/sitecustomize.py`."""
    directory = Path(os.environ[RUN])
    options = Options.read(directory)
    _hide(options.path_before)
    if options.observe:
        Observer(directory, options).start()
    else:
        _only_set(options)


def _only_set(options: Options) -> None:
    """`stoker run`: nothing but the knobs. A knob that could not be set is said, once, where the script's errors go."""
    patches = Patches()
    said: set[str] = set()

    def note(note: str, **facts: Any) -> None:
        text = facts.get("why") or facts.get("text")
        if note != "set" and isinstance(text, str) and text not in said:
            said.add(text)
            print(f"stoker: {text}", file=sys.stderr)

    def meet(torch: ModuleType) -> None:
        Settings(options.knobs, note).install(torch, patches)

    Imports({"torch": meet}, lambda text: note("trouble", text=text)).install(patches)


def _hide(path_before: str | None) -> None:
    """Take our words out of `os.environ`, not out of the real environment that sub-processes inherit."""
    ours: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]  # noqa: SLF001
    words = {name: os.environ[name] for name in (RUN, "PYTHONPATH") if name in os.environ}
    ours.pop(RUN.encode(), None)
    ours.pop(b"PYTHONPATH", None)
    if path_before is not None:
        ours[b"PYTHONPATH"] = os.fsencode(path_before)
    _follow_subprocesses(words, path_before)


def _follow_subprocesses(words: dict[str, str], path_before: str | None) -> None:
    """A launcher that hands its ranks a copy of `os.environ` hands them our words too."""

    def patch(subprocess: ModuleType) -> None:
        start = subprocess.Popen.__init__

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            env = kwargs.get("env")
            if isinstance(env, dict) and env.get("PYTHONPATH") == path_before:
                kwargs["env"] = {**env, **words}
            start(self, *args, **kwargs)

        subprocess.Popen.__init__ = __init__

    Imports({"subprocess": patch}, lambda _: None).install(Patches())

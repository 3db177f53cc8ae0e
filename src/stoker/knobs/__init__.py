"""The table of knobs: settings that can be changed from outside, without touching the user's script.

Each knob knows its legal values, how to read and apply itself on its target, how to undo that, what it risks and
whether it can change what the training computes. It knows nothing of observing or trying.

    undo = KNOBS["num_workers"].apply(arguments, 4)
    ...
    undo()

The target depends on the knob's scope: `loader` takes the keyword arguments for a DataLoader (a dict, edited in
place), `model` a module, `optimizer` an optimizer, and `process` nothing at all.
"""

import difflib

from stoker.errors import UsageError
from stoker.knobs import compute, loader
from stoker.knobs.kinds import Knob, OneOf, Scope, Switch, Whole

__all__ = ["KNOBS", "Knob", "OneOf", "Scope", "Switch", "Whole", "find"]

KNOBS: dict[str, Knob] = {knob.name: knob for knob in (*loader.knobs(), *compute.knobs())}


def find(name: str) -> Knob:
    """The knob of this name; an unknown name is answered with the nearest one."""
    if name in KNOBS:
        return KNOBS[name]
    near = difflib.get_close_matches(name, KNOBS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known knobs: {', '.join(KNOBS)}"
    raise UsageError(f"no knob is called {name}; {hint}")

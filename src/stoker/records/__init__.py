"""What passes between stages: frozen dataclasses that round-trip through JSON.

Nothing here measures, decides or formats. Seconds and bytes throughout; a share is 0 to 1. `None` means
"not measured", which is never the same as 0. `encode` and `decode` are each other's inverse for every record.

    record = decode(Diagnosis, json.loads(text))
    text = json.dumps(encode(record), allow_nan=False)

A module for each stage. All names can be had from here too; each module is imported when a name of it is asked for,
because whoever observes a script must not make it wait for the records of a dashboard.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.records.attributed import *  # noqa: F403
    from stoker.records.codec import *  # noqa: F403
    from stoker.records.compared import *  # noqa: F403
    from stoker.records.diagnosis import *  # noqa: F403
    from stoker.records.live import *  # noqa: F403
    from stoker.records.observed import *  # noqa: F403
    from stoker.records.predicted import *  # noqa: F403
    from stoker.records.probes import *  # noqa: F403
    from stoker.records.tuning import *  # noqa: F403

MODULES = ("codec", "observed", "probes", "attributed", "diagnosis", "tuning", "predicted", "compared", "live")


def __getattr__(name: str) -> Any:
    for module in MODULES if not name.startswith("_") else ():
        found = vars(import_module(f"stoker.records.{module}")).get(name)
        if found is not None:
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

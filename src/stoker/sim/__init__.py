"""The simulated accelerator and the simulated remote store: tune the data path without either."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.sim.cost import Cost, linear, load_profile, replay
    from stoker.sim.device import Device, live
    from stoker.sim.link import Fault
    from stoker.sim.store import Store
    from stoker.sim.timeline import Event, Span, Timeline

_HOME = {
    "Cost": "cost",
    "Device": "device",
    "Event": "timeline",
    "Fault": "link",
    "Span": "timeline",
    "Store": "store",
    "Timeline": "timeline",
    "linear": "cost",
    "live": "device",
    "load_profile": "cost",
    "replay": "cost",
}

__all__ = ["Cost", "Device", "Event", "Fault", "Span", "Store", "Timeline", "linear", "live", "load_profile", "replay"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'stoker.sim' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"stoker.sim.{_HOME[name]}"), name)

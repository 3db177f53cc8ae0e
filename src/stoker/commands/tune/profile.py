"""`--device-profile RUN`: the device's time in each step of a recorded run, or a profile that lies there as JSON."""

from pathlib import Path

from stoker.errors import UsageError
from stoker.ledger import Ledger


def find_profile(name: str) -> Path:
    """A profile's file; made from the run's records where the name is a run's."""
    from stoker.sim.cost import load_profile

    path = Path(name)
    if path.suffix == ".json":
        load_profile(path)  # a wrong file is said before anything starts
        return path
    directory = Ledger().find(name)
    made = directory / "device-profile.json"
    if not made.exists():
        from stoker.attribute import attribute
        from stoker.observe.readback import read
        from stoker.predict.profile import recorded
        from stoker.report import data

        seen = read(directory)
        profile = recorded(seen.tracks[0], attribute(seen.tracks[0]))
        if profile is None:
            raise UsageError(
                f"{name} has no steady steps of a training; expected a run of `stoker doctor` on the device"
            )
        data.write(data.dumps(profile), made)
    return made

"""A what-if for the terminal."""

from rich.console import Console
from rich.table import Table

from stoker.records.predicted import WhatIf
from stoker.report import units


def show(prediction: WhatIf, console: Console) -> None:
    """Measured, the simulation of the same, and the prediction, side by side."""
    knobs = ", ".join(f"{name}={value}" for name, value in prediction.knobs.items()) or "as asked"
    table = Table("", "as it ran", "simulated as it ran", knobs)
    simulated = units.seconds(prediction.simulated_step_s)
    table.add_row("step", units.seconds(prediction.measured_step_s), simulated, units.seconds(prediction.step_s))
    table.add_row("rate in samples", "1.00×", "", f"{prediction.ratio:.2f}×")
    table.add_row("epoch", "", "", units.seconds(prediction.epoch_s))
    table.add_row("memory", "", "", units.size(prediction.memory_bytes))
    console.print(table)

"""A tuning: each trial's interval against the noise band, and predictions against what came."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from stoker.records.tuning import Trial, Tuning
from stoker.report.charts.theme import COLOURS, colour, data, finish

DECISIONS = ("keep", "undecided", "revert", "unsafe")


def trials(tuning: Tuning) -> Any:
    """Ratio of rates of each trial with its 95 % interval; inside the grey band it is noise. A diamond is predicted."""
    rows = [_row(i, trial) for i, trial in enumerate(tuning.trials, 1)]
    base = alt.Chart(data(rows)).encode(y=alt.Y("trial:N", sort=None, axis=None))
    x = alt.X("ratio:Q", title="rate, candidate ÷ reference", scale=alt.Scale(zero=False, padding=12))
    tone = colour("decision", [name for name in DECISIONS if any(row["decision"] == name for row in rows)])
    tips = ["label:N", "decision:N", "measured:N", "predicted:N", "reason:N"]
    bars = base.mark_rule(strokeWidth=4, yOffset=9).encode(x=alt.X("low:Q"), x2="high:Q", color=tone, tooltip=tips)
    points = base.mark_point(filled=True, opacity=1, size=90, yOffset=9).encode(x=x, color=tone, tooltip=tips)
    names = base.mark_text(align="left", baseline="middle", yOffset=-9).encode(x=alt.value(0), text="label:N")
    one = alt.Chart(data([{"ratio": 1}])).mark_rule(strokeDash=[4, 3]).encode(x="ratio:Q")
    return finish(
        alt.layer(*_noise(tuning), one, bars, points, *_guesses(rows, tips), names), 44 * max(len(rows), 1) + 6
    )


def _guesses(rows: Sequence[dict[str, Any]], tips: list[str]) -> list[Any]:
    held = [row for row in rows if row["guess"] is not None]
    base = alt.Chart(data(held)).mark_point(
        shape="diamond", opacity=1, size=90, yOffset=9, color=COLOURS["gc"], strokeWidth=2
    )
    return [base.encode(x="guess:Q", y=alt.Y("trial:N", sort=None, axis=None), tooltip=tips)] if held else []


def _row(number: int, trial: Trial) -> dict[str, Any]:
    before = "" if trial.before is None else f"{trial.before} "
    measured = "not measured"
    if trial.ratio is not None and trial.ci_low is not None and trial.ci_high is not None:
        measured = f"{trial.ratio:.2f}× ({trial.ci_low:.2f} to {trial.ci_high:.2f})"
    return {
        "trial": f"{number}",
        "label": f"{number}. {trial.knob}: {before}→ {trial.after} · {trial.decision} · {measured}",
        "decision": trial.decision,
        "ratio": trial.ratio,
        "low": trial.ci_low,
        "high": trial.ci_high,
        "guess": trial.predicted_ratio,
        "measured": measured,
        "predicted": "–" if trial.predicted_ratio is None else f"{trial.predicted_ratio:.2f}×",
        "reason": trial.reason,
    }


def _noise(tuning: Tuning) -> list[Any]:
    if tuning.noise is None:
        return []
    row = {
        "low": tuning.noise.ratio_low,
        "high": tuning.noise.ratio_high,
        "text": "noise: the reference against itself",
    }
    shade = alt.Chart(data([row])).mark_rect(opacity=0.22, color=COLOURS["other"])
    return [shade.encode(x="low:Q", x2="high:Q", tooltip=[alt.Tooltip("text:N", title="band")])]


def predictions(tuning: Tuning) -> Any:
    """Predicted against measured ratio; on the line the prediction was right."""
    rows = [
        {**_row(i, trial), "name": f"{trial.knob}={trial.after}"}
        for i, trial in enumerate(tuning.trials, 1)
        if trial.predicted_ratio is not None and trial.ratio is not None
    ]
    values = [value for row in rows for value in (row["guess"], row["low"], row["high"]) if value is not None]
    low, high = min(values, default=0.9) * 0.95, max(values, default=1.1) * 1.05
    scale = alt.Scale(domain=[round(low, 3), round(high, 3)], nice=False)
    base = alt.Chart(data(rows))
    y = alt.Y("ratio:Q", title="measured", scale=scale)
    x = alt.X("guess:Q", title="predicted ratio", scale=scale)
    tone = colour("decision", [name for name in DECISIONS if any(row["decision"] == name for row in rows)])
    tips = ["label:N", "predicted:N", "measured:N"]
    bars = base.mark_rule(strokeWidth=2).encode(x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q", color=tone)
    points = base.mark_point(filled=True, opacity=1, size=80).encode(x=x, y=y, color=tone, tooltip=tips)
    ends = data([{"guess": round(low, 3), "ratio": round(low, 3)}, {"guess": round(high, 3), "ratio": round(high, 3)}])
    exact = alt.Chart(ends).mark_line(strokeDash=[4, 3], color=COLOURS["other"]).encode(x=x, y=y)
    return finish(alt.layer(exact, bars, points, *_labels(rows, (low + high) / 2, x, y)), 240)


def _labels(rows: Sequence[dict[str, Any]], middle: float, x: Any, y: Any) -> list[Any]:
    """Towards the middle of the picture, so that none is cut off."""
    left = [row for row in rows if row["guess"] < middle]
    right = [row for row in rows if row["guess"] >= middle]
    after = alt.Chart(data(left)).mark_text(align="left", dx=8, fontSize=11)
    before = alt.Chart(data(right)).mark_text(align="right", dx=-8, fontSize=11)
    return [words.encode(x=x, y=y, text="name:N") for words, held in ((after, left), (before, right)) if held]

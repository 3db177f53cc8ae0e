"""How sure a figure is, from the spread of the samples that it rests on.

A figure's *error* is the standard error of its mean, as a share of it, by the method of batch means: the samples are
cut into up to eight runs of neighbours, and the spread is that between the runs' means. Drift and bursts of other
processes, which neighbours share, widen it; a plain standard error would hide them. A finding's *confidence* is the
probability, for a logarithm of its gain that is off by a normal error, that the gain reaches what is worth a change.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

RUNS = 8
ONE_SAMPLE = 0.3
"""The error of a figure that was seen once: what two short windows differ by on a machine that others use too."""
BLIND = 0.45
"""From this error on, turns differ so much among themselves that their comparison says less than none."""
UNTRIED = 0.6
"""The probability of a cause whose neighbours no experiment could rule out on this machine."""
LEAST = 0.01
"""No clock and no scheduler is better than this."""
CERTAIN = 0.99
"""Nothing measured on one machine in one minute is surer."""


def error(samples: Sequence[float]) -> float:
    """The standard error of the mean of these samples, as a share of it."""
    if len(samples) < 2:  # noqa: PLR2004
        return ONE_SAMPLE
    means = list(_means(samples))
    mean = math.fsum(means) / len(means)
    if mean <= 0:
        return ONE_SAMPLE
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in means) / (len(means) - 1))
    return max(deviation / mean / math.sqrt(len(means)), LEAST)


def _means(samples: Sequence[float]) -> Iterable[float]:
    runs = min(RUNS, len(samples))
    edges = [round(i * len(samples) / runs) for i in range(runs + 1)]
    for start, end in pairwise(edges):
        yield math.fsum(samples[start:end]) / (end - start)


def together(*errors: float) -> float:
    """The error of a product or quotient of figures."""
    return math.sqrt(math.fsum(one * one for one in errors))


def likely(value: float, limit: float, off: float) -> float:
    """The probability that a figure measured as `value`, with this error, is truly above `limit`."""
    if value <= 0 or limit <= 0:
        return 1 - CERTAIN
    chance = 0.5 * (1 + math.erf(math.log(value / limit) / max(off, LEAST) / math.sqrt(2)))
    return min(max(chance, 1 - CERTAIN), CERTAIN)

"""Looks at a tree, says what it holds and whether that is too much."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace

from stoker.records.tuning import Ending, Limits
from stoker.sizes import format_bytes
from stoker.trial import device, memory
from stoker.trial.cgroup import Group
from stoker.trial.protocol import Usage
from stoker.trial.shm import Segments
from stoker.trial.tree import Tree

# At least ten looks a second (issue: "watched at ≥ 10 Hz"), the time of a look included.
EVERY_S = 0.09
# While memory grows the next look comes when half of what is left could be taken, but not sooner than this.
SOONEST_S = 0.01
# Whatever takes it, this part of the machine's memory stays free while a trial runs: with less, Linux starts to thrash.
RESERVE_SHARE = 0.04

Excess = tuple[Ending, str]


class Watch:
    """One tree and its limits. With a cgroup the kernel counts; without one we count, from /proc."""

    def __init__(
        self,
        tree: Tree,
        limits: Limits,
        *,
        group: Group | None,
        segments: Segments,
        devices: device.Meter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tree = tree
        self.limits = limits
        self.group = group
        self.segments = segments
        self.devices = devices
        self.peak = Usage(0.0, 0, 0 if segments.is_there else None, None, 0)
        self._clock = clock
        self._started = clock()
        self._meter = memory.Meter(limits.host_bytes)
        self._oom_kills_before = memory.oom_kills()
        self._free_bytes = memory.available_bytes()
        self._last = (0.0, 0)
        self._growth_bytes_per_s = 0.0
        self._reserve_bytes = int(RESERVE_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))

    def look(self) -> Usage:
        """What the tree holds now; remembers the most of each."""
        self._free_bytes = memory.available_bytes()
        pids = self.tree.look()
        named_bytes = self.segments.read(pids, self.limits.shm_bytes)
        if self.group is not None:
            host_bytes, shm_bytes = self.group.memory()
        else:
            shm_bytes = named_bytes
            host_bytes = self._meter.read(pids, shm_bytes, self._free_bytes)
            if host_bytes > self.limits.host_bytes and shm_bytes:  # what it held in /dev/shm may be gone by now
                shm_bytes = self.segments.read(pids, 0)
                host_bytes = self._meter.read(pids, shm_bytes, self._free_bytes)
        usage = Usage(
            seconds=self._clock() - self._started,
            host_bytes=host_bytes,
            shm_bytes=shm_bytes if self.segments.is_there else None,
            device_bytes=self.devices.read(pids),
            processes=len(pids),
        )
        self._remember(usage)
        return usage

    def _remember(self, usage: Usage) -> None:
        peak = self.peak
        self.peak = Usage(
            usage.seconds,
            max(peak.host_bytes, usage.host_bytes),
            _most(peak.shm_bytes, usage.shm_bytes),
            _most(peak.device_bytes, usage.device_bytes),
            max(peak.processes, usage.processes),
        )
        then_s, then_bytes = self._last
        grown = (usage.host_bytes - then_bytes) / max(usage.seconds - then_s, 1e-3)
        self._growth_bytes_per_s = max(grown, self._growth_bytes_per_s / 2, 0.0)
        self._last = (usage.seconds, usage.host_bytes)

    def excess(self, usage: Usage) -> Excess | None:
        """Which limit is passed, and the one line that says so."""
        found = self.taken_by_kernel() or exceeded(usage, self.limits)
        if found is None and self._free_bytes < self._reserve_bytes:
            return "ram", f"only {format_bytes(self._free_bytes)} of the machine's RAM were left, so it was ended"
        return found

    def taken_by_kernel(self, exit_code: int | None = None) -> Excess | None:
        """Whether the kernel ended some of it for want of memory: in its cgroup, or on the whole machine."""
        limit_bytes = self.limits.host_bytes
        if self.group is not None and self.group.oom_kills():
            self.peak = replace(self.peak, host_bytes=max(self.peak.host_bytes, limit_bytes))
            return "ram", f"the kernel ended it at the {format_bytes(limit_bytes)} of RAM that it may take"
        if exit_code == -signal.SIGKILL and memory.oom_kills() > self._oom_kills_before:
            return "ram", "the kernel ended it, because the machine was out of memory"
        return None

    def pause_s(self) -> float:
        """How long the next look can wait."""
        room_bytes = self.limits.host_bytes - self._last[1]
        if self._growth_bytes_per_s <= 0:
            return EVERY_S
        return min(EVERY_S, max(SOONEST_S, room_bytes / self._growth_bytes_per_s / 2))

    def close(self) -> None:
        """Close the files it keeps open."""
        self._meter.close()


def exceeded(usage: Usage, limits: Limits) -> Excess | None:
    """The first limit that is passed. Pure."""
    sizes: list[tuple[Ending, str, int | None, int | None]] = [
        ("ram", "RAM", usage.host_bytes, limits.host_bytes),
        ("shm", "shared memory", usage.shm_bytes, limits.shm_bytes),
        ("device", "device memory", usage.device_bytes, limits.device_bytes),
    ]
    for ending, name, used, allowed in sizes:
        if used is not None and allowed is not None and used > allowed:
            return ending, f"it took {format_bytes(used)} of {name}, {format_bytes(allowed)} allowed"
    if limits.processes is not None and usage.processes > limits.processes:
        return "processes", f"it had {usage.processes} processes, {limits.processes} allowed"
    if limits.seconds is not None and usage.seconds > limits.seconds:
        return "time", f"still running after {usage.seconds:.1f} s, {limits.seconds:g} s allowed"
    return None


def _most(one: int | None, other: int | None) -> int | None:
    return max(one, other) if one is not None and other is not None else one if other is None else other

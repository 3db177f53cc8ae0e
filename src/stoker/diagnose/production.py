"""How batches are made: what the kernel and the clocks say of each, as medians and means for one sample."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stoker.attribute.steady import quantile
from stoker.records.observed import WorkerBatch


@dataclass(frozen=True, slots=True)
class Production:
    """How batches are made, per sample, where waiting for a core does not count as making."""

    batches: int
    samples: float  # of one batch
    wall_s: float
    net_s: float
    collate_s: float
    cpu_s: float
    process_cpu_s: float
    blocked_s: float
    system_s: float
    queued_s: float
    mean_wall_s: float
    mean_net_s: float
    mean_cpu_s: float  # of all threads
    read_bytes: float
    disk_bytes: float
    net_bytes: float
    opens: float
    requests: float
    result_bytes: float
    sent_bytes: float
    pickled_bytes: float
    tensors: float
    send_s: float

    @property
    def blocked_share(self) -> float:
        """The share of making that waits for files and sockets; threads that work meanwhile are work."""
        beside = max(self.process_cpu_s - self.cpu_s, 0.0)
        return max(self.blocked_s - beside, 0.0) / self.net_s if self.net_s else 0.0

    @property
    def taken_bytes(self) -> float:
        """Bytes that were read for one sample, from files, pages or sockets."""
        return max(self.read_bytes, self.disk_bytes) + self.net_bytes

    @property
    def collate_share(self) -> float:
        """The share of making that puts samples together."""
        return self.collate_s / self.wall_s if self.wall_s else 0.0


def net_s(batch: WorkerBatch) -> float:
    """Seconds for one sample, without waiting for a core."""
    return max((batch.end_ns - batch.begin_ns) / 1e9 - batch.queued_s, batch.user_s + batch.system_s) / batch.samples


def production(batches: Sequence[WorkerBatch]) -> Production | None:
    """Medians over batches, per sample."""
    made = [batch for batch in batches if batch.samples and batch.end_ns > batch.begin_ns]
    if not made:
        return None

    def each(name: str) -> float:
        return quantile([float(getattr(batch, name)) / batch.samples for batch in made], 0.5)

    def mean(name: str) -> float:
        return math.fsum(float(getattr(batch, name)) for batch in made) / sum(batch.samples for batch in made)

    wall = [(batch.end_ns - batch.begin_ns) / 1e9 / batch.samples for batch in made]
    net = [net_s(batch) for batch in made]
    return Production(
        batches=len(made),
        samples=quantile([float(batch.samples) for batch in made], 0.5),
        wall_s=quantile(wall, 0.5),
        net_s=quantile(net, 0.5),
        collate_s=each("collate_s"),
        cpu_s=quantile([(batch.user_s + batch.system_s) / batch.samples for batch in made], 0.5),
        process_cpu_s=each("process_cpu_s"),
        blocked_s=each("blocked_s"),
        system_s=mean("system_s"),
        queued_s=each("queued_s"),
        mean_wall_s=math.fsum(wall) / len(wall),
        mean_net_s=math.fsum(net) / len(net),
        mean_cpu_s=mean("process_cpu_s"),
        read_bytes=mean("read_bytes"),
        disk_bytes=mean("disk_bytes"),
        net_bytes=mean("net_bytes"),
        opens=mean("opens"),
        requests=mean("requests"),
        result_bytes=mean("result_bytes"),
        sent_bytes=mean("sent_bytes"),
        pickled_bytes=mean("pickled_bytes"),
        tensors=mean("tensors"),
        send_s=mean("send_s"),
    )


def made_s(real: Production | None, workers: int, cores: float) -> float | None:
    """Seconds a batch, made by so many workers on so many cores."""
    if real is None:
        return None
    net_s, cpu_s = real.mean_net_s * real.samples, real.mean_cpu_s * real.samples
    return max(net_s / max(workers, 1), cpu_s / cores)

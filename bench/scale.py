"""The sizes of the full and the quick benchmark."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Sizes and durations; seconds are those of a single run."""

    name: str
    rounds: int
    seconds: int
    batch_seconds: int
    push_seconds: int
    workers: tuple
    tasks: int                # loaded for a run that takes one at a time; more if they run out
    batch_tasks: int          # loaded for a run in batches
    payloads: tuple
    payload_rounds: int
    client_tasks: int
    client_rounds: int
    pickup_seconds: int
    pinned_tasks: int         # finished while the horizon is pinned
    pinned_steps: int
    stream_seconds: int
    stream_interval: int
    deep_tasks: int
    deep_samples: int
    wake_samples: int
    timing_samples: int
    waiters: int
    waiter_seconds: int
    memory_calls: int


FULL = Scale(
    name="full", rounds=2, seconds=6, batch_seconds=4, push_seconds=4,
    workers=(8, 64, 200), tasks=90_000, batch_tasks=300_000,
    payloads=(100, 1_000, 10_000), payload_rounds=1, client_tasks=20_000, client_rounds=1, pickup_seconds=10,
    pinned_tasks=500_000, pinned_steps=10, stream_seconds=300, stream_interval=10, deep_tasks=10_000_000, deep_samples=3_000, wake_samples=2_000,
    timing_samples=300, waiters=200, waiter_seconds=10, memory_calls=1_000_000)

QUICK = Scale(
    name="quick", rounds=1, seconds=1, batch_seconds=1, push_seconds=1,
    workers=(8, 64), tasks=15_000, batch_tasks=60_000,
    payloads=(100, 1_000), payload_rounds=1, client_tasks=1_000, client_rounds=1, pickup_seconds=1,
    pinned_tasks=20_000, pinned_steps=4, stream_seconds=4, stream_interval=1, deep_tasks=100_000, deep_samples=300, wake_samples=100,
    timing_samples=15, waiters=50, waiter_seconds=2, memory_calls=30_000)

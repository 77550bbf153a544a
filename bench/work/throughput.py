"""Tasks finished a second: one at a time, with complete_and_claim, in batches, and with larger payloads."""


BATCH = 100
BATCH_CLIENTS = 4


def run(bench):
    """Claim then complete by every system at every number of workers, then the other forms."""
    scale = bench.scale
    results = {"one": {}, "next": {}}
    for workers in scale.workers:
        results["one"][str(workers)] = bench.in_turn(
            bench.having("one"), scale.rounds, "one", workers, scale.seconds, scale.tasks)
    for workers in scale.workers[:2]:
        results["next"][str(workers)] = bench.in_turn(
            bench.having("next"), scale.rounds, "next", workers, scale.seconds, scale.tasks)
    results["batch"] = bench.in_turn(
        bench.having("batch"), scale.rounds, "batch", BATCH_CLIENTS, scale.batch_seconds,
        scale.batch_tasks, batch=BATCH)
    return results


def payloads(bench):
    """The same with payloads of several sizes, 8 workers."""
    scale = bench.scale
    return {
        str(size): bench.in_turn(bench.having("payload"), scale.payload_rounds, "one", scale.workers[0], scale.seconds,
                            # Large ones take long to load, and none is finished faster than small ones.
                            scale.tasks if size < 5_000 else scale.tasks // 2, size=size)
        for size in scale.payloads
    }

"""Pushes a second, one task a transaction, by every system; ours against an INSERT into a bare table."""

CLIENTS = 8


def run(bench):
    scale = bench.scale
    return bench.in_turn(bench.having("push"), scale.rounds, "push", CLIENTS, scale.push_seconds, 0)

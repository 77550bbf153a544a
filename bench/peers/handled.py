"""What every client in Python prints: how many jobs it has handled, in how many seconds, and when each was handed to it.

With BENCH_PICKUP, each payload is {"n": number}, and the line has [number, monotonic time] for each.
"""

import json
import os
import time

PICKUP = "BENCH_PICKUP" in os.environ


class Handled:
    def __init__(self, jobs):
        self._jobs = jobs
        self.times, self._numbers = [], []

    def add(self, number=None):
        """One more job was handed to its handler. Returns whether that is all of them."""
        self.times.append(time.monotonic())
        if PICKUP:
            self._numbers.append(number)
        return len(self.times) == self._jobs

    def print(self, end=None):
        assert len(self.times) == self._jobs, f"{len(self.times)} of {self._jobs} jobs"
        found = {"jobs": len(self.times), "seconds": (end or max(self.times)) - min(self.times)}
        if PICKUP:
            found["at"] = list(zip(self._numbers, self.times))
        print(json.dumps(found))

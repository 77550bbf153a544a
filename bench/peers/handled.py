"""What every client in Python prints: a line when all jobs have been handed to handlers, and at its end, by the monotonic clock,
when the first one was.

With BENCH_PICKUP, each payload is {"n": number}, and the last line has [number, time] for each.
"""

import json
import os
import threading
import time

PICKUP = "BENCH_PICKUP" in os.environ


class Handled:
    def __init__(self, jobs):
        self._jobs = jobs
        self._at = []
        self._lock = threading.Lock()

    def add(self, number=None):
        """One more job was handed to its handler. Returns whether that is all of them."""
        with self._lock:
            self._at.append((number, time.monotonic()))
            is_last = len(self._at) == self._jobs
        if is_last:
            print("handled", flush=True)
        return is_last

    def print(self):
        assert len(self._at) == self._jobs, f"{len(self._at)} of {self._jobs} jobs"
        found = {"first": self._at[0][1]}
        print(json.dumps({**found, "at": self._at} if PICKUP else found))

"""A Locust user whose request body is a generator that sleeps, on an absolute schedule.

Locust reads this file in a separate environment, so it imports nothing of ours. RATE is in bytes per second, PERIOD is
the time between pieces in seconds, and SECONDS is the duration of a stream.
"""

import os
import time
from collections.abc import Iterator

import gevent
from locust import HttpUser, constant, task

RATE, PERIOD, SECONDS = (float(os.environ[name]) for name in ("RATE", "PERIOD", "SECONDS"))
PIECE = b"x" * round(RATE * PERIOD)


def body() -> Iterator[bytes]:
    """Yields each piece on schedule, or later only if the previous piece was late."""
    start = time.monotonic()
    for number in range(round(SECONDS / PERIOD)):
        gevent.sleep(max(0.0, start + number * PERIOD - time.monotonic()))
        yield PIECE


class Stream(HttpUser):
    wait_time = constant(0)

    @task
    def stream(self) -> None:
        self.client.post("/stream", data=body())

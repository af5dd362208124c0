"""Locust's user that feeds a request's body slowly: a generator that sleeps, on an absolute schedule.

Read by Locust, in an environment of its own: nothing of ours is imported. RATE is bytes a second, PERIOD seconds from
piece to piece, SECONDS how long a stream lasts.
"""

import os
import time
from collections.abc import Iterator

import gevent
from locust import HttpUser, constant, task

RATE, PERIOD, SECONDS = (float(os.environ[name]) for name in ("RATE", "PERIOD", "SECONDS"))
PIECE = b"x" * round(RATE * PERIOD)


def body() -> Iterator[bytes]:
    """Never ahead of the schedule, and never later than the one piece before made it."""
    start = time.monotonic()
    for number in range(round(SECONDS / PERIOD)):
        gevent.sleep(max(0.0, start + number * PERIOD - time.monotonic()))
        yield PIECE


class Stream(HttpUser):
    wait_time = constant(0)

    @task
    def stream(self) -> None:
        self.client.post("/stream", data=body())

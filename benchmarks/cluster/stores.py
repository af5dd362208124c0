"""The compared stores of `sluice serve`: its directory, and brokers that run during a measurement."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common.nats import Brokers, brokers
from benchmarks.common.sluice_server import SluiceServer


@dataclass(frozen=True)
class Store:
    """A store for uploads, with the condition under which bytes count as stored."""

    title: str
    brokers: int  # 0: the server's own directory
    syncs_always: bool

    def options(self, running: Brokers | None) -> list[str]:
        durability = ["--durability", "always"] if self.syncs_always else []
        if running is None:
            return durability
        store = ["--store", running.urls, "--replicas", str(self.brokers)]
        return [*store, *durability, *(["--store-monitor", ",".join(running.monitors)] if self.syncs_always else [])]


STORES = (
    Store("directory, synced every second", 0, False),
    Store("directory, synced before each acknowledgement", 0, True),
    Store("one broker", 1, False),
    Store("three brokers", 3, False),
    Store("three brokers, synced before each acknowledgement", 3, True),
)


@dataclass
class Running:
    """A store and the servers in front of it."""

    servers: list[SluiceServer] = field(default_factory=list)
    brokers: Brokers | None = None

    def server_cpu_ns(self) -> int:
        return sum(server.cpu_ns() for server in self.servers)

    def broker_cpu_ns(self) -> int:
        return self.brokers.cpu_ns() if self.brokers else 0


@contextlib.contextmanager
def running(store: Store, servers: int, directory: Path) -> Iterator[Running]:
    """Runs the store and its servers during a `with` block."""
    with contextlib.ExitStack() as stack:
        found = Running()
        if store.brokers:
            found.brokers = stack.enter_context(brokers(store.brokers, directory, store.syncs_always))
        for number in range(servers):
            place = directory / f"server-{number}"
            place.mkdir()
            server = SluiceServer(place, "--max-uploads", "100000", *store.options(found.brokers))
            found.servers.append(server)
            stack.callback(server.kill)
            server.start()
        yield found

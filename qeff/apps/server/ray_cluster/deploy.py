"""Puts a server on Ray: joins or starts a cluster, runs workers and ingress, and drains at the end.

The process that does so serves nothing itself. Knows nothing of how requests are answered.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import ray
from ray import serve
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from qeff.apps.server.access import read_keys
from qeff.apps.server.config import ServerConfig
from qeff.apps.server.models import Entry, Models
from qeff.apps.server.ray_cluster.ingress import Ingress
from qeff.apps.server.ray_cluster.router import PrefixRouter
from qeff.apps.server.ray_cluster.worker import PAUSE_S, Worker
from qeff.apps.server.replicas import share, threads_each, with_threads
from qeff.apps.server.run import GRACE_S, listen, url_at
from qeff.core.env import ray_address
from qeff.core.errors import ResourceError
from qeff.core.progress import log

NAME = "qeff"
CONTROLLER = "SERVE_CONTROLLER_ACTOR", "serve"  # what Ray Serve calls its own, and where
WORKERS_PER_INGRESS = 4
STORE_BYTES = 256 * 2**20  # of a cluster that we start: requests on their way
NUM_MORE = 1024  # requests at one replica that are in no queue: status, or refused at once
REACH_S = 5.0
FLUSH_S = 0.3  # from a worker's last message to the client
LOGGING: dict[str, Any] = {"log_level": "WARNING", "enable_access_log": False}

Say = Callable[[str], None]


def run(config: ServerConfig, find: Callable[[], tuple[list[Entry], int]], say: Say) -> int:
    """Find the models, and serve them on Ray until told to stop."""
    with listen(config) as listener:  # refuses what cannot be, before anything is started
        entries, num_sequences = find()
        host, port = listener.getsockname()[:2]
    gc.enable()
    Models(entries, share(config, port).memory_limit).check()
    keys = tuple(read_keys(config.api_key, config.api_key_file))  # other machines lack the file
    config = replace(config, host=host, port=port, api_key=keys, api_key_file=None)
    with cluster() as is_our_own, Stop() as stop, started(config, is_our_own):
        _deploy(config, entries, num_sequences)
        workers = serve.get_deployment_handle(Worker.__name__, NAME)
        _wait_for(workers, config.replicas)
        count = "one replica" if config.replicas == 1 else f"{config.replicas} replicas"
        say(f"serving {entries[0].name} at {url_at(host, port)} by {count} on Ray")
        stop.wait()
        _drain(workers, config.drain_seconds)
    return 0


@contextmanager
def cluster() -> Iterator[bool]:
    """Be connected to the cluster that the user named, or to one of this machine alone.

    Gives whether it is the latter, which ends with us.
    """
    address = ray_address()
    options: dict[str, Any] = {"address": address}
    if address is None:
        options = {
            "address": "local",
            "num_cpus": len(os.sched_getaffinity(0)),
            "include_dashboard": False,
            "object_store_memory": STORE_BYTES,
        }
    try:
        if address is not None:
            _reach(address)
        ray.init(**options, namespace=NAME, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        raise ResourceError(
            f"no Ray cluster at {address or 'this machine'}: {_last_line(error)}",
            "check RAY_ADDRESS, and set RAY_AUTH_MODE=token for a cluster that wants its token",
        ) from error
    try:
        yield address is None
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Notice soon that nobody is there; Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()


@contextmanager
def started(config: ServerConfig, ends_with_cluster: bool) -> Iterator[None]:
    """Ray Serve with proxies at the server's address; it ends with us in any case."""
    try:
        ray.get_actor(*CONTROLLER)
    except ValueError:
        pass  # there is none, which is as it should be
    else:
        raise ResourceError(
            "Ray Serve runs on this cluster already, with an address of its own",
            "end it with: serve shutdown",
        )
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    http = {
        "host": config.host,
        "port": config.port,
        "keep_alive_timeout_s": int(config.keep_alive),
    }
    try:
        serve.start(proxy_location="EveryNode", http_options=http, logging_config=LOGGING)
        yield
    except RuntimeError as error:
        raise ResourceError(
            f"the replicas could not be started: {_reason(error)}",
            "every machine of the cluster needs qeff, and the containers at the same place",
        ) from error
    finally:
        if not ends_with_cluster:
            serve.shutdown()


def _deploy(config: ServerConfig, entries: Sequence[Entry], num_sequences: int) -> None:
    """Run the application; returns when all replicas are up."""
    own = share(config, config.port)
    processors = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    threads = threads_each(processors, config.replicas)
    num_inside = num_sequences + own.max_waiting + NUM_MORE
    shutting: dict[str, Any] = {
        "graceful_shutdown_wait_loop_s": 0.1,
        "graceful_shutdown_timeout_s": config.drain_seconds + GRACE_S,
        "max_constructor_retry_count": 1,
        "logging_config": LOGGING,
    }
    router = {
        "request_router_class": f"{PrefixRouter.__module__}:{PrefixRouter.__name__}",
        "request_router_kwargs": {
            "imbalanced_threshold": max(1, num_sequences // 2),
            "do_eviction": True,
        },
    }
    workers = serve.deployment(
        num_replicas=config.replicas,
        max_ongoing_requests=num_inside,
        ray_actor_options={"num_cpus": threads if sum(processors) >= config.replicas else 0},
        request_router_config=router,
        **shutting,
    )(Worker)
    ingress = serve.deployment(
        num_replicas=-(-config.replicas // WORKERS_PER_INGRESS),
        max_ongoing_requests=num_inside * config.replicas,
        ray_actor_options={"num_cpus": 0},
        **shutting,
    )(serve.ingress()(Ingress))
    bound = workers.bind(own, with_threads(entries, threads), num_sequences)
    serve.run(ingress.bind(bound, config), name=NAME, route_prefix="/")


def _wait_for(workers: DeploymentHandle, count: int) -> None:
    """Return when the handle knows all replicas, which it will need at the end."""
    num_known = 0
    while num_known < count:
        with suppress(RayServeException):  # it knows none yet
            num_known = len(workers.broadcast("numbers").results(return_exceptions=True))
        time.sleep(PAUSE_S)


def _drain(workers: DeploymentHandle, seconds: float) -> None:
    """Let nothing in any more, and return when what runs is done."""
    try:
        workers.broadcast("drain").results(timeout_s=seconds + GRACE_S, return_exceptions=True)
        time.sleep(FLUSH_S)
    except (TimeoutError, RayServeException) as error:
        log.warning("the replicas did not drain: %s", _last_line(error))
    except KeyboardInterrupt:
        return  # told twice: what runs is not waited for


def _reason(error: RuntimeError) -> str:
    """What a replica died of, in its own words; where Ray does not know them, what Ray says."""
    found = serve.status().applications.get(NAME)
    messages = [one.message for one in found.deployments.values()] if found is not None else []
    for line in reversed("\n".join(messages).splitlines()):
        name, colon, words = line.partition(": ")
        if colon and name.endswith("Error"):
            return words
    return _last_line(error)


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


class Stop:
    """Waits for SIGTERM or SIGINT; a second one interrupts whatever is waited for."""

    def __init__(self) -> None:
        self._pipe = os.pipe()
        self._is_told = False

    def __enter__(self) -> Stop:
        for one in (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_told = True  # we are about to end
        for end in self._pipe:
            os.close(end)

    def wait(self) -> None:
        """Return when told to stop."""
        os.read(self._pipe[0], 1)

    def _note(self, number: int, frame: object) -> None:
        if self._is_told:
            raise KeyboardInterrupt
        self._is_told = True
        os.write(self._pipe[1], b".")

# SPDX-License-Identifier: Apache-2.0
"""Ranks that torch.distributed connects by gloo, each in a process of its own."""

from __future__ import annotations

import os
import pickle
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist
from processes import CONTEXT, PATIENCE_S


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _rank(
    function: Callable[..., Any], rank: int, world: int, port: int, results: Connection, args: Any
) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    os.environ.update(LOCAL_WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    try:
        dist.init_process_group("gloo", rank=rank, world_size=world)
        results.send_bytes(pickle.dumps((True, function(*args))))  # With the memory of tensors.
        dist.destroy_process_group()
    except Exception:  # noqa: BLE001 (the parent raises it)
        results.send_bytes(pickle.dumps((False, traceback.format_exc())))
        os._exit(1)  # Others wait for this rank.


def run_ranks(world: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Return by rank what ``function(*args)`` returns in ``world`` processes. AssertionError: one raises."""
    port = free_port()
    ranks = []
    for rank in range(world):
        ours, theirs = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=_rank, args=(function, rank, world, port, theirs, args))
        process.start()
        theirs.close()
        ranks.append((process, ours))
    results: list[Any] = [None] * world
    waiting, failed = {ours: rank for rank, (_, ours) in enumerate(ranks)}, ""
    while waiting and not failed:
        told = wait(list(waiting), PATIENCE_S)
        failed = "" if told else f"ranks {list(waiting.values())}: they say nothing"
        for ours in told:
            rank = waiting.pop(ours)
            try:
                is_good, results[rank] = pickle.loads(ours.recv_bytes())
            except EOFError:
                is_good, results[rank] = False, "it says nothing"
            if not is_good and not failed:
                failed = f"rank {rank}: {results[rank]}"
    for process, _ in ranks:
        if failed:
            process.kill()
        process.join(PATIENCE_S)
    if failed:
        raise AssertionError(failed)
    return results

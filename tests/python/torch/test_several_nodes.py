# SPDX-License-Identifier: Apache-2.0
"""Ranks on two nodes, each with its own daemon. CISTERN_TEST_NODES has the sockets of the daemons."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import tempfile
import unittest
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import cistern.torch as ct
import models
import torch
from cistern import Client
from gloo import free_port
from processes import CONTEXT, PATIENCE_S
from torch import nn

NODES = os.environ["CISTERN_TEST_NODES"].split()
EXAMPLE = Path(__file__).parents[3] / "client" / "example_gpt2.py"
WORLD, STEPS = 2, 6


class Place(NamedTuple):
    """Where a rank is: its numbers, as torchrun counts them, and the socket of its node."""

    rank: int
    local_rank: int
    local_world: int
    socket: str

    def environment(self) -> dict[str, str]:
        """Return what a launcher sets."""
        numbers = {
            "RANK": self.rank,
            "WORLD_SIZE": WORLD,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_WORLD_SIZE": self.local_world,
        }
        return {name: str(n) for name, n in numbers.items()} | {"CISTERN_SOCKET": self.socket}


ON_ONE = [Place(rank, rank, WORLD, NODES[0]) for rank in range(WORLD)]
ON_TWO = [Place(rank, 0, 1, NODES[rank]) for rank in range(WORLD)]


def train(place: Place, job: str, results: Connection) -> None:
    """Be a rank that trains a model, and send its losses, norms and weights, or what was raised."""
    torch.set_num_threads(1)
    os.environ.update(place.environment())
    try:
        torch.manual_seed(5)
        model = models.bf16(models.llama)
        store = ct.attach(model, job, device="cpu", block_ranks=1, unused="zero")
        opt = store.optimizer(lr=3e-3, clip_norm=1.0)
        told: list[Any] = [(store.job.global_rank, store.job.all_ranks)]
        for _ in range(STEPS):
            torch.manual_seed(100 + store.job.global_rank)
            batch = models.tokens()
            loss = models.loss_of(model, batch)
            loss.backward()
            opt.step()
            told.append(loss.item())
        told.append({name: t.float().numpy() for name, t in store.state_dict().items()})
        store.close()
    except Exception as error:  # noqa: BLE001 (the parent tells it)
        told = [f"{type(error).__name__}: {error}"]
    results.send(told)


class Sends(logging.Handler):
    """Sends what is logged."""

    def __init__(self, to: Connection) -> None:
        super().__init__()
        self._to = to

    def emit(self, record: logging.LogRecord) -> None:
        self._to.send(record.getMessage())


def wait(place: Place, job: str, ours: Connection) -> None:
    """Attach, and make a step when told, and send all warnings about waiting."""
    os.environ.update(place.environment())
    logging.getLogger("cistern").addHandler(Sends(ours))
    with (
        mock.patch("cistern.job.MEETING_SECONDS", 0.05),
        mock.patch("cistern.job.STEP_SECONDS", 0.05),
    ):
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).to(torch.bfloat16)
        store = ct.attach(model, job, device="cpu", unused="zero")
        opt = store.optimizer(lr=1e-3)
        ours.send("attached")
        ours.recv()
        model(torch.ones(2, 8, dtype=torch.bfloat16)).float().square().mean().backward()
        opt.step()
        store.close()
        ours.send("done")


class SeveralNodes(unittest.TestCase):
    def run_ranks(self, job: str, places: list[Place]) -> list[Any]:
        """Return by rank what ``train`` sends."""
        ranks = []
        for place in places:
            ours, theirs = CONTEXT.Pipe(duplex=False)
            process = CONTEXT.Process(target=train, args=(place, job, theirs))
            process.start()
            theirs.close()
            self.addCleanup(process.join, PATIENCE_S)
            ranks.append(ours)
        self.addCleanup(self.remove, job)
        for rank, ours in enumerate(ranks):
            self.assertTrue(ours.poll(PATIENCE_S), f"rank {rank} says nothing")
        return [ours.recv() for ours in ranks]

    def begin(self, place: Place, job: str) -> Connection:
        """Start ``wait``. Return what it sends to and is told by."""
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=wait, args=(place, job, theirs))
        process.start()
        theirs.close()
        self.addCleanup(process.join, PATIENCE_S)
        return ours

    def said(self, rank: Connection, pattern: str) -> None:
        """Wait until a rank sends what matches ``pattern``."""
        while True:
            self.assertTrue(rank.poll(PATIENCE_S), f"nothing like '{pattern}' is said")
            if re.search(pattern, rank.recv()):
                return

    def test_a_rank_says_that_it_waits_for_another_node(self) -> None:
        self.addCleanup(self.remove, "waits")
        first = self.begin(ON_TWO[0], "waits")
        self.said(
            first,
            "rank 0 of job 'waits' has waited .* in commit for 1 of 2 ranks, .*node list",
        )
        second = self.begin(ON_TWO[1], "waits")
        self.said(first, "^attached")
        self.said(second, "^attached")
        first.send("step")
        self.said(first, "in step, and for no rank on this node: 'cistern job waits' on the other")
        second.send("step")
        self.said(first, "^done")
        self.said(second, "^done")

    def remove(self, job: str) -> None:
        with Client(NODES[0]) as client:
            client.remove_job(job)

    def test_same_bits_on_one_node_and_on_two(self) -> None:
        one, two = self.run_ranks("one", ON_ONE), self.run_ranks("two", ON_TWO)
        for rank in range(WORLD):
            self.assertEqual(len(one[rank]), STEPS + 2, one[rank][0])
            self.assertEqual(len(two[rank]), STEPS + 2, two[rank][0])
            self.assertEqual(two[rank][0], (rank, WORLD))
            self.assertEqual(one[rank][:-1], two[rank][:-1], f"losses and norms of rank {rank}")
            for name, weights in one[rank][-1].items():
                self.assertEqual(weights.tobytes(), two[rank][-1][name].tobytes(), name)
        self.assertNotEqual(one[0][1], one[1][1], "both ranks have learnt the same data")
        self.assertLess(one[0][STEPS], one[0][1])

    def test_the_example_under_torchrun(self) -> None:
        """Two torchrun processes, one on each node, as client/python/README.md has them."""
        self.addCleanup(self.remove, "example-gpt2")
        port = free_port()
        with tempfile.TemporaryDirectory() as made:
            text = Path(made, "text")
            text.write_text("And God said, Let there be light: and there was light. " * 100)
            command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
            command += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
            script = [str(EXAMPLE), str(text), "--steps", "4", "--unused", "zero"]
            agents = [
                subprocess.Popen(
                    [*command, "--node-rank", str(node), *script],
                    env=os.environ | {"CISTERN_SOCKET": socket, "LC_ALL": "C.UTF-8"},
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                )
                for node, socket in enumerate(NODES)
            ]  # fmt: skip
            said = [agent.communicate(timeout=2 * PATIENCE_S) for agent in agents]
        for agent, (_, errors) in zip(agents, said, strict=True):
            self.assertEqual(agent.returncode, 0, errors)
        losses = [float(loss) for loss in re.findall(r"step \d+: loss (.*)", said[0][0])]
        self.assertEqual(len(losses), 4, said)
        self.assertNotIn("loss", said[1][0], "rank 1 prints what rank 0 prints")


if __name__ == "__main__":
    unittest.main()

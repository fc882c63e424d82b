# SPDX-License-Identifier: Apache-2.0
"""Several ranks, one of which dies."""

import copy
import signal
import subprocess
import sys
import threading
from pathlib import Path

import cistern.torch as ct
import models
import torch
from cistern import State
from models import TorchCase

RANK = Path(__file__).with_name("rank.py")
NEVER = -1


def start(name: str, rank: int, world: int, n_steps: int, dies_in: int) -> subprocess.Popen[str]:
    arguments = map(str, (rank, world, n_steps, dies_in))
    return subprocess.Popen(
        [sys.executable, RANK, name, *arguments], stdout=subprocess.PIPE, text=True
    )


class Ranks(TorchCase):
    def run_ranks(self, name: str, world: int, dies_in: int = NEVER) -> str:
        """Train; the last rank dies once. Return what rank 0 prints of the states."""
        self.addCleanup(self.remove, name)
        ranks = [start(name, r, world, 4, NEVER) for r in range(world - 1)]
        last = start(name, world - 1, world, 4, dies_in)
        if dies_in != NEVER:
            self.assertEqual(last.wait(), -signal.SIGKILL)
            last.communicate()
            last = start(name, world - 1, world, 4, NEVER)
        outputs = [process.communicate()[0] for process in (*ranks, last)]
        self.assertEqual([process.returncode for process in (*ranks, last)], [0] * world)
        self.assertEqual(outputs[0].count("\n"), 2 * 12)
        return outputs[0]

    def test_a_killed_rank_is_replaced_and_the_bits_are_the_same(self) -> None:
        for world in (2, 3):
            undisturbed = self.run_ranks(f"undisturbed{world}", world)
            disturbed = self.run_ranks(f"disturbed{world}", world, dies_in=2)
            self.assertEqual(undisturbed, disturbed)

    def test_the_gradient_is_the_mean_of_the_ranks(self) -> None:
        """Two ranks in two threads of this process, each with a client of its own."""
        model = models.bf16(models.llama)
        plain = copy.deepcopy(model)
        batches = [models.tokens(), models.tokens()]
        stores: list[ct.Store] = []

        def run(rank: int) -> None:
            torch.set_num_threads(1)
            store = ct.attach(copy.deepcopy(model), self.name, rank=rank, world=2, device="cpu")
            stores.append(store)
            optimizer = store.optimizer(lr=1e-2)
            models.loss_of(store.model, batches[rank]).backward()
            optimizer.step()

        self.addCleanup(self.remove, self.name)
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for batch in batches:
            models.loss_of(plain, batch).backward()
        for name, parameter in plain.named_parameters():
            grad = stores[0].read(name, State.GRAD).float()
            error = (grad - parameter.grad.float()).abs().max()
            self.assertLess(error, 0.01 * parameter.grad.abs().max(), name)
        for store in stores:
            store.job.close()

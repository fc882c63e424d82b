# SPDX-License-Identifier: Apache-2.0
"""Several ranks. test_matrix.py has those that die."""

import copy
import threading

import cistern.torch as ct
import models
import torch
from cistern import State
from models import TorchCase


class Ranks(TorchCase):
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

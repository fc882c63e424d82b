# SPDX-License-Identifier: Apache-2.0
"""Several ranks. test_matrix.py has those that die."""

import copy
import threading

import cistern.torch as ct
import models
import torch
from cistern import State
from models import TorchCase


class Reshape(TorchCase):
    def test_another_number_of_ranks_has_the_same_weights(self) -> None:
        model = models.bf16(models.llama)
        store = self.attach(copy.deepcopy(model))
        models.loss_of(store.model, models.tokens()).backward()
        store.optimizer(lr=1e-2).step()
        want = store.state_dict()
        store.close()
        with self.assertRaisesRegex(ct.Mismatch, "has 1 ranks, not 2 .* 'reshape' changes that"):
            self.attach(copy.deepcopy(model), rank=0, world=2)
        got: dict[int, tuple[int, dict[str, torch.Tensor]]] = {}

        def run(rank: int) -> None:
            options = {"rank": rank, "world": 2, "device": models.DEVICE, "reshape": True}
            again = ct.attach(copy.deepcopy(model), self.name, **options)
            got[rank] = again.step_no, again.state_dict()
            again.close()

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for rank in range(2):
            step, weights = got[rank]
            self.assertEqual(step, 1)
            for name, weight in want.items():
                self.assertTrue(torch.equal(weights[name], weight), name)


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

# SPDX-License-Identifier: Apache-2.0
"""Pools in the memory of a GPU, with the driver of tests/lib/fakecuda.

An address of that driver's device memory is also an address of the process, so that torch computes
there on the processor. Streams of that driver run in threads of their own, with delays. Torch's own
CUDA is not used here, and not tested.
"""

import ctypes
import json
import subprocess
import unittest
from unittest import mock

import cistern.torch.device
import models
import torch
from cistern import Job
from models import TorchCase, loss_of, tokens
from torch.utils.checkpoint import checkpoint


class StandIn(cistern.torch.device.Gpu):
    """A GPU whose work is awaited before torch goes on, and whose tensors are on the processor."""

    def __init__(self, job: Job) -> None:
        cistern.torch.device.Device.__init__(self)
        self.number = job.use_stream(0)
        self._driver = ctypes.CDLL("libcuda.so.1")

    def begin_work(self) -> None:
        status = self._driver.cuStreamSynchronize(ctypes.c_void_p(0))
        if status != 0:
            raise OSError(f"cuStreamSynchronize returned {status}")

    def end_work(self) -> None:
        pass

    def random_state(self) -> list[torch.Tensor]:
        return cistern.torch.device.Device.random_state(self)

    def set_random_state(self, states: list[torch.Tensor]) -> None:
        cistern.torch.device.Device.set_random_state(self, states)


class CudaPools(TorchCase):
    def setUp(self) -> None:
        super().setUp()
        for target, value in (
            ("cistern.torch.device.Gpu", StandIn),
            ("cistern.torch.attachment.name_of", lambda _: "cuda"),
        ):
            patch = mock.patch(target, value)
            patch.start()
            self.addCleanup(patch.stop)

    def test_the_pool_is_on_the_gpu(self) -> None:
        _, store = self.twins(models.gpt2)
        self.assertTrue(store.job.device.startswith("GPU-"), store.job.device)
        self.assertEqual(store.device.number, 0)

    def test_activations_are_left_free(self) -> None:
        _, store = self.twins(models.gpt2, activations="64M")
        told = subprocess.run(["./cistern", "stat", "--json"], check=True, capture_output=True)
        card = json.loads(told.stdout)["gpus"][0]
        self.assertEqual(card["activation_bytes"], 64 << 20)
        self.assertEqual(card["n_undeclared"], 0)
        store.close(remove=True)

    def test_models_have_the_gradients_of_torch(self) -> None:
        for make in (models.gpt2, models.llama, models.mixtral, models.albert):
            with self.subTest(make=make.__name__):
                twin, store = self.twins(make)
                self.compare_steps(twin, store)
                store.close(remove=True)

    def test_the_smallest_pool_and_micro_batches(self) -> None:
        pool = self.least_pool(models.gpt2, 4096)
        twin, store = self.twins(models.gpt2, pool=pool, chunk_elems=4096, micro_batches=3)
        self.compare_steps(twin, store, micro_batches=3)
        self.assertGreater(store.stat().evictions, 0)

    def test_checkpointing(self) -> None:
        def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
            return checkpoint(loss_of, model, batch, use_reentrant=False)

        twin, store = self.twins(models.gpt2)
        self.compare_steps(twin, store, loss=loss)

    def test_a_step_is_done_again(self) -> None:
        twin, store = self.twins(models.gpt2)
        loss_of(store.model, tokens()).backward()
        store.sync()
        self.compare_steps(twin, store)

    def test_states_and_closing(self) -> None:
        model = models.bf16(models.gpt2)
        before = {name: p.clone() for name, p in model.named_parameters()}
        store = self.attach(model)
        for name, values in before.items():
            self.assertTrue(torch.equal(store.read(name), values), name)
        weight = store.model.transformer.wte.weight
        with store.gather("transformer.wte.weight"):
            self.assertTrue(torch.equal(weight, before["transformer.wte.weight"]))
        store.close()
        again = self.attach(models.bf16(models.gpt2))
        self.assertTrue(again.job.initialised)


if __name__ == "__main__":
    unittest.main()

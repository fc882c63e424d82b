# SPDX-License-Identifier: Apache-2.0
"""Losses and gradients of models of transformers have the bits of plain torch."""

import itertools

import models
import torch
from models import TorchCase, square
from torch import nn


class Architectures(TorchCase):
    def check(self, make, **options: object) -> None:
        twin, store = self.twins(make, chunk_elems=8192)
        self.compare_steps(twin, store, **options)

    def test_gpt2(self) -> None:
        self.check(models.gpt2)

    def test_llama(self) -> None:
        self.check(models.llama)

    def test_opt(self) -> None:
        self.check(models.opt)

    def test_qwen2_with_tied_weights(self) -> None:
        self.check(models.qwen2)

    def test_qwen3(self) -> None:
        self.check(models.qwen3)

    def test_gemma(self) -> None:
        self.check(models.gemma)

    def test_mixtral_with_the_loss_of_the_router(self) -> None:
        self.check(models.mixtral)

    def test_bert(self) -> None:
        self.check(models.bert)

    def test_albert_which_uses_a_layer_several_times(self) -> None:
        self.check(models.albert)

    def test_t5_to_the_rounding_of_its_sums(self) -> None:
        self.check(models.t5, tolerance=0.02)


class Matrix(TorchCase):
    """Pools, kinds of checkpointing, and micro-batches."""

    def check(self, make) -> None:
        least = self.least_pool(make, 4096)
        for pool, reentrant, micro in itertools.product((least, 0), (None, False, True), (1, 3)):
            with self.subTest(pool=pool, reentrant=reentrant, micro_batches=micro):
                twin, store = self.twins(make, chunk_elems=4096, pool=pool, micro_batches=micro)
                if reentrant is not None:
                    for model in (twin, store.model):
                        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
                self.compare_steps(twin, store, micro_batches=micro)
                self.assertEqual(store.stat().evictions > 0, pool == least)
                store.close(remove=True)

    def test_gpt2(self) -> None:
        self.check(models.gpt2)

    def test_llama(self) -> None:
        self.check(models.llama)


class Checkpoint(nn.Module):
    """Blocks whose hooks are inside of what is computed again, several at a time."""

    def __init__(self, reentrant: bool, together: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(4)
        )
        self.first = nn.Linear(4, 16)
        self.reentrant = reentrant
        self.together = together

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        step = 2 if self.together else 1
        for i in range(0, 4, step):
            x = torch.utils.checkpoint.checkpoint(
                self.run_blocks, x, i, i + step, use_reentrant=self.reentrant
            )
        return x

    def run_blocks(self, x: torch.Tensor, begin: int, end: int) -> torch.Tensor:
        for block in self.blocks[begin:end]:
            x = x + block(x)
        return x


class Reuse(nn.Module):
    """A module is used three times, one parameter in one of the uses only, another never."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = Gated()
        self.unused = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.shared(x, False)
        x, gate = self.shared(x, True), x
        return self.shared(x, False) + gate


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.gate = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor, gated: bool) -> torch.Tensor:
        return self.linear(x).tanh() * (self.gate if gated else 1)


class Nested(nn.Module):
    """A unit runs inside of another one, of which it is no part."""

    def __init__(self) -> None:
        super().__init__()
        self.outer = Outer()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(x, self.inner)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor, inner: nn.Module) -> torch.Tensor:
        return inner(x @ self.weight).relu() @ self.weight


class Shapes(TorchCase):
    def check(self, make, **options: object) -> None:
        twin, store = self.twins(make, chunk_elems=4096)
        self.compare_steps(twin, store, loss=square, **options)

    def test_blocks_that_are_computed_again(self) -> None:
        for reentrant, together in itertools.product((False, True), repeat=2):
            with self.subTest(reentrant=reentrant, together=together):
                self.check(lambda r=reentrant, t=together: Checkpoint(r, t))
                self.doCleanups()
                self.setUp()

    def test_a_module_that_is_used_several_times(self) -> None:
        self.check(Reuse)

    def test_a_module_inside_of_another_one(self) -> None:
        self.check(Nested)

    def test_a_backward_pass_of_one_of_two_forward_passes(self) -> None:
        def one_of_two(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
            square(model, batch)
            return square(model, batch)

        twin, store = self.twins(lambda: Checkpoint(False, False))
        self.compare_steps(twin, store, loss=one_of_two)

    def test_frozen_parameters(self) -> None:
        def make() -> nn.Module:
            model = models.llama()
            for name, parameter in model.named_parameters():
                parameter.requires_grad_("q_proj" in name or "norm" in name)
            return model

        twin, store = self.twins(make, chunk_elems=4096)
        self.compare_steps(twin, store)

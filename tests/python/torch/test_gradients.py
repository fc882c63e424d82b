# SPDX-License-Identifier: Apache-2.0
"""What ``grad`` of a parameter is: that of plain torch, or an error that says where the gradient is."""

import threading

import cistern.torch as ct
import models
import torch
from cistern import Overlap
from models import TorchCase, bits, square, tokens
from torch import nn


class Branches(nn.Module):
    """A layer that is not used, units with a parameter that has no gradient, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(4, 4)
        self.idle = nn.Linear(4, 4)
        self.idle_part = nn.Linear(4, 4)
        self.idle_part.spare = nn.Parameter(torch.ones(4))
        self.used.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.idle_part(self.used(x))


class AfterTheStep(TorchCase):
    def test_it_is_that_of_plain_torch(self) -> None:
        twin, store = self.twins(Branches)
        optimizer = store.optimizer(lr=0.1)
        for _ in range(2):
            models.copy_weights(store, twin)
            for model in (store.model, twin):
                square(model, tokens()).backward()
            pairs = list(zip(store.model.named_parameters(), twin.parameters(), strict=True))
            for (name, ours), plain in pairs:
                self.assertEqual(ours.grad is None, plain.grad is None, name)
            optimizer.step()
            for (name, ours), plain in pairs:
                self.assertEqual(ours.grad is None, plain.grad is None, name)
                if plain.grad is not None:
                    self.assertEqual(bits(ours.grad), bits(plain.grad), name)
                    self.assertEqual((ours.grad.dtype, ours.grad.device), (ours.dtype, ours.device))

    def test_it_is_until_it_is_discarded(self) -> None:
        _, store = self.twins(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
        optimizer, parameters = store.optimizer(lr=0.1), list(store.model.parameters())
        one = parameters[0]

        def step() -> None:
            square(store.model, tokens()).backward()
            optimizer.step()
            self.assertNotIn(None, [p.grad for p in parameters])

        for discard in (optimizer.zero_grad, store.model.zero_grad, store.sync):
            step()
            discard()
            self.assertEqual([p.grad for p in parameters], [None] * 4)
        for set_to_none in (True, False):
            step()
            store.model[0].zero_grad(set_to_none)
            self.assertEqual([p.grad is None for p in parameters], [True, True, False, False])
        step()
        one.grad.zero_()
        one.grad = None
        self.assertEqual([p.grad is None for p in parameters], [True, False, False, False])
        step()
        store.close()
        self.assertIsNone(one.grad)

    def test_the_next_backward_pass_does_not_see_it(self) -> None:
        _, store = self.twins(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
        optimizer, seen = store.optimizer(lr=0.1), []
        square(store.model, tokens()).backward()
        optimizer.step()
        store.model[1].weight.register_hook(lambda _: seen.append(store.model[0].weight.grad))
        square(store.model, tokens()).backward()
        self.assertEqual(seen, [None])

    def test_several_ranks(self) -> None:
        texts: list[str] = []

        def run(rank: int) -> None:
            store = ct.attach(
                models.bf16(lambda: nn.Linear(4, 4)), self.name, rank=rank, world=2, device="cpu"
            )
            optimizer = store.optimizer(lr=0.1)
            square(store.model, tokens()).backward()
            optimizer.step()
            try:
                texts.append(str(store.model.weight.grad.norm()))
            except RuntimeError as error:
                texts.append(str(error))
            optimizer.zero_grad()
            store.job.close()

        self.addCleanup(self.remove, self.name)
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(texts), 2)
        for text in texts:
            self.assertRegex(text, r"the job has several ranks.*Store\.read\('weight'")

    def test_early_updates_do_not_keep_it(self) -> None:
        """The daemon sums a gradient in its update, but not of a GPU, and not if it clips."""
        for clip_norm in (0.0, 1.0):
            twin, store = self.twins(lambda: nn.Linear(4, 4), overlap=Overlap.EARLY)
            optimizer = store.optimizer(lr=0.1, clip_norm=clip_norm)
            for model in (store.model, twin):
                square(model, tokens()).backward()
            optimizer.step()
            if clip_norm or models.DEVICE != "cpu":
                self.assertEqual(bits(store.model.weight.grad), bits(twin.weight.grad))
            else:
                with self.assertRaisesRegex(
                    RuntimeError, "'weight' cannot be read: .* was summed in its update"
                ):
                    bits(store.model.weight.grad)
            store.close(remove=True)


class BeforeTheStep(TorchCase):
    def test_there_is_one_and_a_use_of_it_raises(self) -> None:
        for micro_batches in (1, 2):
            store = self.attach(
                models.bf16(Branches), f"batches{micro_batches}", micro_batches=micro_batches
            )
            optimizer, model = store.optimizer(lr=0.1), store.model
            self.assertEqual({p.grad for p in model.parameters()}, {None})
            for _ in range(micro_batches):
                square(model, tokens()).backward()
                weight, frozen, spare = model.used.weight, model.used.bias, model.idle_part.spare
                without = [*model.idle.parameters(), frozen, spare]
                for parameter in model.parameters():
                    has_none = any(parameter is other for other in without)
                    self.assertEqual(parameter.grad is None, has_none)
                self.assertEqual((weight.grad.shape, weight.grad.dtype), ((4, 4), torch.bfloat16))
                for use in (
                    lambda grad: grad.norm(),
                    lambda grad: grad.mul_(0.5),
                    lambda grad: grad.data.clamp_(-1, 1),
                    lambda grad: torch.nn.utils.get_total_norm([grad]),
                ):
                    with self.assertRaisesRegex(
                        RuntimeError, r"'used\.weight'.*After the step.*Store\.read.*a hook sees"
                    ):
                        use(weight.grad)
            optimizer.zero_grad()
            self.assertEqual({p.grad for p in model.parameters()}, {None})
            square(model, tokens()).backward()
            optimizer.step()

    def test_hooks_see_it(self) -> None:
        twin, store = self.twins(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
        seen: list[list[bytes]] = []
        for model in (store.model, twin):
            mine: list[bytes] = []
            seen.append(mine)
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(
                    lambda p, to=mine: to.append(bits(p.grad))
                )
            square(model, tokens()).backward()
        self.assertEqual(len(seen[0]), 4)
        self.assertEqual(*seen)

    def test_torch_compile_does_not_read_it(self) -> None:
        """Another shape of the batch makes another graph when the daemon has gradients already."""
        torch._dynamo.reset()
        twin, store = self.twins(lambda: nn.Linear(4, 4), micro_batches=2)
        optimizer = store.optimizer(lr=0.1)
        for model in (store.model, twin):
            model.compile(backend="aot_eager", dynamic=False)
            for n in (3, 5):
                model(torch.ones(n, 4, dtype=torch.bfloat16)).float().sum().backward()
        optimizer.step()
        self.compare_gradients(twin, store, 0.0)

# SPDX-License-Identifier: Apache-2.0
"""What a mistake is told: which argument is wrong, and what to do."""

from collections.abc import Iterator

import cistern.torch as ct
import torch
from cistern import Reason, Status
from cistern.torch.advice import advice
from models import TorchCase, square
from torch import nn


class WithOwn(nn.Module):
    """Blocks, and a parameter beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x * self.scale


class Attach(TorchCase):
    def test_units_that_would_be_ignored_are_refused(self) -> None:
        for units, words in (
            (
                ["blocks", "blocks.0"],
                r"'blocks\.0' is in 'blocks', which is an operator as a whole",
            ),
            (["blocks", "", "blocks.0"], r"'blocks' is in the model"),
        ):
            with self.subTest(units), self.assertRaisesRegex(ValueError, words):
                ct.attach(WithOwn(), self.name, units=units, device="cpu")
        for units in ([""], ["blocks.0"]):
            self.attach(WithOwn(), units=units).close(remove=True)

    def test_memory_that_the_daemon_does_not_have(self) -> None:
        """The errors are made here: how much memory the daemon has depends on the machine."""
        for reason, words in (
            (Reason.POOL_MEMORY, "a smaller pool, .* --pool-memory, --gpu-memory"),
            (Reason.HOST_MEMORY, "moments='bf16' .* --host-memory"),
            (Reason.JOBS, r"short\. Remove jobs .*cistern rm"),
            (Reason.NONE, r"^short \(EBUDGET\)$"),
        ):
            with self.subTest(reason), self.assertRaises(ct.CstError) as caught, advice("run7"):
                raise ct.CstError(Status.EBUDGET, "short", reason)
            self.assertRegex(str(caught.exception), words)
            self.assertIs(caught.exception.reason, reason)

    def test_other_options_of_a_job_name_reshape(self) -> None:
        models = [nn.Sequential(*(nn.Linear(32, 32) for _ in range(8))) for _ in range(4)]
        self.attach(models[0], pool="80%").close()
        for model, options in ((models[1], {"pool": "150%"}), (models[2], {"moments": "bf16"})):
            with self.assertRaisesRegex(ct.Mismatch, "give attach reshape=True.* cistern rm"):
                ct.attach(model, self.name, **{"pool": "80%", "device": "cpu"} | options)
        for model, options, reason in (
            (nn.Linear(8, 8), {}, Reason.MODEL),
            (models[1], {"optimizer": "sgd"}, Reason.FIXED_OPTION),
        ):
            with self.assertRaises(ct.Mismatch) as caught:
                ct.attach(model, self.name, **{"device": "cpu"} | options)
            self.assertNotIn("reshape=True", str(caught.exception))
            self.assertIs(caught.exception.reason, reason)
        self.attach(models[3], pool="150%", reshape=True)


class Yielding(nn.Module):
    """A module whose results come one after the other, with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.full((4,), 2.0))

    def forward(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        for _ in range(2):
            x = self.layer(x) * self.scale
            yield x


class Caller(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = Yielding()
        self.head = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(sum(self.parts(x)))


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((4,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class YieldingWithModules(nn.Module):
    """``Yielding`` with its parameter in a module."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.scale = Scale()

    def forward(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        for _ in range(2):
            x = self.scale(self.layer(x))
            yield x


class Generators(TorchCase):
    """A forward that yields runs after its call has ended. The ways out of the error lead out."""

    def test_the_model(self) -> None:
        words = r"forward of the model is a generator.*not in memory any more.*return a list"
        with self.assertRaisesRegex(ValueError, words):
            self.attach(Yielding())
        twin, store = self.twins(YieldingWithModules)
        self.compare_steps(twin, store, loss=lambda m, b: square(lambda x: sum(m(x)), b))

    def test_a_module(self) -> None:
        with self.assertRaisesRegex(
            ValueError, r"forward of module 'parts' .*name a module.*units="
        ):
            self.attach(Caller())
        twin, store = self.twins(Caller, units=[""])
        self.compare_steps(twin, store, loss=square)


class Use(TorchCase):
    def test_a_penalty_on_weights_is_told_what_to_do(self) -> None:
        class Penalised(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(4, 4)

            def penalty(self) -> torch.Tensor:
                return self.layer.weight.float().square().sum()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y = self.layer(x)
                return torch.cat([y.flatten().float(), self.penalty()[None]])

        twin, store = self.twins(Penalised, units=[""])
        words = (
            "the model did not run, such as by a loss with a penalty .*in the forward of the model"
        )
        with self.assertRaisesRegex(RuntimeError, words):
            store.model.penalty()
        self.compare_steps(twin, store, loss=square)

    def test_a_use_by_another_module_names_units(self) -> None:
        class Tied(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embedding = nn.Embedding(4, 8)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.embedding(x) @ self.embedding.weight.t()

        class Language(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.parts = nn.ModuleList([Tied()])
                self.scale = nn.Parameter(torch.ones(8))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.parts[0](x) * self.scale[:4]

        tokens = torch.arange(4)
        store = self.attach(Tied())
        with self.assertRaisesRegex(RuntimeError, r"contains both in units= of attach \(''"):
            store.model(tokens)
        store.close(remove=True)
        self.attach(model := Tied(), units=[""])
        model(tokens).sum().backward()
        store = self.attach(model := Language(), "language", units=["parts.0.embedding"])
        words = (
            r"'parts\.0\.embedding\.weight' used outside of its module\. .* while"
            r" 'parts\.0\.embedding' runs\. If 'parts\.0' uses .* without a call of"
            r" 'parts\.0\.embedding', give attach units=\['parts\.0'\]"
        )
        with self.assertRaisesRegex(RuntimeError, words):
            model(tokens)
        with self.assertRaisesRegex(
            RuntimeError, r"'scale' used .* a module in it .* units=\[''\]"
        ):
            model.scale.sum()
        store.close(remove=True)
        self.attach(model := Language(), "language", units=["parts.0"])
        model(tokens).sum().backward()

    def test_transforms_of_functions_are_refused_where_gradients_are_recorded(self) -> None:
        model = nn.Linear(4, 4)
        x = torch.ones(3, 4)
        want = model(x).detach()
        self.attach(model)
        values = model.state_dict()

        def loss(values: dict[str, torch.Tensor]) -> torch.Tensor:
            return torch.func.functional_call(model, values, x).sum()

        for call in (lambda: torch.func.grad(loss)(values), lambda: torch.func.vmap(model)(x)):
            with self.assertRaisesRegex(RuntimeError, "cistern: .*torch.func .* torch.no_grad"):
                call()
        with torch.no_grad():
            self.assertTrue(torch.equal(torch.func.vmap(model)(x), want))
        model(x).sum().backward()

    def test_a_gradient_penalty_is_refused(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.attach(model)
        x = torch.ones(3, 4, requires_grad=True)
        with self.assertRaisesRegex(RuntimeError, "gradients of gradients .* gradient penalty"):
            torch.autograd.grad(model(x).sum(), x, create_graph=True)
        model(x).sum().backward()

    def test_a_store_is_closed_twice(self) -> None:
        store = self.attach(nn.Linear(4, 4))
        store.close()
        store.close(remove=True)
        with self.assertRaises(ct.CstError) as caught:
            self.admin.remove_job(self.name)
        self.assertEqual(caught.exception.status, Status.ENOTFOUND)

# SPDX-License-Identifier: Apache-2.0
"""Muon is that of torch for hidden matrices, and AdamW is that of torch for the other tensors."""

import copy
import unittest

import cistern
import cistern.torch as ct
import models
import torch
from cistern import State
from models import TorchCase

LR = 2e-3
DECAY = 0.1


def optimizers(model: torch.nn.Module, matrices: set[str]) -> list[torch.optim.Optimizer]:
    """Return what torch has for the parameters in fp32 of ``model``."""
    parameters = dict(model.named_parameters())
    return [
        torch.optim.Muon(
            [parameters[name] for name in matrices],
            lr=LR,
            weight_decay=DECAY,
            momentum=0.95,
            nesterov=True,
            adjust_lr_fn="match_rms_adamw",
        ),
        torch.optim.AdamW(
            [p for name, p in parameters.items() if name not in matrices],
            lr=LR,
            weight_decay=DECAY,
        ),
    ]


def hidden(model: torch.nn.Module) -> set[str]:
    """Return the names of the matrices of the layers."""
    return {
        n for n, p in model.named_parameters() if (".layers." in n or ".h." in n) and p.ndim == 2
    }


def in_double(before: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    """Return weights after a step whose products are made in double."""
    x = direction.double() / direction.double().norm()
    for _ in range(5):
        gram = x @ x.T if x.shape[0] <= x.shape[1] else x.T @ x
        gram = -4.7750 * gram + 2.0315 * gram @ gram
        x = 3.4445 * x + (gram @ x if x.shape[0] <= x.shape[1] else x @ gram)
    return before.double() * (1 - LR * DECAY) - LR * 0.2 * max(x.shape) ** 0.5 * x


@unittest.skipUnless(hasattr(torch.optim, "Muon"), "this torch has no Muon")
class Muon(TorchCase):
    def one_ulp(self, a: torch.Tensor) -> torch.Tensor:
        return torch.nextafter(a.abs(), torch.tensor(torch.inf)) - a.abs()

    def test_updates_are_those_of_torch(self) -> None:
        """From equal states, ours are as near to those in double as those of torch are.

        Both are products in bf16, which are added in another order.
        """
        self.compare_updates(models.bf16(models.llama).train())

    def test_updates_of_fp32_matrices_are_those_of_torch(self) -> None:
        self.compare_updates(models.llama().train())

    def test_norms_in_fp32_beside_matrices_in_bf16(self) -> None:
        model = models.with_fp32_norms(models.gpt2).train()
        names = [n for n, _ in model.named_parameters() if ".ln_" in n and n.endswith("weight")]
        self.assertEqual(len(names), 7)
        store = self.compare_updates(model)
        for name in names:
            weight = store.read(name)
            self.assertEqual(weight.dtype, torch.float32)
            self.assertTrue(torch.equal(weight, store.read(name, State.MASTER)))
            self.assertFalse(torch.equal(weight, torch.ones_like(weight)))
            store.read(name, State.EXP_AVG_SQ)

    def compare_updates(self, model: torch.nn.Module) -> ct.Store:
        store = self.attach(model, optimizer="muon")
        ours = store.optimizer(lr=LR, weight_decay=DECAY)
        matrices = hidden(model)
        self.assertTrue(matrices)
        for _ in range(3):
            before = {n: store.read(n, State.MASTER) for n, _ in model.named_parameters()}
            momenta = {n: store.read(n, State.EXP_AVG) for n in matrices}
            models.loss_of(model, models.tokens()).backward()
            ours.step()
            for name in sorted(matrices):
                plain = torch.nn.Parameter(before[name].clone())
                plain.grad = store.read(name, State.GRAD).float()
                theirs = torch.optim.Muon(
                    [plain], lr=LR, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw"
                )
                theirs.state[plain]["momentum_buffer"] = momenta[name].clone()
                theirs.step()
                buffer = theirs.state[plain]["momentum_buffer"]
                error = store.read(name, State.EXP_AVG) - buffer
                self.assertLessEqual(float((error.abs() / self.one_ulp(buffer)).max()), 2, name)
                exact = in_double(before[name], plain.grad.lerp(buffer, 0.95))
                best = float((plain.data - exact).norm())
                error = float((store.read(name, State.MASTER) - exact).norm())
                self.assertLess(error, 1.5 * best, name)
                self.assertLess(error, 0.2 * float((exact - before[name]).norm()), name)
        return store

    def test_only_hidden_matrices_have_one_moment(self) -> None:
        model = models.llama().train()
        store = self.attach(model, optimizer=cistern.Optimizer.MUON)
        for name, _ in model.named_parameters():
            if name in hidden(model):
                with self.assertRaisesRegex(cistern.CstError, "has no moment exp_avg_sq"):
                    store.read(name, State.EXP_AVG_SQ)
            else:
                store.read(name, State.EXP_AVG_SQ)

    def test_matrices_can_be_chosen(self) -> None:
        model = models.llama().train()
        chosen = min(hidden(model))
        store = self.attach(model, optimizer="muon", muon=lambda name, _: name == chosen)
        with self.assertRaisesRegex(cistern.CstError, "has no moment exp_avg_sq"):
            store.read(chosen, State.EXP_AVG_SQ)
        store.read(sorted(hidden(model))[1], State.EXP_AVG_SQ)

    def test_a_vector_is_no_matrix(self) -> None:
        with self.assertRaisesRegex(cistern.CstError, "has 1 dimensions: Muon updates matrices"):
            self.attach(models.llama(), optimizer="muon", muon=lambda _, p: p.ndim == 1)

    def test_an_unknown_optimizer_is_refused(self) -> None:
        with self.assertRaisesRegex(ValueError, "optimizer is 'mun': one of"):
            self.attach(models.llama(), optimizer="mun")

    def test_fifty_steps_stay_close_to_those_of_torch(self) -> None:
        model = models.bf16(models.llama).train()
        twin = copy.deepcopy(model).float()
        store = self.attach(model, optimizer="muon")
        store.load_state_dict(dict(twin.named_parameters()))
        ours = store.optimizer(lr=LR, weight_decay=DECAY)
        theirs = optimizers(twin, hidden(twin))
        plain = models.bf16(lambda: copy.deepcopy(twin))
        batches = [models.tokens() for _ in range(5)]
        first = last = 0.0
        for step in range(50):
            batch = batches[step % 5]
            loss = models.loss_of(store.model, batch)
            loss.backward()
            ours.step()
            for master, parameter in zip(twin.parameters(), plain.parameters(), strict=True):
                parameter.data.copy_(master)
                parameter.grad = None
            other = models.loss_of(plain, batch)
            other.backward()
            for master, parameter in zip(twin.parameters(), plain.parameters(), strict=True):
                master.grad = parameter.grad.float()
            for optimizer in theirs:
                optimizer.step()
            first, last = (other.item() if step == 0 else first), other.item()
            # Two units in the last place of bf16.
            self.assertLess(abs(loss.item() - last) / last, 2**-7, step)
        self.assertLess(last, first)
        for name, master in twin.named_parameters():
            error = store.read(name, State.MASTER) - master.data
            self.assertLess(float(error.norm() / master.data.norm()), 0.05, name)

# SPDX-License-Identifier: Apache-2.0
"""Moments as the state of an optimizer: from a store to another one, from plain torch, and back to it."""

import copy
import io
from collections.abc import Callable
from typing import Any
from unittest import mock

import cistern.torch as ct
import models
import torch
from cistern import CstError, State, Status
from cistern.errors import error_of
from models import TorchCase, bits
from torch import nn

OPTIONS: dict[str, Any] = {"lr": 1e-2, "eps": 1e-3, "weight_decay": 0.1}
STATES = (State.MASTER, State.EXP_AVG, State.EXP_AVG_SQ)


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4)).to(models.DEVICE)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    dtype = next(model.parameters()).dtype
    for i in steps:
        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(i)).to(models.DEVICE, dtype)
        model(x).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def reloaded(state: dict[str, Any]) -> dict[str, Any]:
    """Return ``state`` as a file has it."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


class Case(TorchCase):
    def same_states(self, ours: ct.Store, other: ct.Store, states: Any = STATES) -> None:
        for name, _ in ours.model.named_parameters():
            for state in states:
                self.assertEqual(bits(ours.read(name, state)), bits(other.read(name, state)), name)

    def close(self, plain: nn.Module, store: ct.Store) -> None:
        for name, parameter in plain.named_parameters():
            torch.testing.assert_close(
                store.read(name), parameter.detach().cpu(), rtol=1e-6, atol=1e-7
            )


class Resuming(Case):
    def test_the_usual_way_has_the_same_bits(self) -> None:
        kinds: dict[str, Callable[[], nn.Module]] = {
            "fp32": small,
            "bf16": lambda: models.bf16(small),
            "both": lambda: nn.Sequential(models.bf16(small)[0], nn.GELU(), small()[2].bfloat16()),
        }
        for kind, make in kinds.items():
            for weights_first in (True, False):
                with self.subTest(kind, weights_first=weights_first):
                    store = self.attach(make(), "undisturbed")
                    optimizer = store.optimizer(**OPTIONS)
                    train(store.model, optimizer, range(4))
                    saved = reloaded(
                        {"model": store.state_dict(), "opt": optimizer.state_dict(full=True)}
                    )
                    train(store.model, optimizer, range(4, 8))
                    other = self.attach(make(), "resumed")
                    resumed = other.optimizer(lr=1.0)
                    if weights_first:
                        other.load_state_dict(saved["model"])
                    resumed.load_state_dict(saved["opt"])
                    if not weights_first:
                        other.load_state_dict(saved["model"])
                    self.assertEqual(other.step_no, 4)
                    train(other.model, resumed, range(4, 8))
                    self.assertEqual(resumed.last, optimizer.last)
                    self.same_states(store, other)
                    store.close(remove=True)
                    other.close(remove=True)

    def test_going_back_in_one_store(self) -> None:
        store = self.attach(small())
        optimizer = store.optimizer(**OPTIONS)
        train(store.model, optimizer, range(2))
        saved = {"model": store.state_dict(), "opt": optimizer.state_dict(full=True)}
        train(store.model, optimizer, range(2, 5))
        want = {name: bits(value) for name, value in store.state_dict().items()}
        optimizer.load_state_dict(saved["opt"])
        store.load_state_dict(saved["model"])
        self.assertEqual(store.step_no, 2)
        train(store.model, optimizer, range(2, 5))
        self.assertEqual({name: bits(v) for name, v in store.state_dict().items()}, want)

    def test_optimizers_with_one_moment(self) -> None:
        for kind in ("lion", "sgd", "muon"):
            store = self.attach(models.bf16(small), "undisturbed", optimizer=kind)
            optimizer = store.optimizer(lr=1e-2)
            train(store.model, optimizer, range(3))
            weights, saved = store.state_dict(), optimizer.state_dict(full=True)
            train(store.model, optimizer, range(3, 6))
            other = self.attach(models.bf16(small), "resumed", optimizer=kind)
            other.load_state_dict(weights)
            resumed = other.optimizer(lr=1e-2)
            resumed.load_state_dict(saved)
            train(other.model, resumed, range(3, 6))
            self.same_states(store, other, (State.MASTER, State.EXP_AVG))
            store.close(remove=True)
            other.close(remove=True)

    def test_steps_that_were_skipped_stay_so(self) -> None:
        store = self.attach(small())
        optimizer = store.optimizer(**OPTIONS)
        train(store.model, optimizer, range(2))
        store.model(torch.full((1, 8), torch.inf)).sum().backward()
        optimizer.step()
        saved = optimizer.state_dict(full=True)
        self.assertEqual((saved["step"], float(saved["state"][0]["step"])), (3, 2.0))
        other = self.attach(small(), "other")
        resumed = other.optimizer(**OPTIONS)
        resumed.load_state_dict(saved)
        self.assertEqual((other.stat().step, other.stat().n_skipped), (3, 1))


class PlainTorch(Case):
    def test_from_it_and_back_to_it(self) -> None:
        for names in (False, True):
            twin = small()
            of_twin = twin.named_parameters() if names else twin.parameters()
            plain = torch.optim.AdamW(of_twin, **OPTIONS)
            train(twin, plain, range(4))
            store = self.attach(copy.deepcopy(twin), f"from-{names}")
            optimizer = store.optimizer(lr=1.0)
            optimizer.load_state_dict(reloaded(plain.state_dict()))
            self.assertEqual(store.step_no, 4)
            train(twin, plain, range(4, 8))
            train(store.model, optimizer, range(4, 8))
            self.close(twin, store)

            back = small()
            back.load_state_dict(store.state_dict())
            again = torch.optim.AdamW(back.parameters(), lr=1.0)
            again.load_state_dict(reloaded(optimizer.state_dict(full=True)))
            train(back, again, range(8, 12))
            train(store.model, optimizer, range(8, 12))
            self.close(back, store)

    def test_groups_and_frozen_parameters(self) -> None:
        twin = small()
        twin[0].weight.requires_grad_(False)
        plain = torch.optim.AdamW(twin.parameters(), **OPTIONS)
        train(twin, plain, range(2))
        store = self.attach(copy.deepcopy(twin), "frozen")
        optimizer = store.optimizer(lr=1.0)
        optimizer.load_state_dict(plain.state_dict())
        train(twin, plain, range(2, 4))
        train(store.model, optimizer, range(2, 4))
        self.close(twin, store)

        twin = small()
        decays = [p for p in twin.parameters() if p.ndim > 1]
        others = [{"params": [p for p in twin.parameters() if p.ndim < 2], "weight_decay": 0.0}]
        plain = torch.optim.AdamW([{"params": decays}, *others], **OPTIONS)
        scheduler = torch.optim.lr_scheduler.LinearLR(plain)
        train(twin, plain, range(2))
        scheduler.step()
        store = self.attach(copy.deepcopy(twin), "groups", param_group=lambda _, p: int(p.ndim < 2))
        optimizer = store.optimizer(lr=1.0)
        optimizer.load_state_dict(plain.state_dict())
        for ours, theirs in zip(optimizer.param_groups, plain.param_groups, strict=True):
            for key in ("lr", "betas", "eps", "weight_decay", "initial_lr"):
                self.assertEqual(ours[key], theirs[key])
        train(twin, plain, range(2, 4))
        train(store.model, optimizer, range(2, 4))
        self.close(twin, store)

    def test_parameters_that_were_skipped(self) -> None:
        """Each has its own count of steps, from plain torch, in a store, and back in plain torch."""

        class Alternating(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.trunk, self.idle = nn.Linear(8, 8), nn.Linear(8, 8)
                self.n_calls = 0

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.n_calls += 1
                return self.trunk(x) if self.n_calls % 3 else self.idle(self.trunk(x))

        def counts(state: dict[str, Any]) -> list[float]:
            return [float(entry["step"]) for entry in state["state"].values()]

        twin = Alternating()
        plain = torch.optim.AdamW(twin.parameters(), **OPTIONS)
        train(twin, plain, range(4))
        store = self.attach(copy.deepcopy(twin))
        optimizer = store.optimizer(lr=1.0)
        optimizer.load_state_dict(plain.state_dict())
        train(twin, plain, range(4, 9))
        train(store.model, optimizer, range(4, 9))
        self.close(twin, store)
        saved = reloaded(optimizer.state_dict(full=True))
        self.assertEqual(counts(saved), counts(plain.state_dict()))
        self.assertEqual(counts(saved), [9.0, 9.0, 3.0, 3.0])
        other = self.attach(Alternating(), "other")
        resumed = other.optimizer(lr=1.0)
        other.load_state_dict(store.state_dict())
        resumed.load_state_dict(saved)
        back = copy.deepcopy(twin)
        again = torch.optim.AdamW(back.parameters(), lr=1.0)
        again.load_state_dict(saved)
        back.load_state_dict(store.state_dict())
        for model in (store.model, other.model, back):
            model.n_calls = 9
        for model, opt in ((store.model, optimizer), (other.model, resumed), (back, again)):
            train(model, opt, range(9, 13))
        self.same_states(store, other)
        self.close(back, store)

    def test_moments_in_bf16_become_fp32(self) -> None:
        twin = models.bf16(small)
        plain = torch.optim.AdamW(twin.parameters(), **OPTIONS)
        train(twin, plain, range(2))
        store = self.attach(copy.deepcopy(twin))
        store.optimizer(lr=1.0).load_state_dict(plain.state_dict())
        for name, parameter in twin.named_parameters():
            for key, state in (("exp_avg", State.EXP_AVG), ("exp_avg_sq", State.EXP_AVG_SQ)):
                theirs = plain.state[parameter][key].float().cpu()
                self.assertTrue(torch.equal(store.read(name, state), theirs))

    def test_what_does_not_fit_is_refused(self) -> None:
        twin = small()
        plain = torch.optim.AdamW(twin.parameters(), **OPTIONS)
        train(twin, plain, range(2))
        good = plain.state_dict()
        store = self.attach(small(), unused="zero")
        optimizer = store.optimizer(**OPTIONS)
        state, groups = good["state"], good["param_groups"]
        behind = state | {1: state[1] | {"step": torch.tensor(1.0)}}
        other_shape = state | {2: state[2] | {"exp_avg": torch.zeros(5)}}
        further = state | {3: state[3] | {"max_exp_avg_sq": torch.zeros(4)}}
        sgd = torch.optim.SGD(twin.parameters(), lr=0.1).state_dict()
        for bad, text in (
            ({"param_groups": groups}, "not the state of an optimizer"),
            (
                good | {"state": behind},
                "such as '0.bias', have made fewer than 2 steps.*unused='skip'",
            ),
            (
                good | {"state": other_shape},
                r"exp_avg of parameter '2.weight' has the shape \(5,\)",
            ),
            (good | {"state": further}, "'2.bias' has an unknown 'max_exp_avg_sq'"),
            (good | {"param_groups": [groups[0] | {"amsgrad": True}]}, "with amsgrad=True"),
            (good | {"param_groups": [groups[0] | {"params": [0, 1]}]}, r"\[2\] parameters"),
            (good | {"param_groups": groups * 2}, "1 groups, not 2"),
            (sgd, "without betas, and not of AdamW"),
        ):
            with self.assertRaisesRegex(ValueError, text):
                optimizer.load_state_dict(bad)
        self.assertEqual(store.step_no, 0)
        self.assertFalse(store.read("0.weight", State.EXP_AVG).any())
        short = optimizer.state_dict()
        train(store.model, optimizer, range(1))
        with self.assertRaisesRegex(ValueError, r"state_dict\(full=True\)"):
            optimizer.load_state_dict(short)

    def test_another_optimizer(self) -> None:
        """Of Lion, AdamW or SGD: nothing is written."""
        states = {}
        for rule in ("adamw", "lion"):
            store = self.attach(small(), f"from-{rule}", optimizer=rule)
            optimizer = store.optimizer(**OPTIONS)
            train(store.model, optimizer, range(2))
            states[rule] = optimizer.state_dict(full=True)
        one, two = "exp_avg", "exp_avg and exp_avg_sq"
        second_alone = copy.deepcopy(states["adamw"])
        for entry in second_alone["state"].values():
            del entry["exp_avg"]
        for rule, loaded, there, wanted in (
            ("adamw", states["lion"], one, two),
            ("lion", states["adamw"], two, one),
            ("sgd", states["adamw"], two, one),
            ("lion", second_alone, "exp_avg_sq", one),
            ("adamw", second_alone, "exp_avg_sq", two),
        ):
            with self.subTest(rule, there=there):
                store = self.attach(small(), f"to-{rule}", optimizer=rule)
                optimizer = store.optimizer(**OPTIONS)
                text = f"another optimizer: it has {there}, and the job's optimizer has {wanted}$"
                with self.assertRaisesRegex(ValueError, text):
                    optimizer.load_state_dict(loaded)
                self.assertEqual(store.step_no, 0)
                self.assertFalse(store.read("0.weight", State.EXP_AVG).any())
                store.close(remove=True)

    def test_a_load_that_fails(self) -> None:
        """The states are those of before, or the error says which may not be."""
        store = self.attach(small())
        optimizer = store.optimizer(**OPTIONS)
        train(store.model, optimizer, range(2))
        saved = optimizer.state_dict(full=True)
        train(store.model, optimizer, range(2, 3))
        before = optimizer.state_dict(full=True)

        unreadable = copy.deepcopy(saved)
        unreadable["state"][3]["exp_avg"] = torch.empty(4, device="meta")
        with self.assertRaisesRegex(RuntimeError, "meta"):
            optimizer.load_state_dict(unreadable)
        self.same(optimizer.state_dict(full=True), before)

        write, n_left = store.job.write_from, 3

        def fail(*arguments: Any) -> None:
            nonlocal n_left
            n_left -= 1
            if n_left < 0:
                raise error
            write(*arguments)

        for error in (OSError("disk"), error_of(Status.EBUSY, "disk")):
            n_left = 3
            text = "disk. .*'0.weight' to '0.bias', which failed, .* job is still at step 3: load"
            with (
                mock.patch.object(store.job, "write_from", fail),
                self.assertRaisesRegex((RuntimeError, CstError), text),
            ):
                optimizer.load_state_dict(saved)
            self.assertEqual(store.step_no, 3)
        for error in (OSError("disk"), error_of(Status.EBUSY, "disk")):
            with (
                mock.patch.object(store.job, "set_steps", side_effect=error),
                self.assertRaisesRegex(
                    (RuntimeError, CstError),
                    "disk. The number of steps cannot be set. The parameters have .* still at step 3: load",
                ),
            ):
                optimizer.load_state_dict(saved)
        optimizer.load_state_dict(saved)
        self.same(optimizer.state_dict(full=True), saved)

    def same(self, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
        self.assertEqual(ours["step"], theirs["step"])
        for number, entry in theirs["state"].items():
            for key, value in entry.items():
                self.assertTrue(torch.equal(ours["state"][number][key], value), key)

# SPDX-License-Identifier: Apache-2.0
"""Weights that are loaded, that are others for a while, and that are changed in place."""

import copy
import os
import signal
import warnings
from collections.abc import Callable
from typing import Any

import cistern.torch as ct
import models
import torch
from cistern import State
from models import TorchCase, bits, loss_of, tokens
from processes import CONTEXT, PATIENCE_S
from torch import nn

STATES = (State.MASTER, State.EXP_AVG, State.EXP_AVG_SQ)
States = dict[tuple[str, State], bytes]


def states(store: ct.Store) -> States:
    """Return the bits of all states."""
    names = [name for name, _ in store.model.named_parameters()]
    return {(name, state): bits(store.read(name, state)) for name in names for state in STATES}


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4))


def loss_at(model: nn.Module, i: int) -> torch.Tensor:
    dtype = next(model.parameters()).dtype
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(i)).to(models.DEVICE, dtype)
    loss: torch.Tensor = model(x).float().square().mean()
    return loss


Block = Callable[[ct.Store, int], None]


class Case(TorchCase):
    def fp32_twins(self, **options: Any) -> tuple[nn.Module, ct.Store]:
        model = small().to(models.DEVICE)
        return copy.deepcopy(model), self.attach(model, **options)

    def train(
        self, make: Callable[[], nn.Module], block: Block, name: str, **options: Any
    ) -> States:
        """Train 6 steps, with ``block`` after each. Return the states."""
        torch.manual_seed(1)
        store = self.attach(make(), name, **options)
        optimizer = store.optimizer(lr=3e-3)
        for i in range(6):
            loss_at(store.model, i).backward()
            optimizer.step()
            optimizer.zero_grad()
            block(store, i)
        return states(store)


def undisturbed(_: ct.Store, __: int) -> None:
    pass


def halves(store: ct.Store) -> dict[str, torch.Tensor]:
    return {name: value * 0.5 for name, value in store.state_dict().items()}


KINDS: dict[str, Callable[[], nn.Module]] = {"fp32": small, "bf16": lambda: models.bf16(small)}


class Loading(Case):
    def same(self, block: Block, kinds: Any = KINDS, **options: Any) -> None:
        for kind in kinds:
            with self.subTest(kind):
                want = self.train(KINDS[kind], undisturbed, "want", **options)
                self.assertEqual(self.train(KINDS[kind], block, "got", **options), want)
                self.remove("want")
                self.remove("got")

    def test_own_weights_change_nothing(self) -> None:
        self.same(lambda store, _: store.load_state_dict(store.state_dict()))
        self.same(
            lambda store, _: store.load_state_dict(store.state_dict()),
            masters="split", moments="mx8",
        )  # fmt: skip

    def test_other_weights_and_back_keep_fp32(self) -> None:
        def swap(store: ct.Store, _: int) -> None:
            kept = store.state_dict()
            store.load_state_dict(halves(store))
            store.load_state_dict(kept)

        self.same(swap, kinds=["fp32"])

    def test_moments_stay_beside_plain_torch(self) -> None:
        twin, store = self.fp32_twins()
        plain = torch.optim.AdamW(twin.parameters(), lr=1e-2, eps=1e-3)
        optimizer = store.optimizer(lr=1e-2, eps=1e-3)
        for i in range(8):
            for model, opt in ((twin, plain), (store.model, optimizer)):
                loss_at(model, i).backward()
                opt.step()
                opt.zero_grad()
                if i == 3:
                    model.load_state_dict({n: v * 0.5 for n, v in model.state_dict().items()})
        for name, parameter in twin.named_parameters():
            torch.testing.assert_close(store.read(name), parameter.cpu(), rtol=1e-5, atol=1e-7)

    def test_masters_change_where_weights_do(self) -> None:
        store = self.attach(models.bf16(lambda: nn.Linear(4, 4)))
        master = torch.linspace(0.1, 1, 16).reshape(4, 4) + 1e-4
        store.write("weight", master)
        self.assertEqual(bits(store.read("weight", State.MASTER)), bits(master))
        loaded = store.state_dict()
        loaded["weight"][1, 2] = 3.0
        store.load_state_dict(loaded)
        master[1, 2] = 3.0
        self.assertEqual(bits(store.read("weight", State.MASTER)), bits(master))
        store.write("weight", store.read("weight"))
        self.assertEqual(bits(store.read("weight", State.MASTER)), bits(master))
        store.load_state_dict({name: value.float() for name, value in loaded.items()})
        self.assertEqual(bits(store.read("weight", State.MASTER)), bits(master))
        rounded = store.read("weight").float()
        store.write("weight", rounded)  # In fp32, every bit is meant.
        self.assertEqual(bits(store.read("weight", State.MASTER)), bits(rounded))

    def test_moments_are_cleared_if_asked_for(self) -> None:
        for optimizer in ("adamw", "lion"):
            store = self.attach(models.bf16(small), optimizer, optimizer=optimizer)
            opt = store.optimizer(lr=1e-3)
            loss_at(store.model, 0).backward()
            opt.step()
            master = bits(store.read("0.weight", State.MASTER))
            self.assertTrue(store.read("0.weight", State.EXP_AVG).any())
            store.clear_moments()
            self.assertFalse(store.read("0.weight", State.EXP_AVG).any())
            self.assertEqual(bits(store.read("0.weight", State.MASTER)), master)
            loss_at(store.model, 1).backward()
            opt.step()

    def test_gradients_that_a_load_discards_are_missed(self) -> None:
        _, store = self.twins(small, micro_batches=2)
        optimizer = store.optimizer(lr=1e-3)

        def load_and_change() -> None:
            store.load_state_dict(store.state_dict())
            with store.changing("0.weight"), torch.no_grad():
                store.model[0].weight.mul_(0.5)

        for discard in (
            lambda: store.load_state_dict(store.state_dict()),
            store.clear_moments,
            load_and_change,
        ):
            loss_at(store.model, 0).backward()
            discard()
            loss_at(store.model, 1).backward()
            with self.assertRaisesRegex(
                RuntimeError, "load_state_dict or clear_moments has discarded the gradients"
            ):
                optimizer.step()
            optimizer.zero_grad()
            loss_at(store.model, 0).backward()
            optimizer.step()

    def test_a_swap_by_loads_is_told_once(self) -> None:
        _, store = self.twins(small)
        optimizer = store.optimizer(lr=1e-3)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for i in range(3):
                loss_at(store.model, i).backward()
                optimizer.step()
                kept = store.state_dict()
                store.load_state_dict(halves(store))
                self.assertEqual(len(told), min(i, 1))
                store.load_state_dict(kept)
        self.assertEqual(len(told), 1)
        self.assertIn("with store.swapped(weights)", str(told[0].message))


def kill_inside(name: str) -> None:
    """Be killed in a block of ``swapped``, after a module has run."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    store = ct.attach(models.bf16(small), name, device="cpu")
    optimizer = store.optimizer(lr=3e-3)
    loss_at(store.model, 0).backward()
    optimizer.step()
    with store.swapped(halves(store)):
        loss_at(store.model, 1).backward()
        os.kill(os.getpid(), signal.SIGKILL)


class Swapped(Case):
    def test_training_has_the_bits_of_an_undisturbed_one(self) -> None:
        def evaluate(store: ct.Store, i: int) -> None:
            average = halves(store)
            dtype = store.read("0.weight").dtype
            plain = small().to(dtype)
            plain.load_state_dict(average)
            with store.swapped(average):
                ours = loss_at(store.model, i)
                if i % 2:
                    ours.backward()  # To be discarded.
                self.assertTrue(torch.equal(ours.cpu(), loss_at(plain, i)))
                for name, value in store.model.state_dict().items():
                    self.assertEqual(bits(value), bits(average[name]))
                store.optimizer(lr=3e-3).zero_grad()

        for kind, make in KINDS.items():
            for formats in ({}, {"masters": "split", "moments": "mx8"}):
                with self.subTest(kind, **formats):
                    want = self.train(make, undisturbed, "want", **formats)
                    self.assertEqual(self.train(make, evaluate, "got", **formats), want)
                    self.remove("want")
                    self.remove("got")

    def test_states_are_those_of_before_whatever_ends_the_block(self) -> None:
        for kind, make in KINDS.items():
            store = self.attach(make(), kind)
            optimizer = store.optimizer(lr=3e-3)
            loss_at(store.model, 0).backward()
            optimizer.step()
            want, loss = states(store), loss_at(store.model, 1).detach()

            def interrupted(_: Any, __: Any) -> None:
                raise KeyboardInterrupt

            for error in (ValueError, KeyboardInterrupt):
                handle = store.model[2].register_forward_pre_hook(interrupted)
                with self.assertRaises(error), store.swapped(halves(store)):
                    if error is KeyboardInterrupt:
                        loss_at(store.model, 1)
                    raise error
                handle.remove()
                self.assertEqual(states(store), want)
                self.assertTrue(torch.equal(loss_at(store.model, 1), loss))
            loss_at(store.model, 1).backward()
            optimizer.step()

    def test_a_worker_that_dies_in_the_block(self) -> None:
        self.addCleanup(self.remove, self.name)
        process = CONTEXT.Process(target=kill_inside, args=(self.name,))
        process.start()
        process.join(PATIENCE_S)
        self.assertEqual(process.exitcode, -signal.SIGKILL)
        store = self.attach(models.bf16(small))
        self.assertEqual(store.step_no, 1)
        torch.manual_seed(1)
        other = self.attach(models.bf16(small), "other")
        optimizer = other.optimizer(lr=3e-3)
        loss_at(other.model, 0).backward()
        optimizer.step()
        self.assertEqual(states(store), states(other))

    def test_gradients_before_the_block_stay(self) -> None:
        twin, store = self.twins(small, micro_batches=2)
        optimizer = store.optimizer(lr=3e-3)
        loss_at(store.model, 0).backward()
        second = loss_at(store.model, 1)
        with store.swapped(halves(store)), torch.no_grad():
            loss_at(store.model, 2)
        second.backward()
        optimizer.step()
        for i in range(2):
            loss_at(twin, i).backward()
        self.compare_gradients(twin, store, 0)

    def test_gradients_at_other_weights(self) -> None:
        """Sharpness-aware minimisation: gradients at one place update weights at another one."""
        for kind in ("fp32", "bf16"):
            twin, store = self.fp32_twins(name=kind) if kind == "fp32" else self.twins(small)
            optimizer = store.optimizer(lr=3e-3)
            there = {name: value + 0.125 for name, value in store.state_dict().items()}
            masters = states(store)
            with store.swapped(there):
                loss_at(store.model, 0).backward()
            self.assertEqual(states(store), masters)
            optimizer.step()
            twin.load_state_dict(there)
            loss_at(twin, 0).backward()
            self.compare_gradients(twin, store, 0)
            store.close(remove=True)

    def test_graphs_of_the_other_side_are_refused(self) -> None:
        _, store = self.twins(small)
        with store.swapped(halves(store)):
            inside = loss_at(store.model, 0)
        with self.assertRaisesRegex(RuntimeError, "were others in its forward pass"):
            inside.backward()
        outside = loss_at(store.model, 0)
        with (
            store.swapped(halves(store)),
            self.assertRaisesRegex(RuntimeError, "were others in its forward pass"),
        ):
            outside.backward()

    def test_ties_buffers_parts_and_blocks_in_blocks(self) -> None:
        twin, store = self.twins(models.qwen2)
        batch, weights = tokens(), store.state_dict()
        for factor in (0.5, 0.25):
            head = {"lm_head.weight": weights["lm_head.weight"] * factor}
            plain = copy.deepcopy(twin)
            plain.load_state_dict(
                weights | head | {"model.embed_tokens.weight": head["lm_head.weight"]}
            )
            with store.swapped(weights), store.swapped(head), torch.no_grad():
                self.assertTrue(torch.equal(loss_of(store.model, batch), loss_of(plain, batch)))
        with torch.no_grad():
            self.assertTrue(torch.equal(loss_of(store.model, batch), loss_of(twin, batch)))
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        normed = self.attach(model, "normed")
        mean = model[1].running_mean.clone()
        with normed.swapped({"1.running_mean": torch.full((4,), 3.0)}):
            self.assertEqual(model[1].running_mean.tolist(), [3.0] * 4)
            model(torch.randn(3, 4))
        self.assertTrue(torch.equal(model[1].running_mean, mean))

    def test_the_job_is_that_of_before_in_the_block_too(self) -> None:
        _, store = self.twins(small)
        optimizer = store.optimizer(lr=3e-3)
        want = bits(store.read("0.weight"))
        with store.swapped(halves(store)):
            self.assertEqual(bits(store.read("0.weight")), want)
            with store.gather("0.weight"):
                self.assertEqual(bits(store.model[0].weight), bits(store.state_dict()["0.weight"]))
            loss_at(store.model, 0).backward()
            for change in (
                optimizer.step,
                lambda: store.write("0.weight", torch.zeros(32, 8)),
                lambda: store.load_state_dict(store.state_dict()),
                store.changing("0.weight").__enter__,
            ):
                with self.assertRaisesRegex(RuntimeError, "leave the block before"):
                    change()
        optimizer.step()

    def test_what_cannot_be_swapped_is_refused(self) -> None:
        _, store = self.twins(small)
        for values, error in (
            ({"2.wieght": torch.zeros(1)}, KeyError),
            ({"2.weight": torch.zeros(1)}, ValueError),
            ({"2.weight": [0.0]}, TypeError),
        ):
            with self.assertRaises(error), store.swapped(values):
                pass
        store.model[0].register_forward_pre_hook(lambda *_: store.swapped({}).__enter__())
        with self.assertRaisesRegex(RuntimeError, "while a module or a backward pass runs"):
            loss_at(store.model, 0)


class Changing(Case):
    def test_clipped_weights_are_those_of_plain_torch(self) -> None:
        """WGAN: weights are clipped after each step."""
        twin, store = self.fp32_twins()
        plain = torch.optim.AdamW(twin.parameters(), lr=1e-2, eps=1e-3)
        optimizer = store.optimizer(lr=1e-2, eps=1e-3)
        names = [name for name, _ in twin.named_parameters()]
        for i in range(5):
            loss_at(twin, i).backward()
            loss_at(store.model, i).backward()
            plain.step()
            optimizer.step()
            for p in twin.parameters():
                p.data.clamp_(-0.1, 0.1)
            with store.changing(*names):
                for p in store.model.parameters():
                    p.data.clamp_(-0.1, 0.1)
            plain.zero_grad()
            optimizer.zero_grad()
        for name, parameter in twin.named_parameters():
            torch.testing.assert_close(store.read(name), parameter.cpu(), rtol=1e-5, atol=1e-7)
            self.assertTrue((store.read(name).abs() == 0.1).any() or "bias" in name)

    def test_masters_in_bf16_stay_where_weights_do(self) -> None:
        _, store = self.twins(small)
        optimizer = store.optimizer(lr=3e-3)
        loss_at(store.model, 0).backward()
        optimizer.step()
        before = {n: store.read(n, State.MASTER) for n, _ in store.model.named_parameters()}
        moments = bits(store.read("0.weight", State.EXP_AVG))
        with store.changing(*before), torch.no_grad():
            nn.init.ones_(store.model[2].bias)
            store.model[0].weight[3, 4] = 7.0
        before["2.bias"].fill_(1.0)
        before["0.weight"][3, 4] = 7.0
        for name, master in before.items():
            self.assertEqual(bits(store.read(name, State.MASTER)), bits(master), name)
        self.assertEqual(bits(store.read("0.weight", State.EXP_AVG)), moments)

    def test_modules_run_with_the_changes(self) -> None:
        """A perturbation that is taken back: the gradients there count, and nothing was written."""
        twin, store = self.fp32_twins()
        optimizer = store.optimizer(lr=3e-3)
        weight, plain, before = store.model[0].weight, twin[0].weight, states(store)
        kept = twin[0].weight.detach().clone()
        plain.data.add_(0.5)
        loss_at(twin, 0).backward()
        with store.changing("0.weight"):
            weight.data.add_(0.5)
            loss_at(store.model, 0).backward()
            weight.data.copy_(kept)
        self.assertEqual(states(store), before)
        optimizer.step()
        self.compare_gradients(twin, store, 0)

    def test_nothing_is_written_if_the_block_raises(self) -> None:
        _, store = self.twins(small)
        before = states(store)
        with self.assertRaises(OverflowError), store.changing("0.weight"):
            store.model[0].weight.data.zero_()
            loss_at(store.model, 0)
            raise OverflowError
        self.assertEqual(states(store), before)
        with self.assertRaisesRegex(RuntimeError, "cistern: parameter '0.weight' used outside"):
            store.model[0].weight.sum()

    def test_a_change_in_a_step_is_told_to_be_lost(self) -> None:
        _, store = self.twins(small)
        optimizer = store.optimizer(lr=3e-3)
        before = states(store)
        loss_at(store.model, 0).backward()
        with self.assertRaisesRegex(RuntimeError, "the change is lost"), store.changing("0.weight"):
            store.model[0].weight.data.zero_()
        self.assertEqual(states(store), before)
        optimizer.step()

    def test_refusals_name_it(self) -> None:
        _, store = self.twins(small)
        weight = store.model[0].weight
        with (
            self.assertRaisesRegex(RuntimeError, r"Store\.changing\('0\.weight'\)"),
            torch.no_grad(),
        ):
            weight.clamp_(-1, 1)
        with (
            self.assertRaisesRegex(RuntimeError, r"Store\.changing"),
            store.gather("0.weight"),
            torch.no_grad(),
        ):
            weight.clamp_(-1e-3, 1e-3)
        with (
            self.assertRaisesRegex(RuntimeError, "given other memory"),
            store.changing("0.weight"),
        ):
            before, weight.data = weight.data, torch.zeros(32, 8, dtype=weight.dtype)
        weight.data = before

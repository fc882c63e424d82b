# SPDX-License-Identifier: Apache-2.0
"""The optimizer is like torch's."""

import copy
import json
import subprocess
from unittest import mock

import cistern
import cistern.torch as ct
import models
import torch
from cistern import State, Status
from cistern.errors import error_of
from cistern.torch.replays import Replays
from models import TorchCase


def backward(model: torch.nn.Module) -> None:
    models.loss_of(model, models.tokens()).backward()


class Loss(TorchCase):
    def test_the_daemon_shows_the_loss_that_a_closure_returns(self) -> None:
        _, store = self.twins(models.gpt2)
        optimizer = store.optimizer(lr=1e-3)

        def closure() -> torch.Tensor:
            loss = models.loss_of(store.model, models.tokens())
            loss.backward()
            return loss

        loss = optimizer.step(closure).item()
        self.assertEqual(optimizer.last.loss, loss)
        self.assertAlmostEqual(self.shown(), loss, places=9)
        backward(store.model)
        optimizer.step()
        self.assertIsNone(self.shown(), "no loss is not a loss of 0")

    def shown(self) -> float | None:
        command = ["cistern", "job", self.name, "--json"]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return json.loads(told).get("last_loss")


class AdamW(TorchCase):
    def test_one_update_is_that_of_torch(self) -> None:
        """From equal states, to 1 ulp of the weight and 1e-6 of the update."""
        _, store = self.twins(models.gpt2)
        self.compare_updates(store)

    def test_one_update_of_fp32_parameters_is_that_of_torch(self) -> None:
        self.compare_updates(self.attach(models.gpt2().train().to(models.DEVICE)))

    def compare_updates(self, store: ct.Store) -> None:
        options = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
        ours = store.optimizer(**options)
        names = [name for name, _ in store.model.named_parameters()]
        for step in range(3):
            before = {s: [store.read(n, s) for n in names] for s in (State.MASTER, *_MOMENTS)}
            backward(store.model)
            ours.step()
            masters = before[State.MASTER]
            plain = [torch.nn.Parameter(master.clone()) for master in masters]
            for name, parameter in zip(names, plain, strict=True):
                parameter.grad = store.read(name, State.GRAD).float()
            theirs = torch.optim.AdamW(plain, **options)
            for i, parameter in enumerate(plain):
                theirs.state[parameter] = {
                    "step": torch.tensor(float(step)),
                    "exp_avg": before[State.EXP_AVG][i],
                    "exp_avg_sq": before[State.EXP_AVG_SQ][i],
                }
            theirs.step()
            for i, parameter in enumerate(plain):
                ours_now = store.read(names[i], State.MASTER)
                self.close_to(masters[i], ours_now, parameter.data, names[i])

    def close_to(
        self, before: torch.Tensor, ours: torch.Tensor, plain: torch.Tensor, name: str
    ) -> None:
        largest = torch.maximum(before.abs(), plain.abs())
        one_ulp = torch.nextafter(largest, torch.tensor(torch.inf)) - largest
        bound = one_ulp + 1e-6 * (plain - before).abs()
        self.assertLessEqual(float(((ours - plain).abs() / bound).max()), 1.0, name)

    def test_fifty_steps_stay_close_to_those_of_torch(self) -> None:
        model = models.bf16(models.llama).train()
        twin = copy.deepcopy(model).float()
        store = self.attach(model)
        store.load_state_dict(dict(twin.named_parameters()))
        ours = store.optimizer(lr=1e-3, weight_decay=0.1)
        masters = [p.detach().clone() for p in twin.parameters()]
        theirs = torch.optim.AdamW(masters, lr=1e-3, weight_decay=0.1)
        plain = models.bf16(lambda: twin)
        for _ in range(50):
            batch = models.tokens()
            loss = models.loss_of(store.model, batch)
            loss.backward()
            ours.step()
            for master, parameter in zip(masters, plain.parameters(), strict=True):
                parameter.data.copy_(master)
                parameter.grad = None
            other = models.loss_of(plain, batch)
            other.backward()
            for master, parameter in zip(masters, plain.parameters(), strict=True):
                master.grad = parameter.grad.float()
            theirs.step()
            self.assertLess(abs(loss - other) / other, 1e-3)


_MOMENTS = (State.EXP_AVG, State.EXP_AVG_SQ)


class Interface(TorchCase):
    def test_a_scheduler_changes_the_learning_rate(self) -> None:
        _, store = self.twins(models.gpt2)
        optimizer = store.optimizer(lr=1.0)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
        before = store.read("transformer.wte.weight")
        backward(store.model)
        optimizer.step()
        scheduler.step()
        self.assertTrue(torch.equal(before, store.read("transformer.wte.weight")))
        self.assertEqual(scheduler.get_last_lr(), [0.0])

    def test_clip_grad_norm_clips_and_returns_the_norm(self) -> None:
        twin, store = self.twins(models.gpt2)
        optimizer = store.optimizer(lr=1e-3)
        batch = models.tokens()
        random = torch.get_rng_state()
        models.loss_of(store.model, batch).backward()
        norm = torch.nn.utils.clip_grad_norm_(store.model.parameters(), 0.5)
        optimizer.step()
        torch.set_rng_state(random)
        models.loss_of(twin, batch).backward()
        plain = torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
        self.assertAlmostEqual(float(norm) / float(plain), 1, places=2)
        self.assertAlmostEqual(optimizer.last.clip, 0.5 / float(norm), places=5)
        with self.assertRaisesRegex(ValueError, "clipped together"):
            torch.nn.utils.clip_grad_norm_([*store.model.parameters(), *twin.parameters()], 1.0)
        with self.assertRaisesRegex(ValueError, "norm alone"):
            torch.nn.utils.clip_grad_value_(store.model.parameters(), 1.0)

    def test_a_second_group_is_refused(self) -> None:
        _, store = self.twins(models.gpt2)
        optimizer = store.optimizer(lr=1e-3)
        with self.assertRaisesRegex(ValueError, "given the groups"):
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})

    def test_its_state_is_the_group_and_the_step(self) -> None:
        _, store = self.twins(models.gpt2)
        optimizer = store.optimizer(lr=1e-3)
        state = optimizer.state_dict()
        self.assertEqual((state["job"], state["step"]), (self.name, 0))
        self.assertNotIn("params", state["param_groups"][0])
        state["param_groups"][0]["lr"] = 0.5
        optimizer.load_state_dict(state)
        self.assertEqual(optimizer.param_groups[0]["lr"], 0.5)
        backward(store.model)
        optimizer.step()
        with self.assertRaisesRegex(ValueError, "has done 1"):
            optimizer.load_state_dict(state)

    def changed_by_a_step(self, store: ct.Store, optimizer: ct.Optimizer) -> set[str]:
        before = {
            name: store.read(name, State.MASTER) for name, _ in store.model.named_parameters()
        }
        backward(store.model)
        optimizer.step()
        return {n for n, old in before.items() if not torch.equal(old, store.read(n, State.MASTER))}

    def test_groups_have_rates_of_their_own(self) -> None:
        _, store = self.twins(models.gpt2, param_group=lambda name, _: int("ln_f" in name))
        optimizer = store.optimizer(lr=1e-2, groups=[{}, {"lr": 0.0, "weight_decay": 0.0}])
        norm = {"transformer.ln_f.weight", "transformer.ln_f.bias"}
        self.assertEqual(len(optimizer.param_groups[1]["params"]), 2)
        self.assertFalse(self.changed_by_a_step(store, optimizer) & norm)
        optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = 0.0, 1e-2
        self.assertEqual(self.changed_by_a_step(store, optimizer), norm)
        with self.assertRaisesRegex(ValueError, "2 groups, not 1"):
            store.optimizer(lr=1e-2, groups=[{}])
        with self.assertRaisesRegex(ValueError, "lr and weight_decay alone"):
            store.optimizer(lr=1e-2, groups=[{}, {"eps": 1.0}])

    def test_a_scaler_of_gradients_is_refused(self) -> None:
        _, store = self.twins(models.gpt2)
        optimizer = store.optimizer(lr=1e-2)
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(models.loss_of(store.model, models.tokens())).backward()
        with self.assertRaisesRegex(ValueError, "needs no scaler"):
            scaler.step(optimizer)

    def test_early_updates_have_the_bits_of_late_ones(self) -> None:
        states = []
        for overlap in (cistern.Overlap.COMMIT, cistern.Overlap.EARLY):
            torch.manual_seed(7)
            _, store = self.twins(models.gpt2, overlap=overlap, chunk_elems=8192)
            optimizer = store.optimizer(lr=1e-2)
            for _ in range(3):
                backward(store.model)
                if overlap is cistern.Overlap.EARLY:
                    with self.assertRaisesRegex(cistern.CstError, "prepared with other"):
                        store.job.prepare_step(cistern.HyperParams(lr=0.5))
                optimizer.step()
            states.append(store.state_dict())
            store.close(remove=True)
        for name, value in states[0].items():
            self.assertTrue(torch.equal(value, states[1][name]), name)

    def test_betas_are_by_default_those_of_other_ranks(self) -> None:
        """Those of libcistern, which ranks in C have: other ones are refused."""
        for rule, beta2 in (("adamw", 0.999), ("lion", 0.99)):
            _, store = self.twins(models.gpt2, optimizer=rule, overlap=cistern.Overlap.EARLY)
            optimizer = store.optimizer(lr=1e-2, weight_decay=0)
            self.assertEqual(optimizer.param_groups[0]["betas"], (0.9, beta2))
            backward(store.model)  # It prepares the step.
            store.job.prepare_step(cistern.HyperParams(lr=1e-2))
            with self.assertRaisesRegex(cistern.CstError, "prepared with other"):
                store.job.prepare_step(cistern.HyperParams(lr=1e-2, beta1=0.9, beta2=0.5))
            store.close(remove=True)

    def test_a_closure_computes_the_loss(self) -> None:
        _, store = self.twins(models.gpt2)
        optimizer = store.optimizer(lr=1e-2)
        batch = models.tokens()

        def closure() -> torch.Tensor:
            loss = models.loss_of(store.model, batch)
            loss.backward()
            return loss

        first = optimizer.step(closure)
        second = optimizer.step(closure)
        self.assertLess(second.item(), first.item())
        self.assertEqual(store.step_no, 2)

    def unheard(self, store: ct.Store) -> None:
        """Let the next step be committed, but its reply not come, as if the daemon ended then."""
        plain = store.job.step

        def step(params: cistern.HyperParams) -> None:
            patch.stop()
            plain(params)
            raise error_of(Status.EPEERDIED, "the daemon has ended")

        patch = mock.patch.object(store.job, "step", step)
        patch.start()

    def test_a_step_that_was_committed_unheard_is_not_done_again(self) -> None:
        _, store = self.twins(models.gpt2)
        optimizer = store.optimizer(lr=1e-2)
        losses = []

        def closure() -> torch.Tensor:
            losses.append(models.loss_of(store.model, models.tokens()))
            losses[-1].backward()
            return losses[-1]

        self.unheard(store)
        self.assertIs(optimizer.step(closure), losses[0])
        self.assertEqual((len(losses), store.step_no), (1, 1))
        self.assertIsNone(optimizer.last)
        self.assertTrue(optimizer.norm.isnan())
        backward(store.model)
        self.unheard(store)
        with self.assertRaises(cistern.StepVoid):
            optimizer.step()
        self.assertEqual(store.sync(), 2)
        backward(store.model)
        norm = torch.nn.utils.clip_grad_norm_(store.model.parameters(), 1.0)
        self.unheard(store)
        optimizer.replay = lambda: self.fail("the step is committed")
        optimizer.step()
        self.assertEqual(store.step_no, 3)
        self.assertTrue(norm.isnan())

    def test_more_backward_passes_than_micro_batches_are_refused(self) -> None:
        _, store = self.twins(models.gpt2)
        store.optimizer(lr=1e-2)
        backward(store.model)
        with self.assertRaisesRegex(cistern.CstError, "micro"):
            backward(store.model)


class Replayed(TorchCase):
    """Calls that are made again after a void step."""

    def begin(self, **options: int) -> tuple[ct.Store, ct.Optimizer, Replays]:
        torch.manual_seed(5)
        model = models.gpt2()
        store = self.attach(model, **options)
        return store, store.optimizer(lr=1e-2), Replays(store)

    def call(self, store: ct.Store, *errors: Exception | None) -> mock.Mock:
        """Return a call that computes gradients, where its runs raise none of ``errors`` before."""

        def run() -> torch.Tensor:
            error = next(left, None)
            if error is not None:
                raise error
            loss = models.loss_of(store.model, models.tokens())
            loss.backward()
            return loss.detach()

        left = iter(errors)
        return mock.Mock(side_effect=run)

    def void(self, store: ct.Store) -> None:
        """Let the next step be void."""

        def step(_: cistern.HyperParams) -> None:
            patch.stop()
            raise error_of(Status.ESTALE, "void")

        patch = mock.patch.object(store.job, "step", step)
        patch.start()

    def test_a_step_whose_only_call_has_raised(self) -> None:
        store, optimizer, replays = self.begin()
        with self.assertRaises(ArithmeticError):
            replays.run(self.call(store, ArithmeticError()))
        backward(store.model)
        self.void(store)
        with self.assertRaisesRegex(RuntimeError, "there are no gradients"):
            optimizer.step()

    def test_calls_of_an_earlier_step(self) -> None:
        store, optimizer, replays = self.begin()
        earlier = self.call(store)
        replays.run(earlier)
        optimizer.step()
        backward(store.model)
        self.void(store)
        with self.assertRaisesRegex(RuntimeError, "there are no gradients"):
            optimizer.step()
        self.assertEqual((earlier.call_count, store.step_no), (1, 1))

    def test_calls_that_were_discarded(self) -> None:
        store, optimizer, replays = self.begin()
        discarded = self.call(store)
        replays.run(discarded)
        optimizer.zero_grad()
        backward(store.model)
        self.void(store)
        with self.assertRaisesRegex(RuntimeError, "there are no gradients"):
            optimizer.step()
        self.assertEqual(discarded.call_count, 1)

    def test_an_exception_while_calls_are_made_again(self) -> None:
        norms = []
        for raises in (False, True):
            store, optimizer, replays = self.begin(micro_batches=2, name=f"{self.name}-{raises}")
            void = error_of(Status.ESTALE, "void")
            first = self.call(store, None, ArithmeticError() if raises else None)
            second = self.call(store, void)
            replays.run(first)
            if raises:
                with self.assertRaises(ArithmeticError):
                    replays.run(second)
                replays.run(first)
            replays.run(second)
            optimizer.step()
            norms.append(optimizer.norm.item())
            self.assertEqual(store.step_no, 1)
        self.assertEqual(norms[0], norms[1])

# SPDX-License-Identifier: Apache-2.0
"""The commonest mistakes in parallel configurations: each is right, or refused with its cause and what is possible."""

from __future__ import annotations

import tempfile
import unittest
from typing import Any

import cistern.torch as ct
import models
import torch
import torch.distributed as dist
from cistern.torch.parallel import degrees, stage_of
from compared import files_of, newest, saved
from gloo import run_ranks
from models import TorchCase

N_FIRST = 2  # Steps before the checkpoint.
N_STEPS = 4
ROWS = 12

#: Numbers of ranks, what is said of them, and the refusal.
DEGREES: tuple[tuple[int, dict[str, Any], str], ...] = (
    (1, {"borders": [1]}, r"borders=.* and pp is 1: give pp, or leave borders out"),
    (2, {"borders": [1, 2]}, "and pp is 1: give pp"),
    (1, {"schedule": "interleaved"}, "schedule='interleaved' is for several ranks of pp"),
    (2, {"schedule": "zb-h1"}, "and pp is 1: give pp, or leave schedule out"),
    (2, {"tensor": "2d"}, "and tp is 1: give tp, or leave tensor out"),
    (2, {"sequence": "ulysses"}, "and cp is 1: give cp, or leave sequence out"),
    (2, {"recompute": -1}, "recompute is -1: 0 or more layers"),
    (2, {"pp": 2, "recompute": [1, -1]}, r"recompute\[1\] is -1"),
    (24, {"dp": 2, "tp": 4, "pp": 2}, "has 24 ranks: dp=3 fits"),
    (6, {"tp": 4, "pp": 2}, "is 8, and .* 6 ranks: .* one of 1, 2, 3, 6"),
    (2, {"dp": 3, "tp": 2}, "dp=1 fits"),
    (2, {"tp": 0}, "tp is 0: an integer from 1"),
    (2, {"pp": 2, "borders": [1, 2]}, "2 borders make 3 stages.*pp=2"),
    (2, {"pipeline": 2}, "no key 'pipeline': keys are dp, pp"),
    (2, {"pp": 2, "micro_batch": 2}, "did you mean 'micro_batches'"),
    (2, {"tensor": "4d", "tp": 2}, "tensor is '4d': one of"),
)

FILES = (
    ('{"parallel": {"pp": 2, "micro_batch": 4}}', "micro_batch.* did you mean 'micro_batches'"),
    ('{"paralel": {"pp": 2}}', "no section 'paralel': did you mean 'parallel'"),
    ('{"parallel": {"pp": "2"}}', 'parallel.pp is "2", and must be an integer'),
    ('{"parallel": {"pp": 2, "pp": 4}}', "'pp' is there twice"),
    ('{"parallel": {"parallel": "dispatch", "stages": 4}}', "dispatch=True"),
    ('{"parallel": {"parallel": "pipeline", "world": 2}}', "a pipeline without pp"),
    ('{"parallel": {"pp": 2, "stages": 4}}', "stages=4, and other keys make 2"),
    ('{"job": {"job": "gpt"}}', "no section 'parallel'"),
    ("[2]", "no JSON object with keys such as tp"),
)


def of_text(text: str) -> Any:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(text)
        file.flush()
        return degrees.of_file(file.name)


class Words(unittest.TestCase):
    def test_degrees(self) -> None:
        for n_ranks, given, wanted in DEGREES:
            with self.subTest(given), self.assertRaisesRegex(ValueError, wanted):
                degrees.parse(given, n_ranks)

    def test_all_products_of_degrees(self) -> None:
        """Of 1 to 8 ranks: degrees that divide them are taken, and all others are refused."""
        for n in range(1, 9):
            for tp in range(1, 9):
                for pp in range(1, 9):
                    with self.subTest(n=n, tp=tp, pp=pp):
                        if n % (tp * pp) == 0:
                            self.assertEqual(
                                degrees.parse({"tp": tp, "pp": pp}, n).dp, n // tp // pp
                            )
                        else:
                            with self.assertRaisesRegex(ValueError, f"{n} ranks: give degrees"):
                                degrees.parse({"tp": tp, "pp": pp}, n)

    def test_files(self) -> None:
        for text, wanted in FILES:
            with self.subTest(text), self.assertRaisesRegex(ValueError, wanted):
                of_text(text)
        self.assertIsNone(of_text('{"parallel": {"parallel": "auto"}}'))
        self.assertEqual(of_text('{"parallel": {"parallel": "pipeline", "pp": 2}}'), {"pp": 2})

    def test_no_layer_is_lost(self) -> None:
        """Layers that stages do not divide are each in one stage."""
        with torch.device("meta"):
            whole = [name for name, _ in models.llama(num_hidden_layers=30).named_parameters()]
        found: list[str] = []
        for stage in range(4):
            with torch.device("meta"):
                model = models.llama(num_hidden_layers=30)
            found += [name for name, _ in stage_of(model, stage, 4).named_parameters()]
        self.assertEqual(sorted(found), sorted(whole))


def odd_batches(how: Any) -> Any:
    """Return losses of batches of other shapes, padded on the left, the largest gradient without labels, and errors."""
    part = ct.parallelize(model_of(), how, batch=batch(0))
    losses = [part.step(**given).item() for given in odd()]
    for parameter in part.parameters():
        parameter.grad = None
    losses.append(part.step(**batch(0) | {"labels": torch.full((ROWS, 8), -100)}).item())
    grads = [float(p.grad.abs().max()) for p in part.parameters() if p.grad is not None]
    ids = batch(0)["input_ids"]
    other = ids[:, : 5 + dist.get_rank()]
    errors = []
    for given in ({"input_ids": other, "labels": other}, {"input_ids": ids}):
        try:
            part.step(**given)
        except (TypeError, ValueError) as raised:
            errors.append(str(raised))
    return losses, max(grads), errors


def odd() -> list[dict[str, torch.Tensor]]:
    ids = batch(1)["input_ids"]
    mask = torch.ones_like(ids)
    mask[1, :3] = mask[7, :5] = 0
    left = {"input_ids": ids, "attention_mask": mask, "labels": ids.where(mask == 1, -100)}
    short, few = ids[:, :5], ids[:4]
    return [
        left,
        {"input_ids": short, "labels": short},
        {"input_ids": few, "labels": few},
        batch(0),
    ]


class Batches(TorchCase):
    def test_odd_batches(self) -> None:
        """Shapes may change, padding may be on the left, and no label may count."""
        model = model_of()
        wanted = [float(model(**given).loss.detach()) for given in odd()] + [0.0]
        for how, said in (
            ({"pp": 2}, "a pipeline needs input_ids and labels"),
            ({"dp": 2}, "LlamaForCausalLM returns no loss"),
        ):
            with self.subTest(how):
                for losses, grad, errors in run_ranks(2, odd_batches, how):
                    torch.testing.assert_close(losses, wanted, rtol=1e-4, atol=0)
                    self.assertEqual(grad, 0)
                    self.assertRegex(errors[0], "given different batches")
                    self.assertRegex(errors[1], said)


def slips(job: str, how: Any) -> Any:
    """Train, with what users get wrong on the way. Return the losses and norms of the steps, and the errors."""
    model = model_of()
    part = ct.parallelize(model, how, batch=batch(0))
    store = ct.attach(part, job)
    optimizer = store.optimizer(lr=3e-3, clip_norm=0.5)
    results, errors = [], []

    def refused(call: Any, *args: Any, **given: Any) -> None:
        try:
            call(*args, **given)
            errors.append("")
        except (RuntimeError, ValueError) as error:
            errors.append(str(error))

    for step in range(N_FIRST):
        refused(optimizer.step)
        with torch.no_grad():
            refused(part.step, **batch(step))
        loss = part.step(**batch(step))
        refused(part.step, **batch(step + 1))
        optimizer.param_groups[0]["lr"] = -1.0
        refused(optimizer.step)
        optimizer.param_groups[0]["lr"] = 3e-3
        optimizer.step()
        results.append((loss.item(), optimizer.norm.item()))
    refused(ct.parallelize, part, how, batch=batch(0))
    refused(ct.parallelize, model, how, batch=batch(0))
    store.close()
    return results, errors


SLIPS = [
    "there are no gradients",
    "part.step computes gradients, and is called under torch.no_grad",
    "has the gradients of 1 part.step.*keeps them.*micro_batches=2",
    "lr is -1.0",
] * N_FIRST + ["divided already", "divided already|in the store of job"]


def with_routers(how: Any) -> str:
    """Return what is raised for batches that ask for the loss of routers, which the example did not."""
    torch.manual_seed(7)
    model: Any = models.mixtral()
    model.config.output_router_logits = False
    part = ct.parallelize(model, how, batch=batch(0))
    try:
        return str(part.step(**batch(0), output_router_logits=True).item())
    except ValueError as error:
        return str(error)


class Calls(TorchCase):
    def test_slips_change_nothing(self) -> None:
        """What is refused leaves a step as it is: losses and norms are those without."""
        self.addCleanup(self.remove, f"{self.name}-one")
        wanted = run_ranks(1, train, f"{self.name}-one", {}, N_FIRST, "", {})[0]
        for how in ({"pp": 2}, {"tp": 2}, {"dp": 2}):
            job = f"{self.name}-{next(iter(how))}"
            self.addCleanup(self.remove, job)
            for results, errors in run_ranks(2, slips, job, how):
                with self.subTest(how):
                    torch.testing.assert_close(results, wanted, rtol=1e-4, atol=0)
                    self.assertEqual(len(errors), len(SLIPS))
                    for error, said in zip(errors, SLIPS, strict=True):
                        self.assertRegex(error, said)

    def test_losses_of_routers(self) -> None:
        for how in ({"pp": 2}, {"dp": 2}, {"cp": 2}):
            with self.subTest(how):
                for error in run_ranks(2, with_routers, how):
                    self.assertRegex(error, "a term of its routers .output_router_logits")


def model_of() -> Any:
    torch.manual_seed(7)
    return models.llama(num_hidden_layers=4)


def batch(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(3, models.VOCABULARY, (ROWS, 8), generator=generator)
    return {"input_ids": ids, "labels": ids}


def train(job: str, how: Any, last: int, saves: str, options: dict[str, Any]) -> Any:
    """Train until step ``last``; rank 0 alone then saves to ``saves``, while the others train a step more.

    Return the losses and norms.
    """
    part = ct.parallelize(model_of(), how, batch=batch(0))
    store = ct.attach(part, job, **options)
    optimizer = store.optimizer(lr=3e-3, clip_norm=0.5)
    results = []
    while store.step_no < last:
        if saves and store.step_no == N_FIRST and dist.get_rank() == 0:
            store.save(saves)
        loss = part.step(**batch(store.step_no))
        optimizer.step()
        results.append((loss.item(), optimizer.norm.item()))
    store.close()
    return results


class Checkpoints(TorchCase):
    def test_ranks_of_other_products_go_on(self) -> None:
        """Files do not say how ranks divided the model: they are those of one rank, and any product loads them."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for i in "abcde":
            self.addCleanup(self.remove, f"{self.name}-{i}")
        job, there = f"{self.name}-a", f"{folder.name}/a"
        wanted = run_ranks(4, train, job, {"tp": 2, "pp": 2}, N_STEPS, there, {})[0][N_FIRST:]
        path = newest(there)
        files = files_of(path)
        self.assertIn("model.safetensors", files)
        for name, world, how in (("b", 1, {}), ("c", 4, {"pp": 4}), ("d", 3, {"dp": 3})):
            with self.subTest(how):
                other = f"{self.name}-{name}"
                resume = {"resume": path}
                run_ranks(world, train, other, how, N_FIRST, "", resume)
                self.assertEqual(saved(other, f"{folder.name}/{name}"), files)
                got = run_ranks(world, train, other, how, N_STEPS, "", {})
                self.check_alike(got[0], wanted)
        other = f"{self.name}-e"
        run_ranks(4, train, other, {"tp": 2, "pp": 2}, N_FIRST, "", {})
        for world, how in ((3, {"dp": 3}), (4, {"pp": 4})):
            with self.subTest(how):
                run_ranks(world, train, other, how, N_FIRST, "", {"reshape": True})
                self.assertEqual(saved(other, f"{folder.name}/{world}"), files)
        got = run_ranks(1, train, other, {}, N_STEPS, "", {"reshape": True})
        self.check_alike(got[0], wanted)


if __name__ == "__main__":
    unittest.main()

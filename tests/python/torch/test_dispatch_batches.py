# SPDX-License-Identifier: Apache-2.0
"""Workers that are given different batches: the result is that of the one with which the step began."""

from __future__ import annotations

from typing import Any, NamedTuple

import cistern.torch as ct
import torch
from cistern import State
from cistern.torch.parallel import dispatch, told
from processes import CONTEXT, PATIENCE_S
from test_dispatch import CLIP, LR, MICRO, MODELS, ROWS, Process, WorkersCase, batch, llama


class Given(NamedTuple):
    """What a worker gives in a step that another one begins."""

    batches: list[dict[str, Any]]  #: One after another, until one is not refused.
    begun: Any = (
        None  #: An event after which it computes the step, or which it sets if it begins it.
    )
    refused: Any = None  #: An event that is set when it is refused, or for which it waits if it begins the step.
    begins: str = ""  #: Where it waits: in a "unit", or before the "step" of the optimizer.
    seed: int = 0


def give(job: str, kind: str, rank: int, world: int, n_stages: int | None, given: Given) -> Any:
    """Compute one step. Return what was said of batches, and the loss and masters, if one was not refused."""
    run, n_units = dispatch.Part._run, 0

    def wait(where: str) -> None:
        if given.begins == where:
            given.begun.set()
            assert given.refused.wait(PATIENCE_S)

    def gated(*args: Any) -> float:
        nonlocal n_units
        n_units += 1
        if n_units == 2:
            wait("unit")
        return run(*args)

    dispatch.Part._run = gated  # type: ignore[method-assign]
    how = {"stages": n_stages, "micro_batches": MICRO, "seed": given.seed}
    part = ct.parallelize(MODELS[kind](), how, batch=batch(0), dispatch=True)
    store = ct.attach(part, job, rank=rank, world=world)
    optimizer = store.optimizer(lr=LR, clip_norm=CLIP)
    if given.begun is not None and not given.begins:
        assert given.begun.wait(PATIENCE_S)
    said, result = [], None
    for inputs in given.batches:
        try:
            result = part.step(**inputs).item()
            break
        except ValueError as error:
            said.append(str(error))
            if given.refused is not None:
                given.refused.set()
    masters = None
    if result is not None:
        wait("step")
        optimizer.step()
        masters = {n: store.read(n, State.MASTER) for n, _ in part.model.named_parameters()}
    store.close()
    return said, result, masters


class Batches(WorkersCase):
    def give(self, n_stages: int | None, *given: Given) -> list[Any]:
        """Return what workers return that are given ``given``."""
        name, world = self.job(), len(given)
        workers = [
            Process(give, name, "llama", rank, world, n_stages, one)
            for rank, one in enumerate(given)
        ]
        return [worker.result() for worker in workers]

    def alone(self, inputs: dict[str, Any], n_stages: int | None = None) -> Any:
        """Return loss and masters of one worker, which has the loss of one process without a store."""
        said, loss, masters = self.give(n_stages, Given([inputs]))[0]
        self.assertEqual(said, [])
        wanted = llama()(**inputs).loss.item()
        self.assertAlmostEqual(loss, wanted, delta=1e-4 * wanted)
        return loss, masters

    def equal(self, got: Any, wanted: Any) -> None:
        self.assertEqual(got[0], wanted[0])
        for name, values in wanted[1].items():
            self.assertTrue(torch.equal(got[1][name], values), name)

    def test_whoever_begins(self) -> None:
        for seed in range(4):
            with self.subTest(seed=seed):
                batches = [batch(2 * seed), batch(2 * seed + 1)]
                got = self.give(None, *(Given([inputs]) for inputs in batches))
                begun = int(got[0][1] is None)
                self.equal(got[begun][1:], self.alone(batches[begun]))
                self.assertEqual((got[begun][0], got[1 - begun][1]), ([], None))
                self.assertRegex(got[1 - begun][0][0], "step 0 began with another batch.*labels'")

    def test_what_differs_is_said(self) -> None:
        plain = batch(0)
        mask = plain["attention_mask"].clone()
        mask[5, 3] = 0
        wanted = self.alone(plain)
        for name, value in (
            ("attention_mask", mask),
            ("attention_mask", None),
            ("labels", plain["labels"].int()),
            ("num_items_in_batch", 5),
            ("position_ids", torch.arange(12).expand(ROWS, -1)),
        ):
            with self.subTest(name, value=value):
                begun, refused = CONTEXT.Event(), CONTEXT.Event()
                first, other = self.give(
                    None,
                    Given([plain], begun, refused, "unit"),
                    Given([{**plain, name: value}], begun, refused),
                )
                self.assertRegex(other[0][0], f"What differs: '{name}'\\. Nothing")
                self.equal(first[1:], wanted)

    def test_a_worker_with_another_seed(self) -> None:
        begun, refused = CONTEXT.Event(), CONTEXT.Event()
        _, other = self.give(
            None,
            Given([batch(0)], begun, refused, "unit"),
            Given([batch(0)], begun, refused, seed=3),
        )
        self.assertRegex(other[0][0], "What differs: 'seed'")

    def test_one_comes_with_the_right_batch_after_all(self) -> None:
        for where, n_stages in (("unit", None), ("step", None), ("step", 1)):
            with self.subTest(where=where, n_stages=n_stages):
                begun, refused = CONTEXT.Event(), CONTEXT.Event()
                first, other = self.give(
                    n_stages,
                    Given([batch(0)], begun, refused, where),
                    Given([batch(1), batch(2), batch(0)], begun, refused),
                )
                self.assertEqual((len(first[0]), len(other[0])), (0, 2))
                wanted = self.alone(batch(0), n_stages)
                for got in (first, other):
                    self.equal(got[1:], wanted)

    def test_descriptions(self) -> None:
        ones = torch.ones(2, 3)
        one = told.described(4, {"a": ones, "b": 1, "c": torch.tensor(True)})
        self.assertEqual(len(one), told.N_BYTES)
        self.assertEqual(one, told.described(4, {"c": torch.tensor(True), "b": 1, "a": ones}))
        self.assertTrue(told.is_of_step(one, 4))
        self.assertFalse(told.is_of_step(one, 40))
        self.assertNotEqual(one, told.described(40, {"a": ones, "b": 1, "c": torch.tensor(True)}))
        for a in (ones.T, ones.bfloat16(), ones.reshape(3, 2), ones * 2, ones[:0], 1):
            other = told.described(4, {"a": a, "b": 1, "c": torch.tensor(True)})
            self.assertEqual(told.differing(one, other), ["a"])
        self.assertEqual(told.differing(one, told.described(4, {"a": ones})), ["b", "c"])
        self.assertEqual(told.differing(one, b""), ["a", "b", "c"])
        many = {f"argument {i}": i for i in range(100)}
        other = told.described(4, {**many, "argument 99": 0})
        self.assertNotEqual(told.described(4, many), other)
        self.assertEqual(told.differing(told.described(4, many), other), [])

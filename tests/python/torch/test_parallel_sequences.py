# SPDX-License-Identifier: Apache-2.0
"""Sequences that ranks share: the attention, the losses and the gradients of one rank."""

import copy
import unittest
from fractions import Fraction
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from cistern.torch import parallel
from cistern.torch.parallel import ring
from gloo import run_ranks
from test_parallel_models import batch, model_of
from torch import nn

BATCH, HEADS, WIDTH, LENGTH = 2, 4, 8, 48
ATTENTION = {"ring": parallel.ring_attention, "ulysses": parallel.ulysses_attention}
TOLERANCE = 1e-5


def group() -> dist.ProcessGroup:
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def own(kind: str, length: int) -> torch.Tensor:
    ids = torch.arange(length).unsqueeze(0)
    return parallel.part_of_batch({"input_ids": ids}, group(), kind)["input_ids"][0]


def operands(n_keys: int, length: int = LENGTH) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    heads = (HEADS, n_keys, n_keys, HEADS)
    return [torch.randn(BATCH, h, length, WIDTH, generator=generator) for h in heads]


def attended(kind: str, n_keys: int, causal: bool) -> Fraction:
    """Compare attention and its gradients with torch's. Return the elements that a rank receives."""
    *whole, grad = operands(n_keys)
    for x in whole:
        x.requires_grad_()
    out = nn.functional.scaled_dot_product_attention(*whole, is_causal=causal, enable_gqa=True)
    out.backward(grad)
    at = own(kind, LENGTH)
    mine = [x.detach()[:, :, at].requires_grad_() for x in whole]
    with parallel.volumes() as counted, mock.patch.object(ring, "TILE", 4):
        got = ATTENTION[kind](*mine, group(), causal=causal)
        got.backward(grad[:, :, at])
    pairs = [(got, out)] + [(x.grad, y.grad) for x, y in zip(mine, whole, strict=True)]
    for i, (ours, theirs) in enumerate(pairs):
        error = (ours - theirs[:, :, at]).abs().max() / theirs.abs().max()
        assert error < TOLERANCE, (kind, n_keys, causal, i, error)
    return counted.received / 4


def attention_of_all() -> dict[tuple[str, int], Fraction]:
    return {
        (kind, n_keys): attended(kind, n_keys, causal)
        for kind in ATTENTION
        for n_keys in (4, 2)
        for causal in (False, True)
    }


def kept(kind: str | None, length: int) -> int:
    """Return the bytes that autograd keeps for a layer of attention between two linear ones."""
    torch.manual_seed(0)
    into = nn.Linear(WIDTH, 3 * HEADS * WIDTH)
    out_of = nn.Linear(HEADS * WIDTH, WIDTH)
    storages: dict[int, int] = {}

    def note(x: torch.Tensor) -> torch.Tensor:
        if not isinstance(x, nn.Parameter) and x.data_ptr() not in weights:
            storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    weights = {p.data_ptr() for layer in (into, out_of) for p in layer.parameters()}
    x = torch.randn(1, length, WIDTH, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        q, k, v = into(x).view(1, length, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4).contiguous()
        if kind is None:
            y = parallel.ring_attention(q, k, v, single())
        else:
            y = ATTENTION[kind](q, k, v, group())
        out_of(y.transpose(1, 2).reshape(1, length, -1)).square().sum().backward()
    return sum(storages.values())


def single() -> dist.ProcessGroup:
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    return groups[dist.get_rank()]


def contexts() -> list[tuple[int, int]]:
    """Return the tokens that fit into a budget: of one rank, and of all, by kind."""
    n, unit = dist.get_world_size(), 2 * dist.get_world_size()
    budget = kept(None, 64)
    results = []
    for kind in ATTENTION:
        longest = [
            length for length in range(unit, 6 * 64, unit) if kept(kind, length // n) <= budget
        ]
        results.append((64, longest[-1]))
    return results


def train_llama(kind: str) -> None:
    plain = model_of("Llama", num_key_value_heads=4)
    ours = copy.deepcopy(plain)
    parallel.share_sequences(ours, group(), kind)
    optimizers = [torch.optim.AdamW(m.parameters(), 1e-2) for m in (ours, plain)]
    for step in range(5):
        loss = plain(**batch(step)).loss
        loss.backward()
        part = ours(**parallel.part_of_batch(batch(step), group(), kind)).loss
        part.backward()
        total = part.detach().clone()
        dist.all_reduce(total)
        assert abs(total - loss) / loss < TOLERANCE, (kind, step, total, loss)
        for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
            dist.all_reduce(mine.grad)
            if step == 0:
                error = (mine.grad - theirs.grad).abs().max() / theirs.grad.abs().max()
                assert error < TOLERANCE, (kind, error)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def train_all() -> None:
    for kind in ATTENTION:
        train_llama(kind)


def what_is_refused() -> list[str]:
    ids = torch.ones(1, 12, dtype=torch.long)
    odd = torch.ones(1, 13, dtype=torch.long)
    q = torch.ones(1, 3, 4, 2)
    model = model_of("Llama", attention_dropout=0.1).train()
    parallel.share_sequences(model, group(), "ring")
    mask = torch.tensor([[0] + 11 * [1]])
    calls: list[Any] = [
        lambda: parallel.part_of_batch({"input_ids": odd}, group(), "ring"),
        lambda: parallel.part_of_batch({"input_ids": odd}, group(), "ulysses"),
        lambda: parallel.part_of_batch({"input_ids": ids, "attention_mask": mask}, group(), "ring"),
        lambda: parallel.share_sequences(model, group(), "rings"),
        lambda: parallel.ulysses_attention(q, q, q, group()),
        lambda: parallel.ring_attention(q, q[:, :2], q[:, :2], group()),
        lambda: model(**parallel.part_of_batch({"input_ids": ids}, group(), "ring")),
    ]
    said = []
    for call in calls:
        try:
            call()
        except (ValueError, NotImplementedError) as error:
            said.append(str(error))
        else:
            said.append("nothing")
    return said


class Sequences(unittest.TestCase):
    def check_attention(self, n: int) -> None:
        elements = BATCH * LENGTH * WIDTH
        for counted in run_ranks(n, attention_of_all):
            for (kind, n_keys), received in counted.items():
                with self.subTest(kind=kind, n_keys=n_keys):
                    share = Fraction(n - 1, n)
                    if kind == "ring":
                        formula = 6 * share * elements * n_keys
                    else:
                        keys = max(n_keys, n)
                        formula = 4 * share * elements * (HEADS + keys) / n
                    self.assertEqual(received, formula)

    def test_two_ranks_attend_as_one(self) -> None:
        self.check_attention(2)

    def test_four_ranks_attend_as_one(self) -> None:
        self.check_attention(4)

    def test_a_budget_of_activations_holds_as_many_times_the_tokens_as_there_are_ranks(
        self,
    ) -> None:
        for results in run_ranks(4, contexts):
            for one, all_of_them in results:
                self.assertEqual(all_of_them, 4 * one)

    def test_ranks_train_llama_as_one(self) -> None:
        run_ranks(4, train_all)

    def test_what_ranks_cannot_share_is_refused_in_words(self) -> None:
        ring_length, length, mask, kind, heads, keys, dropout = run_ranks(2, what_is_refused)[0]
        self.assertIn("13 tokens cannot be shared by 2 ranks: give a multiple of 4", ring_length)
        self.assertIn("give a multiple of 2", length)
        self.assertIn("cannot be padded", mask)
        self.assertIn("by ring or ulysses, not 'rings'", kind)
        self.assertIn("3 heads of queries and 3 of keys cannot be shared by 2 ranks", heads)
        self.assertIn("3 heads of queries do not divide by 2 heads of keys", keys)
        self.assertIn("asks for dropout", dropout)


if __name__ == "__main__":
    unittest.main()

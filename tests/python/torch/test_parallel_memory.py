# SPDX-License-Identifier: Apache-2.0
"""The memory of one linear layer on eight ranks: its blocks, and the buffers that panels bound."""

import unittest
import weakref
from collections import Counter
from fractions import Fraction
from typing import Any

import torch
from cistern.torch import parallel
from gloo import run_ranks
from test_parallel_linear import mesh_for, operand
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WIDTH = 128
BYTES = 4
#: X + W + Y of a rank by WIDTH^2 elements, for as many tokens as WIDTH and for a quarter of them.
BLOCKS = {
    "column": (Fraction(5, 4), Fraction(13, 32)),
    "2.5d": (Fraction(1, 2), Fraction(5, 16)),
    "3d": (Fraction(3, 8), Fraction(3, 16)),
}
#: What is gathered, or summed before it is scattered: what panels cut, with as many tokens as above,
#: and what they do not cut.
PIECES = {
    "column": (Fraction(0), Fraction(0)),
    "2.5d": (Fraction(3, 4), Fraction(9, 16)),
    "3d": (Fraction(1, 2), Fraction(1, 8)),
}
OTHERS = {"column": Fraction(0), "2.5d": Fraction(0), "3d": Fraction(1, 4)}
N_PANELS = 8


class Peak(TorchDispatchMode):
    """Counts the bytes of storages that operators make, as long as a tensor with one is there."""

    def __init__(self, *known: torch.Tensor) -> None:
        super().__init__()
        self.now = self.most = 0
        self._n_tensors: Counter[int] = Counter(t.untyped_storage().data_ptr() for t in known)

    def __torch_dispatch__(
        self, call: Any, _: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = call(*args, **(kwargs or {}))
        for made in tree_leaves(result):
            if isinstance(made, torch.Tensor):
                self._note(made)
        return result

    def _note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        at, n_bytes = storage.data_ptr(), storage.nbytes()
        if not self._n_tensors[at]:
            self.now += n_bytes
            self.most = max(self.most, self.now)
        self._n_tensors[at] += 1
        weakref.finalize(tensor, self._forget, at, n_bytes)

    def _forget(self, at: int, n_bytes: int) -> None:
        self._n_tensors[at] -= 1
        if not self._n_tensors[at]:
            self.now -= n_bytes


def used(product: str, n_tokens: int, panels: int) -> tuple[int, int]:
    """Return the bytes of X, W and Y after a forward pass, and the most that it uses beyond these."""
    whole = nn.Linear(WIDTH, WIDTH, bias=False)
    layer = parallel.Linear.of(whole, mesh_for(product, None), product, panels=panels)
    x = operand(layer.grid, product, "X", torch.ones(n_tokens, WIDTH), 0).clone().requires_grad_()
    weight = layer.weight.to_local()
    with Peak(x, weight) as peak:
        y = layer(x)
    blocks = sum(block.untyped_storage().nbytes() for block in (x, weight, y))
    return blocks, peak.most - y.nbytes


def of_all() -> dict[tuple[str, int, int], tuple[int, int]]:
    return {
        (product, n_tokens, panels): used(product, n_tokens, panels)
        for product in BLOCKS
        for n_tokens in (WIDTH, WIDTH // 4)
        for panels in (1, N_PANELS)
    }


class Memory(unittest.TestCase):
    def test_blocks_are_those_of_the_formulas_and_panels_bound_the_buffers(self) -> None:
        unit = WIDTH * WIDTH * BYTES
        for by_case in run_ranks(8, of_all):
            for (product, n_tokens, panels), (blocks, more) in by_case.items():
                with self.subTest(product=product, n_tokens=n_tokens, panels=panels):
                    is_short = n_tokens != WIDTH
                    self.assertEqual(blocks, unit * BLOCKS[product][is_short])
                    # What is sent, what comes, and what the product makes of it, are there at once.
                    pieces = 3 * PIECES[product][is_short] / panels
                    self.assertLessEqual(more, unit * (Fraction(3, 2) * OTHERS[product] + pieces))


if __name__ == "__main__":
    unittest.main()

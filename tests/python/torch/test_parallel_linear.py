# SPDX-License-Identifier: Apache-2.0
"""A linear layer that ranks divide, in each mode: the numbers of one rank, and the bytes of the formulas."""

import functools
import itertools
import unittest
from fractions import Fraction
from typing import Any

import torch
from cistern.torch import parallel
from cistern.torch.parallel.modes import axes_of, cuts, lines_of
from gloo import run_ranks
from torch import nn

M, K, N = 32, 16, 24
#: Those whose input nobody else has gathered.
NAMES = [name for name in parallel.PRODUCTS if name != "gathered_column"]
UNEVEN = 11, 13  # K and N, which no mesh divides.


def received(product: str, sizes: tuple[int, ...], m: int, k: int, n: int) -> Fraction:
    """Return the elements that a rank receives in both passes. The bias is not among them."""
    f = Fraction
    p = sizes[0]
    if product == "column":
        return 2 * f(p - 1, p) * m * k
    if product == "row":
        return 2 * f(p - 1, p) * m * n
    if product == "sequence_column":
        return 3 * f(p - 1, p) * m * k
    if product == "sequence_row":
        return 2 * f(p - 1, p) * m * n
    if product == "zero3":
        return 3 * f(p - 1, p) * k * n
    if product == "2d":
        a, b = sizes
        return 3 * (f(b - 1, b) * m * k / a + f(a - 1, a) * k * n / b)
    if product == "2.5d":
        d, a, b = sizes
        depth = 2 * f(d - 1, d) * k * n / (a * b)
        return 3 * (f(b - 1, b) * m * k / (d * a) + f(a - 1, a) * k * n / b) + depth
    c, b, a = sizes
    if product == "3d_back":
        b, c = c, b
    x, w, y = (
        f(b - 1, b) * m * k / (a * c),
        f(a - 1, a) * k * n / (b * c),
        f(c - 1, c) * m * n / (a * b),
    )
    return 3 * x + 3 * w + 2 * y


def square(product: str, q: int) -> Fraction:
    """Return the formulas as they are printed for meshes of q x q, 2 x q x q and q x q x q."""
    if product == "2d":
        return Fraction(3 * (q - 1), q * q) * (M * K + K * N)
    if product == "2.5d":
        return 3 * (q - 1) * (Fraction(M * K, 2 * q * q) + Fraction(K * N, q * q)) + Fraction(
            K * N, q * q
        )
    return Fraction(q - 1, q**3) * (3 * M * K + 3 * K * N + 2 * M * N)


@functools.cache
def mesh_of(axes: tuple[str, ...], sizes: tuple[int, ...]) -> Any:
    """Return a mesh, which takes long to connect."""
    names = (p for p in NAMES if axes_of(p) == axes)
    return parallel.make_mesh(next(names), sizes)


def mesh_for(product: str, sizes: tuple[int, ...] | None) -> Any:
    n_ranks = torch.distributed.get_world_size()
    return mesh_of(axes_of(product), sizes or parallel.legal_sizes(product, n_ranks)[0])


def block(grid: Any, whole: torch.Tensor, dims: list[tuple[int, tuple[str, ...]]]) -> torch.Tensor:
    for dim, axes in dims:
        whole = whole.narrow(dim, *grid.range_of(whole.shape[dim], axes))
    return whole


def operand(grid: Any, product: str, name: str, whole: torch.Tensor, tokens: int) -> torch.Tensor:
    by_dim = cuts(lines_of(product), name)
    rows, columns = by_dim.values()
    if name == "W":
        return block(grid, whole, [(0, rows), (1, columns)])
    return block(grid, whole, [(tokens, rows), (whole.dim() - 1, columns)])


def numbers(k: int, n: int, shape: tuple[int, ...]) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(5)

    def drawn(*of: int) -> torch.Tensor:
        return torch.randn(of, generator=generator)

    whole = nn.Linear(k, n)
    with torch.no_grad():
        whole.weight.copy_(drawn(n, k))
        whole.bias.copy_(drawn(n))
    return whole, drawn(*shape, k).requires_grad_(), drawn(*shape, n)


def check(product: str, sizes: Any, k: int, n: int, **options: Any) -> Fraction:
    """Compare a layer with that of one rank. Return the elements that a rank receives."""
    tokens = options.get("tokens", 0)
    shape = (3, M) if tokens else (M,)
    whole, x, dy = numbers(k, n, shape)
    y = whole(x)
    y.backward(dy)
    mesh = mesh_for(product, sizes)
    layer = parallel.Linear.of(whole, mesh, product, **options)
    grid = layer.grid
    mine = operand(grid, product, "X", x.detach(), tokens).clone().requires_grad_()
    with parallel.volumes() as counted:
        got = layer(mine)
        got.backward(operand(grid, product, "Y", dy, tokens))
    expected = {
        "Y": (got, operand(grid, product, "Y", y, tokens)),
        "dX": (mine.grad, operand(grid, product, "X", x.grad, tokens)),
        "dW": (layer.weight.grad.to_local(), operand(grid, product, "W", whole.weight.grad, 0)),
        "db": (
            layer.bias.grad.to_local(),
            block(grid, whole.bias.grad, [(0, cuts(lines_of(product), "Y")["N"])]),
        ),
    }
    for name, (ours, theirs) in expected.items():
        assert ours.shape == theirs.shape, (product, name, ours.shape, theirs.shape)
        error = (ours - theirs).abs().max() / theirs.abs().max()
        assert error < 1e-5, f"{product} {sizes} {options}: {name} differs by {error}"
    assert layer.weight.shape == (n, k) and layer.weight.grad.placements == layer.weight.placements
    return counted.received / 4


def bytes_of(product: str, sizes: Any) -> Fraction:
    """Return the elements that a layer without bias receives."""
    whole, x, dy = numbers(K, N, (M,))
    mesh = mesh_for(product, sizes)
    whole.bias = None
    layer = parallel.Linear.of(whole, mesh, product)
    mine = operand(layer.grid, product, "X", x.detach(), 0).clone().requires_grad_()
    with parallel.volumes() as counted:
        layer(mine).backward(operand(layer.grid, product, "Y", dy, 0).contiguous())
    return counted.received / 4


def in_all_modes(n_ranks: int) -> list[Any]:
    counted = []
    for product in NAMES:
        for sizes in parallel.legal_sizes(product, n_ranks)[:4]:
            check(product, sizes, K, N)
            counted.append((product, sizes, bytes_of(product, sizes)))
    return counted


def uneven() -> None:
    for product in NAMES:
        check(product, None, *UNEVEN)


def with_panels() -> None:
    for product, panels in itertools.product(NAMES, (2, 3)):
        for k, n in ((K, N), UNEVEN):
            more = check(product, None, k, n, panels=panels) - check(product, None, k, n)
            # Ends of blocks travel padded.
            assert more >= 0 if (k, n) == UNEVEN else more == 0, (product, panels, k, n, more)


def along_the_sequence() -> None:
    for product in ("sequence_column", "sequence_row", "2d"):
        check(product, None, K, N, tokens=1)


def what_is_refused() -> list[str]:
    said = []

    def refused(*call: Any, **options: Any) -> None:
        try:
            call[0](*call[1:], **options)
        except ValueError as error:
            said.append(str(error))
        else:
            raise AssertionError(call)

    mesh = parallel.make_mesh("2d", (1, 4))
    refused(parallel.make_mesh, "2d", (3, 1))
    refused(parallel.Linear, 8, 8, mesh, "3d")
    refused(parallel.Linear, 8, 8, mesh, "2-d")
    refused(parallel.Linear, 8, 8, mesh, "2d", panels=2)
    row = parallel.Linear(8, 8, parallel.make_mesh("sequence_row"), "sequence_row")
    refused(row, torch.ones(3, 2))
    return said


def drawn_weights() -> tuple[list[int], torch.Tensor, torch.Tensor]:
    torch.manual_seed(torch.distributed.get_rank())
    layer = parallel.Linear(K, N, parallel.make_mesh("2.5d", (2, 2, 1)), "2.5d")
    place = list(layer.grid.mesh.get_coordinate())
    return place, layer.weight.to_local().detach(), layer.weight.full_tensor().detach()


class Linears(unittest.TestCase):
    def check_ranks(self, n_ranks: int) -> None:
        for counted in run_ranks(n_ranks, in_all_modes, n_ranks):
            for product, sizes, elements in counted:
                with self.subTest(product=product, sizes=sizes):
                    self.assertEqual(elements, received(product, sizes, M, K, N))
                    if (product, sizes) in (("2d", (2, 2)), ("2.5d", (2, 2, 2)), ("3d", (2, 2, 2))):
                        self.assertEqual(elements, square(product, 2))

    def test_four_ranks_compute_and_receive_what_the_formulas_say(self) -> None:
        self.check_ranks(4)

    def test_eight_ranks_compute_and_receive_what_the_formulas_say(self) -> None:
        self.check_ranks(8)

    def test_widths_need_not_divide(self) -> None:
        run_ranks(4, uneven)

    def test_panels_bring_the_same_bytes_in_more_calls(self) -> None:
        run_ranks(4, with_panels)

    def test_sequences_can_be_cut_in_place_of_the_batch(self) -> None:
        run_ranks(4, along_the_sequence)

    def test_meshes_and_rows_that_cannot_be_are_refused_in_words(self) -> None:
        sizes, axes, name, panels, rows = run_ranks(4, what_is_refused)[0]
        self.assertIn("2 x 2, 1 x 4, 4 x 1, and not 3 x 1", sizes)
        self.assertIn("('a', 'b'), and must have ('c', 'b', 'a')", axes)
        self.assertIn("'2-d' is none of column, row", name)
        self.assertIn("which has 1 and 4: panels=1 works", panels)
        self.assertIn("3 rows cannot be shared by 4 ranks", rows)

    def test_ranks_draw_one_weight(self) -> None:
        drawn = run_ranks(4, drawn_weights)
        whole = drawn[0][2]
        self.assertLess(whole.abs().max(), 0.25)
        self.assertEqual(len(whole.unique()), whole.numel())
        for place, mine, same in drawn:
            self.assertTrue(torch.equal(same, whole))
            self.assertTrue(torch.equal(mine, drawn[place[1]][1]))


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a mesh divide one product Y[M, N] = X[M, K] W[N, K]^T, and the modes made of that.

One rule says all of it. The ranks along an axis of the mesh each compute a part of one dimension of
the product. Two of the operands have this dimension and are cut along it. The third one does not:
either it is cut along another of its dimensions, or all ranks of the axis have the same copy of it.

    splits  third  forward                          backward
    M       W      gather W, or have all of it      reduce-scatter dW, or all-reduce it
    N       X      gather X, or have all of it      reduce-scatter dX, or all-reduce it
    K       Y      reduce-scatter Y, or all-reduce  gather dY, or have all of it
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

#: The dimensions of each operand. M are tokens, N is what the product makes of K.
DIMS = {"X": ("M", "K"), "W": ("N", "K"), "Y": ("M", "N")}
THIRD = {"M": "W", "N": "X", "K": "Y"}  #: The operand without a dimension.


GATHERED = ""


class Line(NamedTuple):
    """What the ranks along an axis of the mesh do."""

    axis: str
    splits: str  #: The dimension of which each computes a part.
    #: The dimension along which the third operand is cut; None: copies; GATHERED: the caller gathers
    #: it, and sums its gradient.
    shares: str | None

    @property
    def third(self) -> str:
        return THIRD[self.splits]


#: The products, by name. Two that follow each other (in a perceptron) are a pair of ``MODES``.
PRODUCTS: dict[str, tuple[Line, ...]] = {
    "column": (Line("p", "N", None),),
    "row": (Line("p", "K", None),),
    "sequence_column": (Line("p", "N", "M"),),
    "sequence_row": (Line("p", "K", "M"),),
    "gathered_column": (Line("p", "N", GATHERED),),
    "zero3": (Line("p", "M", "N"),),
    "2d": (Line("a", "M", "K"), Line("b", "N", "K")),
    "2.5d": (Line("d", "M", None), Line("a", "M", "K"), Line("b", "N", "K")),
    "3d": (Line("a", "M", "K"), Line("b", "N", "M"), Line("c", "K", "M")),
    "3d_back": (Line("a", "M", "K"), Line("c", "N", "M"), Line("b", "K", "M")),
}


class Mode(NamedTuple):
    """How a model is divided. Between blocks its activations are cut as X of ``first`` is."""

    axes: tuple[str, ...]  #: The dimensions of the mesh, in their order.
    first: str  #: The product of linear layers that read what is between blocks.
    second: str  #: The product of those that write it.
    embedding: tuple[Line, ...]  #: N is the width of the model, and K the vocabulary.
    alike: tuple[str, ...] = ()  #: Axes that should have as many ranks each.


MODES = {
    "1d": Mode(("p",), "column", "row", (Line("p", "K", None),)),
    "sequence": Mode(("p",), "sequence_column", "sequence_row", (Line("p", "K", "M"),)),
    "zero3": Mode(("p",), "zero3", "zero3", (Line("p", "M", "K"),)),
    "2d": Mode(("a", "b"), "2d", "2d", (Line("a", "K", "M"), Line("b", "N", None)), ("a", "b")),
    "2.5d": Mode(
        ("d", "a", "b"),
        "2.5d",
        "2.5d",
        (Line("d", "K", "M"), Line("a", "K", "M"), Line("b", "N", None)),
        ("a", "b"),
    ),
    "3d": Mode(
        ("c", "b", "a"),
        "3d",
        "3d_back",
        (Line("a", "K", "M"), Line("b", "K", "M"), Line("c", "N", None)),
        ("c", "b"),
    ),
}
_BY_PRODUCT = {p: mode for mode in MODES.values() for p in (mode.first, mode.second)}
_BY_PRODUCT["gathered_column"] = MODES["sequence"]


def mode_of(name: str) -> Mode:
    """Return the mode. ValueError: there is none of this name."""
    if name not in MODES:
        raise ValueError(f"cistern: mode '{name}' is none of {', '.join(MODES)}")
    return MODES[name]


def lines_of(product: str) -> tuple[Line, ...]:
    """Return the lines of the table. ValueError: it has none of this name."""
    if product not in PRODUCTS:
        raise ValueError(f"cistern: product '{product}' is none of {', '.join(PRODUCTS)}")
    return PRODUCTS[product]


def axes_of(name: str) -> tuple[str, ...]:
    """Return the dimensions that a mesh has for a mode or a product."""
    return _mode_with(name).axes


def _mode_with(name: str) -> Mode:
    return MODES.get(name) or _BY_PRODUCT.get(name) or mode_of(name)


def cuts(lines: Sequence[Line], operand: str) -> dict[str, tuple[str, ...]]:
    """Return for each dimension of ``operand`` the axes that cut it, the one of the largest parts first."""
    return {
        dim: tuple(line.axis for line in lines if line.splits == dim)
        + tuple(line.axis for line in lines if line.third == operand and line.shares == dim)
        for dim in DIMS[operand]
    }


def legal_sizes(name: str, n_ranks: int) -> list[tuple[int, ...]]:
    """Return the sizes of the meshes of ``n_ranks`` for ``name``, those nearest to a cube first.

    Each product of sizes is right. Panels of "2d" and "2.5d" want a and b of one size, and models of
    ``shard`` c and b of "3d": such meshes come before all others.
    """
    mode = _mode_with(name)
    sizes: list[tuple[int, ...]] = [()]
    for _ in mode.axes[1:]:
        sizes = [
            (*s, n)
            for s in sizes
            for n in range(1, n_ranks + 1)
            if not n_ranks % (math.prod(s) * n)
        ]
    sizes = [(*s, n_ranks // math.prod(s)) for s in sizes]

    def rank(s: tuple[int, ...]) -> tuple[bool, int, tuple[int, ...]]:
        alike = {s[mode.axes.index(axis)] for axis in mode.alike}
        return len(alike) > 1, max(s) - min(s), s

    return sorted(sizes, key=rank)


def make_mesh(name: str, sizes: Sequence[int] | None = None, device: str = "cpu") -> DeviceMesh:
    """Return a mesh of all ranks of torch.distributed for a mode or a product.

    ``sizes`` are those of its dimensions; None: the most equal ones. ValueError: they are of other
    numbers of ranks or dimensions; the message has those that are legal.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    axes, n_ranks = axes_of(name), dist.get_world_size()
    legal = legal_sizes(name, n_ranks)
    chosen = legal[0] if sizes is None else tuple(sizes)
    if chosen not in legal:
        names = " x ".join(axes)
        raise ValueError(
            f"cistern: mode '{name}' on {n_ranks} ranks has meshes {names} of"
            f" {', '.join(' x '.join(map(str, s)) for s in legal)}, and not"
            f" {' x '.join(map(str, chosen))}"
        )
    return init_device_mesh(device, chosen, mesh_dim_names=axes)

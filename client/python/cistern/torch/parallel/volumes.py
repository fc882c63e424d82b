# SPDX-License-Identifier: Apache-2.0
"""The bytes that collectives of this package bring to a rank, counted where they are called."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction


class Volumes:
    """What a rank has received, in bytes of ideal collectives, by kind.

    Of n ranks that have b bytes together, a gather and a reduce-scatter bring (n - 1) / n b to each,
    and an all-reduce of b bytes brings 2 (n - 1) / n b. What a backend moves can be more.
    """

    def __init__(self) -> None:
        self.by_kind: Counter[str] = Counter()
        self.n_calls: Counter[str] = Counter()

    @property
    def received(self) -> Fraction:
        """All bytes. They need not be whole: an all-reduce of 1 byte by 3 ranks brings 4 / 3."""
        return sum((Fraction(n) for n in self.by_kind.values()), Fraction(0))


_counting: list[Volumes] = []


@contextlib.contextmanager
def volumes() -> Iterator[Volumes]:
    """Count what this rank receives, in all threads, until the context ends."""
    counted = Volumes()
    _counting.append(counted)
    try:
        yield counted
    finally:
        _counting.remove(counted)


def count(kind: str, n_bytes: Fraction | int) -> None:
    """Add ``n_bytes`` that one call of ``kind`` brings to this rank."""
    for counted in _counting:
        counted.by_kind[kind] += n_bytes  # type: ignore[assignment]
        counted.n_calls[kind] += 1

# SPDX-License-Identifier: Apache-2.0
"""Sizes of memory as people write them."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d+\.?\d*|\.\d+)\s*(?:([KMGT]?)(?:i?B)?|(%))", re.IGNORECASE)
_LIMIT = 1 << 63


def in_bytes(size: float | str, whole: int = 0) -> int:
    """Return the number of bytes of a size such as "6G" or "1.5GiB".

    If ``whole`` is not 0, the size can also be a percentage of it such as "25%". ValueError: the
    size is none of these.
    """
    n_bytes: float = -1
    if isinstance(size, int | float):
        n_bytes = size
    elif isinstance(size, str) and (found := _SIZE.fullmatch(size.strip())):
        number, unit, percent = found.groups()
        if percent is None:
            n_bytes = float(number) * 1024 ** " KMGT".index(unit.upper() or " ")
        elif whole > 0:
            n_bytes = float(number) / 100 * whole
    if not 0 <= n_bytes < _LIMIT:  # Nor is it NaN.
        others = ", '25%'" if whole > 0 else ""
        raise ValueError(
            f"cistern: {size!r} is no size: examples are 6000000000, '6G', '1.5GiB'{others}"
        )
    return int(n_bytes)


def in_words(n_bytes: int) -> str:
    """Return a number of bytes with four digits and a unit, such as "1.512 GiB"."""
    size, units = float(n_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.4g} {units[0]}"

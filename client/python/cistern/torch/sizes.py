# SPDX-License-Identifier: Apache-2.0
"""Sizes of memory as people write them."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d+\.?\d*|\.\d+)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_LIMIT = 1 << 63


def in_bytes(size: float | str) -> int:
    """Return the number of bytes of a size such as "6G" or "1.5GiB". ValueError: it is none."""
    n_bytes: float = -1
    if isinstance(size, int | float):
        n_bytes = size
    elif isinstance(size, str):
        found = _SIZE.fullmatch(size.strip())
        n_bytes = (
            -1
            if found is None
            else float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " ")
        )
    if not 0 <= n_bytes < _LIMIT:  # Nor is it NaN.
        raise ValueError(f"cistern: {size!r} is no size: examples are 6000000000, '6G', '1.5GiB'")
    return int(n_bytes)


def in_words(n_bytes: int) -> str:
    """Return a number of bytes with four digits and a unit, such as "1.512 GiB"."""
    size, units = float(n_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.4g} {units[0]}"

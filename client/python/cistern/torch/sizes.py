# SPDX-License-Identifier: Apache-2.0
"""Sizes of memory as people write them."""

from __future__ import annotations

import re
from numbers import Real
from typing import Any

from cistern import checks

_SIZE = re.compile(r"(\d+\.?\d*|\.\d+)\s*(?:([KMGT]?)(?:i?B)?|(%))", re.IGNORECASE | re.ASCII)
_LIMIT = 1 << 63


def in_bytes(name: str, size: float | str, whole: int = 0) -> int:
    """Return the number of bytes of a size such as "6G" or "1.5GiB". ``name`` is what it is called.

    If ``whole`` is not 0, the size can also be a percentage of it such as "25%". TypeError,
    ValueError: the size is none of these.
    """
    required = "a size such as 6000000000, '6G'" + (
        ", '1.5GiB' or '25%'" if whole else " or '1.5GiB'"
    )
    if isinstance(size, bool) or not isinstance(size, Real | str):
        checks.refuse_type(name, size, required)
    n_bytes: Any = size if isinstance(size, Real) else _in_bytes(size, whole)
    if not 0 <= n_bytes:  # Nor is it NaN.
        checks.refuse_value(name, size, required)
    if n_bytes >= _LIMIT:
        checks.refuse_value(name, size, "a size below 8388608T (2**63 bytes)")
    return int(n_bytes)


def _in_bytes(size: str, whole: int) -> float:
    """Return the number of bytes of a size that is written; -1: it is none."""
    found = _SIZE.fullmatch(size.strip())
    if found is None:
        return -1
    number, unit, percent = found.groups()
    if percent is None:
        return float(number) * float(1024 ** " KMGT".index(unit.upper() or " "))
    return float(number) / 100 * whole if whole > 0 else -1


def in_words(n_bytes: int) -> str:
    """Return a number of bytes with four digits and a unit, such as "1.512 GiB"."""
    size, units = float(n_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.4g} {units[0]}"

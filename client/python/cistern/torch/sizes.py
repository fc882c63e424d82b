# SPDX-License-Identifier: Apache-2.0
"""Sizes of memory as people write them."""

from __future__ import annotations


def in_bytes(size: int | str) -> int:
    """Return the number of bytes of a size such as "6G" or "1.5GiB". ValueError: it is none."""
    if isinstance(size, int):
        return size
    digits = size.rstrip("BibKMGTkmgt")
    suffix = size[len(digits) :].upper().removesuffix("IB").removesuffix("B")
    if suffix not in ("", "K", "M", "G", "T"):
        raise ValueError(f"cistern: '{size}' is no size")
    return int(float(digits) * 1024 ** " KMGT".index(suffix or " "))


def in_words(n_bytes: int) -> str:
    """Return a number of bytes with four digits and a unit, such as "1.512 GiB"."""
    size, units = float(n_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.4g} {units[0]}"

# SPDX-License-Identifier: Apache-2.0
"""What workers tell each other of the batch of a step, which all of them are to give alike."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

N_BYTES = 1024  #: Of a description.
_PLAIN = (bool, int, float, str, torch.dtype, type(None))


def described(step: int, given: Mapping[str, Any]) -> bytes:
    """Return ``N_BYTES`` bytes that are others for another step, or if anything in ``given`` is another.

    Of tensors they tell bytes, shapes and types; of values of other types than numbers and texts the type.
    The first line is of everything, and the following ones, as many as there is room for, of each name.
    """
    lines = [f"{name} {_digest(value)}\n" for name, value in sorted(given.items())]
    whole = hashlib.blake2b("".join(lines).encode(), digest_size=16).hexdigest()
    text = f"{step} {whole}\n" + "".join(lines)
    return text.encode()[:N_BYTES].ljust(N_BYTES, b"\0")


def is_of_step(description: bytes | bytearray, step: int) -> bool:
    """Return whether ``description`` is that of a batch of ``step``."""
    return description.startswith(f"{step} ".encode())


def differing(one: bytes, other: bytes) -> list[str]:
    """Return the names of what is another in two descriptions, or is in one of them only."""
    found = _digests(one).items() ^ _digests(other).items()
    return sorted({name for name, _ in found})


def _digests(description: bytes) -> dict[str, str]:
    lines = description.rstrip(b"\0").decode(errors="replace").splitlines()
    return dict(line.rsplit(" ", 1) for line in lines[1:] if " " in line)


def _digest(value: Any) -> str:
    digest = hashlib.blake2b(digest_size=8)
    if isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        flat = value.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    else:
        digest.update((repr(value) if isinstance(value, _PLAIN) else type(value).__name__).encode())
    return digest.hexdigest()

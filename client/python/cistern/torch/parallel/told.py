# SPDX-License-Identifier: Apache-2.0
"""What workers and ranks tell each other of the batch of a step, which all of them are to give alike."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

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


def what_differs(one: bytes, *others: bytes) -> str:
    """Return in words the names of what is another in ``one`` and in any of ``others``."""
    names = {name for other in others for name in differing(one, other)}
    return ", ".join(f"'{name}'" for name in sorted(names)) or "what else it has"


def check_alike(batch: Mapping[str, Any], device: torch.device) -> None:
    """Compare ``batch`` with those of all ranks, by tensors on ``device``. All ranks call this.

    ValueError, on all ranks: some have others. Messages of other sizes would end or block them.
    """
    given = {name: value for name, value in batch.items() if value is not None}
    mine = torch.frombuffer(bytearray(described(0, given)), dtype=torch.uint8).to(device)
    all_ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all_ranks, mine)
    first, *others = (one.cpu().numpy().tobytes() for one in all_ranks)
    if any(other != first for other in others):
        raise ValueError(_DIFFERENT.format(what_differs(first, *others)))


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


_DIFFERENT = (
    "cistern: the ranks were given different batches. What differs: {0}. Give all of them the same whole batch, of which"
    " each takes its part, such as by a loader with the same seed and without a sampler of data ranks"
)

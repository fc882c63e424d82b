# SPDX-License-Identifier: Apache-2.0
"""The numbers of this rank, as the program has set them in the environment that has started it."""

from __future__ import annotations

from ctypes import byref
from typing import NamedTuple

from cistern import _library
from cistern._abi import LAUNCH_UNKNOWN, Status, cst_err, cst_launch


class Launch(NamedTuple):
    """Numbers that the caller or a launcher has said; None: nobody has said it."""

    rank: int | None = None  #: Of this process among the ranks on this node.
    world: int | None = None  #: Ranks on this node.
    first_rank: int | None = None  #: Number in the whole job of this node's rank 0.
    all_ranks: int | None = None  #: Ranks on all nodes; 0: all are on this node.


def find(given: Launch) -> Launch:
    """Return ``given`` with the numbers that the environment adds, as cst_launch_find says.

    ValueError: variables are wrong, missing, or contradict each other. TypeError, ValueError: a given
    number is none.
    """
    said = {k: LAUNCH_UNKNOWN if n is None else n for k, n in given._asdict().items()}
    launch, err = _library.struct_of(cst_launch, **said), cst_err()
    if _library.library().cst_launch_find(byref(launch), err) == Status.EINVAL:
        raise ValueError(f"cistern: {err.text.decode(errors='replace')}")
    found = _library.fields(launch)
    return Launch(**{k: None if n == LAUNCH_UNKNOWN else n for k, n in found.items()})

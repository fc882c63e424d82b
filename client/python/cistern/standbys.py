# SPDX-License-Identifier: Apache-2.0
"""Processes that have started already, and wait to take the place of a rank that dies."""

from __future__ import annotations

import os
import sys

from cistern import launch
from cistern.calls import Path
from cistern.client import Client
from cistern.errors import JobEnded

_holding: list[Client] = []  # Their connections keep the rank until the job is open.


def is_standby() -> bool:
    """Return whether this process is a standby that has no rank yet (CISTERN_STANDBY=1)."""
    return os.environ.get("CISTERN_STANDBY") == "1"


def standby(job: str, *, socket: Path | None = None) -> int:
    """Return the number of this process among the ranks of ``job`` on this node.

    In a standby, this waits until a rank of the job has died, and returns the number of that rank.
    ``cistern run --standby N`` starts N of these, with CISTERN_STANDBY=1 in their environment and
    without RANK and LOCAL_RANK, which this function sets. The daemon keeps the rank for 60 s, within
    which the process opens the job (``Job``, ``cistern.torch.attach``). If the job ends before,
    SystemExit ends the program with success.

    In any other process, this returns at once what the launcher has said, or else 0.

    Raises what ``Client``, ``Client.standby`` and ``cistern.torch.attach`` raise for variables of a
    launcher.
    """
    if not is_standby():
        return launch.find(launch.Launch()).rank or 0
    client = Client(socket)
    try:
        rank = client.standby(job)
    except JobEnded as ended:
        print(f"cistern: {ended.text}", file=sys.stderr, flush=True)
        raise SystemExit(0) from None
    _holding.append(client)
    _set_numbers(rank)
    return rank


def _set_numbers(rank: int) -> None:
    """Let the environment be that of the rank ``rank`` of this node."""
    del os.environ["CISTERN_STANDBY"]
    first = os.environ.pop("CISTERN_FIRST_RANK", None)
    os.environ["LOCAL_RANK"] = str(rank)
    if first is not None:
        os.environ["RANK"] = str(int(first) + rank)


def has_opened() -> None:
    """Close the connections of this process's standbys: it has opened a job."""
    while _holding:
        _holding.pop().close()

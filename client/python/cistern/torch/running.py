# SPDX-License-Identifier: Apache-2.0
"""Whether a backward pass runs, and whether a call of a module has ended.

torch does not tell the latter if KeyboardInterrupt or another exception that is no Exception ends the call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from threading import get_ident
from types import FrameType

import torch

_WRAPPER = "torch._dynamo.eval_frame"  # It has the functions around hooks that are not compiled.


def in_backward() -> bool:
    """Return whether this thread runs a backward pass."""
    return torch._C._current_graph_task_id() != -1


def call_of_module() -> Callable[[], bool]:
    """Return what says whether the call of a module runs whose hook calls this."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") == _WRAPPER:
        frame = frame.f_back
    return partial(_runs, frame, get_ident())


def _runs(frame: FrameType | None, thread: int) -> bool:
    """Return whether the call of ``frame``, which the ``thread`` has made, has not ended."""
    at = sys._current_frames().get(thread)
    while at is not None and at is not frame:
        at = at.f_back
    return at is not None

# SPDX-License-Identifier: Apache-2.0
"""What becomes of the job of a store that nobody has closed."""

from __future__ import annotations

import logging
import os
import sys
import weakref
from typing import TYPE_CHECKING

from cistern.errors import CstError
from cistern.job import Job

if TYPE_CHECKING:
    from cistern.torch.store import Store

_log = logging.getLogger("cistern")


def leave_at_end(store: Store) -> None:
    """Have the job left when the program ends, or nothing refers to ``store`` any more.

    If an exception, Ctrl-C or a signal ends the program, the job is not left: it was interrupted. An
    exit status other than 0 does not count: CPython has it in a local variable, which nothing in
    Python can read, and has freed the SystemExit when the functions of atexit are called.
    """
    weakref.finalize(store, _leave, store.job, os.getpid())


def _leave(job: Job, pid: int) -> None:
    """Leave ``job``, which the process ``pid`` has opened. This does not wait for other ranks."""
    if os.getpid() != pid or job.client.is_closed or has_failed() or job.client.is_pending:
        return
    try:
        try:
            job.leave()
        finally:
            job.close()
    except (CstError, RuntimeError) as error:
        _log.warning("cistern: job '%s' was not left in good order: %s", job.name, error)


def has_failed() -> bool:
    """Return whether an exception ends the program. In an interactive session none does."""
    return getattr(sys, "last_value", None) is not None and not hasattr(sys, "ps1")

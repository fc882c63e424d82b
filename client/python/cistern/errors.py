# SPDX-License-Identifier: Apache-2.0
"""Exceptions for the statuses of libcistern."""

from __future__ import annotations

from cistern._abi import Reason, Status


class CstError(Exception):
    """A call failed. ``status`` says how; the text says why, with the numbers.

    ``reason`` says what the error is about, for programs, which do not read texts. Most errors have
    the reason NONE: their status says all.
    """

    def __init__(self, status: Status, text: str, reason: Reason = Reason.NONE) -> None:
        super().__init__(status, text, reason)
        self.status = status
        self.text = text
        self.reason = reason

    def with_text(self, text: str) -> CstError:
        """Return the same error with another text."""
        return type(self)(self.status, text, self.reason)

    def __str__(self) -> str:
        return f"{self.text} ({self.status.name})"


class StepVoid(CstError):
    """The step is not committed, for no rank: call ``sync``, then do the step again."""


class PoolTooSmall(CstError):
    """An operator needs more blocks than the pool of this rank has."""


class Mismatch(CstError):
    """This rank disagrees with the job or another rank: on a tensor, an operator or an option."""


class DaemonGone(CstError):
    """The connection to the daemon has ended, and the job is not kept for its next process."""


class DeviceLost(CstError):
    """An engine of the daemon, a device or states on it are lost."""


class JobEnded(CstError):
    """The job for which a standby has waited is over: all ranks have left, or it was removed."""


class StaleVersion(CstError):
    """A later step has overwritten weights of the version of ``step``, which a reader holds."""

    def __init__(
        self, status: Status, text: str, reason: Reason = Reason.NONE, step: int = 0
    ) -> None:
        super().__init__(status, text, reason)
        self.args = (status, text, reason, step)
        self.step = step

    def with_text(self, text: str) -> StaleVersion:
        """Return the same error with another text."""
        return StaleVersion(self.status, text, self.reason, self.step)


_CLASSES: dict[Status, type[CstError]] = {
    Status.EPEERDIED: StepVoid,
    Status.ESTALE: StepVoid,
    Status.EPOOL: PoolTooSmall,
    Status.EMISMATCH: Mismatch,
    Status.ECONN: DaemonGone,
    Status.ELOST: DeviceLost,
    Status.EENGINE: DeviceLost,
    Status.EGPU: DeviceLost,
}


_GONE = (
    "When the daemon runs again, start this program anew: it goes on with the job if the daemon has"
    " kept it, or else from a checkpoint (resume= of cistern.torch.attach)"
)


def error_of(
    status: int, text: str, reason: Reason = Reason.NONE, *, connects: bool = False
) -> CstError:
    """Return the exception for the negative number ``status``. ``connects``: there was no connection yet."""
    known = Status(status)
    if known is Status.ECONN and not connects:
        text += f". {_GONE}"
    return _CLASSES.get(known, CstError)(known, text, reason)

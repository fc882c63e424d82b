# SPDX-License-Identifier: Apache-2.0
"""Says for which ranks a call waits, if it waits long."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from cistern.client import Client
from cistern.errors import CstError

#: Seconds until the first message of a call that waits until all ranks have made it.
MEETING_SECONDS = 5.0
#: Seconds until that of a step: some ranks may compute longer than others in every step.
STEP_SECONDS = 60.0

_log = logging.getLogger("cistern")


@dataclass(frozen=True)
class Waiting:
    """A ``call`` of ``rank`` of ``job`` that waits for other ranks, at the daemon of ``socket``.

    The first message comes after ``seconds``, the next ones each after twice as long as the one
    before. They are warnings of the logger "cistern", which Python prints to stderr by default.
    """

    socket: str | os.PathLike[str] | None
    job: str
    rank: int
    call: str
    seconds: float
    has_nodes: bool = False  #: The job has ranks on other nodes, whose daemons know of them.

    def tell(self, waited: float) -> None:
        """Say for which ranks the call has waited so long; nothing if it waits for the only daemon.

        The client of the call cannot ask, because the call is pending: this uses one of its own.
        """
        words = f"cistern: rank {self.rank} of job '{self.job}' has waited {waited:.0f} s in {self.call}"
        try:
            with Client(self.socket) as client:
                ranks = client.job_waits(self.job)
        except CstError as error:
            _log.warning("%s, and cannot ask the daemon for whom: %s", words, error)
            return
        if ranks:
            _log.warning("%s for %s", words, ranks)
        elif self.has_nodes:
            _log.warning(
                "%s, and for no rank on this node: 'cistern job %s' on the other nodes shows theirs, and"
                " 'cistern node list' the links to them",
                words,
                self.job,
            )

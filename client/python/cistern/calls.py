# SPDX-License-Identifier: Apache-2.0
"""How the methods of a job call libcistern."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, cast

from cistern import _library
from cistern._abi import cst_err
from cistern.client import Client
from cistern.waiting import Waiting

Path = str | os.PathLike[str]


class Calls:
    """The address of a job, and calls with it. ``Job`` fills it in."""

    name: str
    rank: int
    world: int
    all_ranks: int
    global_rank: int
    client: Client
    lib: ctypes.CDLL
    _handle: int | None

    @property
    def handle(self) -> int:
        """The address of the ``struct cst_job``. ValueError: the job is closed."""
        self.check_open()
        return cast(int, self._handle)

    def check_open(self) -> None:
        """Raise ValueError if the job is closed: a call that has its address must not be made then."""
        if self._handle is None:
            raise ValueError(f"the job '{self.name}' is closed")

    def _call(self, name: str, *arguments: Any) -> int:
        """Return what the function ``name`` of libcistern returns, whose last parameter is for the error."""
        err, function = cst_err(), getattr(self.lib, name)
        call = self.client.one_thread.call  # Inside, no other thread closes the job.
        return _library.check(call(lambda: function(self.handle, *arguments, err)), err)

    def _declare(self, function: Callable[..., int], *arguments: Any) -> int:
        """Return the number of a declaration, which ``function`` makes, or raise what libcistern has noted."""
        number = self.client.one_thread.call(lambda: function(self.handle, *arguments))
        if number < 0:
            return _library.check(number, self.lib.cst_job_error(self.handle).contents)
        return number

    def _waiting(self, call: str, seconds: float) -> Waiting | None:
        """Return what says for which ranks a call waits. None: there is no other rank."""
        if self.all_ranks == 1:
            return None
        return Waiting(
            self.client.socket,
            self.name,
            self.global_rank,
            call,
            seconds,
            has_nodes=self.all_ranks > self.world,
        )

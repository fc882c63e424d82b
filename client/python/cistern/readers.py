# SPDX-License-Identifier: Apache-2.0
"""Readers: processes that read the weights of a job while it trains.

    with cistern.reader("run7") as reader:
        for version in reader:
            use(version["wte"])
            version.check()  # StaleVersion: what was computed is of no use.

A reader maps the memory in which the weights are, for reading only. <cistern/reader.h> says how long
a version can be read.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from ctypes import byref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from cistern import _library, checks
from cistern._abi import Status, cst_err, cst_reader_version, cst_reader_wish
from cistern.calls import Path
from cistern.errors import CstError
from cistern.mapping import Mapping, check
from cistern.versions import Version, VersionOf

if TYPE_CHECKING:
    from typing_extensions import Self

_WAIT_S = 0.25  # Of a call of libcistern, which the handler of a signal cannot interrupt.
#: The daemon or the job has ended, so that nothing is held.
_ENDED = (Status.ECONN, Status.ESTALE, Status.ECANCELLED, Status.ENOTFOUND)

AnyVersion = TypeVar("AnyVersion", bound=VersionOf[Any])


class ReaderOf(Generic[AnyVersion]):
    """Reads versions of the weights of ``job``, at the daemon of ``socket`` or the default.

    Only processes of the job's user can read it, on the node where the job is. A reader is used by one
    thread at a time, and after ``os.fork()`` by the parent alone. ``close``, or the end of a ``with``
    block, releases all versions. The memory stays mapped as long as there is a view of it.

    Raises DaemonGone if no daemon listens, and CstError: ENOTFOUND if the user has no such job, EBUSY
    if it is not committed yet or is being reshaped, EUNSUPPORTED if gradients take the place of its
    weights.
    """

    _kind: type[AnyVersion]

    def __init__(self, job: str, *, socket: Path | None = None) -> None:
        self._mapping: Mapping | None = None
        self.job = job
        self._one_thread = _library.OneThread()
        self._versions: dict[int, cst_reader_version] = {}  # What is held, by its number.
        mapping = Mapping(job, socket)
        self.tensors = mapping.tensors()  #: In the order of declaration.
        self._numbers = {tensor.name: i for i, tensor in enumerate(self.tensors)}
        #: Number of versions that can be read at once: 1 or 2, see ``versions`` of ``cistern.Job``.
        self.versions: int = mapping.lib.cst_reader_versions(mapping.handle)
        #: The contents of config.json and adapter_config.json in the job's checkpoints; None: there is none.
        self.model_config = mapping.text("cst_reader_model_config")
        self.adapter_config = mapping.text("cst_reader_adapter_config")
        self._mapping = mapping

    @property
    def mapping(self) -> Mapping:
        """The mapped memory. ValueError: the reader is closed."""
        if self._mapping is None:
            raise ValueError(f"cistern: the reader of job '{self.job}' is closed")
        return self._mapping

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._mapping is None

    def number(self, name: str) -> int:
        """Return the index of a tensor in ``tensors``. KeyError: the job has no such tensor."""
        if name not in self._numbers:
            raise KeyError(f"job '{self.job}' has no tensor '{name}'")
        return self._numbers[name]

    def next(
        self, after: int | None = None, *, keep: bool = False, timeout: float | None = None
    ) -> AnyVersion:
        """Wait for the newest version of a step after ``after``, hold it, and return it.

        ``after`` None: of any step. Versions that are held already stay so; a reader can hold four. Steps
        that are committed while no process waits can be missed. The handler of a signal, such as that of
        Ctrl-C, can raise meanwhile.

        ``keep``: the job waits, so that no step overwrites the version until it is released, at most for the
        time limit of the job (``timeout_ms``). Then the version is lost. ``timeout``: seconds; None: no
        limit.

        Raises DaemonGone, CstError: ETIMEDOUT; EBUSY if four versions are held; ESTALE, ECANCELLED or
        ENOTFOUND if the job has ended or is being reshaped.
        """
        least = None if after is None else checks.integer("after", after, 0, (1 << 64) - 1)
        wish = cst_reader_wish(any=least is None, after=least or 0, keep=checks.flag("keep", keep))
        limit = None if timeout is None else checks.number("timeout", timeout)
        return self._kind(self, self._next(wish, limit))

    def _next(self, wish: cst_reader_wish, limit: float | None) -> cst_reader_version:
        version = cst_reader_version()
        end = None if limit is None else time.monotonic() + limit
        try:
            while not self._attempt(wish, version, end):
                pass
        except BaseException:
            if version.number != 0:
                self._release(version)
            raise
        return version

    def _attempt(
        self, wish: cst_reader_wish, version: cst_reader_version, end: float | None
    ) -> bool:
        """Wait for a short time. False: there is no version, and the time is not over."""
        left = _WAIT_S if end is None else min(max(end - time.monotonic(), 0.0), _WAIT_S)
        try:
            self._call("cst_reader_next", byref(wish), round(left * 1000), byref(version))
        except CstError as error:
            if error.status != Status.ETIMEDOUT or (end is not None and end <= time.monotonic()):
                raise
            return False
        self._versions[version.number] = version
        return True

    def _release(self, version: cst_reader_version) -> None:
        self._versions.pop(version.number, None)
        try:
            self._call("cst_reader_release", byref(version))
        except CstError as error:
            if error.status not in _ENDED:
                raise

    def _call(self, name: str, *arguments: Any) -> None:
        """Call the function ``name`` of libcistern, whose last parameter is for the error."""
        mapping, err = self.mapping, cst_err()
        function = getattr(mapping.lib, name)
        check(self._one_thread.call(lambda: function(mapping.handle, *arguments, err)), err)

    def __iter__(self) -> Iterator[AnyVersion]:
        """Yield the newest version, and then each time the newest one of a later step.

        A version is held until the loop goes on or ends.
        """
        after: int | None = None
        while True:
            with self.next(after) as version:
                yield version
            after = version.step

    def close(self) -> None:
        """Release all versions and close the connection. A reader can be closed twice."""
        if self._mapping is None or not self._mapping.is_usable:
            self._mapping = None
            return
        try:
            for version in list(self._versions.values()):
                self._release(version)
        finally:
            self._mapping = None

    def __del__(self) -> None:
        mapping = getattr(self, "_mapping", None)
        if mapping is not None and mapping.is_usable and not sys.is_finalizing():
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()


class Reader(ReaderOf[Version]):
    __doc__ = ReaderOf.__doc__
    _kind = Version


def reader(job: str, *, socket: Path | None = None) -> Reader:
    """Return a reader of ``job``: ``Reader(job, socket=socket)``."""
    return Reader(job, socket=socket)

# SPDX-License-Identifier: Apache-2.0
"""A connection to the daemon."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from ctypes import byref, c_char_p, c_uint32, c_uint64, c_void_p, cast, create_string_buffer
from types import TracebackType
from typing import Any, TypeVar, final

from cistern import _library, checks
from cistern._abi import (
    BegunCallback,
    Status,
    cst_err,
    cst_pause_result,
    cst_resume_result,
    cst_save_result,
    cst_save_spec,
)
from cistern.checkpoint import SaveResult
from cistern.errors import CstError, JobEnded, error_of
from cistern.results import PauseResult, ResumeResult

Result = TypeVar("Result")


@final
class Client:
    """A connection to the daemon that listens at ``socket``.

    Without ``socket``, the daemon is found at ``$CISTERN_SOCKET`` or else at ``DEFAULT_SOCKET``. A
    client and its job are used by one thread at a time: a call beside that of another thread raises
    CstError with the status EBUSY. They cannot be used after ``os.fork()`` in the child, where every
    call raises CstError with the status EFORKED.

    Raises DaemonGone if no daemon listens there, and CstError with the status EDENIED if the user
    may not connect, or EVERSION if the daemon is of another version.
    """

    def __init__(self, socket: str | os.PathLike[str] | None = None) -> None:
        self._handle: int | None = None
        self.socket = socket
        self.one_thread = _library.OneThread()
        self._interrupted: Callable[[], Any] | None = None  # Goes on with a pending call.
        self._lib = _library.library()
        handle, err = c_void_p(), cst_err()
        status = self._lib.cst_connect(byref(handle), _library.text("socket", socket), err)
        _library.check(status, err, connects=True)
        self._handle = handle.value
        self._at_close: Callable[[], None] | None = None
        self._check_unused: Callable[[], None] | None = None
        self._saves: list[object] = []  # What libcistern may use until a pending save has ended.

    @property
    def handle(self) -> int:
        """The address of the ``struct cst_client``. ValueError: the client is closed."""
        if self._handle is None:
            raise ValueError("the client is closed")
        return self._handle

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._handle is None

    def on_close(self, call: Callable[[], None]) -> None:
        """Have ``call`` called when the client has been closed. Its job uses this."""
        self._at_close = call

    def before_unmapping(self, check: Callable[[], None]) -> None:
        """Have ``check`` called before the memory of the pool can be unmapped. It raises if it is used."""
        self._check_unused = check

    def unmapping(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call ``function(*arguments)``, which can unmap the memory of the pool, unless it is used.

        RuntimeError: a module of cistern.torch runs. CstError: EBUSY, the handler of a signal that has
        interrupted a call calls this, or another thread is in a call.
        """
        if not self.one_thread.release():
            raise error_of(Status.EBUSY, _IN_HANDLER)
        result: Result = self.one_thread.call(self._if_unused, function, arguments)
        return result

    def _if_unused(self, function: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
        if self._check_unused is not None:
            self._check_unused()
        return function(*arguments)

    def close(self) -> None:
        """Close the connection, and free the job of this client.

        If the job has not been left, the daemon treats the rank as if its process had died. All
        memory of the pool is unmapped. A client can be closed twice. Raises what ``unmapping``
        raises, which changes nothing.
        """
        if self._handle is not None:
            self.unmapping(self._disconnect)

    def _disconnect(self) -> None:
        handle, self._handle = self._handle, None
        try:
            self._lib.cst_disconnect(handle)
        finally:
            if self._at_close is not None:
                self._at_close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # At the end of the program, other threads can still compute in C++.
        if getattr(self, "_handle", None) is not None and not sys.is_finalizing():
            self.close()

    def _call(self, name: str, *arguments: Any) -> None:
        """Call the function ``name`` of libcistern, whose last parameter is for the error."""
        err, function = cst_err(), getattr(self._lib, name)
        call = self.one_thread.call  # Inside, no other thread closes the client.
        _library.check(call(lambda: function(self.handle, *arguments, err)), err)

    def wait(
        self,
        attempt: Callable[[cst_err], int],
        result: Callable[[], Result],
        teller: _library.Teller | None = None,
    ) -> Result:
        """Make the call ``attempt``, which can wait, until it has ended, and return ``result()``.

        ``teller`` says meanwhile for what it waits. What the handler of a signal raises, such as
        KeyboardInterrupt, ends the wait. The call is then pending: ``finish`` goes on with it, and
        so does the same call.
        """

        def go_on() -> Result:
            self.one_thread.call(lambda: _library.wait(self.handle, attempt, teller))
            return result()

        return self._end_of(go_on)

    def _end_of(self, go_on: Callable[[], Result]) -> Result:
        try:
            value = go_on()
        except CstError:
            raise
        except BaseException:
            self._interrupted = go_on
            raise
        self._interrupted = None
        return value

    @property
    def is_interrupted(self) -> bool:
        """Whether a call was interrupted that may be pending."""
        return self._interrupted is not None

    @property
    def is_pending(self) -> bool:
        """Whether a call of this client or its job is pending."""
        return bool(self._lib.cst_client_is_pending(self.handle))

    def finish(self) -> Any:
        """Go on with the call that was interrupted, and return what it returns.

        None: no call is pending. The call had ended, or had not begun, when it was interrupted. In the
        handler of a signal, it goes on after the handler.
        """
        if not self.one_thread.release():
            return None
        go_on, self._interrupted = self._interrupted, None
        return self._end_of(go_on) if go_on is not None and self.is_pending else None

    def fileno(self) -> int:
        """Return the descriptor that polls readable when a pending call can go on."""
        return _library.check(self._lib.cst_client_fd(self.handle), cst_err())

    def ping(self) -> int:
        """Make one round trip to the daemon, and return its nanoseconds."""
        nanoseconds = c_uint64()
        self._call("cst_ping", byref(nanoseconds))
        return nanoseconds.value

    def remove_job(self, name: str) -> None:
        """Remove the job ``name`` with its states, and wait until its memory is free.

        Raises CstError: ENOTFOUND if there is no such job, EBUSY if it is the base of another job.
        """
        self._call("cst_job_remove", _library.text("name", name))

    def pause(self, name: str, *, release_pools: bool = False) -> PauseResult:
        """Let the workers of the job ``name`` wait when the step under way is over.

        Waits until that step is committed and its updates are over. The job stays paused until
        ``resume``, whoever ends meanwhile; it can be read, saved and removed. ``release_pools`` gives
        the memory of its pools back, which other jobs can use then.

        Raises CstError: ENOTFOUND, EINVAL (not committed yet, failed, or the job of this
        client), EBUSY (being reshaped or resumed), EUNSUPPORTED (ranks on several nodes; ``release_pools`` of a job that uses a GPU),
        ECANCELLED (resumed or removed meanwhile).
        """
        result, release = cst_pause_result(), checks.flag("release_pools", release_pools)
        self._call("cst_job_pause", _library.text("name", name), release, byref(result))
        return PauseResult(**_library.fields(result))

    def resume(self, name: str) -> ResumeResult:
        """Let the job ``name``, which is paused, go on.

        Raises CstError: ENOTFOUND, EINVAL (it is not paused), EBUDGET (others use the memory of its
        pools: the job stays paused), ENOMEM, EBUSY.
        """
        result = cst_resume_result()
        self._call("cst_job_resume", _library.text("name", name), byref(result))
        return ResumeResult(**_library.fields(result))

    def job_waits(self, name: str) -> str:
        """Return for which ranks the others of the job ``name`` wait; "" if there are none.

        An example is "rank 1 (died in step 4)". A client whose own call is pending cannot ask.
        """
        words = create_string_buffer(4096)
        self._call("cst_job_waits", _library.text("name", name), words, len(words))
        return words.value.decode(errors="replace")

    def standby(self, name: str, *, hold_s: float = 60.0) -> int:
        """Wait until a rank of the job ``name`` on this node has died, and return its number.

        The job need not exist yet. The rank is kept for ``hold_s`` seconds, at most 600, or until
        this client is closed: open the job as that rank until then, with this client or another one
        of this process, or else the next standby gets it. If the daemon is restarted, the call goes
        on with its next process. ``cistern.standby`` does this for programs that `cistern run`
        starts.

        Raises JobEnded if all ranks leave or the job is removed, CstError: EINVAL, EBUSY (a call is
        pending), ENOCREDIT, DaemonGone if there is no daemon for 60 s.
        """
        text, rank = _library.text("name", name), c_uint32()
        hold_ms = int(1000 * checks.number("hold_s", hold_s, 0.001, 600.001))

        def attempt(err: cst_err) -> int:
            return int(
                self._lib.cst_try_standby(self.handle, text, max(hold_ms, 1), byref(rank), err)
            )

        try:
            return self.wait(attempt, lambda: rank.value)
        except CstError as error:
            if error.status is Status.ECANCELLED:
                raise JobEnded(error.status, error.text, error.reason) from None
            raise

    def save(
        self,
        job: str,
        dir: str | os.PathLike[str],
        *,
        keep: int = 0,
        fp32_weights: bool = False,
        buffers: bytes | None = None,
        on_begun: Callable[[int], None] | None = None,
    ) -> SaveResult:
        """Write a checkpoint of the job named ``job`` to the directory ``dir``.

        The ranks go on training meanwhile. The call waits until the checkpoint is whole. Ctrl-C
        ends the wait; the save goes on when this function is called again with the same arguments,
        and is given up when the client is closed.

        ``keep`` is the number of checkpoints that remain in the directory; 0: all.
        ``fp32_weights`` saves fp32 master weights in place of bf16 weights. ``buffers`` are the
        contents of the file buffers.safetensors; None: there is none. ``on_begun`` is called with the
        number of committed steps that are saved, as soon as it is known; what it raises is printed
        and ignored.

        Raises Mismatch (parts of a larger tensor leave out elements), CstError: ENOTFOUND, EINVAL
        (no weights yet, or checkpoints of another job), EBUSY, EEXIST (this step is saved already),
        EIO, ETIMEDOUT.
        """
        begun = on_begun
        checks.instance("buffers", buffers, (bytes, type(None)), "bytes")
        callback = BegunCallback() if begun is None else BegunCallback(lambda _, step: begun(step))
        spec = _library.struct_of(
            cst_save_spec,
            dir=dir,
            keep=keep,
            on_begun=callback,
            fp32_weights=fp32_weights,
            buffers=cast(c_char_p(buffers), c_void_p),
            buffers_bytes=0 if buffers is None else len(buffers),
        )
        result, name = cst_save_result(), _library.text("job", job)
        self._saves.append((spec, callback, buffers))

        def saved() -> SaveResult:
            self._saves.clear()
            return SaveResult(**_library.fields(result))

        return self.wait(
            lambda err: self._lib.cst_try_save(self.handle, name, byref(spec), byref(result), err),
            saved,
        )


_IN_HANDLER = (
    "the handler of a signal has interrupted a call, which goes on afterwards: the handler can read and"
    " save meanwhile, but not run a model, give up the step or close the job. If it raises an exception such as"
    " SystemExit, the call ends, and the job can be closed"
)

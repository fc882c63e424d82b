# SPDX-License-Identifier: Apache-2.0
"""A connection to the daemon."""

from __future__ import annotations

import os
from collections.abc import Callable
from ctypes import byref, c_uint64, c_void_p, create_string_buffer
from types import TracebackType
from typing import final

from cistern import _library
from cistern._abi import BegunCallback, cst_err, cst_save_result, cst_save_spec
from cistern.checkpoint import SaveResult


@final
class Client:
    """A connection to the daemon that listens at ``socket``.

    Without ``socket``, the daemon is found at ``$CISTERN_SOCKET`` or else at ``DEFAULT_SOCKET``. A
    client and its job are used by one thread at a time. They cannot be used after ``os.fork()`` in
    the child, where every call raises CstError with the status EFORKED.

    Raises DaemonGone if no daemon listens there, and CstError with the status EDENIED if the user
    may not connect, or EVERSION if the daemon is of another version.
    """

    def __init__(self, socket: str | os.PathLike[str] | None = None) -> None:
        self._handle: int | None = None
        self._lib = _library.library()
        handle, err = c_void_p(), cst_err()
        status = self._lib.cst_connect(byref(handle), _library.text(socket), err)
        _library.check(status, err)
        self._handle = handle.value
        self._at_close: Callable[[], None] | None = None
        self._saves: list[object] = []  # What libcistern may use until a pending save has ended.

    @property
    def handle(self) -> int:
        """The address of the ``struct cst_client``. ValueError: the client is closed."""
        if self._handle is None:
            raise ValueError("the client is closed")
        return self._handle

    def on_close(self, call: Callable[[], None]) -> None:
        """Have ``call`` called when the client has been closed. Its job uses this."""
        self._at_close = call

    def close(self) -> None:
        """Close the connection, and free the job of this client.

        If the job has not been left, the daemon treats the rank as if its process had died. All
        memory of the pool is unmapped. A client can be closed twice.
        """
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        self._lib.cst_disconnect(handle)
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
        if getattr(self, "_handle", None) is not None:
            self.close()

    def fileno(self) -> int:
        """Return the descriptor that polls readable when a pending call can go on."""
        return _library.check(self._lib.cst_client_fd(self.handle), cst_err())

    def ping(self) -> int:
        """Make one round trip to the daemon, and return its nanoseconds."""
        nanoseconds, err = c_uint64(), cst_err()
        _library.check(self._lib.cst_ping(self.handle, byref(nanoseconds), err), err)
        return nanoseconds.value

    def remove_job(self, name: str) -> None:
        """Remove the job ``name`` with its states, and wait until its memory is free.

        Raises CstError: ENOTFOUND if there is no such job, EBUSY if it is the base of another job.
        """
        err = cst_err()
        _library.check(self._lib.cst_job_remove(self.handle, _library.text(name), err), err)

    def job_waits(self, name: str) -> str:
        """Return for which ranks the others of the job ``name`` wait; "" if there are none.

        An example is "rank 1 (died in step 4)". A client whose own call is pending cannot ask.
        """
        words, err = create_string_buffer(4096), cst_err()
        status = self._lib.cst_job_waits(self.handle, _library.text(name), words, len(words), err)
        _library.check(status, err)
        return words.value.decode(errors="replace")

    def save(
        self,
        job: str,
        dir: str | os.PathLike[str],
        *,
        keep: int = 0,
        fp32_weights: bool = False,
        on_begun: Callable[[int], None] | None = None,
    ) -> SaveResult:
        """Write a checkpoint of the job named ``job`` to the directory ``dir``.

        The ranks go on training meanwhile. The call waits until the checkpoint is whole. Ctrl-C
        ends the wait; the save goes on when this function is called again with the same arguments,
        and is given up when the client is closed.

        ``keep`` is the number of checkpoints that remain in the directory; 0: all.
        ``fp32_weights`` saves fp32 master weights in place of bf16 weights. ``on_begun`` is called
        with the number of committed steps that are saved, as soon as it is known; what it raises
        is printed and ignored.

        Raises CstError: ENOTFOUND, EINVAL (no weights yet, or checkpoints of another job), EBUSY,
        EEXIST (this step is saved already), EIO, ETIMEDOUT.
        """
        begun = on_begun
        callback = BegunCallback() if begun is None else BegunCallback(lambda _, step: begun(step))
        spec = cst_save_spec(
            dir=_library.text(dir),
            keep=keep,
            on_begun=callback,
            fp32_weights=fp32_weights,
        )
        result, name = cst_save_result(), _library.text(job)
        self._saves.append((spec, callback))
        _library.wait(
            self.handle,
            lambda err: self._lib.cst_try_save(self.handle, name, byref(spec), byref(result), err),
        )
        self._saves.clear()
        return SaveResult(**_library.fields(result))

# SPDX-License-Identifier: Apache-2.0
"""Loads libcistern, checks that it is the one this package was made for, and calls it."""

from __future__ import annotations

import ctypes
import math
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from types import FrameType
from typing import Any, Protocol, TypeVar

from cistern import _abi, checks
from cistern._abi import Reason, Status, cst_err
from cistern.errors import CstError, error_of

Result = TypeVar("Result")
Struct = TypeVar("Struct", bound=ctypes.Structure)


def _declare(library: ctypes.CDLL, functions: Mapping[str, _abi.Signature]) -> None:
    for name, (result, parameters) in functions.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = parameters


def _check_layouts() -> None:
    """Compare the layouts that ctypes makes with those of the C compiler."""
    for struct, (size, offsets) in _abi.LAYOUTS.items():
        ours = {name: getattr(struct, name).offset for name in offsets}
        if ctypes.sizeof(struct) != size or ours != offsets:
            raise ImportError(
                f"cistern: struct {struct.__name__} has another layout on this machine"
            )


@cache
def library() -> ctypes.CDLL:
    """Return libcistern. ImportError: it is not found, or has another version than this package."""
    path = os.environ.get("CISTERN_LIBRARY") or "libcistern.so.0"
    try:
        found = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"cistern: cannot load libcistern: {error}. Install cistern, or set CISTERN_LIBRARY to"
            " the path of libcistern.so.0."
        ) from error
    found.cst_version.restype = ctypes.c_char_p
    version = found.cst_version().decode()
    if version != _abi.VERSION:
        raise ImportError(
            f"cistern: {path} has version {version}, the Python package has {_abi.VERSION}"
        )
    _check_layouts()
    _declare(found, _abi.FUNCTIONS)
    return found


@cache
def cuda_library() -> ctypes.CDLL:
    """Return libcistern-cuda, which is where libcistern is. ImportError: it is not found."""
    beside = os.path.dirname(os.environ.get("CISTERN_LIBRARY", ""))
    path = os.path.join(beside, "libcistern-cuda.so.0")
    try:
        found = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"cistern: pools on GPUs need libcistern-cuda, which cannot be loaded: {error}"
        ) from error
    _declare(found, _abi.CUDA_FUNCTIONS)
    return found


def prepared(name: str, *arguments: Any) -> Callable[[], int]:
    """Return the call of the function ``name``, which returns a status, with these ``arguments``.

    They are converted here and not in each call, where it would take longer than the function. What
    they point to is read in each call.
    """
    function = library()[name]  # Another object than the attribute, which converts them.
    kinds = _abi.FUNCTIONS[name][1]
    return partial(
        function, *(kind.from_param(a) for kind, a in zip(kinds, arguments, strict=True))
    )


def check(status: int, err: cst_err, *, connects: bool = False) -> int:
    """Return ``status`` if it is no failure, else raise the exception for it, as ``error_of`` makes it."""
    if status < 0:
        is_told = err.status == status  # Else what ``err`` has is about an earlier call.
        words = err.text if is_told else library().cst_status_words(status)
        reason = Reason(err.reason) if is_told else Reason.NONE
        raise error_of(status, words.decode(errors="replace"), reason, connects=connects)
    return status


class Teller(Protocol):
    """Says for what a call waits."""

    @property
    def seconds(self) -> float:
        """Time of waiting until it is to say so for the first time."""

    def tell(self, waited: float) -> None:
        """Say for what the call has waited so many seconds."""


def wait(client: int, attempt: Callable[[cst_err], int], teller: Teller | None = None) -> int:
    """Make the call ``attempt`` until it does not return EAGAIN, and return its status.

    Meanwhile ``teller`` says for what it waits, each time after twice as long as the time before.
    The handler of a signal, such as that of Ctrl-C, can raise meanwhile. The call is then pending:
    make the same call again, or close the client.
    """
    err = cst_err()
    status = attempt(err)
    if status == Status.EAGAIN:
        fd = check(library().cst_client_fd(client), err)
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        begin, silent = time.monotonic(), 0.0 if teller is None else teller.seconds
        while status == Status.EAGAIN:
            left = begin + silent - time.monotonic()
            if poll.poll(None if teller is None else max(left, 0.0) * 1000):
                status = attempt(err)
            elif teller is not None:
                teller.tell(time.monotonic() - begin)
                silent *= 2
    return check(status, err)


class OneThread:
    """Refuses a thread while another one is inside: libcistern has one thread for each client."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call ``function(*arguments)`` inside, and return its result. CstError: EBUSY."""
        if not self._lock.acquire(False):
            raise _busy()
        try:
            return function(*arguments)
        finally:
            self._lock.release()

    def release(self) -> bool:
        """Let this thread be outside, if an exception such as KeyboardInterrupt has left it inside.

        False: the thread is in a call, which goes on when the handler of a signal returns that has
        interrupted it, and that calls this. CstError: EBUSY, another thread is inside.
        """
        if not self._lock.acquire(False):
            raise _busy()
        self._lock.release()
        while self._lock._is_owned():  # type: ignore[attr-defined]
            if self._is_interrupted():
                return False
            self._lock.release()
        return True

    def _is_interrupted(self) -> bool:
        """Whether ``call`` or ``release`` has not ended below the ``release`` that asks."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if frame.f_code in _HOLDERS and frame.f_locals["self"] is self:
                return True
            frame = frame.f_back
        return False


_HOLDERS = (OneThread.call.__code__, OneThread.release.__code__)


def _busy() -> CstError:
    words = "another thread is in a call: one thread at a time uses a client and its job"
    return error_of(Status.EBUSY, words)


def text(name: str, value: str | os.PathLike[str] | None) -> bytes | None:
    """Return what a parameter of the type ``const char *`` is given. ``name`` is that of the argument.

    TypeError: it is no text or path. CstError: EINVAL, a zero byte would end it.
    """
    encoded = None if value is None else os.fsencode(checks.path(name, value))
    if encoded is not None and b"\0" in encoded:
        raise error_of(Status.EINVAL, f"{name} is {value!r}, which has a zero byte")
    return encoded


def struct_of(kind: type[Struct], **values: Any) -> Struct:
    """Return a struct whose fields are ``values``. TypeError, ValueError: one is none of its field.

    Texts, numbers and flags are checked, and what else there is has to be of the type of its field.
    """
    types = dict(kind._fields_)  # type: ignore[arg-type]
    return kind(**{name: _in_field(types[name], name, value) for name, value in values.items()})


_INTEGERS = frozenset("iIlLqQ")  # Codes of ctypes.


def _in_field(kind: Any, name: str, value: Any) -> Any:
    if kind is ctypes.c_char_p:
        return text(name, value)
    if kind is ctypes.c_bool:
        return checks.flag(name, value)
    if kind in (ctypes.c_float, ctypes.c_double):
        return checks.number(name, value, -math.inf)
    if getattr(kind, "_type_", None) in _INTEGERS:
        n_bits = 8 * ctypes.sizeof(kind)
        least = -(1 << (n_bits - 1)) if kind(-1).value < 0 else 0
        return checks.integer(name, value, least, least + (1 << n_bits) - 1)
    return value


def fields(struct: ctypes.Structure) -> dict[str, Any]:
    """Return the fields of ``struct`` by name, with strings for arrays of characters."""
    values = {name: getattr(struct, name) for name in _abi.LAYOUTS[type(struct)][1]}
    return {
        name: value.decode(errors="replace") if isinstance(value, bytes) else value
        for name, value in values.items()
    }

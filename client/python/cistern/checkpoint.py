# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of jobs: directories of safetensors files.

<cistern/checkpoint.h> describes their format.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection
from ctypes import POINTER, byref, c_char_p, c_uint, cast
from typing import NamedTuple

from cistern import _library
from cistern._abi import cst_adopt_result, cst_checkpoint, cst_err


class SaveResult(NamedTuple):
    """What a save has written."""

    step: int  #: Number of committed steps in the checkpoint.
    bytes: int  #: Size of all files.
    seconds: float  #: Duration of the whole call.
    read_seconds: float  #: Time for which a commit of the job had to wait, at most.


class Checkpoint(NamedTuple):
    """A checkpoint of a directory."""

    step: int
    bytes: int  #: Size of all files; 0: unknown.
    whole: bool  #: All files are there, with their sizes.
    status: int  #: Status.OK, or the status for which the checkpoint cannot be loaded.
    name: str  #: Name in the directory.
    job: str  #: Name of the job that was saved; "": unknown.
    why: str  #: If it is not whole: the reason.


class AdoptResult(NamedTuple):
    """What was made of the files of a durable job."""

    job: str  #: Name of the job.
    step: int  #: Number of committed steps in the checkpoint.
    bytes: int  #: Size of all files of the checkpoint.
    seconds: float  #: Duration of the call.
    n_unchecked: int  #: Rows of states whose checksums are not known.
    n_rows: int  #: Rows of states in all.
    warning: str  #: The last step is damaged, and why the step before was taken; "": it is not.


def adopt(files: Collection[str | os.PathLike[str]], dir: str | os.PathLike[str]) -> AdoptResult:
    """Make a checkpoint in the directory ``dir`` of the last step of a durable job, of its ``files``.

    For jobs that ended without a save, as when the machine stopped. Needs no daemon. Raises
    CstError: EINVAL, EBUSY, EEXIST, EIO.
    """
    names = [_library.text("files", file) for file in files]
    result, err = cst_adopt_result(), cst_err()
    status = _library.library().cst_adopt(
        cast((c_char_p * len(names))(*names), ctypes.c_void_p),
        len(names),
        _library.text("dir", dir),
        byref(result),
        err,
    )
    _library.check(status, err)
    return AdoptResult(**_library.fields(result))


def checkpoints(dir: str | os.PathLike[str], *, check: bool = False) -> list[Checkpoint]:
    """List the checkpoints of the directory ``dir`` by step.

    With ``check``, the checksums of all files are compared, which reads them. Raises CstError:
    ENOTFOUND, EIO.
    """
    found, n, err = POINTER(cst_checkpoint)(), c_uint(), cst_err()
    status = _library.library().cst_checkpoints(
        _library.text("dir", dir), check, byref(found), byref(n), err
    )
    _library.check(status, err)
    try:
        return [Checkpoint(**_library.fields(found[i])) for i in range(n.value)]
    finally:
        _free(cast(found, ctypes.c_void_p))


_free = ctypes.CDLL(None).free
_free.argtypes = (ctypes.c_void_p,)
_free.restype = None

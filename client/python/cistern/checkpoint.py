# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of jobs: directories of safetensors files.

<cistern/checkpoint.h> describes their format.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, byref, c_uint, cast
from typing import NamedTuple

from cistern import _library
from cistern._abi import cst_checkpoint, cst_err


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

# SPDX-License-Identifier: Apache-2.0
"""The weights of a job, mapped by a process that is none of its ranks."""

from __future__ import annotations

import os
import sys
from ctypes import POINTER, Array, byref, c_char, c_void_p, cast
from typing import NamedTuple

from cistern import _library
from cistern._abi import Dtype, cst_err, cst_reader_tensor, cst_reader_version
from cistern.calls import Path
from cistern.errors import CstError, StepVoid


class ReaderTensor(NamedTuple):
    """A tensor of the job that is read."""

    name: str  #: As the job has declared it.
    file_name: str | None  #: What model files call it; None: they do not have it as it is.
    shape: tuple[int, ...]
    dtype: Dtype  #: Type of its weights.
    frozen: bool  #: All versions have the same weights.
    bytes: int  #: Of its weights.


class Mapping:
    """The mapped weights of a job and the connection, which end when no view uses the memory any more."""

    def __init__(self, job: str, socket: Path | None) -> None:
        self._process = os.getpid()
        self._handle: int | None = None
        self.lib = _library.library()
        handle, err = c_void_p(), cst_err()
        status = self.lib.cst_reader_open(
            byref(handle), _library.text("socket", socket), _library.text("job", job), err
        )
        check(status, err)
        self._handle = handle.value

    @property
    def handle(self) -> int | None:
        """The address of the ``struct cst_reader``."""
        return self._handle

    @property
    def is_usable(self) -> bool:
        """False in the child of a fork, which has no such memory, or other memory at these addresses."""
        return self._process == os.getpid()

    def __del__(self) -> None:
        if self._handle is not None and self.is_usable and not sys.is_finalizing():
            self.lib.cst_reader_close(self._handle)

    def tensors(self) -> list[ReaderTensor]:
        """Return the tensors of the job in the order of declaration."""
        found = []
        for number in range(self.lib.cst_reader_count(self._handle)):
            address = self.lib.cst_reader_tensor(self._handle, number)
            tensor = cast(address, POINTER(cst_reader_tensor)).contents
            shape = tuple(tensor.shape[i] for i in range(tensor.n_dims))
            found.append(
                ReaderTensor(
                    tensor.name.decode(),
                    None if tensor.file_name is None else tensor.file_name.decode(),
                    shape,
                    Dtype(tensor.dtype),
                    tensor.frozen,
                    tensor.bytes,
                )
            )
        return found

    def text(self, function: str) -> str | None:
        """Return what a function of libcistern says of the job; None: the job has no such text."""
        text = getattr(self.lib, function)(self._handle)
        return None if text is None else text.decode()

    def memory(self, version: cst_reader_version, number: int, n_bytes: int) -> Array[c_char]:
        """Return the memory of the weights of a tensor, which keeps the mapping."""
        address = self.lib.cst_reader_weights(self._handle, byref(version), number)
        memory = (c_char * n_bytes).from_address(address)
        memory.mapping = self  # type: ignore[attr-defined]
        return memory


def check(status: int, err: cst_err) -> None:
    """Raise the error of a call of a reader, unless ``status`` is OK."""
    try:
        _library.check(status, err, connects=True)
    except StepVoid as error:  # For readers, the status is about the job.
        raise CstError(error.status, error.text, error.reason) from None

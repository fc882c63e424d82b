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

import json
import os
import sys
import time
from collections.abc import Iterator
from ctypes import POINTER, Array, byref, c_char, c_void_p, cast
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from cistern import _library, checks
from cistern._abi import (
    Dtype,
    Status,
    cst_err,
    cst_reader_tensor,
    cst_reader_version,
    cst_reader_wish,
)
from cistern.calls import Path
from cistern.errors import CstError, StaleVersion, StepVoid

if TYPE_CHECKING:
    from typing_extensions import Self

_WAIT_S = 0.25  # Of a call of libcistern, which the handler of a signal cannot interrupt.
#: The daemon or the job has ended, so that nothing is held.
_ENDED = (Status.ECONN, Status.ESTALE, Status.ECANCELLED, Status.ENOTFOUND)

View = TypeVar("View")
AnyVersion = TypeVar("AnyVersion", bound="VersionOf[Any]")


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

    def __del__(self) -> None:
        # The child of a fork has no such memory, and can have other memory at these addresses.
        if self._handle is not None and not sys.is_finalizing() and self._process == os.getpid():
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


def _file_name(tensor: ReaderTensor) -> str:
    if tensor.file_name is None:
        raise ValueError(
            f"cistern: model files do not have tensor '{tensor.name}' as it is: it is a part of a larger tensor,"
            " it has parts of several, or they have it transposed"
        )
    return tensor.file_name


def _safetensors(tensors: dict[str, tuple[ReaderTensor, Array[c_char]]]) -> bytes:
    """Return the contents of a file of safetensors, by the names in it."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (tensor, _) in tensors.items():
        begin, end = end, end + tensor.bytes
        header[name] = {
            "dtype": "BF16" if tensor.dtype == Dtype.BF16 else "F32",
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = [bytes(memoryview(memory).cast("B")) for _, memory in tensors.values()]
    return len(text).to_bytes(8, "little") + text + b"".join(data)


class VersionOf(Generic[View]):
    """The weights after a committed step, which the reader holds until ``release``.

    ``version[name]`` is a view of the mapped memory. Nothing is copied. The view can be used until
    the version is released or lost; ``check`` tells whether it was lost. The end of a ``with`` block
    releases the version.
    """

    def __init__(self, reader: ReaderOf[Any], version: cst_reader_version) -> None:
        self.reader = reader
        self.step: int = version.step  #: Number of steps that are committed in it.
        self._version: cst_reader_version | None = version

    @property
    def is_held(self) -> bool:
        """Whether the version was not released."""
        return self._version is not None

    def _held(self) -> cst_reader_version:
        if self._version is None:
            raise ValueError(f"cistern: the version of step {self.step} is released")
        return self._version

    def __getitem__(self, name: str) -> View:
        """Return the weights of a tensor. KeyError: the job has no such tensor."""
        tensor = self.reader.tensors[self.reader.number(name)]
        return self._view(tensor, self._memory(tensor))

    def _memory(self, tensor: ReaderTensor) -> Array[c_char]:
        number = self.reader.number(tensor.name)
        return self.reader.mapping.memory(self._held(), number, tensor.bytes)

    def _view(self, tensor: ReaderTensor, memory: Array[c_char]) -> View:
        raise NotImplementedError

    def keys(self) -> list[str]:
        """Return the names of all tensors in the order of declaration."""
        return [tensor.name for tensor in self.reader.tensors]

    def items(self) -> Iterator[tuple[str, View]]:
        """Yield the name and the weights of each tensor."""
        for name in self.keys():
            yield name, self[name]

    def named_weights(self) -> Iterator[tuple[str, View]]:
        """Yield the name in model files and the weights of each tensor.

        If the job has adapters of PEFT, these are left out, and frozen weights have the names that they have
        without PEFT. ValueError: model files do not have a tensor as it is.
        """
        for tensor in self.reader.tensors:
            if tensor.frozen or self.reader.adapter_config is None:
                yield _file_name(tensor), self[tensor.name]

    def save_adapter(self, folder: Path) -> None:
        """Write adapter_model.safetensors and adapter_config.json of the trained weights to ``folder``.

        PEFT and inference engines load them. The job was attached with a model of PEFT. Existing files are
        replaced when the new ones are whole. Raises StaleVersion if the version is lost meanwhile, and ValueError
        if the job has no adapters; nothing is replaced then.
        """
        config = self.reader.adapter_config
        if config is None:
            raise ValueError(f"cistern: job '{self.reader.job}' has no adapters of PEFT")
        trained = {
            _file_name(tensor): (tensor, self._memory(tensor))
            for tensor in self.reader.tensors
            if not tensor.frozen
        }
        os.makedirs(folder, exist_ok=True)
        new = {
            "adapter_model.safetensors": _safetensors(trained),
            "adapter_config.json": config.encode(),
        }
        self.check()
        for name, contents in new.items():
            path = os.path.join(os.fsdecode(folder), name)
            with open(path + ".new", "wb") as file:
                file.write(contents)
        for name in new:
            path = os.path.join(os.fsdecode(folder), name)
            os.replace(path + ".new", path)

    def check(self) -> None:
        """Return if everything that was read of this version up to now was of its step.

        Call it after reading, and before the result of the computation is used. Copies to a GPU that are
        under way have not been read yet: wait for them before.

        Raises StaleVersion if the version is lost, DaemonGone, ValueError if it is released.
        """
        try:
            self.reader._call("cst_reader_check", byref(self._held()))
        except CstError as error:
            if error.status != Status.ESTALE:
                raise
            raise StaleVersion(error.status, error.text, error.reason, self.step) from None

    def release(self) -> None:
        """Hold the version no more. It can be released twice."""
        version, self._version = self._version, None
        if version is not None and not self.reader.is_closed:
            self.reader._release(version)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.release()


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
        if self._mapping is None:
            return
        try:
            for version in list(self._versions.values()):
                self._release(version)
        finally:
            self._mapping = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()


class Version(VersionOf[memoryview]):
    """A version whose weights are views of the format "f", or "H" with the bits of bf16.

    The views are read-only and have the shape of the tensor.
    """

    def _view(self, tensor: ReaderTensor, memory: Array[c_char]) -> memoryview:
        bits: Any = memoryview(memory).cast("B")
        format = "H" if tensor.dtype == Dtype.BF16 else "f"
        view: memoryview = bits.cast(format, tensor.shape) if tensor.shape else bits.cast(format)
        return view.toreadonly()


class Reader(ReaderOf[Version]):
    __doc__ = ReaderOf.__doc__
    _kind = Version


def reader(job: str, *, socket: Path | None = None) -> Reader:
    """Return a reader of ``job``: ``Reader(job, socket=socket)``."""
    return Reader(job, socket=socket)

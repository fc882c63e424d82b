# SPDX-License-Identifier: Apache-2.0
"""Versions of the weights of a job, as readers have them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from ctypes import Array, byref, c_char
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from cistern._abi import Dtype, Status, cst_reader_version
from cistern.calls import Path
from cistern.errors import CstError, StaleVersion
from cistern.mapping import ReaderTensor

if TYPE_CHECKING:
    from typing_extensions import Self

    from cistern.readers import ReaderOf

View = TypeVar("View")


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


class Version(VersionOf[memoryview]):
    """A version whose weights are views of the format "f", or "H" with the bits of bf16.

    The views are read-only and have the shape of the tensor.
    """

    def _view(self, tensor: ReaderTensor, memory: Array[c_char]) -> memoryview:
        bits: Any = memoryview(memory).cast("B")
        format = "H" if tensor.dtype == Dtype.BF16 else "f"
        view: memoryview = bits.cast(format, tensor.shape) if tensor.shape else bits.cast(format)
        return view.toreadonly()


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

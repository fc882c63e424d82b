# SPDX-License-Identifier: Apache-2.0
"""States of the tensors of a job: read, written, saved and loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ctypes import byref, c_uint64
from typing import Any

from cistern import _library, checks
from cistern._abi import (
    State,
    WantsCallback,
    cst_load_model_result,
    cst_load_model_spec,
    cst_load_result,
)
from cistern.calls import Calls, Path
from cistern.checkpoint import SaveResult
from cistern.declared import Declared
from cistern.memory import Buffer, address_of, element_bytes, new_elements
from cistern.results import HyperParams, LoadModelResult, LoadResult


class States(Calls):
    """The calls of a job for its states. ``Job`` has them."""

    _declarations: Declared

    def tensor_read(
        self, tensor: int, state: State, first: int = 0, n_elems: int | None = None
    ) -> memoryview:
        """Return elements of a state of ``tensor``, by default all from ``first`` on.

        The format of the view is "f" for fp32 states, and "H", the bits of bf16, for the weights
        and the gradient of a bf16 tensor. Raises DeviceLost, CstError: EINVAL, EUNSUPPORTED, EBUSY.
        """
        n = self._declarations.n_elems_from(tensor, first) if n_elems is None else n_elems
        out = new_elements(state, self._declarations.dtype(tensor), n)
        self.read_to(tensor, state, first, n, address_of(out))
        return out

    def tensor_write(self, tensor: int, state: State, data: Buffer, first: int = 0) -> None:
        """Write ``data``, contiguous elements in the type of the state, to ``tensor``.

        Master weights set the weights, too. Before the first ``sync`` of a job they clear the moments.
        Weights of a trained bf16 tensor last until its next update, made of the master weights.
        The type is fp32 for master weights and moments, and the tensor's for the weights. Possible
        between steps only. Raises DeviceLost, CstError: EINVAL, EUNSUPPORTED, EBUSY, EDENIED.
        """
        view = memoryview(data).cast("B")
        n_bytes = element_bytes(state, self._declarations.dtype(tensor))
        if view.nbytes % n_bytes != 0:
            raise ValueError(f"{view.nbytes} bytes are no elements of the state {state.name}")
        if view.readonly:
            view = memoryview(bytearray(view))
        n = view.nbytes // n_bytes
        self.write_from(tensor, state, first, n, address_of(view))

    def read_to(self, tensor: int, state: State, first: int, n_elems: int, address: int) -> None:
        """Copy elements of a state of ``tensor`` to the ``address``, in host memory."""
        checks.integer("first", first)
        checks.integer("n_elems", n_elems)
        self._call("cst_tensor_read", tensor, state, first, n_elems, address)

    def write_from(self, tensor: int, state: State, first: int, n_elems: int, address: int) -> None:
        """Copy elements from the ``address``, in host memory, to a state of ``tensor``."""
        checks.integer("first", first)
        self._call("cst_tensor_write", tensor, state, first, n_elems, address)

    def set_steps(
        self, steps: int, n_skipped: int = 0, missed: Mapping[int, int] | None = None
    ) -> None:
        """Say which step the job is at, for states that ``tensor_write`` has written.

        ``n_skipped`` of the ``steps`` have changed nothing; bias corrections count the others. ``missed``
        has in how many of these a tensor was skipped, by its number; by default in none. One rank does
        this, before ``sync`` of all ranks. Raises ValueError, DeviceLost, CstError: EINVAL, EBUSY.
        """
        checks.integer("steps", steps)
        checks.integer("n_skipped", n_skipped, 0, steps)
        array = (c_uint64 * self._declarations.n_tensors)()
        for tensor, n in (missed or {}).items():
            array[tensor] = checks.integer("missed", n, 0, steps)
        self._call("cst_set_steps", steps, n_skipped, array)

    def missed_steps(self) -> list[int]:
        """Return in how many steps each tensor was skipped, as for ``set_steps``.

        Raises CstError: EINVAL, EBUSY.
        """
        missed = (c_uint64 * self._declarations.n_tensors)()
        self._call("cst_missed_steps", missed)
        return list(missed)

    def save(self, dir: Path, **options: Any) -> SaveResult:
        """Write a checkpoint of this job: ``Client.save`` with the client of this rank."""
        return self.client.save(self.name, dir, **options)

    def load(self, path: Path) -> LoadResult:
        """Load the checkpoint at ``path``, or the newest whole one of a directory.

        One rank does this, after ``commit`` and before ``sync``. Parts of larger tensors
        (``whole_name``) are cut out of these, whatever parts and ranks the saved job had. Raises
        Mismatch (other tensors, another optimizer, or parts that leave out elements), CstError:
        ENOTFOUND, EINVAL (a file is altered), EUNSUPPORTED, EBUSY.
        """
        result, where = cst_load_result(), _library.text("path", path)

        def loaded() -> LoadResult:
            values = _library.fields(result)
            values["params"] = HyperParams(**_library.fields(result.params))
            return LoadResult(**values)

        return self.client.wait(
            lambda err: self.lib.cst_try_load(self.handle, where, byref(result), err), loaded
        )

    def load_model(
        self,
        path: Path,
        *,
        prefix: str | None = None,
        wants: Callable[[str], bool] | None = None,
    ) -> LoadModelResult:
        """Write the weights of safetensors files of other programs to this job, which is new.

        ``path`` is a file or a directory. Files may leave out the beginning ``prefix`` of names.
        ``wants`` returns whether a tensor of the job is to be loaded. Parts of larger tensors are
        cut out of these. One rank does this, after ``commit`` and before ``sync``. Raises
        Mismatch (parts that leave out elements), CstError: ENOTFOUND, EINVAL (a tensor is missing or
        has another shape), EEXIST (the job has states), EBUSY, EIO.
        """
        raised: list[BaseException] = []

        def wanted(_: Any, name: bytes) -> bool:
            try:
                return wants is None or bool(wants(name.decode()))
            except BaseException as error:  # noqa: BLE001 (raised again below)
                raised.append(error)
                return False

        spec = cst_load_model_spec(
            path=_library.text("path", path),
            prefix=_library.text("prefix", prefix),
            wants=WantsCallback(wanted),
        )
        result = cst_load_model_result()
        try:
            self._call("cst_load_model", byref(spec), byref(result))
        finally:
            if raised:
                raise raised[0]
        return LoadModelResult(**_library.fields(result))

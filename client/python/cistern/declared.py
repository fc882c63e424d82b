# SPDX-License-Identifier: Apache-2.0
"""What a job has declared, as far as reading and writing its tensors needs it."""

from __future__ import annotations

from collections.abc import Sequence

from cistern._abi import Dtype


class Declared:
    """The sizes and types of tensors, and the types of the tensors of operators, by their numbers.

    libcistern refuses numbers that do not exist. Here, such a tensor is bf16 and has no elements, and
    such an operator has no tensors.
    """

    def __init__(self) -> None:
        self._elements: list[int] = []  # By tensor.
        self._dtypes: list[Dtype] = []  # By tensor.
        self._dtypes_of: list[list[Dtype]] = []  # By operator.

    def add_tensor(self, n_elems: int, dtype: Dtype) -> None:
        """Note the tensor that is declared next."""
        self._elements.append(n_elems)
        self._dtypes.append(dtype)

    def add_operator(self, tensors: Sequence[int]) -> None:
        """Note the operator that is declared next."""
        self._dtypes_of.append([self.dtype(tensor) for tensor in tensors])

    @property
    def n_tensors(self) -> int:
        return len(self._dtypes)

    def dtype(self, tensor: int) -> Dtype:
        """Return the type of a tensor."""
        return self._dtypes[tensor] if 0 <= tensor < len(self._dtypes) else Dtype.BF16

    def n_elems_from(self, tensor: int, first: int) -> int:
        """Return the number of elements of a tensor from ``first`` on."""
        n = self._elements[tensor] if 0 <= tensor < len(self._elements) else 0
        return max(n - first, 0)

    def dtypes_of(self, op: int) -> list[Dtype]:
        """Return the types of the tensors of an operator."""
        return self._dtypes_of[op] if 0 <= op < len(self._dtypes_of) else []

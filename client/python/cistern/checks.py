# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments.

Each function returns a value that it was given, or raises TypeError or ValueError. The text names the
argument, the value and what is required.
"""

from __future__ import annotations

import math
import os
import reprlib
from collections.abc import Iterable
from enum import IntEnum
from operator import index
from typing import Any, NoReturn, TypeVar

_Member = TypeVar("_Member", bound=IntEnum)
_Value = TypeVar("_Value")

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


def refuse_type(name: str, value: object, required: str) -> NoReturn:
    """Raise TypeError: ``value`` is of a wrong type."""
    raise TypeError(
        f"cistern: {name} is {_short.repr(value)}, of {type(value)}: {required} is required"
    )


def refuse_value(name: str, value: object, required: str) -> NoReturn:
    """Raise ValueError: there is no such value."""
    raise ValueError(f"cistern: {name} is {_short.repr(value)}: {required} is required")


def instance(name: str, value: _Value, kind: type | tuple[type, ...], required: str) -> _Value:
    """Return ``value``, which is of one of the types ``kind``."""
    if not isinstance(value, kind):
        refuse_type(name, value, required)
    return value


def integer(name: str, value: Any, least: int = 0, most: int | None = None) -> int:
    """Return ``value`` as an int. It is an integer, of any type but bool."""
    required = f"an integer from {least} " + ("on" if most is None else f"to {most}")
    try:
        number = index(value)
    except TypeError:
        refuse_type(name, value, required)
    if isinstance(value, bool):
        refuse_type(name, value, required)
    if number < least or (most is not None and number > most):
        refuse_value(name, number, required)
    return number


def number(name: str, value: Any, low: float = 0.0, high: float = math.inf) -> float:
    """Return ``value`` as a float. It is finite, and in [``low``, ``high``)."""
    if isinstance(value, bool | str):
        refuse_type(name, value, "a number")
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # As of a tensor of two elements.
        refuse_type(name, value, "a number")
    if not (math.isfinite(found) and low <= found < high):
        refuse_value(name, found, f"{low:g} <= {name} < {high:g}")
    return found


def flag(name: str, value: Any) -> bool:
    """Return ``value``, which is True or False."""
    return bool(instance(name, value, bool, "True or False"))


def path(name: str, value: Any) -> Any:
    """Return ``value``, which is a path or None."""
    return instance(name, value, (str, bytes, os.PathLike, type(None)), "a path")


def member(kind: type[_Member], name: str, value: Any) -> _Member:
    """Return the member of ``kind`` that ``value`` is, or of which it is the name or the number."""
    required = f"one of {', '.join(known.name.lower() for known in kind)}"
    if isinstance(value, bool) or not isinstance(value, int | str):
        refuse_type(name, value, required)
    for known in kind:
        if value == known or str(value).upper() == known.name:
            return known
    refuse_value(name, value, required)


def integers(name: str, values: Any, least: int = 0, most: int | None = None) -> list[int]:
    """Return ``values``, which are several integers, as a list."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        refuse_type(name, values, "a sequence of integers")
    return [integer(f"{name}[{i}]", value, least, most) for i, value in enumerate(values)]

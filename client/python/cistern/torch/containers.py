# SPDX-License-Identifier: Apache-2.0
"""The tensors in what a module is given and returns.

Tuples, lists, dictionaries and dataclasses are looked into; objects of other classes, such as a cache
of keys and values, are not.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import types
from collections.abc import Callable, Iterable
from operator import is_
from typing import Any

import torch
from torch import nn

from cistern.torch.nodes import Copy
from cistern.torch.storage import has_memory, is_lent

_WITHOUT_TENSORS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


class Given:
    """The arguments of a module, in which other tensors stand while the module runs.

    The module can change the lists, dictionaries and dataclasses in them, such as by an append, and the
    caller sees the changes. They are therefore changed in place here, those that are frozen too, and get
    their own tensors back. It can also change tensors in place.
    """

    __slots__ = ("_args", "_containers", "_kwargs", "_own", "_stand_ins", "tensors")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._args = args
        self._kwargs = kwargs
        self.tensors: list[torch.Tensor] = []  #: In the arguments, at any depth.
        self._containers: dict[
            int, Any
        ] = {}  # The lists, dictionaries and dataclasses in them, by their ids.
        self._own: dict[int, torch.Tensor] = {}  # By the ids of what stands in their places.
        for value in (*args, *kwargs.values()):
            _look_into(value, self.tensors, self._containers)
        self._stand_ins = self.tensors

    def replaced(self, new: dict[int, torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with the tensors of ``new`` for those whose ids are its keys."""
        self._stand_ins = [new.get(id(t), t) for t in self.tensors]
        if self._containers:
            self._own = {id(new[id(t)]): t for t in self.tensors if id(t) in new}
            _replace_in(self._containers.values(), new)
        args = tuple([_exchanged(value, new) for value in self._args])
        return args, {name: _exchanged(value, new) for name, value in self._kwargs.items()}

    def restore(self) -> None:
        """Give the lists, dictionaries and dataclasses their own tensors back, when the module has ended."""
        if self._containers:
            _replace_in(self._containers.values(), self._own)

    def changed(self, entered: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the tensors that the module has changed in place, each with what stood in for it.

        Those that need no gradient after the change are not among them. ``entered`` is the node of the
        graph that all those come from that needed one before.
        """
        found = {}
        for own, tensor in zip(self.tensors, self._stand_ins, strict=True):
            before = None if tensor is own else entered
            if tensor.requires_grad and tensor.grad_fn is not before:
                found[id(own)] = own, tensor
        return list(found.values())

    def added(self) -> list[torch.Tensor]:
        """Return the tensors that need a gradient and that the module has put into containers."""
        if not self._containers:
            return []
        tensors: list[torch.Tensor] = []
        before, self._containers = self._containers, {}
        for container in before.values():
            _look_into(container, tensors, self._containers)
        known = set(map(id, self.tensors))
        return distinct_needing_grad(t for t in tensors if id(t) not in known)

    def replace_added(self, new: dict[int, torch.Tensor]) -> None:
        """Put the tensors of ``new`` into the containers, for those whose ids are its keys."""
        _replace_in(self._containers.values(), new)


def distinct_needing_grad(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return those of ``tensors`` that need a gradient, each once."""
    return list({id(tensor): tensor for tensor in tensors if tensor.requires_grad}.values())


def needing_grad(value: Any) -> list[torch.Tensor]:
    """Return the tensors in ``value`` that need a gradient, each once."""
    if isinstance(value, torch.Tensor):
        return [value] if value.requires_grad else []
    return distinct_needing_grad(_tensors(value))


def unseen(value: Any, known: set[int] | None = None) -> list[type]:
    """Return classes of objects in ``value`` that can have tensors, which are not found there.

    ``known`` are the ids of what need not be looked into again.
    """
    known = set() if known is None else known
    if isinstance(value, (torch.Tensor, *_WITHOUT_TENSORS)) or id(value) in known:
        return []
    known.add(id(value))
    found: list[type] = []
    if isinstance(value, tuple):
        items = list(value)
    elif _is_container(value):
        items = [item for _, _, item in _parts(value)]
    else:
        return [type(value)]
    for item in items:
        found += unseen(item, known)
    return found


def copies_of_lent(tensors: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return copies of those of ``tensors`` that have memory lent to a parameter, by their ids.

    Such a tensor is a parameter or a view of one. It loses its memory when its unit is closed.
    """
    return {
        id(tensor): Copy.apply(tensor)
        for tensor in tensors
        if is_lent(tensor) and has_memory(tensor.untyped_storage())
    }


def copies_in(value: Any) -> dict[int, torch.Tensor]:
    """Return ``copies_of_lent`` of the tensors in ``value``."""
    if isinstance(value, torch.Tensor) and not is_lent(value):
        return {}
    return copies_of_lent(_tensors(value))


def replaced(value: Any, new: dict[int, torch.Tensor], copies: bool = False) -> Any:
    """Return ``value`` with the tensors of ``new`` in place of those whose ids are its keys.

    Lists and dictionaries in which something is replaced are new, because their owner can go on to use
    them. Those of a subclass, such as the output of a model, and dataclasses are changed in place:
    they are what the module may keep. If ``new`` has ``copies`` of parameters, they are new, too,
    because their owner goes on to use the parameters. What ``value`` has several times is replaced by
    one thing.
    """
    return _Replacing(new, copies).of(value)


class _Replacing:
    """A call of ``replaced``."""

    def __init__(self, new: dict[int, torch.Tensor], copies: bool) -> None:
        self.new = new
        self.copies = copies
        self.done: dict[int, tuple[Any, Any]] = {}  # What stands for each container, by its id.

    def of(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.new.get(id(value), value)
        if isinstance(value, tuple):
            return _like(value, [self.of(item) for item in value])
        if id(value) in self.done:
            return self.done[id(value)][1]
        if not _is_container(value):
            return value
        self.done[id(value)] = value, value  # A circle ends here.
        result = self._of_container(value)
        self.done[id(value)] = value, result
        return result

    def _of_container(self, value: Any) -> Any:
        changed = []
        for put, key, item in _parts(value):
            new = self.of(item)
            if new is not item:
                changed.append((put, key, new))
        if not changed:
            return value
        is_plain = type(value) in (list, dict)
        result = _copy_of(value) if is_plain or self.copies else value
        for put, key, new in changed:
            put(result, key, new)
        return result


def _exchanged(value: Any, new: dict[int, torch.Tensor]) -> Any:
    """Return ``value`` with the tensors of ``new``. What can be changed in place stays as it is."""
    if isinstance(value, torch.Tensor):
        return new.get(id(value), value)
    if isinstance(value, tuple):
        return _like(value, [_exchanged(item, new) for item in value])
    return value


def _replace_in(containers: Iterable[Any], new: dict[int, torch.Tensor]) -> None:
    """Put the tensors of ``new`` into lists, dictionaries and dataclasses, in place."""
    for container in containers:
        for put, key, item in _parts(container):
            changed = _exchanged(item, new)
            if changed is not item:
                put(container, key, changed)


def _is_container(value: Any) -> bool:
    """Return whether ``value`` is a list, a dictionary or a dataclass: it has parts, and can be changed."""
    return isinstance(value, (list, dict)) or _is_looked_into(type(value))


def _parts(value: Any) -> list[tuple[Callable[[Any, Any, Any], None], Any, Any]]:
    """Return what is in a container, each with the function that sets it, and its key.

    A dataclass can also be a list or a dictionary: it has the items and the fields.
    """
    parts: list[tuple[Callable[[Any, Any, Any], None], Any, Any]] = []
    if isinstance(value, list):
        parts = [(_set_item, i, item) for i, item in enumerate(value)]
    elif isinstance(value, dict):
        parts = [(_set_item, key, item) for key, item in value.items()]
    if _is_looked_into(type(value)):
        parts += [(_set_field, name, item) for name, item in _fields(value)]
    return parts


def _ask_looked_into(kind: type) -> bool:
    """Return whether objects of a class are looked into: it is a dataclass, and no module."""
    return dataclasses.is_dataclass(kind) and not issubclass(kind, nn.Module)


def _find_slots(kind: type) -> tuple[str, ...]:
    """Return the attributes of a class that are in slots, fields and others."""
    slot = types.MemberDescriptorType
    of_python = [vars(base) for base in kind.__mro__ if "__slots__" in vars(base)]
    names = dict.fromkeys(n for own in of_python for n, a in own.items() if isinstance(a, slot))
    return tuple(n for n in names if isinstance(getattr(kind, n, None), slot))


_is_looked_into: Any = functools.lru_cache(maxsize=1024)(_ask_looked_into)
_slots_of: Any = functools.lru_cache(maxsize=1024)(_find_slots)


def _fields(value: Any) -> list[tuple[str, Any]]:
    """Return what a dataclass keeps, by name: its fields and other attributes, such as cached properties."""
    slots = _slots_of(type(value))
    kept = [(name, getattr(value, name)) for name in slots if hasattr(value, name)]
    return [*getattr(value, "__dict__", {}).items(), *kept]


def _set_field(value: Any, name: str, item: Any) -> None:
    """Set what ``_fields`` returns under ``name``. Those of frozen dataclasses are set, too."""
    if name in _slots_of(type(value)):
        object.__setattr__(value, name, item)
    else:
        value.__dict__[name] = item


def _copy_of(value: Any) -> Any:
    """Return a copy of a container, with the same parts. TypeError: its class does not make one.

    Of a dataclass without a base of C, such as a list or Exception, no function of its class is called.
    """
    if not isinstance(value, (list, dict)):
        try:
            result = object.__new__(type(value))
        except TypeError:
            return _copy_by_class(value)
        for name, item in _fields(value):
            _set_field(result, name, item)
        return result
    return value.copy() if type(value) in (list, dict) else _copy_by_class(value)


def _copy_by_class(value: Any) -> Any:
    cause: Exception | None = None
    try:
        result = copy.copy(value)
        if _are_same_parts(result, value):
            return result
    except Exception as error:  # noqa: BLE001 (the class of a program can raise anything)
        cause = error
    raise TypeError(_NO_COPY.format(type(value).__qualname__)) from cause


def _are_same_parts(some: Any, others: Any) -> bool:
    mine, theirs = ({(put, key): i for put, key, i in _parts(of)} for of in (some, others))
    return mine.keys() == theirs.keys() and all(mine[key] is theirs[key] for key in mine)


def _set_item(container: Any, key: Any, item: Any) -> None:
    """Set an item of a list or a dictionary. Lists whose class refuses changes are changed, too.

    A dictionary's class does it itself: the items of the output of a model are also attributes.
    """
    if isinstance(container, list):
        list.__setitem__(container, key, item)
    else:
        container[key] = item


def _like(value: tuple[Any, ...], items: list[Any]) -> tuple[Any, ...]:
    """Return a tuple of ``items`` of the type of ``value``, or ``value`` if these are its own."""
    if _are_same(value, items):
        return value
    kind: Any = type(value)
    if kind is tuple:
        return tuple(items)
    if hasattr(
        kind, "n_sequence_fields"
    ):  # As in torch.return_types, whose classes have a ``__new__`` of C.
        made: tuple[Any, ...] = kind(items)
        return made
    made = tuple.__new__(
        kind, items
    )  # Without the ``__new__`` of the class, which can want other arguments.
    if hasattr(value, "__dict__"):
        made.__dict__.update(value.__dict__)
    return made


def _are_same(some: Iterable[Any], others: Iterable[Any]) -> bool:
    return all(map(is_, some, others))


def _tensors(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    _look_into(value, found, {})
    return found


def _look_into(value: Any, tensors: list[torch.Tensor], containers: dict[int, Any]) -> None:
    """Add what is in ``value`` to ``tensors``, and what can be changed in place to ``containers``."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
    elif value is None or id(value) in containers:
        pass
    elif isinstance(value, tuple):
        for item in value:
            _look_into(item, tensors, containers)
    elif _is_container(value):
        containers[id(value)] = value
        for _, _, item in _parts(value):
            _look_into(item, tensors, containers)


_NO_COPY = (
    "cistern: a module returns an object of class '{0}' that has a parameter of the module, or a view of one,"
    " in it. The caller would be given a copy, because the weights are in memory only while the module runs,"
    " but copy.copy makes none of this class with the same attributes and items: let the class have a"
    " __copy__ that does, or the module return a copy of the parameter (x.clone())"
)

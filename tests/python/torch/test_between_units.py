# SPDX-License-Identifier: Apache-2.0
"""What passes between units in dataclasses and in subclasses of Tensor, and hooks of tensors in units."""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
import unittest
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import torch
from cistern import State
from models import DEVICE, TorchCase, bits, copy_weights, square
from torch import nn


@dataclasses.dataclass
class Out:
    h: Any
    other: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    h: Any
    other: Any = None


@dataclasses.dataclass(slots=True)
class Slots:
    h: Any
    other: Any = None


@dataclasses.dataclass
class NotCopied(Out):
    def __copy__(self) -> NoReturn:
        raise AssertionError


@dataclasses.dataclass(slots=True)
class HalfInSlots(Out):
    more: Any = None


class WithSlots:
    __slots__ = ("__hidden", "note", "unset")

    def hide(self, value: Any) -> None:
        self.__hidden = value

    def hidden(self) -> Any:
        return self.__hidden


@dataclasses.dataclass(slots=True)
class MoreInSlots(WithSlots):
    h: Any
    other: Any = None


@dataclasses.dataclass
class Error(Exception):
    h: Any
    other: Any = None


@dataclasses.dataclass
class Cached(Out):
    @functools.cached_property
    def total(self) -> Any:
        return self.h.sum() + self.other.sum()

    @functools.cached_property
    def transposed(self) -> Any:
        return self.other.t()


class Hidden(Out):
    """Has what it keeps behind a property."""

    def __init__(self, h: Any, other: Any) -> None:
        self._other = other
        self.h = h

    @property
    def other(self) -> Any:
        return self._other


@dataclasses.dataclass
class InList(list[Any]):
    h: Any
    other: Any = None


@dataclasses.dataclass(frozen=True)
class InDict(dict[str, Any]):
    h: Any
    other: Any = None


@dataclasses.dataclass(slots=True)
class InSlotsOfList(list[Any]):
    h: Any
    other: Any = None


@dataclasses.dataclass
class InDeque(collections.deque[Any]):
    h: Any
    other: Any = None


@dataclasses.dataclass
class InOrderedDict(collections.OrderedDict[str, Any]):
    h: Any
    other: Any


class Own:
    def __init__(self, h: Any) -> None:
        self.h = h


class Special(torch.Tensor):
    def twice(self) -> torch.Tensor:
        return self * 2


Run = Callable[[nn.Linear, Any], Any]


class Unit(nn.Linear):
    """A unit that does what ``run`` says."""

    run: Run
    kept: Any = None

    def forward(self, x: Any) -> Any:
        return self.run(self, x)

    def linear(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


class Model(nn.Module):
    """Units, of which ``get`` takes the tensor for the next one out of what they return."""

    def __init__(self, run: Run, get: Callable[[Any], Any], gives: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Unit(4, 4) for _ in range(3))
        for layer in self.layers:
            layer.run = run
        self.get = get
        self.gives = gives  # Units are given what others return.

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            y = layer(x)
            x = y if self.gives else self.get(y)
        return self.get(x) if self.gives else x


class Case(TorchCase):
    def compare(self, run: Run, get: Callable[[Any], Any], **options: Any) -> None:
        for name, units in (("found", []), ("whole", [""])):
            with self.subTest(units=name):
                twin, store = self.twins(lambda: Model(run, get, **options), units=units)
                self.compare_steps(twin, store, loss=square)
                store.close(remove=True)


class Dataclasses(Case):
    def test_tensors_in_the_fields(self) -> None:
        for kind in (Out, Frozen, Slots):
            for nested in (
                lambda y: [y * 2],
                lambda y: {"a": (y * 2, 1)},
                lambda y: [Frozen(y * 2), None],
            ):
                with self.subTest(kind=kind.__name__):

                    def run(
                        unit: Any, x: torch.Tensor, kind: Any = kind, make: Any = nested
                    ) -> Any:
                        y = unit.linear(x)
                        return kind(y[:], make(y))

                    def get(out: Any, kind: Any = kind) -> Any:
                        self.assertIs(type(out), kind)
                        other = next(
                            iter(out.other.values() if isinstance(out.other, dict) else out.other)
                        )
                        other = other[0] if isinstance(other, tuple) else other
                        return out.h + (other.h if isinstance(other, Frozen) else other)

                    self.compare(run, get)

    def test_a_module_changes_the_one_that_it_is_given(self) -> None:
        def run(unit: Any, out: Any) -> Any:
            out = out if isinstance(out, Out) else Out(out, [])
            out.h = torch.tanh(unit.linear(out.h))
            out.other.append(out.h.mean())
            return out

        def get(out: Out) -> torch.Tensor:
            return torch.cat([out.h.flatten(), torch.stack(out.other)])

        self.compare(run, get, gives=True)

    def test_one_that_is_only_read_stays_the_same(self) -> None:
        """Frozen ones, too. Attributes that are no fields, fields without a value and circles remain."""
        seen: list[bool] = []

        def run(unit: Any, given: Any) -> Any:
            if isinstance(given, torch.Tensor):
                out = Out(unit.linear(given)[:])
                out.other, out.note = out, "note"  # type: ignore[attr-defined]
                return out
            seen.append(given.other is not None and given.note == "note")
            return Frozen(unit.linear(given.h), Frozen(given.h))

        class Reads(Model):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                first = self.layers[0](x)
                before = first.h
                second = self.layers[1](first)
                seen.append(first.h is before)
                return second.h + second.other.h + self.layers[2](x).h

        twin, store = self.twins(lambda: Reads(run, lambda out: out))
        self.compare_steps(twin, store, loss=square)
        self.assertEqual(set(seen), {True})

    def test_a_parameter_in_one_that_the_module_keeps(self) -> None:
        """What it returns has a copy of the weight, and what it keeps has the weight of the next step."""

        def run(unit: Any, x: torch.Tensor) -> Any:
            if unit.kept is None:
                unit.kept = Out(unit.weight)
            return Out(unit.linear(x), unit.kept)

        self.compare(run, lambda out: out.h + out.other.h.sum())

    def test_a_parameter_in_attributes_of_any_kind(self) -> None:
        for kind in (NotCopied, HalfInSlots, Cached, Hidden):

            def run(unit: Any, x: torch.Tensor, kind: Any = kind) -> Any:
                out = kind(unit.linear(x), unit.weight)
                if kind is Cached:
                    _ = out.total, out.transposed
                return out

            def get(out: Any, kind: Any = kind) -> Any:
                self.assertIs(type(out), kind)
                cached = out.total + out.transposed[0] if kind is Cached else 0
                return out.h * out.other.sum() + cached

            with self.subTest(kind=kind.__name__):
                self.compare(run, get)

    def test_a_parameter_beside_slots_that_are_no_fields(self) -> None:
        def run(unit: Any, x: torch.Tensor) -> Any:
            out = MoreInSlots(unit.linear(x), unit.weight)
            out.note = "note"
            out.hide(unit.weight)
            return out

        def get(out: Any) -> Any:
            self.assertEqual((out.note, hasattr(out, "unset")), ("note", False))
            return out.h * out.other.sum() + out.hidden().mean()

        self.compare(run, get)

    def test_a_parameter_in_an_exception(self) -> None:
        def run(unit: Any, x: torch.Tensor) -> Any:
            return Error(unit.linear(x), unit.weight)

        def get(out: Any) -> Any:
            self.assertEqual((type(out), len(out.args)), (Error, 2))
            return out.h * out.other.sum()

        self.compare(run, get)

    def test_one_that_is_also_a_list_or_a_dictionary(self) -> None:
        """The weight is in a field, an item, or both. The module keeps another one than the caller has."""
        for kind in (InList, InSlotsOfList, InDict):
            is_dict = kind is InDict

            def run(unit: Any, x: torch.Tensor, kind: Any = kind, is_dict: bool = is_dict) -> Any:
                y = unit.linear(x)
                out = kind(y, unit.weight)
                if is_dict:
                    out.update(both=[unit.weight], y=y.chunk(1)[0])
                else:
                    out.extend([[unit.weight], y.chunk(1)[0]])
                unit.kept = out
                return out

            def get(out: Any, kind: Any = kind, is_dict: bool = is_dict) -> Any:
                self.assertEqual((type(out), len(out)), (kind, 2))
                both, y = out.values() if is_dict else out
                return out.h * out.other.sum() + y * both[0].mean()

            with self.subTest(kind=kind.__name__):
                self.compare(run, get)

    def test_one_that_cannot_be_copied_is_refused(self) -> None:
        """Its class has no copy, or one with other attributes. Without a parameter it needs none."""
        for kind in (InDeque, InOrderedDict):

            def run(unit: Any, x: torch.Tensor, kind: Any = kind) -> Any:
                return kind(unit.linear(x), unit.weight if unit.kept else None)

            with self.subTest(kind=kind.__name__):
                twin, store = self.twins(lambda run=run: Model(run, lambda out: out.h))
                self.compare_steps(twin, store, loss=square)
                store.model.layers[1].kept = True
                with self.assertRaisesRegex(
                    TypeError, f"class '{kind.__name__}' .*copy.copy makes none.*clone"
                ):
                    square(store.model, torch.empty(0))
                store.model.layers[1].kept = None
                self.compare_steps(twin, store, loss=square)
                store.close(remove=True)

    def test_one_that_the_module_keeps_is_that_of_the_caller(self) -> None:
        """Also if a tensor in it is replaced: an input that is returned, and a view of several outputs."""

        def run(unit: Any, x: torch.Tensor) -> Any:
            unit.kept = Out(unit.linear(x).chunk(1)[0], x)
            return unit.kept, unit.kept

        class Keeps(Model):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for layer in self.layers:
                    first, second = layer(x)
                    first.h = first.h * 3
                    layer.kept.other = layer.kept.other * 2
                    x = second.h + layer.kept.h + first.other
                return x

        twin, store = self.twins(lambda: Keeps(run, lambda out: out))
        self.compare_steps(twin, store, loss=square)

    def test_circles_of_several(self) -> None:
        def run(unit: Any, x: torch.Tensor) -> Any:
            out = Out(unit.linear(x).chunk(1)[0])
            out.other = [Out(out.h * 2, out), out]
            return out

        def get(out: Any) -> Any:
            self.assertIs(out.other[0].other, out)
            return out.other[1].h + out.other[0].h

        self.compare(run, get)

    def test_a_module_that_is_interrupted_gives_them_back(self) -> None:
        class Interrupts(Model):
            given: Any = None

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.given = Out(self.layers[0](x))
                return self.layers[1](self.given)

        interrupts = True

        def run(unit: Any, given: Any) -> Any:
            if not isinstance(given, Out):
                return unit.linear(given)
            if interrupts:
                raise KeyboardInterrupt
            return unit.linear(given.h)

        _, store = self.twins(lambda: Interrupts(run, lambda out: out))
        x = torch.ones(2, 4, dtype=torch.bfloat16, device=DEVICE)
        with self.assertRaises(KeyboardInterrupt):
            store.model(x)
        kept = store.model.given
        interrupts = False
        store.model(x)
        self.assertEqual(type(kept.h.grad_fn).__name__, "LeaveBackward")

    def test_other_classes_are_named(self) -> None:
        for make, kind in ((Own, "Own"), (lambda y: types.SimpleNamespace(h=y), "SimpleNamespace")):

            def run(unit: Any, x: torch.Tensor, make: Any = make) -> Any:
                return None, make(unit.linear(x))

            _, store = self.twins(lambda: Model(run, lambda out: out[1].h))
            loss = square(store.model, torch.empty(0))
            words = f"'layers.2.weight' .*Module 'layers.2' returns an object of class '{kind}'.*dataclass"
            with self.assertRaisesRegex(RuntimeError, words):
                loss.backward()
            store.close(remove=True)


class Subclasses(Case):
    def test_they_stay_what_they_are(self) -> None:
        def run(unit: Any, x: torch.Tensor) -> Any:
            x = x if isinstance(x, Special) else x.as_subclass(Special)
            self.assertIs(type(x), Special)
            y = unit.linear(x.twice())
            return [y, y[:, :2], y.chunk(2, 1)[1]]

        def get(out: Any) -> Any:
            self.assertEqual({type(y) for y in out}, {Special})
            return torch.cat([out[0] + out[1].twice().sum(), out[2].repeat(1, 2)])

        class Plain(Model):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return super().forward(x).as_subclass(torch.Tensor)

        twin, store = self.twins(lambda: Plain(run, get))
        self.compare_steps(twin, store, loss=square)

    @unittest.skipUnless(DEVICE == "cpu", "the memory that is looked at is that of numpy")
    def test_their_memory_is_free_when_nobody_has_them(self) -> None:
        """Also while there is a graph that needs no values of them."""

        class Source(torch.autograd.Function):
            @staticmethod
            def forward(_: Any, h: torch.Tensor) -> torch.Tensor:
                array = np.ones(h.numel() // 2, np.float32)
                arrays.append(weakref.ref(array))
                return torch.from_numpy(array).view(h.dtype).view_as(h)

            @staticmethod
            def backward(_: Any, grad: torch.Tensor) -> torch.Tensor:
                return grad

        class Makes(Model):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for layer in self.layers:
                    x = layer(Source.apply(x).as_subclass(Special)).as_subclass(torch.Tensor)
                return x

        arrays: list[weakref.ref[Any]] = []
        twin, store = self.twins(lambda: Makes(lambda unit, x: unit.linear(2 * x), lambda y: y))
        for model in (twin, store.model):
            arrays.clear()
            loss = square(model, torch.empty(0))
            self.assertEqual([array() for array in arrays], [None] * 3)
            loss.backward()

    def test_parameters_that_are_in_no_store_are_tensors_for_a_unit(self) -> None:
        seen = set()

        def run(unit: Any, x: torch.Tensor) -> torch.Tensor:
            seen.add(type(x))
            return unit.linear(x)

        twin, store = self.twins(lambda: Model(run, lambda y: y))
        copy_weights(store, twin)
        grads = []
        for model in (twin, store.model):
            seen.clear()
            x = nn.Parameter(torch.ones(3, 4, dtype=torch.bfloat16, device=DEVICE))
            model(x).float().square().sum().backward()
            grads.append(bits(x.grad))
        self.assertEqual(seen, {torch.Tensor})
        self.assertEqual(*grads)


class Hooks(Case):
    """Hooks that a unit gives its tensors see the whole gradient, and change it."""

    def test_of_what_it_returns(self) -> None:
        def hook(grad: torch.Tensor) -> torch.Tensor:
            return grad * 2 + 1

        def view(unit: Any, x: torch.Tensor) -> Any:
            y = unit.linear(x)
            v = y[:, :]
            v.register_hook(hook)
            return v

        def both(unit: Any, x: torch.Tensor) -> Any:
            y = unit.linear(x)
            v = y[:, :2]
            v.register_hook(hook)
            y.register_hook(hook)
            return y, v, v.tanh(), y[:2]

        def chunks(unit: Any, x: torch.Tensor) -> Any:
            a, b = unit.linear(x).chunk(2, 1)
            a.register_hook(hook)
            return b, a

        self.compare(view, lambda v: v)
        self.compare(both, lambda out: out[0] + (out[1] * out[2]).sum() + out[3].mean())
        self.compare(chunks, lambda out: torch.cat(out, 1))

    def test_retain_grad(self) -> None:
        def run(unit: Any, x: torch.Tensor) -> Any:
            y = unit.linear(x)
            v = y.view(3, 2, 2)
            y.retain_grad()
            v.retain_grad()
            unit.kept = y, v
            return y, v.tanh(), v.view(3, 4)

        def one(unit: Any, x: torch.Tensor) -> Any:
            y = unit.linear(x)
            y.retain_grad()
            unit.kept = (y,)
            return y, y.tanh()

        for function in (run, one):
            twin, store = self.twins(
                lambda f=function: Model(f, lambda out: out[0] + out[1].view(3, 4) + out[-1])
            )
            self.compare_steps(twin, store, loss=square)
            for layer, plain in zip(store.model.layers, twin.layers, strict=True):
                for ours, theirs in zip(layer.kept, plain.kept, strict=True):
                    self.assertEqual(bits(ours.grad), bits(theirs.grad))
            store.close(remove=True)

    def test_a_change_of_a_tensor_with_hooks_is_refused(self) -> None:
        def run(unit: Any, x: torch.Tensor) -> Any:
            y = unit.linear(x)
            v = y[:2]
            v.register_hook(lambda grad: grad * 2)
            return y, v

        class Doubles(Model):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for layer in self.layers:
                    x, v = layer(x)
                    x.mul_(3)
                    x = x + v.sum()
                return x

        _, store = self.twins(lambda: Doubles(run, lambda out: out))
        with self.assertRaisesRegex(RuntimeError, "is a view and is being modified inplace"):
            square(store.model, torch.empty(0))

    def test_of_what_it_is_given(self) -> None:
        """Those that would see a part of the gradient are refused."""

        def inside(unit: Any, x: torch.Tensor) -> Any:
            if x.requires_grad:
                x.register_hook(lambda grad: grad * 2 + 1)
            return unit.linear(x) + x

        def retains(unit: Any, x: torch.Tensor) -> Any:
            if x.requires_grad:
                x.retain_grad()
            return unit.linear(x)

        def view(unit: Any, x: torch.Tensor) -> Any:
            v = x[:2]
            if v.requires_grad:
                v.register_hook(lambda grad: grad * 2)
            return unit.linear(x) + v.mean(), v

        self.compare(inside, lambda y: y)
        for run, words in (
            (retains, "was called for a tensor that module 'layers.1' was given"),
            (view, "module 'layers.1' returns a view of a tensor that it was given"),
        ):
            _, store = self.twins(
                lambda r=run: Model(
                    r, lambda out: out[0] + out[1].sum() if type(out) is tuple else out
                )
            )
            with self.assertRaisesRegex(RuntimeError, words):
                square(store.model, torch.empty(0))
            store.close(remove=True)

    def test_of_an_input_by_a_forward_hook(self) -> None:
        def hook(_: Any, args: Any, __: Any) -> None:
            if args[0].requires_grad:
                args[0].register_hook(lambda grad: None)

        _, store = self.twins(lambda: Model(lambda unit, x: unit.linear(x), lambda y: y))
        store.model.layers[1].register_forward_hook(hook)
        loss = square(store.model, torch.empty(0))
        with self.assertRaisesRegex(RuntimeError, "tensor that module 'layers.1' was given"):
            loss.backward()


class Refused(Case):
    def test_forward_mode(self) -> None:
        """Without a gradient of the derivative it works."""
        import torch.autograd.forward_ad as forward

        twin, store = self.twins(lambda: Model(lambda unit, x: unit.linear(x), lambda y: y))
        copy_weights(store, twin)
        x = torch.ones(3, 4, dtype=torch.bfloat16, device=DEVICE)
        with forward.dual_level():
            with self.assertRaisesRegex(RuntimeError, "has no forward-mode derivatives"):
                store.model(forward.make_dual(x, x))
            with torch.no_grad():
                tangents = [
                    forward.unpack_dual(model(forward.make_dual(x, x))).tangent
                    for model in (twin, store.model)
                ]
        self.assertEqual(bits(tangents[0]), bits(tangents[1]))

    def test_export_and_trace(self) -> None:
        _, store = self.twins(lambda: Model(lambda unit, x: unit.linear(x), lambda y: y))
        x = torch.ones(3, 4, dtype=torch.bfloat16, device=DEVICE)
        for record in (
            lambda: torch.jit.trace(store.model, x),
            lambda: torch.export.export(store.model, (x,)),
            lambda: torch.jit.script(store.model),
            lambda: torch.jit.script(store.model.layers[0]),
        ):
            with self.assertRaisesRegex(RuntimeError, "cannot record this model"):
                record()

    def test_another_parameter_in_the_place_of_one(self) -> None:
        _, store = self.twins(lambda: Model(lambda unit, x: unit.linear(x), lambda y: y))
        optimizer = store.optimizer(lr=1e-2)
        layer = store.model.layers[1]
        before, layer.weight = (
            layer.weight,
            nn.Parameter(torch.ones_like(layer.bias).expand(4, 4) * 0.1),
        )
        square(store.model, torch.empty(0)).backward()
        with self.assertRaisesRegex(RuntimeError, "was put in the place of 'layers.1.weight'"):
            optimizer.step()
        layer.weight = before
        optimizer.zero_grad()
        square(store.model, torch.empty(0)).backward()
        optimizer.step()
        self.assertEqual(store.read("layers.1.weight", State.GRAD).shape, (4, 4))

    def test_another_memory_format(self) -> None:
        _, store = self.twins(lambda: Model(lambda unit, x: unit.linear(x), lambda y: y))
        with self.assertRaisesRegex(TypeError, "cannot become torch.channels_last"):
            store.model.to(memory_format=torch.channels_last)
        store.model.to(memory_format=torch.contiguous_format)

# SPDX-License-Identifier: Apache-2.0
"""The forward passes of a model that record gradients: whether the last one has come to its end."""

from __future__ import annotations

import sys

import torch
from torch import nn

_CALL = nn.Module._call_impl.__code__  # Of the frame that runs the hooks of a module.


class ForwardPass:
    """The last forward pass of ``model``, which was interrupted if an exception has ended it.

    A hook of the model calls ``begins`` before a pass, another one ``ends`` after it. Exceptions
    that are no Exception, such as KeyboardInterrupt, leave out the latter. A model that calls itself
    is in the pass that it is in already.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._is_called = False  # A pass has begun, and its end was not seen yet.
        self._has_inner = False  # The model has called itself meanwhile.
        self._runs = False  # A pass that records gradients has begun, and its end was not seen yet.
        self._handled = 0  # The id of the exception that the caller handles, if any.
        self.was_interrupted = False  #: One pass of this step was, when it had gradients.

    def begins_inside(self) -> bool:
        """Return whether the model was called by itself. Its hook before a pass calls this."""
        is_inside = self._is_called and self._is_inside()
        self._has_inner |= is_inside
        return is_inside

    def ends_inside(self) -> bool:
        """Return whether the model was called by itself. Its hook after a pass calls this."""
        return self._has_inner and self._is_inside()

    def _is_inside(self) -> bool:
        n_calls, frame = 0, sys._getframe()
        while frame.f_back is not None and n_calls < 2:
            frame = frame.f_back
            n_calls += frame.f_code is _CALL and frame.f_locals.get("self") is self._model
        return n_calls == 2

    def begins(self, has_gradients: bool) -> None:
        """Note that a pass begins, and whether the step has gradients of earlier ones."""
        self.was_interrupted = has_gradients and (self.was_interrupted or self._runs)
        self._is_called, self._has_inner = True, False
        self._runs = torch.is_grad_enabled()
        self._handled = id(sys.exc_info()[1])

    def ends(self) -> None:
        """Note that the pass has ended, or has raised."""
        error = sys.exc_info()[1]
        if self._runs and error is not None and id(error) != self._handled:
            self.was_interrupted = True
        self._is_called = self._has_inner = self._runs = False

    def forget(self) -> None:
        """Forget that a pass was interrupted: the step begins again, has ended, or goes on."""
        self.was_interrupted = self._runs = False

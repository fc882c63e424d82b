# SPDX-License-Identifier: Apache-2.0
"""Where the pool of a store is, and how torch's work on a GPU is ordered with the daemon's."""

from __future__ import annotations

from typing import Any

import torch

from cistern import checks
from cistern.job import Job


class Device:
    """The memory in which a store has the weights in use: here, the host's.

    ``torch_device`` is what torch calls it.
    """

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")

    def begin_work(self) -> None:
        """Let work that torch enqueues from now on come after what the daemon has enqueued."""

    def end_work(self) -> None:
        """Let what the daemon enqueues from now on come after the work of torch."""

    def random_state(self) -> list[torch.Tensor]:
        """Return the states of the generators of random numbers that a model uses."""
        return [torch.get_rng_state()]

    def set_random_state(self, states: list[torch.Tensor]) -> None:
        """Set the generators to what ``random_state`` has returned."""
        torch.set_rng_state(states[0])


class Gpu(Device):
    """The memory of a GPU. The job's work is on the stream that is current now.

    ``job`` is opened and not committed. Raises what ``Job.use_stream`` raises.
    """

    def __init__(self, job: Job) -> None:
        super().__init__()
        streams: Any = torch.cuda
        self._stream = streams.current_stream()
        number = job.use_stream(self._stream.cuda_stream)
        self.torch_device = torch.device("cuda", number)
        if self._stream.device != self.torch_device:
            raise ValueError(
                f"cistern: the pool is on {self.torch_device}, but torch's current device is"
                f" {self._stream.device}: call torch.cuda.set_device({number}) before attach"
            )

    def begin_work(self) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "cistern: a CUDA graph cannot be captured, because weights change their places"
            )
        current = torch.cuda.current_stream(self.torch_device)
        if current != self._stream:
            current.wait_stream(self._stream)

    def end_work(self) -> None:
        current = torch.cuda.current_stream(self.torch_device)
        if current != self._stream:
            self._stream.wait_stream(current)

    def random_state(self) -> list[torch.Tensor]:
        return [torch.get_rng_state(), torch.cuda.get_rng_state(self.torch_device)]

    def set_random_state(self, states: list[torch.Tensor]) -> None:
        torch.set_rng_state(states[0])
        torch.cuda.set_rng_state(states[1], self.torch_device)


def _is_of_torch(device: str | torch.device) -> bool:
    try:
        torch.device(device)
    except RuntimeError:
        return False
    return True


def name_of(device: str | torch.device | None) -> str:
    """Return what the daemon calls ``device``. None: torch's current GPU, or else the host.

    Daemon and process can number GPUs in different ways, so that the name is a UUID. A string that
    is no device of torch, such as "host" or a UUID, is a name already.
    """
    checks.instance("device", device, (str, torch.device, type(None)), "a device such as 'cuda'")
    if device is None:
        return name_of("cuda") if torch.cuda.is_available() else "host"
    if str(device) == "cpu":
        return "host"
    if not str(device).startswith("cuda"):
        if _is_of_torch(device):
            raise ValueError(
                f"cistern: a pool is in host memory or on an NVIDIA GPU, not on '{device}': give attach"
                " device='cpu' or 'cuda'"
            )
        return str(device)
    if not torch.cuda.is_available():
        raise ValueError(
            f"cistern: torch has no GPU here, so that there is no device '{device}': give attach"
            " device='cpu'"
        )
    properties: Any = torch.cuda.get_device_properties(torch.device(device))
    return f"GPU-{properties.uuid}"


def take_gpu(device: str | torch.device | None, rank: int) -> None:
    """Let torch's current GPU be that of a standby which has become ``rank`` of its node, if ``device`` is none.

    It is the one that programs choose by LOCAL_RANK, which a standby does not know when it starts.
    """
    if torch.cuda.is_available() and (device is None or str(device) == "cuda"):
        torch.cuda.set_device(rank % torch.cuda.device_count())


def device_of(job: Job) -> Device:
    """Return the device of a job that is opened and not committed."""
    on_host = job.device == "host" or job.device.startswith("paced")
    return Device() if on_host else Gpu(job)

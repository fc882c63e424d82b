# SPDX-License-Identifier: Apache-2.0
"""Arguments of wrong types and out of range: the error names the argument, the value and what is allowed."""

import inspect
import unittest
from collections.abc import Callable
from typing import Any

import cistern
from cistern import Client, CstError, Job, Status

#: Wrong values of an argument: the value, the exception, and a pattern of its text.
Wrong = tuple[Any, type[Exception], str]


def integer(name: str, n_bits: int) -> list[Wrong]:
    most = (1 << n_bits) - 1
    required = f"an integer from 0 to {most} is required"
    return [
        ("1", TypeError, f"{name} is '1', of <class 'str'>: {required}"),
        (1.0, TypeError, f"{name} is 1.0, of <class 'float'>: {required}"),
        (True, TypeError, f"{name} is True, of <class 'bool'>: {required}"),
        (-1, ValueError, f"{name} is -1: {required}"),
        (most + 1, ValueError, f"{name} is {most + 1}: {required}"),
    ]


def path(name: str) -> list[Wrong]:
    return [
        (5, TypeError, f"{name} is 5, of <class 'int'>: a path is required"),
        ("a\0b", CstError, rf"{name} is 'a\\x00b', which has a zero byte"),
    ]


def flag(name: str) -> list[Wrong]:
    return [(1, TypeError, f"{name} is 1, of <class 'int'>: True or False is required")]


def member(name: str, names: str) -> list[Wrong]:
    return [
        ("x", ValueError, f"{name} is 'x': one of {names} is required"),
        (77, ValueError, f"{name} is 77: one of {names} is required"),
        (None, TypeError, f"{name} is None, of <class 'NoneType'>: one of {names} is required"),
    ]


JOB: dict[str, list[Wrong]] = {
    "name": [
        *path("name"),
        (None, CstError, "name of a job has 1 to 63 characters"),
        ("", CstError, "name of a job has 1 to 63 characters"),
    ],
    "client": [(5, TypeError, "client is 5, of <class 'int'>: a cistern.Client is required")],
    "socket": path("socket"),
    "rank": integer("rank", 32),
    "world": integer("world", 32),
    "first_rank": integer("first_rank", 32),
    "all_ranks": integer("all_ranks", 32),
    "copies": integer("copies", 32),
    "block_ranks": integer("block_ranks", 32),
    "device": path("device"),
    "pool_bytes": integer("pool_bytes", 64),
    "chunk_elems": integer("chunk_elems", 64),
    "timeout_ms": integer("timeout_ms", 32),
    "ttl_s": integer("ttl_s", 32),
    "micro_batches": integer("micro_batches", 32),
    "base": path("base"),
    "optimizer": member("optimizer", "adamw, .*, muon"),
    "masters": member("masters", "fp32, split"),
    "moments": member("moments", "fp32, bf16, mx8"),
    "rounding": member("rounding", ".*stochastic.*"),
    "seed": integer("seed", 64),
    "overlap": member("overlap", "commit, early, delayed"),
    "delay_from": integer("delay_from", 64),
    "grad_over_weight": flag("grad_over_weight"),
    "device_update_bytes": integer("device_update_bytes", 64),
    "device_states": integer("device_states", 64),
    "recompute": flag("recompute"),
    "plan_file": path("plan_file"),
    "prefetch_depth": integer("prefetch_depth", 32),
    "disk": path("disk"),
    "disk_bytes": integer("disk_bytes", 64),
    "durable": flag("durable"),
    "model_config": path("model_config"),
    "adapter_config": path("adapter_config"),
    "reshape": flag("reshape"),
    "unused": member("unused", "zero, skip"),
    "versions": integer("versions", 32),
}

SAVE: dict[str, list[Wrong]] = {
    "job": path("job"),
    "dir": path("dir"),
    "keep": integer("keep", 32),
    "fp32_weights": flag("fp32_weights"),
    "buffers": [("a", TypeError, "buffers is 'a', of <class 'str'>: bytes is required")],
}

TENSOR: dict[str, list[Wrong]] = {
    "name": path("name"),
    "shape": [
        ("ab", TypeError, "shape is 'ab', of <class 'str'>: a sequence of integers is required"),
        ((4, 1.5), TypeError, r"shape\[1\] is 1.5, of <class 'float'>: an integer"),
        ((2**63,), ValueError, rf"shape\[0\] is {2**63}: an integer"),
    ],
    "group": [("a", TypeError, "group is 'a', of")],
    "pattern": member("pattern", "shard, tensor, frozen|.*frozen.*"),
    "lr_scale": [("a", TypeError, "lr_scale is 'a', of <class 'str'>: a number is required")],
    "decay_scale": [(None, TypeError, "decay_scale is None, of")],
    "whole_shape": [((1, None), TypeError, r"whole_shape\[1\] is None, of")],
    "first": [((True,), TypeError, r"first\[0\] is True, of")],
    "packed": [((1, "a"), TypeError, r"packed\[1\] is 'a', of")],
    "external_names": [([5], TypeError, "external_names is 5, of")],
    "external_rows": [(5, TypeError, "external_rows is 5, of")],
    "transposed": flag("transposed"),
    "whole_name": path("whole_name"),
    "param_group": integer("param_group", 32),
    "update": member("update", ".*muon.*"),
    "dtype": member("dtype", "bf16, fp32"),
}


class Arguments(unittest.TestCase):
    def setUp(self) -> None:
        self.client = Client()
        self.addCleanup(self.client.close)

    def check(
        self, call: Callable[..., Any], given: dict[str, Any], wrong: dict[str, list[Wrong]]
    ) -> None:
        """Check each argument of ``call``, which is given ``given`` in addition."""
        names = [name for name in inspect.signature(call).parameters if name != "on_begun"]
        self.assertEqual(sorted(wrong), sorted(names))
        for argument, cases in wrong.items():
            for value, kind, words in cases:
                with self.subTest(argument, value=value), self.assertRaisesRegex(kind, words):
                    call(**given | {argument: value})

    def test_a_job(self) -> None:
        self.check(Job, {"name": "arguments"}, JOB)
        with self.assertRaisesRegex(ValueError, "socket is 'x': None, beside a client"):
            Job("arguments", client=self.client, socket="x")
        with self.assertRaises(CstError) as caught:
            self.client.remove_job("arguments")
        self.assertEqual(caught.exception.status, Status.ENOTFOUND)

    def test_a_client(self) -> None:
        self.check(Client, {}, {"socket": path("socket")})
        self.check(self.client.remove_job, {}, {"name": path("name")})
        self.check(
            self.client.pause,
            {"name": "nothing"},
            {"name": path("name"), "release_pools": flag("release_pools")},
        )
        self.check(self.client.resume, {}, {"name": path("name")})
        self.check(self.client.job_waits, {}, {"name": path("name")})
        self.check(self.client.save, {"job": "nothing", "dir": "/nowhere"}, SAVE)

    def test_a_tensor_and_an_operator(self) -> None:
        with Job("arguments", client=self.client) as job:
            self.check(job.tensor, {"name": "w", "shape": (4,)}, TENSOR)
            with self.assertRaisesRegex(
                TypeError, r"tensors\[0\] is 'w', of .*: an integer from 0"
            ):
                job.operator("op", ["w"])
            with self.assertRaisesRegex(TypeError, r"ranks\[0\] is None, of"):
                job.group([None])
            tensor = job.tensor("w", (4,), dtype="fp32", pattern=cistern.Pattern.FROZEN)
            self.assertEqual(tensor, 0)

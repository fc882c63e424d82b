# SPDX-License-Identifier: Apache-2.0
"""Arguments of wrong types and out of range: the error names the argument, the value and what is allowed."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import cistern
import cistern.torch as ct
import torch
from models import TorchCase
from torch import nn

#: Wrong values of an argument: the value, the exception, and a pattern of its text.
Wrong = tuple[Any, type[Exception], str]


def group(value: object) -> Callable[[str, nn.Parameter], object]:
    return lambda name, parameter: value


def _nine_dimensions() -> nn.Module:
    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(torch.ones([1] * 9))
    return model


PATH = "is 5, of <class 'int'>: a path is required"
ATTACH: dict[str, list[Wrong]] = {
    "model": [
        (None, TypeError, "model is a <class 'NoneType'>, and not a torch.nn.Module"),
        (nn.Linear, TypeError, "model is a <class 'type'>"),
        ("x", TypeError, "model is a <class 'str'>"),
        ([5], TypeError, "model is a <class 'int'>"),
        ([nn.Linear(1, 1), 5], TypeError, "stage 1 is a <class 'int'>, and not a torch.nn.Module"),
        ([], ValueError, "the model has no parameters"),
        (_nine_dimensions(), TypeError, "'weight' has 9 dimensions, .* at most 8"),
    ],
    "job": [
        ("", ValueError, "no name: give attach one, such as"),
        (3, TypeError, "job is 3, of <class 'int'>: a name such as 'run7' is required"),
        (b"x", TypeError, "job is b'x', of <class 'bytes'>"),
        ("a/b", ct.CstError, "name of a job has 1 to 63 characters of A-Z"),
        ("--help", ct.CstError, "of which the first is neither . nor -; this one has 6 bytes"),
        (".", ct.CstError, "of which the first is neither . nor -; this one has 1 bytes"),
        ("a\0b", ct.CstError, r"name is 'a\\x00b', which has a zero byte"),
    ],
    "config": [(5, TypeError, f"config {PATH}"), ("/nowhere", FileNotFoundError, "/nowhere")],
    "socket": [(5, TypeError, f"socket {PATH}"), ("x" * 200, ct.CstError, "200 bytes, 1 to 107")],
    "rank": [
        ("0", TypeError, "rank is '0', of <class 'str'>: an integer from 0 on is required"),
        (1.0, TypeError, "rank is 1.0, of <class 'float'>: an integer"),
        (True, TypeError, "rank is True, of <class 'bool'>: an integer"),
        (-1, ValueError, "rank is -1: an integer from 0 on is required"),
        (2, ValueError, "rank is 2, but the ranks of a job with world=1 are 0 to 0"),
    ],
    "world": [
        ("2", TypeError, "world is '2', of"),
        (0, ValueError, "world is 0: an integer from 1 on is required"),
        (10**9, ct.CstError, "world 1000000000 is not a number from 1 to 512"),
    ],
    "device": [
        (5, TypeError, "device is 5, of <class 'int'>: a device such as 'cuda' is required"),
        ("mps", ValueError, "not on 'mps': give attach device='cpu'"),
        (torch.device("meta"), ValueError, "not on 'meta'"),
        ("foo", ct.CstError, "device 'foo' is none of auto, host, cuda"),
    ],
    "pool": [
        (True, TypeError, "pool is True, of <class 'bool'>: a size such as 6000000000, '6G', '1.5"),
        ([1], TypeError, r"pool is \[1\], of"),
        (b"1G", TypeError, "pool is b'1G', of"),
        (-1, ValueError, "pool is -1: a size such as .* or '25%' is required"),
        ("1.5.5G", ValueError, "pool is '1.5.5G': a size"),
        ("٣G", ValueError, "pool is '٣G': a size"),
        (math.nan, ValueError, "pool is nan: a size"),
        ("9999999T", ValueError, r"pool is '9999999T': a size below 8388608T \(2\*\*63 bytes\)"),
        (math.inf, ValueError, "pool is inf: a size below"),
        (10**30, ValueError, "pool is 10{30}: a size below"),
        (10**400, ValueError, "pool is 1000.*: a size below"),
    ],
    "activations": [
        (
            None,
            TypeError,
            "activations is None, of .*: a size such as 6000000000, '6G' or '1.5GiB'",
        ),
        ("25%", ValueError, "activations is '25%': a size such as 6000000000, '6G' or '1.5GiB'"),
    ],
    "disk": [
        (5, TypeError, "disk is 5, of <class 'int'>: a directory, or a list of them, is required"),
        ([5], TypeError, f"disk {PATH}"),
        (["a,b"], ValueError, "disk is 'a,b': a directory without a comma"),
        ("/nowhere", ct.CstError, "/nowhere"),
    ],
    "disk_bytes": [("x", ValueError, "disk_bytes is 'x': a size such as 6000000000")],
    "durable": [
        (5, TypeError, "durable is 5, of <class 'int'>: True or False is required"),
        (True, ct.CstError, "rank 0 has given no files: set 'disk'"),
    ],
    "plan_file": [(5, TypeError, f"plan_file {PATH}"), ("/nowhere", ct.CstError, "/nowhere")],
    "units": [
        ("head", TypeError, r"units is 'head', of .* such as \['head'\], is required"),
        (None, TypeError, "units is None, of <class 'NoneType'>: a list of names of modules"),
        (5, TypeError, "units is 5, of"),
        ([5], TypeError, r"units is \[5\], of"),
        (["head"], ValueError, "units: the model has no module head"),
    ],
    "micro_batches": [
        ("2", TypeError, "micro_batches is '2', of .*: an integer from 1 to 65536 is required"),
        (0, ValueError, "micro_batches is 0: an integer from 1 to 65536"),
        (10**10, ValueError, "micro_batches is 10{10}: an integer from 1 to 65536"),
    ],
    "tokens": [
        ("a", TypeError, "tokens is 'a', of"),
        (-1, ValueError, "tokens is -1: an integer from 0 to"),
    ],
    "param_group": [
        (1, TypeError, "param_group is 1, of <class 'int'>: a function"),
        (group("0"), TypeError, "param_group returns for parameter 'weight' is '0', of"),
        (group(None), TypeError, "for parameter 'weight' is None, of"),
        (group(64), ValueError, "for parameter 'weight' is 64: an integer from 0 to 63"),
    ],
    "base": [(5, TypeError, f"base {PATH}"), ("nothing", ct.CstError, "no job 'nothing'")],
    "optimizer": [
        ("sgdw", ValueError, "optimizer is 'sgdw': one of adamw, .* is required"),
        (77, ValueError, "optimizer is 77: one of adamw"),
        (2.5, TypeError, "optimizer is 2.5, of"),
    ],
    "muon": [(5, TypeError, "muon is 5, of <class 'int'>: a function of a name and a parameter")],
    "masters": [("x", ValueError, "masters is 'x': one of fp32, split is required")],
    "moments": [("x", ValueError, "moments is 'x': one of fp32, bf16, mx8")],
    "overlap": [
        ("x", ValueError, "overlap is 'x': one of commit, early, delayed"),
        (True, TypeError, "overlap is True, of <class 'bool'>: one of commit"),
    ],
    "unused": [
        ("x", ValueError, "unused is 'x': one of zero, skip"),
        (True, TypeError, "unused is True, of <class 'bool'>: one of zero"),
    ],
    "trainable": [(5, TypeError, "trainable is 5, of <class 'int'>: a function of a name and a")],
    "replicas": [
        (5, TypeError, "replicas is 5, of <class 'int'>: 'once' or 'sum' is required"),
        ("mean", ValueError, "replicas is 'mean': 'once' or 'sum' is required"),
    ],
    "load": [(5, TypeError, f"load {PATH}"), ("/nowhere", ct.CstError, "no '/nowhere'")],
    "resume": [(5, TypeError, f"resume {PATH}"), ("/nowhere", ct.CstError, "/nowhere")],
    "reshape": [
        ("yes", TypeError, "reshape is 'yes', of <class 'str'>: True or False is required")
    ],
    "chunk_elems": [
        ("a", TypeError, "chunk_elems is 'a', of"),
        (-1, ValueError, "chunk_elems is -1: an integer from 0 to"),
        (2**40, ct.CstError, "chunk_elems 1099511627776 is not a number from 1 to"),
    ],
    "versions": [
        ("2", TypeError, "versions is '2', of"),
        (3, ct.CstError, "versions 3 is not a number from 1 to 2|versions is 3"),
    ],
    "copies": [
        ("2", TypeError, "copies is '2', of"),
        (-1, ValueError, "copies is -1: an integer from 0 to 4294967295"),
    ],
    "block_ranks": [
        ("1", TypeError, "block_ranks is '1', of"),
        (-1, ValueError, "block_ranks is -1: an integer from 0 to 4294967295"),
    ],
    "timeout_ms": [
        (1.5, TypeError, "timeout_ms is 1.5, of"),
        (-1, ValueError, "timeout_ms is -1: an integer from 0 to 4294967295"),
    ],
    "ttl_s": [
        ("a", TypeError, "ttl_s is 'a', of <class 'str'>: an integer from 0 to 4294967295"),
        (2**32, ValueError, "ttl_s is 4294967296: an integer from 0 to 4294967295"),
    ],
}

NUMBER = "of .*: a number is required"
OPTIMIZER: dict[str, list[Wrong]] = {
    "lr": [
        (None, ValueError, "no learning rate: give it one as lr="),
        ("1e-3", TypeError, "lr is '1e-3', of <class 'str'>: a number is required"),
        (True, TypeError, f"lr is True, {NUMBER}"),
        (torch.ones(2), TypeError, rf"lr is tensor.*, {NUMBER}"),
        (10**400, TypeError, f"lr is 1000.*, {NUMBER}"),
        (-1, ValueError, "lr is -1.0: 0 <= lr < inf is required"),
        (math.nan, ValueError, "lr is nan: 0 <= lr < inf"),
    ],
    "betas": [
        (0.9, TypeError, r"betas is 0.9, of .*: a pair such as \(0.9, 0.999\) is required"),
        ((0.9,), TypeError, r"betas is \(0.9,\), of"),
        ((-1, 0.9), ValueError, r"betas\[0\] is -1.0: 0 <= betas\[0\] < 1 is required"),
        ((0.9, 1), ValueError, r"betas\[1\] is 1.0: 0 <= betas\[1\] < 1"),
        (("a", 0.9), TypeError, rf"betas\[0\] is 'a', {NUMBER}"),
        ((0, 0), ValueError, r"betas of \(0, 0\)"),
        ((0.9, 0), ValueError, r"betas of \(0.9, 0\)"),
    ],
    "eps": [
        (None, TypeError, f"eps is None, {NUMBER}"),
        (0, ValueError, "an eps of 0"),
        (-1, ValueError, "eps is -1.0: 0 <= eps < inf"),
    ],
    "weight_decay": [
        ("a", TypeError, f"weight_decay is 'a', {NUMBER}"),
        (-1, ValueError, "weight_decay is -1.0: 0 <= weight_decay < inf"),
    ],
    "clip_norm": [
        ([1], TypeError, rf"clip_norm is \[1\], {NUMBER}"),
        (math.inf, ValueError, "clip_norm is inf: 0 <= clip_norm < inf"),
    ],
    "grad_scale": [
        ("a", TypeError, f"grad_scale is 'a', {NUMBER}"),
        (0, ValueError, "a grad_scale of 0"),
        (-1, ValueError, "grad_scale is -1.0: 0 <= grad_scale < inf"),
    ],
    "groups": [
        ({}, TypeError, r"groups is \{\}, of <class 'dict'>: a list such as"),
        ("ab", TypeError, "groups is 'ab', of"),
        ([5], TypeError, r"groups\[0\] is 5, of <class 'int'>: a dictionary"),
        ([{"wd": 1.0}], ValueError, r"groups differ in lr and .* alone, not in \['wd'\]"),
        ([{}, {}], ValueError, "1 groups, not 2: param_group= of attach"),
        ([{"lr": "a"}], TypeError, f"lr is 'a', {NUMBER}"),
        ([{"lr": -1}], ValueError, "lr is -1.0: 0 <= lr < inf"),
    ],
}


class Arguments(TorchCase):
    def check_all(self, function: Callable[..., Any], wrong: dict[str, list[Wrong]]) -> None:
        """Check that ``wrong`` has each argument of ``function``."""
        self.assertEqual(
            list(wrong), [n for n in inspect.signature(function).parameters if n != "self"]
        )

    def test_attach(self) -> None:
        self.check_all(ct.attach, ATTACH)
        for argument, cases in ATTACH.items():
            for value, kind, words in cases:
                given = {"model": nn.Linear(4, 4), "job": self.name, "device": "cpu"}
                with self.subTest(argument, value=value), self.assertRaisesRegex(kind, words):
                    ct.attach(**given | {argument: value})
        with self.assertRaises(cistern.CstError):
            self.admin.remove_job(self.name)

    def test_the_last_ranks_are_named(self) -> None:
        with self.assertRaisesRegex(ValueError, "rank is 2, .* world=2 are 0 to 1"):
            ct.attach(nn.Linear(4, 4), self.name, rank=2, world=2)

    def test_the_optimizer(self) -> None:
        store = self.attach(nn.Linear(4, 4))
        self.check_all(store.optimizer, OPTIMIZER)
        for argument, cases in OPTIMIZER.items():
            for value, kind, words in cases:
                with self.subTest(argument, value=value), self.assertRaisesRegex(kind, words):
                    store.optimizer(**{"lr": 1e-3} | {argument: value})
        optimizer = store.optimizer(lr=torch.tensor(1e-3), betas=[0, 0.9])
        optimizer.param_groups[0]["lr"] = "a"
        store.model(torch.ones(1, 4)).sum().backward()
        with self.assertRaisesRegex(TypeError, f"lr is 'a', {NUMBER}"):
            optimizer.step()

    def test_several_groups_are_told_apart(self) -> None:
        store = self.attach(nn.Linear(4, 4), param_group=lambda name, _: int(name == "bias"))
        with self.assertRaisesRegex(
            ValueError, "weight_decay of group 1 is -1.0: 0 <= weight_decay"
        ):
            store.optimizer(lr=1e-3, groups=[{}, {"weight_decay": -1}])

    def test_names_and_numbers_of_other_types_are_taken(self) -> None:
        numpy_like = torch.tensor(4096)  # It has __index__, as numbers of numpy have.
        store = self.attach(
            nn.Linear(4, 4), masters="FP32", moments=cistern.Moments.BF16, overlap=0, chunk_elems=numpy_like
        )  # fmt: skip
        self.assertEqual(store.plan.chunk_elems, 4096)

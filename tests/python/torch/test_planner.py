# SPDX-License-Identifier: Apache-2.0
"""Plans of models on the meta device are those of the jobs that are made later."""

import json
import os
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import cistern.torch as ct
import models
import torch
from cistern import Moments
from models import TorchCase
from torch import nn

# A machine that is very different from what a daemon without rates assumes.
RATES = {
    "devices": [
        {"name": "host", "memory_bytes": 8 << 30, "up": 1e9, "down": 1e9, "memory": 2e10,
         "flops": 3e11},
    ],
    "nodes": [
        {"cores": 2, "memory_bytes": 8 << 30, "pass": 2e10, "update": 5e8, "reduce": 3e9,
         "copy": 1e9},
    ],
    "request_s": 3e-5,
}  # fmt: skip


def on_meta(make: Callable[[], nn.Module] = models.gpt2) -> nn.Module:
    with torch.device("meta"):
        model = make()
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    return model


class Plans(TorchCase):
    def setUp(self) -> None:
        super().setUp()
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.dir = Path(made.name)
        self.rates = self.dir / "rates.json"
        self.rates.write_text(json.dumps(RATES))

    def plan(self, model: nn.Module, **options: Any) -> ct.Forecast:
        return ct.plan(model, tokens=24, rates=self.rates, **options)

    def test_a_job_with_the_saved_plan_has_its_layout(self) -> None:
        saved = self.dir / "plan.json"
        for number, options in enumerate(
            ({}, {"micro_batches": 2}, {"moments": Moments.BF16}, {"units": ["transformer.h.0"]})
        ):
            forecast = self.plan(on_meta(), pool="160K", save=saved, **options)
            self.assertTrue(forecast.fits, forecast)
            store = self.attach(
                models.bf16(models.gpt2), f"{self.name[:50]}{number}", plan_file=saved, tokens=24,
                **options,
            )  # fmt: skip
            plan = store.plan
            self.assertEqual(plan.n_params, forecast.details["model"]["n_params"])
            self.assertGreater(plan.n_chunks, 1)
            self.assertEqual(plan.n_chunks, forecast.n_chunks)
            self.assertEqual(plan.pool_bytes, forecast.pool_bytes)
            self.assertLessEqual(plan.pool_bytes, 160 << 10)
            self.assertEqual(plan.arena_bytes + plan.pool_bytes, forecast.host_bytes)
            self.assertEqual(
                [(c.chunk_elems, c.n_blocks) for c in plan.classes],
                [(c["chunk_elems"], c["n_blocks"]) for c in forecast.details["plan"]["classes"]],
            )
            models.loss_of(store.model, models.tokens()).backward()

    def test_a_store_describes_what_the_model_was_before(self) -> None:
        def group(_: str, parameter: nn.Parameter) -> int:
            return int(parameter.ndim < 2)

        for make in (models.gpt2, models.t5, models.mixtral):
            with self.subTest(make.__name__):
                before = ct.describe(on_meta(make), tokens=24, param_group=group)
                store = self.attach(models.bf16(make), make.__name__, tokens=24, param_group=group)
                self.assertEqual(store.describe(), before)

    def test_operations_are_those_of_the_matrices(self) -> None:
        operators = json.loads(ct.describe(on_meta(), tokens=24))["operators"]
        flops = {operator["name"]: operator["flops"] for operator in operators}
        self.assertEqual(flops["transformer.wte"], 0)  # A table.
        self.assertEqual(flops["transformer.h.1"], 2 * 24 * 12 * 32 * 32)
        self.assertEqual(flops["lm_head"], 2 * 24 * models.VOCABULARY * 32)  # The same, multiplied.

    def test_frozen_parameters_are_described(self) -> None:
        model = on_meta()
        model.transformer.wpe.requires_grad_(False)
        tensors = json.loads(ct.describe(model))["tensors"]
        frozen = [tensor["name"] for tensor in tensors if tensor.get("pattern") == "frozen"]
        self.assertEqual(frozen, ["transformer.wpe.weight"])

    def test_more_speed_is_forecast_for_a_faster_device(self) -> None:
        slow, fast = (self.plan(on_meta(), flops=flops) for flops in (1e6, 1e9))
        self.assertGreater(fast.tokens_per_second, 10 * slow.tokens_per_second)
        self.assertAlmostEqual(
            slow.tokens_per_second, 24 / slow.step_seconds, delta=1e-6 * slow.tokens_per_second
        )
        self.assertRegex(
            str(slow), r"^fits: .* KiB for the pool .*\nstep: .* tokens/s\nbottleneck: compute"
        )

    def test_a_model_that_does_not_fit(self) -> None:
        forecast = self.plan(on_meta(), pool="8K", host="100K")
        self.assertFalse(forecast.fits)
        self.assertRegex(str(forecast), "^does not fit: device memory .* short; host memory ")
        enough = self.plan(on_meta(), pool=forecast.pool_bytes, host=forecast.host_bytes)
        self.assertTrue(enough.fits, enough)
        self.assertFalse(self.plan(on_meta(), pool=forecast.pool_bytes - 1).fits)
        self.assertEqual(self.plan(on_meta(), pool="8K").host_bytes, 0)

    def test_states_on_drives(self) -> None:
        self.rates.write_text(json.dumps({**RATES, "disk_read": 2e9, "disk_write": 1e9}))
        memory = self.plan(on_meta(), pool="160K")
        two, listed = (
            self.plan(on_meta(), pool="160K", disk=disk, tbw=600) for disk in (2, ["/a", "/b"])
        )
        self.assertIsNone(memory.details["disk"])
        self.assertEqual(two.details["disk"], listed.details["disk"])
        self.assertEqual(two.details["disk"]["drives"], 2)
        self.assertGreater(two.details["disk"]["days"], 0)
        lasts = self.plan(on_meta(), pool="160K", disk=2, durable=True)
        self.assertTrue(lasts.details["disk"]["durable"])
        for row, n_bytes in two.details["rows"]["drives"].items():
            self.assertEqual(lasts.details["rows"]["drives"][row], 2 * n_bytes)
        part = self.plan(on_meta(), pool="160K", disk=1, disk_bytes="64K")
        self.assertLess(part.details["disk"]["bytes"], two.details["disk"]["bytes"])
        for wrong, options in (
            ("durable cannot be combined with", {"disk": 1, "durable": True, "disk_bytes": "1G"}),
            ("name them with --disk", {"durable": True}),
            ("neither a number of drives", {"disk": -1}),
        ):
            with self.assertRaisesRegex(RuntimeError, wrong):
                self.plan(on_meta(), **options)
        with self.assertRaisesRegex(ValueError, "leave disk= out"):
            self.plan(on_meta(), parallel="auto", disk=1)

    def test_what_the_program_says_is_raised(self) -> None:
        with self.assertRaisesRegex(RuntimeError, "no device 'tpu'; they have host"):
            self.plan(on_meta(), on="tpu")
        with self.assertRaisesRegex(RuntimeError, "none.json: No such file"):
            ct.plan(on_meta(), tokens=1, rates=self.dir / "none.json")
        with self.assertRaisesRegex(ValueError, "no module nowhere"):
            self.plan(on_meta(), units=["nowhere"])

    @unittest.skipIf(os.path.exists("/var/lib/cistern/rates.json"), "root has rates here")
    def test_rates_are_missing(self) -> None:
        nowhere = dict.fromkeys(("HOME", "XDG_STATE_HOME"), str(self.dir))
        with (
            mock.patch.dict(os.environ, nowhere),
            self.assertRaisesRegex(
                RuntimeError, "no rates: .* give plan rates=FILE or rates='a100'"
            ),
        ):
            ct.plan(on_meta(), tokens=1)

    def test_the_program_is_missing(self) -> None:
        path = os.environ["PATH"]
        self.addCleanup(os.environ.__setitem__, "PATH", path)
        os.environ["PATH"] = str(self.dir)
        with self.assertRaisesRegex(FileNotFoundError, "cistern"):
            self.plan(on_meta())

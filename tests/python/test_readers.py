# SPDX-License-Identifier: Apache-2.0
"""Readers of the weights of a job."""

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from array import array
from pathlib import Path

import cistern
from cistern import CstError, Dtype, Pattern, State, Status
from support import PARAMS, Model, N
from test_job import JobCase

PROGRAM = Path(__file__).with_name("reading.py")


class ReaderCase(JobCase):
    def read(self, name: str = "") -> cistern.Reader:
        reader = cistern.reader(name or self.name)
        self.addCleanup(reader.close)
        return reader

    def weights(self, model: Model) -> list[bytes]:
        return [bytes(model.job.tensor_read(t, State.WEIGHT)) for t in model.tensors]


class Weights(ReaderCase):
    def test_tensors_are_described(self) -> None:
        job = self.open()
        w = job.tensor("w", (2, 3, 4))
        bias = job.tensor("bias", (4,), dtype=Dtype.FP32, external_names=["b"])
        frozen = job.tensor(
            "frozen", (5, 2), pattern=Pattern.FROZEN, external_names=["f"], transposed=True
        )
        job.operator("layer", [w, bias, frozen])
        job.commit()
        self.assertEqual(
            self.read().tensors,
            [
                ("w", "w", (2, 3, 4), Dtype.BF16, False, 48),
                ("bias", "b", (4,), Dtype.FP32, False, 16),
                ("frozen", None, (5, 2), Dtype.BF16, True, 20),
            ],
        )

    def test_each_step_is_read_with_the_bytes_of_the_job(self) -> None:
        model = self.ready()
        reader, seen = self.read(), []
        for version in reader:
            self.assertEqual([bytes(v) for _, v in version.items()], self.weights(model))
            version.check()
            seen.append(version.step)
            if version.step == 3:
                break
            model.step()
            self.assertTrue(version.is_held)
            model.forward()  # The updates of a step run during the next forward pass.
        self.assertEqual(seen, [0, 1, 2, 3])
        self.assertFalse(version.is_held)

    def test_views_are_of_the_memory_and_read_only(self) -> None:
        self.ready()
        version = self.read().next()
        view = version["w1"]
        self.assertEqual((view.format, view.shape, view.nbytes), ("H", (10, N // 10), 2 * N))
        self.assertTrue(view.readonly)
        self.assertEqual(list(dict(version)), ["w0", "w1"])
        with self.assertRaisesRegex(KeyError, "has no tensor 'w2'"):
            version["w2"]

    def test_named_weights_have_the_names_of_model_files(self) -> None:
        job = self.open(model_config='{"a": 1}')
        tensors = [
            job.tensor("w", (2, 3), external_names=["v"]),
            job.tensor("turned", (2, 3), external_names=["t"], transposed=True),
        ]
        job.operator("layer", tensors)
        job.commit()
        job.tensor_write(tensors[0], State.MASTER, array("f", range(6)))
        job.sync()
        reader = self.read()
        self.assertEqual((reader.model_config, reader.adapter_config), ('{"a": 1}', None))
        weights = reader.next().named_weights()
        name, view = next(weights)
        self.assertEqual((name, view.tolist()[1][2]), ("v", 0x40A0))
        with self.assertRaisesRegex(ValueError, "do not have tensor 'turned' as it is"):
            next(weights)

    def test_adapters_are_files_of_safetensors(self) -> None:
        job = self.open(adapter_config='{"r": 2}')
        a = job.tensor("a.default.weight", (2, 3), dtype=Dtype.FP32, external_names=["a.weight"])
        base = job.tensor("base", (2, 2), pattern=Pattern.FROZEN)
        job.operator("layer", [a, base])
        job.commit()
        job.tensor_write(a, State.MASTER, array("f", range(6)))
        job.tensor_write(base, State.MASTER, array("f", range(4)))
        job.sync()
        version = self.read().next()
        self.assertEqual([name for name, _ in version.named_weights()], ["base"])
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(2):
                version.save_adapter(folder)
            names = ["adapter_config.json", "adapter_model.safetensors"]
            self.assertEqual(sorted(os.listdir(folder)), names)
            config, data = (Path(folder, name).read_bytes() for name in names)
        self.assertEqual(config, b'{"r": 2}')
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:end])
        wanted = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
        self.assertEqual(header, {"__metadata__": {"format": "pt"}, "a.weight": wanted})
        self.assertEqual(data[end:], array("f", range(6)).tobytes())

    def test_a_job_without_adapters_has_none_to_save(self) -> None:
        self.ready()
        with self.assertRaisesRegex(ValueError, "has no adapters of PEFT"):
            self.read().next().save_adapter("nowhere")

    def test_a_version_that_is_overwritten_is_stale(self) -> None:
        model = self.ready()
        version = self.read().next()
        model.step()
        with self.assertRaises(cistern.StaleVersion) as raised:
            version.check()
        self.assertEqual((raised.exception.step, raised.exception.status), (0, Status.ESTALE))
        self.assertEqual(raised.exception.with_text("x").step, 0)
        version.release()

    def test_of_two_versions_the_earlier_one_lasts_another_step(self) -> None:
        model = self.ready(versions=2)
        reader = self.read()
        self.assertEqual(reader.versions, 2)
        before, version = self.weights(model), reader.next()
        model.step()
        model.forward()
        self.assertEqual([bytes(v) for _, v in version.items()], before)
        version.check()
        later = reader.next(after=0)
        self.assertEqual([bytes(v) for _, v in later.items()], self.weights(model))
        self.assertNotEqual(before, self.weights(model))
        later.check()

    def test_a_released_version_has_no_weights(self) -> None:
        self.ready()
        with self.read().next() as version:
            pass
        version.release()
        for call in (version.check, lambda: version["w0"]):
            with self.assertRaisesRegex(ValueError, "the version of step 0 is released"):
                call()


class Waits(ReaderCase):
    def test_the_time_can_be_limited(self) -> None:
        self.ready()
        reader = self.read()
        for timeout in (0, 0.6):
            began = time.monotonic()
            self.assert_status(
                Status.ETIMEDOUT, "no such version", reader.next, after=0, timeout=timeout
            )
            self.assertGreaterEqual(time.monotonic() - began, timeout)

    def test_ctrl_c_ends_a_wait(self) -> None:
        self.ready()
        process = subprocess.Popen(
            [sys.executable, PROGRAM, self.name], stdout=subprocess.PIPE, text=True
        )
        self.assertEqual(process.stdout.readline(), "waits\n")
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.communicate()[0], "interrupted\nstep 0\n")

    def test_a_version_that_is_kept_delays_the_step_until_it_is_lost(self) -> None:
        model = self.ready(timeout_ms=1000)
        version = self.read().next(keep=True)
        before = self.weights(model)
        began = time.monotonic()
        model.forward()
        model.backward()
        self.assertEqual([bytes(v) for _, v in version.items()], before)
        version.check()
        model.job.step(PARAMS)
        self.assertGreater(time.monotonic() - began, 0.9)
        with self.assertRaises(cistern.StaleVersion):
            version.check()

    def test_four_versions_can_be_held(self) -> None:
        self.ready()
        reader = self.read()
        held = [reader.next() for _ in range(4)]
        self.assert_status(Status.EBUSY, "versions", reader.next)
        held[0].release()
        reader.next()


class Ends(ReaderCase):
    def test_a_job_that_is_not_there_or_not_committed(self) -> None:
        self.assert_status(Status.ENOTFOUND, "nowhere", cistern.reader, "nowhere")
        self.open().tensor("w", (4,))
        self.assert_status(Status.EBUSY, "not committed yet", cistern.reader, self.name)

    def test_the_job_is_removed(self) -> None:
        model = self.ready()
        reader = self.read()
        version = reader.next()
        view = version["w0"]
        before = bytes(view)
        model.job.leave()
        model.job.close()
        self.admin.remove_job(self.name)
        with self.assertRaises(CstError) as raised:
            reader.next(after=version.step)
        self.assertIn(raised.exception.status, (Status.ESTALE, Status.ENOTFOUND, Status.ECANCELLED))
        self.assertEqual(len(bytes(view)), len(before))  # The memory is still mapped.

    def test_views_keep_the_memory_after_close(self) -> None:
        self.ready()
        reader = self.read()
        view, mapping = reader.next()["w0"], weakref.ref(reader.mapping)
        before = bytes(view)
        reader.close()
        reader.close()
        gc.collect()
        self.assertIsNotNone(mapping())
        self.assertEqual(bytes(view), before)
        del view
        self.assertIsNone(mapping())
        with self.assertRaisesRegex(ValueError, "is closed"):
            reader.next()

    def test_versions_are_kept_no_longer_than_their_reader(self) -> None:
        model = self.ready()
        for ends in (cistern.Reader.close, lambda reader: None):
            reader = cistern.reader(self.name)
            view = reader.next(keep=True)["w0"]
            ends(reader)
            del reader
            gc.collect()
            began = time.monotonic()
            model.step()
            self.assertLess(time.monotonic() - began, 5)
            self.assertEqual(view.nbytes, 2 * N)

    def test_the_child_of_a_fork_leaves_the_reader_alone(self) -> None:
        model = self.ready()
        reader = self.read()
        version = reader.next(keep=True)
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                reader.close()
                del version, reader
                gc.collect()
                os._exit(0)
            os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual([bytes(v) for _, v in version.items()], self.weights(model))
        version.check()

# SPDX-License-Identifier: Apache-2.0
"""A job of one rank: declarations, steps, memory, states, checkpoints, errors."""

import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest
from array import array
from pathlib import Path

import cistern
from cistern import CstError, Direction, HyperParams, Pattern, Reason, State, Status
from support import PARAMS, Model, N

CLIENT = Path(os.environ["srcdir"], "client")
EXAMPLE = CLIENT / "example.py"


class JobCase(unittest.TestCase):
    """Each test has a client of its own, and jobs that are removed after it."""

    def setUp(self) -> None:
        self.admin = cistern.Client()
        self.addCleanup(self.admin.close)
        self.name = self.id().rpartition(".")[2]

    def open(self, name: str = "", **options: object) -> cistern.Job:
        name = name or self.name
        job = cistern.Job(name, **options)
        self.addCleanup(self.remove, name)
        self.addCleanup(job.close)
        return job

    def remove(self, name: str) -> None:
        try:
            self.admin.remove_job(name)
        except CstError as error:
            self.assertEqual(error.status, Status.ENOTFOUND)

    def ready(self, name: str = "", **options: object) -> Model:
        model = Model(self.open(name, **options))
        model.write()
        model.job.sync()
        return model

    def assert_status(self, status: Status, text: str, call, *arguments, **options) -> CstError:
        with self.assertRaises(CstError) as caught:
            call(*arguments, **options)
        self.assertEqual(caught.exception.status, status)
        self.assertRegex(caught.exception.text, text)
        return caught.exception


class Example(unittest.TestCase):
    def test_the_example_prints_what_the_example_in_c_prints(self) -> None:
        outputs = []
        for command in (["tests/lib/example"], [sys.executable, str(EXAMPLE)]):
            outputs.append(
                subprocess.run(command, capture_output=True, text=True, check=True).stdout
            )
            with cistern.Client() as client:
                client.remove_job("example")
        self.assertEqual(outputs[0], outputs[1])
        self.assertEqual(outputs[0].count("gradient norm"), 3)

    def test_the_readme_shows_the_example(self) -> None:
        readme = (CLIENT / "python" / "README.md").read_text()
        self.assertIn(f"```python\n{EXAMPLE.read_text()}```\n", readme)


class Steps(JobCase):
    def test_the_plan_is_returned(self) -> None:
        plan = self.ready().plan
        self.assertEqual(plan.n_params, 2 * N)
        self.assertEqual(plan.pool_bytes, sum(2 * c.chunk_elems * c.n_blocks for c in plan.classes))

    def test_steps_change_the_weights_and_are_counted(self) -> None:
        model = self.ready()
        before = model.masters()
        result = model.step()
        self.assertEqual((result.step, result.skipped), (1, False))
        self.assertGreater(result.grad_norm, 1)
        self.assertAlmostEqual(result.clip * result.grad_norm, 1, places=5)
        self.assertNotEqual(before, model.masters())
        self.assertEqual(model.job.steps, 1)
        self.assertEqual(model.job.stat().step, 1)

    def test_micro_batches_accumulate(self) -> None:
        model = self.ready(micro_batches=2)
        model.forward()
        model.backward()
        error = self.assert_status(
            Status.EINVAL,
            "handed in already",
            model.job.op_begin,
            0,
            Direction.BACKWARD,
        )
        self.assertIs(error.reason, Reason.HANDED_IN)
        model.job.accumulate()
        error = self.assert_status(Status.EINVAL, "end it with step", model.job.accumulate)
        self.assertIs(error.reason, Reason.LAST_MICRO_BATCH)
        two = model.step().grad_norm
        one = self.ready("one").step().grad_norm
        self.assertAlmostEqual(two / one, 2, places=5)

    def test_a_gradient_that_is_not_finite_skips_the_step(self) -> None:
        model = self.ready()
        with model.job.operation(model.layers[0], Direction.BACKWARD) as (io,):
            io.grad[:] = array("H", [0x7FC0] * N)
        result = model.job.step(PARAMS)
        self.assertTrue(result.skipped and result.overflow)

    def test_gradients_in_another_order_than_that_of_the_declaration(self) -> None:
        """Two operators share each chunk, and the pool has blocks for the declared order."""
        n = 2048
        job = self.open(chunk_elems=2 * n, pool_bytes=3 * 4 * n)
        tensors = [job.tensor(f"t{i}", (n,)) for i in range(6)]
        operators = [job.operator(f"o{i}", [t]) for i, t in enumerate(tensors)]
        job.commit()
        for tensor in tensors:
            job.tensor_write(tensor, State.MASTER, array("f", [1.0] * n))
        job.sync()
        self.assertTrue(job.op_fits(operators[1]))
        for i in (1, 0, 3, 2, 5, 4):
            self.assertTrue(job.op_fits(operators[i]))
            with job.operation(operators[i], Direction.BACKWARD) as (io,):
                io.grad[:] = io.weight
            if i == 1:
                self.assertFalse(job.op_fits(operators[3]))
        self.assertEqual(job.step(PARAMS).step, 1)
        with job.operation(operators[0], Direction.FORWARD):
            self.assert_status(Status.EINVAL, "operator 'o0' is begun", job.op_fits, operators[1])
        self.assert_status(Status.EINVAL, "no operator 6", job.op_fits, 6)

    def test_hints_and_parameters_in_advance_are_taken(self) -> None:
        model = self.ready(overlap=cistern.Overlap.EARLY)
        model.job.hint(model.layers[0], cistern.Hint.PREFETCH)
        model.job.hint_tensor(model.tensors[0], cistern.Hint.EVICT)
        params = HyperParams(lr=0.5)
        model.job.prepare_step(params)
        model.forward()
        model.backward()
        self.assert_status(
            Status.EINVAL, "other parameters", model.job.prepare_step, HyperParams(lr=0.25)
        )
        self.assertEqual(model.job.step(params).step, 1)

    def test_parameter_groups_have_factors(self) -> None:
        job = self.open()
        tensors = [job.tensor(f"w{i}", (N,), param_group=i) for i in range(2)]
        layer = job.operator("layer", tensors)
        job.commit()
        for tensor in tensors:
            job.tensor_write(tensor, State.MASTER, array("f", [1.0] * N))
        job.sync()
        job.param_groups([(1.0, 1.0), (0.0, 1.0)])
        with job.operation(layer, Direction.BACKWARD) as ios:
            for io in ios:
                io.grad[:] = io.weight
        job.step(PARAMS)
        self.assertLess(job.tensor_read(tensors[0], State.MASTER)[0], 1.0)
        self.assertEqual(job.tensor_read(tensors[1], State.MASTER)[0], 1.0)
        self.assert_status(Status.EINVAL, "-1", job.param_groups, [(-1.0, 1.0)])
        self.assert_status(Status.EINVAL, "64", job.param_groups, [(1.0, 1.0)] * 65)
        for factors in ((1.0,), 1.0, (1.0, 1.0, 1.0)):
            with self.assertRaisesRegex(ValueError, r"groups\[1\] is .*a pair"):
                job.param_groups([(1.0, 1.0), factors])  # type: ignore[list-item]


class Memory(JobCase):
    def test_views_cannot_be_used_after_the_operator(self) -> None:
        model = self.ready()
        with model.job.operation(0, Direction.BACKWARD) as (io,):
            weight, grad = io.weight, io.grad
            self.assertEqual((len(weight), weight.format, weight.readonly), (N, "H", True))
            self.assertFalse(grad.readonly)
            grad[:] = weight
        for view in (weight, grad):
            with self.assertRaises(ValueError):
                view[0]

    def test_a_slice_that_lives_keeps_the_operator_begun(self) -> None:
        job = self.ready().job
        (io,) = job.op_begin(0, Direction.FORWARD)
        part = io.weight[:10]
        with self.assertRaises(BufferError):
            job.op_end(0)
        part.release()
        job.op_end(0)

    def test_a_forward_pass_has_no_gradient(self) -> None:
        with self.ready().job.operation(0, Direction.FORWARD) as (io,):
            self.assertIsNone(io.grad_address)
            with self.assertRaises(ValueError):
                _ = io.grad

    def test_parts_of_states_are_read_and_written(self) -> None:
        model = self.ready()
        job, tensor = model.job, model.tensors[0]
        job.tensor_write(tensor, State.MASTER, array("f", [2.0, -4.0]), first=5)
        self.assertEqual(job.tensor_read(tensor, State.MASTER, 5, 2).tolist(), [2.0, -4.0])
        self.assertEqual(job.tensor_read(tensor, State.WEIGHT, 5, 2).tolist(), [0x4000, 0xC080])
        self.assertEqual(len(job.tensor_read(tensor, State.EXP_AVG, 990)), 10)
        job.tensor_write(tensor, State.MASTER, struct.pack("f", 1.0))  # read-only memory
        self.assertEqual(job.tensor_read(tensor, State.MASTER, 0, 1)[0], 1.0)
        with self.assertRaises(ValueError):
            job.tensor_write(tensor, State.MASTER, b"abc")
        self.assert_status(Status.EINVAL, "999", job.tensor_read, tensor, State.MASTER, 999, 2)
        self.assert_status(Status.EINVAL, "77", job.tensor_read, 77, State.MASTER)
        with self.assertRaisesRegex(ValueError, "first is -1"):
            job.tensor_read(tensor, State.MASTER, -1)
        with self.assertRaisesRegex(ValueError, "first is -1"):
            job.tensor_write(tensor, State.MASTER, array("f", [1.0]), -1)


class Declarations(JobCase):
    def test_all_properties_reach_the_daemon(self) -> None:
        job = self.open()
        group = job.group([0])
        self.assertGreater(group, 0)
        frozen = job.tensor("frozen", (4, 4), pattern=Pattern.FROZEN, group=group)
        part = job.tensor(
            "part",
            (2, 4),
            pattern=Pattern.TENSOR,
            whole_shape=(4, 4),
            first=(2, 0),
            whole_name="whole",
            lr_scale=0.5,
            decay_scale=0.0,
        )
        both = job.tensor(
            "both",
            (6, 4),
            external_names=["a", "b"],
            external_rows=[2, 4],
            transposed=False,
        )
        op = job.operator("all", [frozen, part, both], flops=1e6, expected_uses=0.5)
        job.commit()
        job.sync()
        with job.operation(op, Direction.BACKWARD) as (io0, io1, io2):
            self.assertIsNone(io0.grad_address)
            io1.grad[:] = array("H", [0] * 8)
            io2.grad[:] = array("H", [0] * 24)
        self.assertEqual(job.device, "host")

    def test_faults_are_named(self) -> None:
        job = self.open()
        job.tensor("w", (4,))
        self.assert_status(Status.EEXIST, "'w'", job.tensor, "w", (4,))
        self.assert_status(Status.EINVAL, "x", job.tensor, "x", (0,))
        self.assert_status(Status.EINVAL, "7", job.operator, "op", [7])
        self.assert_status(Status.EINVAL, "group", job.group, [])
        self.assert_status(Status.EINVAL, "operator", job.commit)


class Errors(JobCase):
    def test_statuses_have_classes(self) -> None:
        with self.assertRaisesRegex(cistern.DaemonGone, "/nowhere.*ECONN"):
            cistern.Client("/nowhere/cistern.sock")
        model = self.ready()
        model.job.leave()
        model.job.close()
        with self.assertRaisesRegex(cistern.Mismatch, "1 ranks, not 2"):
            self.open(world=2)
        small = self.open("small", pool_bytes=1)
        with self.assertRaisesRegex(cistern.PoolTooSmall, "bytes"):
            Model(small)

    def test_a_rank_that_lives_is_not_replaced(self) -> None:
        self.ready()
        self.assert_status(Status.EBUSY, str(os.getpid()), cistern.Job, self.name)

    def test_a_closed_job_is_no_crash(self) -> None:
        job = self.ready().job
        job.close()
        job.close()
        for call in (job.sync, job.leave, lambda: job.client.ping()):
            with self.assertRaisesRegex(ValueError, "closed"):
                call()

    def test_a_removed_job_is_gone(self) -> None:
        job = self.ready().job
        self.admin.remove_job(self.name)
        self.assert_status(Status.ENOTFOUND, "job", job.stat)
        self.assert_status(Status.ENOTFOUND, self.name, self.admin.remove_job, self.name)

    def test_a_job_is_paused_and_goes_on(self) -> None:
        model = self.ready()
        model.train(1)
        self.assert_status(Status.EINVAL, "not paused", self.admin.resume, self.name)
        paused = self.admin.pause(self.name)
        self.assertEqual((paused.step, paused.already, paused.released_bytes), (1, False, 0))
        self.assertTrue(self.admin.pause(self.name).already)
        released = self.admin.pause(self.name, release_pools=True)
        self.assertFalse(released.already)
        self.assertGreater(released.released_bytes, 0)
        masters = model.masters()
        resumed = self.admin.resume(self.name)
        self.assertEqual(resumed.pool_bytes, released.released_bytes)
        self.assertGreater(resumed.paused_s, 0)
        self.assertEqual(model.masters(), masters)
        self.assertEqual(model.step().step, 2)

    def test_the_block_leaves_the_job_in_good_order(self) -> None:
        with self.open() as job:
            model = Model(job)
            model.write()
            model.train(2)
        with self.open() as job:
            model = Model(job)
            self.assertTrue(job.initialised)
            self.assertEqual(job.steps, 2)

    def test_a_client_can_have_no_second_job(self) -> None:
        job = self.open()
        self.assert_status(Status.EINVAL, "job", cistern.Job, "other", client=job.client)
        self.assertGreater(job.client.ping(), 0)


class Checkpoints(JobCase):
    def setUp(self) -> None:
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = folder.name

    def test_a_loaded_job_goes_on_with_the_same_bits(self) -> None:
        model = self.ready(model_config="{}")
        model.train(2)
        begun: list[int] = []
        saved = model.job.save(self.dir, keep=2, on_begun=begun.append)
        self.assertEqual((saved.step, begun), (2, [2]))
        self.assertGreater(saved.bytes, 14 * 2 * N)
        self.assert_status(Status.EEXIST, "step", model.job.save, self.dir)
        model.train(4)

        (found,) = cistern.checkpoints(self.dir, check=True)
        self.assertEqual((found.step, found.whole, found.job), (2, True, self.name))
        other = Model(self.open("other"))
        loaded = other.job.load(self.dir)
        self.assertEqual((loaded.step, loaded.converted), (2, False))
        self.assertEqual(loaded.params, PARAMS._replace(eps=1e-8, grad_scale=1.0))
        other.train(4)
        self.assertEqual(other.masters(), model.masters())

    def test_a_missing_checkpoint_is_named(self) -> None:
        self.assert_status(Status.ENOTFOUND, "nowhere", cistern.checkpoints, "/nowhere")
        self.assert_status(Status.EIO, "nowhere", cistern.adopt, ["/nowhere"], self.dir)
        self.assert_status(Status.EINVAL, "no record", cistern.adopt, [__file__], self.dir)
        self.assert_status(Status.EINVAL, "needs the files", cistern.adopt, [], self.dir)
        model = Model(self.open())
        self.assert_status(Status.ENOTFOUND, "nowhere", model.job.load, "/nowhere")

    def write_model(self, path: str) -> None:
        data = struct.pack("2000f", *range(2000))
        tensors = {
            name: {
                "dtype": "F32",
                "shape": [10, 100],
                "data_offsets": [4000 * i, 4000 * (i + 1)],
            }
            for i, name in enumerate(("model.w0", "model.w1"))
        }
        header = json.dumps(tensors).encode()
        Path(path).write_bytes(struct.pack("<Q", len(header)) + header + data)

    def test_model_files_are_loaded(self) -> None:
        path = os.path.join(self.dir, "model.safetensors")
        self.write_model(path)
        job = self.open()
        tensors = [job.tensor(f"w{i}", (10, 100), external_names=[f"model.w{i}"]) for i in range(2)]
        job.operator("op", tensors)
        job.commit()
        asked: list[str] = []

        def wants(name: str) -> bool:
            asked.append(name)
            return name == "w1"

        def fail(name: str) -> bool:
            raise KeyError(name)

        with self.assertRaises(KeyError):
            job.load_model(path, wants=fail)
        loaded = job.load_model(path, wants=wants)
        self.assertEqual((loaded.n_tensors, set(asked)), (1, {"w0", "w1"}))
        values = job.tensor_read(tensors[1], State.MASTER)
        self.assertEqual(values.tolist(), [float(i) for i in range(1000, 2000)])

# SPDX-License-Identifier: Apache-2.0
"""The Python client knows all that the headers say, and what it says is true."""

import inspect
import os
import pickle
import re
import subprocess
import sys
import unittest
from ctypes import sizeof
from pathlib import Path

import cistern
from cistern import Reason, Status, _abi, _library, checkpoint, results

EXPORTS = Path(os.environ["srcdir"], "client", "libcistern.map").read_text()

# Functions for workers and libraries in C, and those of which another form is used.
UNUSED = {
    "cst_comm_all_gather",
    "cst_comm_all_reduce",
    "cst_comm_all_to_all",
    "cst_comm_barrier",
    "cst_comm_broadcast",
    "cst_comm_close",
    "cst_comm_open",
    "cst_comm_open_device",
    "cst_comm_open_threads",
    "cst_comm_rank",
    "cst_comm_reduce_scatter",
    "cst_comm_size",
    "cst_comm_start",
    "cst_comm_try_wait",
    "cst_comm_wait",
    "cst_commit",
    "cst_err_errno",
    "cst_err_prefix",
    "cst_err_set",
    "cst_job_use_device",
    "cst_load",
    "cst_next",
    "cst_op_begin",
    "cst_operator",
    "cst_reader_find",
    "cst_save",
    "cst_standby",
    "cst_status_name",
    "cst_step",
    "cst_sync",
    "cst_tensor",
}


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


class Abi(unittest.TestCase):
    def test_layouts_are_those_of_the_compiler(self) -> None:
        self.assertGreater(len(_abi.LAYOUTS), 10)
        for struct, (size, offsets) in _abi.LAYOUTS.items():
            self.assertEqual(sizeof(struct), size)
            names = [name for name, *_ in struct._fields_ if not name.startswith("_before_")]
            self.assertEqual(names, list(offsets))
            for name, offset in offsets.items():
                self.assertEqual(getattr(struct, name).offset, offset)

    def test_a_different_layout_is_refused(self) -> None:
        code = (
            "from cistern import _abi, _library\n"
            "_abi.LAYOUTS[_abi.cst_io] = (40, _abi.LAYOUTS[_abi.cst_io][1])\n"
            "_library.library()"
        )
        self.assertIn("struct cst_io has another layout", run(code).stderr)

    def test_every_function_is_used_or_has_another_form(self) -> None:
        exported = set(re.findall(r"^    (cst_\w+);", EXPORTS, re.MULTILINE))
        self.assertEqual(exported, set(_abi.FUNCTIONS) | UNUSED)
        self.assertFalse(set(_abi.FUNCTIONS) & UNUSED)

    def test_every_status_has_the_words_of_the_library(self) -> None:
        library = _library.library()
        for status in cistern.Status:
            self.assertNotEqual(library.cst_status_words(status), b"unknown status")

    def test_an_error_has_the_reason_of_its_status_alone(self) -> None:
        err = _abi.cst_err(status=Status.EBUDGET, reason=Reason.JOBS, text=b"64 jobs")
        for status, reason in ((Status.EBUDGET, Reason.JOBS), (Status.EBUSY, Reason.NONE)):
            with self.assertRaises(cistern.CstError) as caught:
                _library.check(status, err)
            self.assertIs(caught.exception.reason, reason)
            again = pickle.loads(pickle.dumps(caught.exception))
            self.assertEqual((again.text, again.reason), (caught.exception.text, reason))
            self.assertIs(again.with_text("other").reason, reason)

    def test_results_have_the_fields_of_their_structs(self) -> None:
        for struct, result in {
            _abi.cst_hyper_params: results.HyperParams,
            _abi.cst_step_result: results.StepResult,
            _abi.cst_rank_stat: results.RankStat,
            _abi.cst_plan_class: results.PlanClass,
            _abi.cst_load_result: results.LoadResult,
            _abi.cst_load_model_result: results.LoadModelResult,
            _abi.cst_save_result: checkpoint.SaveResult,
            _abi.cst_checkpoint: checkpoint.Checkpoint,
            _abi.cst_adopt_result: checkpoint.AdoptResult,
            _abi.cst_pause_result: results.PauseResult,
            _abi.cst_resume_result: results.ResumeResult,
        }.items():
            self.assertEqual(list(_abi.LAYOUTS[struct][1]), list(result._fields))
        plan = list(_abi.LAYOUTS[_abi.cst_plan][1])
        plan.remove("n_classes")
        self.assertEqual(plan, list(results.Plan._fields))

    def test_arguments_are_the_fields_of_their_structs(self) -> None:
        for struct, function, further, fixed in (
            (_abi.cst_job_spec, cistern.Job.__init__, {"client", "socket"}, set()),
            (
                _abi.cst_tensor_spec,
                cistern.Job.tensor,
                set(),
                {"n_dims", "n_external"},
            ),
            (_abi.cst_operator_cost, cistern.Job.operator, {"name", "tensors"}, set()),
            (_abi.cst_save_spec, cistern.Client.save, {"job"}, {"arg", "buffers_bytes"}),
            (_abi.cst_load_model_spec, cistern.Job.load_model, set(), {"arg"}),
        ):
            arguments = set(inspect.signature(function).parameters) - {"self"}
            self.assertEqual(arguments - further, set(_abi.LAYOUTS[struct][1]) - fixed)


class Library(unittest.TestCase):
    def test_versions_are_equal(self) -> None:
        self.assertEqual(cistern.__version__, _library.library().cst_version().decode())

    def test_another_version_is_refused(self) -> None:
        code = "from cistern import _abi, _library; _abi.VERSION = '9.9.9'; _library.library()"
        self.assertRegex(run(code).stderr, r"ImportError: .* has version .* package has 9\.9\.9")

    def test_a_missing_library_is_named(self) -> None:
        code = "from cistern import _library; _library.library()"
        self.assertRegex(
            run(code, CISTERN_LIBRARY="/nowhere/lib.so").stderr,
            r"ImportError: .*/nowhere/lib\.so.*set CISTERN_LIBRARY",
        )

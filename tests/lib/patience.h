/* SPDX-License-Identifier: Apache-2.0 */
/* Scales the time limits of tests. All limits but those of Check go through this module. A limit is
 * written for a quiet machine and a plain build, and multiplied by CK_TIMEOUT_MULTIPLIER of the
 * environment, as Check multiplies the limits of its cases. runtests sets this variable to the
 * value that tests/lib/calibrate measured; tests/e2e/lib.sh scales the limits of scripts. The
 * limits measure nothing: a test that reaches its limit fails. */
#ifndef CST_TESTS_PATIENCE_H
#define CST_TESTS_PATIENCE_H

#include <stdbool.h>
#include <stdint.h>

/* @ms milliseconds, scaled. The result is at least @ms and at most a day. */
int patience_ms(int ms);

/* The time @ms milliseconds (scaled) from now, in nanoseconds of CLOCK_MONOTONIC. */
uint64_t patience_until(int ms);

/* True if the time @until, from patience_until, has passed. */
bool patience_over(uint64_t until);

#endif

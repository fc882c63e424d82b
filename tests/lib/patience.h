/* SPDX-License-Identifier: Apache-2.0 */
/* How long tests wait before they give up: the one place that limits of tests which are not Check's
 * own go through. A limit is written for a quiet machine and a plain build. Here it is multiplied
 * with CK_TIMEOUT_MULTIPLIER of the environment, as Check does with the limits of its cases;
 * runtests sets that variable to what tests/lib/calibrate has measured. tests/e2e/lib.sh does the
 * same for scripts. Nothing is measured against these limits: a test that reaches one fails. */
#ifndef CST_TESTS_PATIENCE_H
#define CST_TESTS_PATIENCE_H

#include <stdbool.h>
#include <stdint.h>

/* @ms milliseconds, scaled; at least @ms, at most a day. */
int patience_ms(int ms);

/* The moment @ms milliseconds from now, scaled, in nanoseconds of CLOCK_MONOTONIC. */
uint64_t patience_until(int ms);

/* The moment @until, of patience_until, has passed. */
bool patience_over(uint64_t until);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of device updates on any accelerator. Their results must have the bits of an update by the
 * host's engine, even if the accelerator's engine is killed and the commands that had not completed
 * are issued again. Commands that the accelerator does not support must be refused. */
#ifndef RESERVATION_CASES_H
#define RESERVATION_CASES_H

#include <check.h>

/* Chooses the engine that is started from then on. */
struct reservation_device {
    void (*use)(void);      /* start the accelerator's engine */
    void (*use_host)(void); /* start the host's engine */
};

/* Add the tests to @tcase. @which must outlive the tests. A program may call this function once. */
void reservation_cases_add(TCase *tcase, const struct reservation_device *which);

#endif

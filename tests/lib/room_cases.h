/* SPDX-License-Identifier: Apache-2.0 */
/* Updates in an accelerator's memory, whichever it is, must have the bits of the host's engine in
 * place, also when its engine is killed and what had not completed is issued again; and what it
 * does not do is refused. */
#ifndef ROOM_CASES_H
#define ROOM_CASES_H

#include <check.h>

/* Whose engines are started from then on. */
struct room_device {
    void (*use)(void);      /* the accelerator's */
    void (*use_host)(void); /* the host's */
};

/* Add the tests to @tcase. @which lives as long as they do; one per program. */
void room_cases_add(TCase *tcase, const struct room_device *which);

#endif

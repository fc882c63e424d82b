/* SPDX-License-Identifier: Apache-2.0 */
/* Reasons of errors (cistern/status.h), for those who make errors and for those who carry them.
 * Who makes an error that a caller treats in a way of its own gives it a reason. Who writes an
 * error anew, with its text in another one, gives the new one the reason of the old. No state; any
 * thread. */
#ifndef CST_REASON_H
#define CST_REASON_H

#include "cistern/status.h"

#include <stddef.h>
#include <stdint.h>

/* Give the error that was just written to @err, which may be NULL, the reason @reason, unless it
 * has one. @status is that of the error, and is returned; CST_OK: there is no error. A failing
 * function can end with `return cst_err_give_reason(err, CST_REASON_JOBS, cst_err_set(err, ...))`.
 */
static inline int cst_err_give_reason(struct cst_err *err, enum cst_reason reason, int status)
{
    if (status != CST_OK && err != NULL && err->reason == CST_REASON_NONE) {
        err->reason = reason;
    }
    return status;
}

/* Return the reason with the number @number of a message. A reason of a newer daemon, which this
 * list does not have, is CST_REASON_NONE. */
static inline enum cst_reason cst_reason_of_number(uint32_t number)
{
    switch (number) {
#define CST_REASON_X(name, n, words)                                                               \
    case n:                                                                                        \
        return CST_REASON_##name;
        CST_REASON_MAP(CST_REASON_X)
#undef CST_REASON_X
    default:
        return CST_REASON_NONE;
    }
}

#endif

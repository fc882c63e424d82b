/* SPDX-License-Identifier: Apache-2.0 */
/* Asks a program one question: the program is started with --probe, and its standard output until
 * it exits is the answer. The call does not block. Loop thread only. */
#ifndef CST_PROBE_H
#define CST_PROBE_H

#include "cistern/status.h"

#include <stddef.h>
#include <uv.h>

struct cstd_probe; /* opaque; frees itself after the program's end */

/* Called once with the result. @text has @n bytes, is NUL-terminated and valid during the call.
 * @why is NULL on success. Otherwise it says what went wrong: the program was killed, wrote
 * nothing, wrote too much, or took too long. */
typedef void (*cstd_probe_fn)(void *arg, const char *text, size_t n, const struct cst_err *why);

/* Start @program. @fn is called once, never within this call, unless the probe is cancelled.
 * CST_EENGINE: the program cannot be started; the words are the system's. CST_ENOMEM: there
 * is no memory for it, or the loop cannot watch it. */
int cstd_probe_start(struct cstd_probe **out, uv_loop_t *loop, const char *program,
                     cstd_probe_fn fn, void *arg, struct cst_err *err);

/* Kill the program; @fn is not called any more. The loop keeps the probe's handles until the
 * process has ended. */
void cstd_probe_cancel(struct cstd_probe *probe);

#endif

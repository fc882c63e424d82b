/* SPDX-License-Identifier: Apache-2.0 */
/* Asking a program one question: it is started with --probe, and what it writes until it ends is
 * the answer. Nobody waits for it. Loop thread only. */
#ifndef CST_PROBE_H
#define CST_PROBE_H

#include "cistern/status.h"

#include <stddef.h>
#include <uv.h>

struct cst_probe; /* opaque; frees itself after its end */

/* It has ended well and wrote @n bytes of @text (NUL-terminated, valid during the call), or @why
 * (NULL: well) says what is wrong: its end, silence for too long, too many words. */
typedef void (*cst_probe_fn)(void *arg, const char *text, size_t n, const struct cst_err *why);

/* Start @program; @fn is called once, never from within. CST_EENGINE with the system's words. */
int cst_probe_start(struct cst_probe **out, uv_loop_t *loop, const char *program, cst_probe_fn fn,
                    void *arg, struct cst_err *err);

/* Kill it; @fn is not called any more. The loop has its handles until it is gone. */
void cst_probe_cancel(struct cst_probe *probe);

#endif

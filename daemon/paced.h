/* SPDX-License-Identifier: Apache-2.0 */
/* The paced accelerators that [paced] in the configuration makes: engines of the host's program
 * with memory and rates of their own (kernels/host/paced.h). To everybody else each is a struct
 * cst_gpu like the GPUs', but known from the start, and its memory is memfds. */
#ifndef CST_DAEMON_PACED_H
#define CST_DAEMON_PACED_H

#include "daemon/config.h"
#include "daemon/engines.h"
#include "daemon/gpu_list.h"

#define CST_PACED_ARGUMENT 128 /* bytes that cst_paced_argument needs at most */

/* Make the list of them, @out, and an engine for each in @engines. CST_EUNSUPPORTED: too many. */
int cst_paced_init(struct cst_gpu_list *out, struct cst_engines *engines,
                   const struct cst_config *config, struct cst_err *err);

/* The one that @device ("paced": number @rank modulo their number; "paced:N") means.
 * CST_EUNSUPPORTED: there are none; CST_ENOTFOUND. */
int cst_paced_find(struct cst_gpu_list *list, const char *device, uint32_t rank,
                   struct cst_gpu **out, struct cst_err *err);

/* Does @device, of JobOpen or of an engine, name one? */
bool cst_paced_is(const char *device);

/* What the engine program of one is told behind --paced. Returns @out. */
char *cst_paced_argument(const struct cst_config *config, char out[CST_PACED_ARGUMENT]);

#endif

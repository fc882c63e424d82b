/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated accelerators, which [paced] in the configuration defines: engines that run the host's
 * engine program with memory and rates of their own (kernels/host/paced.h). Other modules see each
 * of them as a struct cstd_gpu, like a GPU's. The differences: it is known from the start, and its
 * memory consists of memfds. */
#ifndef CSTD_SIMULATED_H
#define CSTD_SIMULATED_H

#include "daemon/settings/paced.h"
#include "daemon/engine/engines.h"
#include "daemon/settings/gpu_list.h"

/* Fill in the list @out of simulated accelerators, and add an engine for each to @engines.
 * CST_EUNSUPPORTED: too many. */
int cstd_simulated_init(struct cstd_gpu_list *out, struct cstd_engines *engines,
                        const struct cstd_settings *config, struct cst_err *err);

/* Find the simulated accelerator that @device names. "paced:N" is number N; "paced" is number @rank
 * modulo the number of simulated accelerators. CST_EUNSUPPORTED: the daemon has none.
 * CST_ENOTFOUND: it has none of this number. */
int cstd_simulated_find(struct cstd_gpu_list *list, const char *device, uint32_t rank,
                        struct cstd_gpu **out, struct cst_err *err);

#endif

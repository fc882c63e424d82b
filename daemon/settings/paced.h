/* SPDX-License-Identifier: Apache-2.0 */
/* The names and the engine program's argument of simulated accelerators, which [paced] in the
 * configuration defines. */
#ifndef CSTD_PACED_H
#define CSTD_PACED_H

#include "daemon/settings/settings.h"

#include <stdbool.h>

#define CSTD_PACED "paced"      /* Name of a simulated accelerator; a number may follow. */
#define CSTD_PACED_ARGUMENT 128 /* Bytes of the longest text of cstd_paced_argument. */

/* Return whether @device, of a JobOpen or of an engine, names a simulated accelerator. */
bool cstd_paced_is(const char *device);

/* Write the argument of the option --paced with which the engine program of a simulated accelerator
 * is started. Returns @out. */
char *cstd_paced_argument(const struct cstd_settings *config, char out[CSTD_PACED_ARGUMENT]);

#endif

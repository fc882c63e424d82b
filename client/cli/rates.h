/* SPDX-License-Identifier: Apache-2.0 */
/* Rates for people, and where their file is. */
#ifndef CLI_RATES_H
#define CLI_RATES_H

#include "offload/plan/rates.h"

#include <stdbool.h>
#include <stddef.h>

/* The file that `cistern probe` writes and `cistern plan` reads unless told otherwise, into @out of
 * @n bytes: of root the daemon's, else $XDG_STATE_HOME/cistern/rates.json, or the same in
 * ~/.local/state. False: there is no home, or no room. */
bool cli_rates_path(char *out, size_t n);

/* Tables to stdout. False: out of memory, said. */
bool cli_rates_print(const struct cst_rates *rates);

#endif

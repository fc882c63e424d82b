/* SPDX-License-Identifier: Apache-2.0 */
/* The default file of the rates of this machine, and their output as text. */
#ifndef CLI_RATES_H
#define CLI_RATES_H

#include "proto/rates.h"

#include <stdbool.h>
#include <stddef.h>

/* Write to @out, which has @n bytes, the path of the file that `cistern probe` writes and `cistern
 * plan` reads by default: for root /var/lib/cistern/rates.json, which the daemon reads, too; else
 * cistern/rates.json in $XDG_STATE_HOME or in ~/.local/state. False: there is no home directory, or
 * the path is too long. */
bool cli_rates_path(char *out, size_t n);

/* Print the rates to stdout as tables. False: out of memory; the error was printed to stderr. */
bool cli_rates_print(const struct cst_rates *rates);

#endif

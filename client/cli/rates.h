/* SPDX-License-Identifier: Apache-2.0 */
/* The default file of the rates of this machine. */
#ifndef CLI_RATES_H
#define CLI_RATES_H

#include <stdbool.h>
#include <stddef.h>

/* Write to @out, which has @n bytes, the path of the file that `cistern probe` writes and `cistern
 * plan` reads by default: for root /var/lib/cistern/rates.json, which the daemon reads, too; else
 * cistern/rates.json in $XDG_STATE_HOME or in ~/.local/state. False: there is no home directory, or
 * the path is too long. */
bool cli_rates_path(char *out, size_t n);

#endif

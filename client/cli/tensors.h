/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a job, as the daemon lists them. The program has one thread. */
#ifndef CLI_TENSORS_H
#define CLI_TENSORS_H

#include "client/cli/cli.h"

/* The words with which a job's list of tensors helps after a name that it does not have. */
#define CLI_TENSORS_HINT_BYTES 640

/* Write to @out which tensor of the job that the command names is meant by @name, and how to list
 * all of them: ": did you mean ...". Empty: the daemon gives no list, for example because there is
 * no such job. Returns @out. */
const char *cli_tensors_hint(struct cli *cli, const char *name, char out[CLI_TENSORS_HINT_BYTES]);

#endif

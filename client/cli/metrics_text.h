/* SPDX-License-Identifier: Apache-2.0 */
/* The text of `cistern metrics`: the exposition format 0.0.4 of Prometheus. A table has a row for
 * each sample, with the field of the daemon's message that it is read from. Pure. */
#ifndef CLI_METRICS_TEXT_H
#define CLI_METRICS_TEXT_H

#include "client/cli/metrics_gather.h"

#include <stdbool.h>
#include <stdio.h>

#define CLI_METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* Print @metrics to @out. All metrics are named with their type and help, even if there is no
 * sample. Without a reply of the daemon, there is only cistern_up, which is 0. False: out of
 * memory; the text is incomplete. Errors of @out are left to the caller. */
bool cli_metrics_print(const struct cli_metrics *metrics, FILE *out);

#endif

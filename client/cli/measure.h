/* SPDX-License-Identifier: Apache-2.0 */
/* Measuring this machine: what engines say when asked, a disk, a round trip to the daemon. */
#ifndef CLI_MEASURE_H
#define CLI_MEASURE_H

#include "client/client.h"
#include "offload/plan/rates.h"

#include <stdbool.h>
#include <stddef.h>

#define CLI_MEASURE_MAX_NOTES 16
#define CLI_MEASURE_TRIALS 3              /* of each engine's rates */
#define CLI_MEASURE_TEXT ((16 << 10) + 1) /* bytes of a program's words that are kept */

struct cli_measured {
    struct cst_rates rates;
    char notes[CLI_MEASURE_MAX_NOTES][192]; /* what could not be measured, and why */
    unsigned n_notes;
};

/* Run, CLI_MEASURE_TRIALS times, the host's engine program on each NUMA node that has memory and
 * cores, the other one on each GPU, fill in medians of nodes and devices, their spread and the
 * fingerprint. CST_ENOTFOUND: no engine program; CST_EENGINE: the host's failed, with its words.
 * Without GPUs there is a note. Takes seconds per node and GPU.
 */
int cli_measure_engines(struct cli_measured *out, struct cst_err *err);

/* Measure how many flop/s a training step reaches on the host, by a few steps of cistern-gpt in its
 * own memory, into the host's device, which is there. Where that program is missing or fails there
 * is a note. Takes seconds. */
void cli_measure_flops(struct cli_measured *out);

/* What other programs use of the processors, between begin and end. */
struct cli_busy {
    double began_s;    /* on the monotonic clock */
    double used_s;     /* processor time of the whole machine, then */
    double used_own_s; /* of it, of this program and its children */
};

/* Begin to watch; and, into @out, how many cores others used since, with a note where these are so
 * many that rates suffer. Where the kernel does not say nothing is known. */
void cli_busy_begin(struct cli_busy *busy);
void cli_busy_end(const struct cli_busy *busy, struct cli_measured *out);

/* Write and read a file in @directory, with direct I/O where it can be had. CST_EIO: not enough
 * room, or no way to write there. */
int cli_measure_disk(struct cli_measured *out, const char *directory, struct cst_err *err);

/* The median of round trips to the daemon. */
int cli_measure_request(struct cli_measured *out, struct cst_client *client, struct cst_err *err);

/* -- for the parts of it ---------------------------------------------------------------------- */

void cli_measure_note(struct cli_measured *out, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Run @argv to its end; the first CLI_MEASURE_TEXT - 1 bytes that it says, on standard output and
 * error, in @text. *status as waitpid says. CST_EENGINE: it could not be started. */
int cli_measure_run(char *const *argv, char text[CLI_MEASURE_TEXT], int *status,
                    struct cst_err *err);

/* Sort @values; their median. *spread: half their range over it, if that is more than *spread. */
double cli_measure_median(double *values, unsigned n, double *spread);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Measures this machine for `cistern probe`: the rates of engines, a disk, and round trips to the
 * daemon. */
#ifndef CLI_MEASURE_H
#define CLI_MEASURE_H

#include "client/lib/client.h"
#include "proto/rates.h"

#include <stdbool.h>
#include <stddef.h>

#define CLI_MEASURE_MAX_NOTES 16
#define CLI_MEASURE_TRIALS 3 /* Number of measurements of each engine's rates. */
/* Size of a buffer for the output of a program, with a NUL. What does not fit is dropped. */
#define CLI_MEASURE_TEXT ((16 << 10) + 1)

struct cli_measured {
    struct cst_rates rates;
    uint64_t disk_bytes; /* Size of the file on which the drive was measured; 0: none was. */
    char notes[CLI_MEASURE_MAX_NOTES][192]; /* What could not be measured, and why. */
    unsigned n_notes;
};

/* Measure the nodes and devices: run the host's engine program on each NUMA node that has memory
 * and cores, and the GPUs' engine program on each GPU, CLI_MEASURE_TRIALS times each. Fills in the
 * medians, their spread, and the machine's fingerprint. A failure on GPUs becomes a note. Takes
 * seconds per node and GPU. CST_ENOTFOUND: there is no engine program for the host; CST_EENGINE: it
 * failed, with the cause. */
int cli_measure_engines(struct cli_measured *out, struct cst_err *err);

/* Measure the flop/s that a training step reaches on the host: run a few steps of cistern-gpt in
 * its own memory. Sets flops of the device "host", which cli_measure_engines has added. A failure
 * becomes a note. Takes seconds. */
void cli_measure_flops(struct cli_measured *out);

/* The use of processors at the start of a measurement, to compute what other programs use. */
struct cli_busy {
    double began_s;    /* Time on the monotonic clock. */
    double used_s;     /* Processor time that the whole machine had used. */
    double used_own_s; /* Processor time that this program and its ended children had used. */
};

/* Begin to observe the use of processors. */
void cli_busy_begin(struct cli_busy *busy);

/* Write into @out how many cores other programs have used since cli_busy_begin, and add a note, if
 * they are so many that the rates suffer. Does nothing if the kernel does not tell. */
void cli_busy_end(const struct cli_busy *busy, struct cli_measured *out);

/* Measure the drive of @directory with a file of @bytes (0: the engine program chooses): reads,
 * writes, both at once, and flushes. CST_ENOTFOUND: there is no engine program for the host;
 * CST_EENGINE: it failed, with the cause. */
int cli_measure_disk(struct cli_measured *out, const char *directory, uint64_t bytes,
                     struct cst_err *err);

/* Measure the median time of a round trip to the daemon. Statuses of cst_ping. */
int cli_measure_request(struct cli_measured *out, struct cst_client *client, struct cst_err *err);

/* -- used by measure.c and measure_flops.c ----------------------------------------------------- */

/* Add a note, if there is space for it. */
void cli_measure_note(struct cli_measured *out, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Run the program @argv to its end. @text receives the first CLI_MEASURE_TEXT - 1 bytes of its
 * standard output and error. *status is that of waitpid. CST_EENGINE: it could not be started. */
int cli_measure_run(char *const *argv, char text[CLI_MEASURE_TEXT], int *status,
                    struct cst_err *err);

/* Sort @values and return their median. *spread is raised to half their range divided by the
 * median, if it is less. */
double cli_measure_median(double *values, unsigned n, double *spread);

#endif

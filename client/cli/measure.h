/* Measuring this machine: what engines say when asked, a disk, a round trip to the daemon. */
#ifndef CLI_MEASURE_H
#define CLI_MEASURE_H

#include "client/client.h"
#include "offload/plan/rates.h"

#include <stdbool.h>
#include <stddef.h>

#define CLI_MEASURE_MAX_NOTES 16

struct cli_measured {
    struct cst_rates rates;
    char notes[CLI_MEASURE_MAX_NOTES][192]; /* what could not be measured, and why */
    unsigned n_notes;
};

/* Run the host's engine program on each NUMA node that has memory and cores, the other one on each
 * GPU, fill in nodes, devices and the fingerprint. CST_ENOTFOUND: no engine program; CST_EENGINE:
 * the host's failed, with its words. Without GPUs there is a note. Takes seconds per node and GPU.
 */
int cli_measure_engines(struct cli_measured *out, struct cst_err *err);

/* Write and read a file in @directory, with direct I/O where it can be had. CST_EIO: not enough
 * room, or no way to write there. */
int cli_measure_disk(struct cli_measured *out, const char *directory, struct cst_err *err);

/* The median of round trips to the daemon. */
int cli_measure_request(struct cli_measured *out, struct cst_client *client, struct cst_err *err);

#endif

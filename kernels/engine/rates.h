/* SPDX-License-Identifier: Apache-2.0 */
/* Measuring the speed of an engine on this machine, as input for plans. `cistern-engine-host
 * --rates` and `cistern-engine-cuda --rates` print one JSON object and a newline and exit. The
 * fields have the names and meanings of proto/rates.h. A number that is not known is 0.
 *
 *   cistern-engine-host --rates [--node N] [--threads N] [--copy-threads N]
 *     {"node":0,"isa":"avx512","threads":16,"copy_threads":4,
 *      "cores":16,"memory_bytes":134910000000,"pass":2.1e11,"update":6.3e9,"reduce":3.0e10,
 *      "copy":8.1e10,"products":8.0e11}
 *
 *   cistern-engine-host --rates --directory DIR [--bytes SIZE] [--copy-threads N]
 *     {"copy_threads":2,"bytes":4294967296,"disk_read":1.8e9,"disk_write":3.2e9,"disk_mixed":2.3e9,
 *      "disk_flush_s":2.1e-4}
 *
 *   cistern-engine-cuda --rates --device UUID [--node N] [--copy-threads N]
 *     {"uuid":"GPU-...","node":0,"isa":"sm_90","copy_threads":2,
 *      "name":"H200","memory_bytes":150000000000,"up":5.5e10,"down":5.5e10,"up_both":4.9e10,
 *      "down_both":4.9e10,"copy_latency_s":1.1e-05,"peer":0,"flops":0,"update":0,"memory":4.1e12}
 *
 * If measuring is impossible, the program prints a sentence on stderr and exits with a status that
 * is not 0. Measuring takes about three seconds, and that of a drive as long as it takes to go over
 * the file four times (kernels/host/disk_rates.c). Measuring uses 1/8 of the memory of the node or
 * 2 GiB, whichever is less, and 512 MiB of a GPU. Each figure is a median over memory that was
 * touched before. The figures are measured with the parts that the engine uses in production:
 * threads on their cores, pieces, kernels with undo slots and marks, streams. Nothing else should
 * run at the time.
 *
 *   node          host: node whose memory and cores are used (default 0). cuda: node whose memory
 *                 the copies use. The default is the node of the GPU, printed as -1 if not known.
 *   threads       host: size of the team. The default is all usable cores of the node.
 *   copy_threads  lanes in each direction, at most 64. The default is the number that the engine
 *                 chooses if the daemon does not give one.
 *   isa, uuid     as in READY and in --probe
 *   update (cuda), flops
 *                 0: an engine does not measure them */
#ifndef CST_ENGINE_RATES_H
#define CST_ENGINE_RATES_H

#include "cistern/status.h"

#include <stdint.h>
#include <stdio.h>

/* Options of --rates. */
struct cste_engine_rates_options {
    int node;              /* NUMA node; -1: the default. */
    unsigned threads;      /* Size of the team; 0: all cores. */
    unsigned copy_threads; /* Lanes in each direction; 0: the engine chooses. */
    const char *device;    /* cistern-engine-cuda: UUID of the GPU; NULL: none was given. */
    /* cistern-engine-host: a directory whose drive is measured; NULL: the node is measured. */
    const char *directory;
    uint64_t bytes; /* With directory: size of the file that is measured; 0: the default. */
};

/* Measure and write the JSON object to @to. CST_ENOMEM: not enough memory; CST_ENOTFOUND: no such
 * node or GPU; CST_EUNSUPPORTED: no driver, or no kernels for this processor; CST_EINVAL: no GPU
 * was named; CST_EIO: the output could not be written; CST_EGPU. */
int cste_host_rates(const struct cste_engine_rates_options *options, FILE *to, struct cst_err *err);
int cste_cuda_rates(const struct cste_engine_rates_options *options, FILE *to, struct cst_err *err);

#endif

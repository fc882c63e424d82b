/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine can do on this machine, measured, for plans: `cistern-engine-host --rates` and
 * `cistern-engine-cuda --rates` print one JSON object and a newline and exit. Fields are named as
 * in offload/plan/rates.h, which says what they mean; numbers of them that are not known are 0.
 *
 *   cistern-engine-host --rates [--node N] [--threads N] [--copy-threads N]
 *     {"node":0,"isa":"avx512","threads":16,"copy_threads":4,
 *      "cores":16,"memory_bytes":134910000000,"pass":2.1e11,"update":6.3e9,"reduce":3.0e10,"copy":8.1e10}
 *
 *   cistern-engine-cuda --rates --device UUID [--node N] [--copy-threads N]
 *     {"uuid":"GPU-...","node":0,"isa":"sm_90","copy_threads":2,
 *      "name":"H200","memory_bytes":150000000000,"up":5.5e10,"down":5.5e10,"up_both":4.9e10,"down_both":4.9e10,
 *      "copy_latency_s":1.1e-05,"peer":0,"flops":0,"update":0,"memory":4.1e12}
 *
 * A machine on which it cannot be measured is told in a sentence on stderr and by a status that is
 * not 0. Takes about three seconds and, of the node, 1/8 of its memory or 2 GiB, whichever is less;
 * of the GPU 512 MiB. Each figure is a median over memory that was touched before, made with what
 * the engine uses in production: its threads on its cores, its pieces, its kernels with undo slots
 * and marks, its streams. Nothing else should run meanwhile.
 *
 *   node          host: whose memory and cores (default 0). cuda: whose memory the copies use; the
 *                 default is the GPU's own node, printed -1 where that is not known
 *   threads       host: of the team; the default is all usable cores of the node
 *   copy_threads  lanes, in each direction; the default is what the engine chooses when the daemon
 *                 leaves it the choice
 *   isa, uuid     as in READY and in --probe
 *   update (cuda), flops   0: not measured by an engine */
#ifndef CST_ENGINE_RATES_H
#define CST_ENGINE_RATES_H

#include "cistern/status.h"

#include <stdint.h>
#include <stdio.h>

struct cst_engine_rates_options {
    int node;              /* NUMA node; -1: the default */
    unsigned threads;      /* of the team; 0: all cores */
    unsigned copy_threads; /* lanes, in each direction; 0: chosen */
    const char *device;    /* engine-cuda: UUID; NULL: none given */
};

/* Measure and write to @to. CST_ENOMEM: not enough memory; CST_ENOTFOUND: no such node or GPU;
 * CST_EUNSUPPORTED: no driver, or kernels for this processor; CST_EINVAL: no GPU is named; CST_EIO:
 * it could not be written; CST_EGPU. */
int cst_host_rates(const struct cst_engine_rates_options *options, FILE *to, struct cst_err *err);
int cst_cuda_rates(const struct cst_engine_rates_options *options, FILE *to, struct cst_err *err);

#endif

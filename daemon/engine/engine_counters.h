/* SPDX-License-Identifier: Apache-2.0 */
/* What the processes of an engine count: bytes, elements and times of their work. Loop thread
 * only. */
#ifndef CSTD_ENGINE_COUNTERS_H
#define CSTD_ENGINE_COUNTERS_H

#include "proto/engine.pb-c.h"

#include <stdint.h>

/* Counters of an engine process, as in the message Pong of engine.proto. */
struct cstd_engine_counters {
    uint64_t copy_bytes, copy_ns;
    uint64_t update_elems, update_ns;
    uint64_t reduce_elems, reduce_ns;
    uint64_t up_bytes, up_ns;
    uint64_t down_bytes, down_ns;
    uint64_t update_bytes, reduce_bytes;
    uint64_t held_ns;
    uint64_t product_flops, product_ns;
};

/* Returns the counters in @pong. */
struct cstd_engine_counters cstd_engine_counters_of(const Engine__Pong *pong);

/* Add @more to *sum. */
void cstd_engine_counters_add(struct cstd_engine_counters *sum,
                              const struct cstd_engine_counters *more);

#endif

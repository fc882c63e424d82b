/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/engine_counters.h"

struct cstd_engine_counters cstd_engine_counters_of(const Engine__Pong *pong)
{
    return (struct cstd_engine_counters){
        .copy_bytes = pong->copy_bytes,
        .copy_ns = pong->copy_ns,
        .update_elems = pong->update_elems,
        .update_ns = pong->update_ns,
        .reduce_elems = pong->reduce_elems,
        .reduce_ns = pong->reduce_ns,
        .up_bytes = pong->up_bytes,
        .up_ns = pong->up_ns,
        .down_bytes = pong->down_bytes,
        .down_ns = pong->down_ns,
        .update_bytes = pong->update_bytes,
        .reduce_bytes = pong->reduce_bytes,
        .held_ns = pong->held_ns,
        .product_flops = pong->product_flops,
        .product_ns = pong->product_ns,
    };
}

void cstd_engine_counters_add(struct cstd_engine_counters *sum,
                              const struct cstd_engine_counters *more)
{
    sum->copy_bytes += more->copy_bytes;
    sum->copy_ns += more->copy_ns;
    sum->update_elems += more->update_elems;
    sum->update_ns += more->update_ns;
    sum->reduce_elems += more->reduce_elems;
    sum->reduce_ns += more->reduce_ns;
    sum->up_bytes += more->up_bytes;
    sum->up_ns += more->up_ns;
    sum->down_bytes += more->down_bytes;
    sum->down_ns += more->down_ns;
    sum->update_bytes += more->update_bytes;
    sum->reduce_bytes += more->reduce_bytes;
    sum->held_ns += more->held_ns;
    sum->product_flops += more->product_flops;
    sum->product_ns += more->product_ns;
}

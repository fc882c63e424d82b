/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/machines_rig.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct machines_rig rig;

void machines_rig_setup(void)
{
    int64_t shape = MACHINES_RIG_ELEMS;
    char name[8];

    cst_model_init(&rig.model);
    memset(&rig.layout, 0, sizeof rig.layout);
    rig.core = NULL;
    rig.table = NULL;
    rig.tag = 0;
    rig.epoch = 1;
    rig.now = 1;
    rig.n_tickets = 0;
    cst_actions_init(&rig.actions);
    for (uint32_t i = 0; i < MACHINES_RIG_CHUNKS; i++) {
        struct cst_tensor_words words = {.name = name,
                                         .shape = &shape,
                                         .n_dims = 1,
                                         .lr_scale = 1,
                                         .decay_scale = 1,
                                         .pattern = CST_PATTERN_SHARD};

        (void)snprintf(name, sizeof name, "t%u", i);
        ck_assert_int_eq(cst_model_tensor(&rig.model, &words, &rig.err), CST_OK);
        ck_assert_int_eq(cst_model_operator(&rig.model, name, &i, 1, NULL, &rig.err), CST_OK);
    }
    for (uint32_t i = 0; i < 64; i++) {
        rig.segments[i] = 100 + i;
    }
    rig.how = (struct cst_layout_config){.chunk_elems = MACHINES_RIG_ELEMS,
                                         .n_nodes = 1,
                                         .world = 1,
                                         .machines = {.n = 2, .self = 1, .copies = 1},
                                         .partials = {.n_here = 1, .n_come = 1}};
    rig.machines = (struct cst_core_machines){.n = 2,
                                              .self = 1,
                                              .copies = 1,
                                              .n_rank_blocks = 2,
                                              .rank_blocks = 2,
                                              .engine = MACHINES_RIG_ENGINE};
    rig.pools[0] = rig.pools[1] = (struct cst_core_pool){
        .parts[0] = {.n_blocks = 8, .blocks_per_slab = 8}, .segments = rig.segments};
    rig.config = (struct cst_core_config){.model = &rig.model,
                                          .layout = &rig.layout,
                                          .world = 1,
                                          .arena_segments = rig.segments,
                                          .pools = rig.pools,
                                          .first_ticket = 1,
                                          .peer_timeout_ns = 1000000,
                                          .policy = {.prefetch_depth = CST_CORE_NO_PREFETCH},
                                          .block_ranks = 1,
                                          .machines = &rig.machines};
}

void machines_rig_teardown(void)
{
    cst_core_close(rig.core);
    cst_actions_close(&rig.actions);
    cst_layout_close(&rig.layout);
    cst_model_close(&rig.model);
    free(rig.table);
}

int machines_rig_try_open(void)
{
    struct cst_table_header header;

    cst_layout_close(&rig.layout);
    ck_assert_int_eq(cst_layout_build(&rig.layout, &rig.model, &rig.how, &rig.err), CST_OK);
    cst_layout_size_table(&rig.layout, &header);
    free(rig.table);
    rig.table = calloc(1, header.total_bytes);
    ck_assert_ptr_nonnull(rig.table);
    *rig.table = header;
    cst_core_write_table(&rig.config, rig.table);
    rig.config.table = rig.table;
    return cst_core_open(&rig.core, &rig.config, &rig.err);
}

void machines_rig_feed(struct cst_event event)
{
    const char *broken;

    event.now = rig.now;
    rig.n_replies = rig.n_told = rig.n_commands = 0;
    cst_core_step(rig.core, &event, &rig.actions);
    for (size_t i = 0; i < rig.actions.n; i++) {
        const struct cst_action *a = &rig.actions.v[i];

        if (a->kind == CST_ACT_REPLY) {
            rig.replies[rig.n_replies++] = a->reply;
        } else if (a->kind == CST_ACT_TELL) {
            rig.told[rig.n_told++] = a->tell.message;
        } else if (a->kind == CST_ACT_COMMAND && !a->command.promised) {
            ck_assert_uint_lt(rig.n_tickets, MACHINES_RIG_TICKETS);
            if (rig.n_commands < 8) {
                rig.commands[rig.n_commands++] = a->command;
            }
            rig.tickets[rig.n_tickets++] = a->command.ticket;
        }
    }
    broken = cst_core_check(rig.core);
    ck_assert_msg(broken == NULL, "it is not true that %s", broken);
}

void machines_rig_complete(void)
{
    for (uint32_t i = 0; i < rig.n_tickets; i++) {
        machines_rig_feed(
            (struct cst_event){.kind = CST_EV_DONE, .ticket = rig.tickets[i], .value = 1.0});
    }
    rig.n_tickets = 0;
}

void machines_rig_hear(struct cst_machine_message message)
{
    message.epoch = rig.epoch;
    machines_rig_feed((struct cst_event){.kind = CST_EV_TOLD, .machine = 0, .message = &message});
}

struct cst_reply machines_rig_ask(enum cst_event_kind kind, uint32_t chunk, uint64_t generation)
{
    machines_rig_feed((struct cst_event){.kind = kind,
                                         .tag = ++rig.tag,
                                         .attempt = 1,
                                         .chunk = chunk,
                                         .generation = generation,
                                         .hyper = {.lr = 0.1, .grad_scale = 1}});
    return rig.replies[0];
}

void machines_rig_begin(void)
{
    ck_assert_msg(machines_rig_try_open() == CST_OK, "%s", rig.err.text);
    machines_rig_feed((struct cst_event){.kind = CST_EV_ATTACH});
    (void)machines_rig_ask(CST_EV_SYNC, 0, 0);
    ck_assert_uint_eq(rig.n_replies + rig.n_told, 0);
    machines_rig_feed((struct cst_event){.kind = CST_EV_MACHINES, .epoch = 1, .members = 3});
    ck_assert_int_eq(rig.told[0].kind, CST_MESSAGE_RECORD);
    machines_rig_hear((struct cst_machine_message){.kind = CST_MESSAGE_RECORD, .rank_blocks = 1});
    ck_assert_int_eq(rig.told[0].kind, CST_MESSAGE_SYNCED);
    machines_rig_hear((struct cst_machine_message){.kind = CST_MESSAGE_START, .attempt = 1});
    ck_assert_int_eq(rig.replies[0].status, CST_OK);
    ck_assert_uint_eq(rig.replies[0].attempt, 1);
}

struct cst_decision machines_rig_decision(void)
{
    return (struct cst_decision){.step = 1,
                                 .adam_step = 1,
                                 .attempt = 1,
                                 .hyper = {.lr = 0.1, .grad_scale = 1},
                                 .sum_squares = 1};
}

struct cst_core_stats machines_rig_stats(void)
{
    struct cst_core_stats stats;

    cst_core_stats(rig.core, &stats);
    return stats;
}

/* The core by hand, a rule at a time: weights, gradients, commit. What happens when everything
 * happens at once is tests/sim's. */
#include "tests/lib/suite.h"
#include "tests/unit/core_rig.h"

#include <check.h>
#include <math.h>
#include <string.h>

static struct rig rig;

static void teardown(void)
{
    rig_close(&rig);
}

static struct cst_books books(uint32_t rank)
{
    struct cst_rank_stats stats;

    cst_core_rank_stats(rig.core, rank, &stats);
    return stats.books;
}

static struct cst_rank_stats stats_of(uint32_t rank)
{
    struct cst_rank_stats stats;

    cst_core_rank_stats(rig.core, rank, &stats);
    return stats;
}

static struct cst_core_stats core_stats(void)
{
    struct cst_core_stats stats;

    cst_core_stats(rig.core, &stats);
    return stats;
}

/* The only command of @kind under way. */
static struct cst_command only(enum cst_command_kind kind)
{
    ck_assert_uint_eq(rig_count(&rig, kind), 1);
    return *rig_command(&rig, kind, 0);
}

/* -- weights ---------------------------------------------------------------------------------- */

/* A miss is a copy of the chunk's whole weight row into a block of the rank, and is answered when
 * that is done. */
START_TEST(miss_is_copied)
{
    struct cst_command copy;
    uint64_t tag;

    rig_open(&rig, 4, 2, 4, 0);
    rig_start(&rig, 2);
    tag = rig_fetch(&rig, 1, 2);
    ck_assert(rig_waits(&rig, tag));
    copy = only(CST_COMMAND_COPY);
    ck_assert_uint_eq(copy.bytes, 2 * RIG_CHUNK_ELEMS);
    ck_assert_uint_eq(copy.src[0].segment,
                      RIG_ARENA_SEGMENT + rig.layout.chunks[2].rows[0].segment);
    ck_assert_uint_eq(copy.src[0].offset, rig.layout.chunks[2].rows[0].offset);
    ck_assert_uint_eq(copy.dst[0].segment, RIG_POOL_SEGMENT + 1);
    ck_assert_uint_eq(copy.n_after, 0);
    ck_assert_uint_eq(books(1).moving, 1);
    rig_done(&rig, copy.ticket, CST_OK, NULL);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    ck_assert(!rig_answer(&rig, tag)->hit);
    ck_assert_uint_eq(rig_answer(&rig, tag)->offset, copy.dst[0].offset);
    ck_assert_uint_eq(books(1).leased, 1);
    ck_assert_uint_eq(stats_of(1).misses, 1);
    ck_assert_uint_eq(stats_of(1).bytes_up, 2 * RIG_CHUNK_ELEMS);
}
END_TEST

/* A hit is answered at once; a second lease has the same generation, and the block is cached only
 * when both are released. */
START_TEST(hit_is_a_lease_more)
{
    uint64_t first;
    uint64_t tag;

    rig_open(&rig, 4, 1, 4, 0);
    rig_start(&rig, 1);
    first = rig_get(&rig, 0, 1);
    tag = rig_fetch(&rig, 0, 1);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    ck_assert(rig_answer(&rig, tag)->hit);
    ck_assert_uint_eq(rig_answer(&rig, tag)->generation, first);
    ck_assert_uint_eq(rig.n_commands, 0);
    (void)rig_release(&rig, 0, 1, first);
    ck_assert_uint_eq(books(0).leased, 1);
    (void)rig_release(&rig, 0, 1, first);
    ck_assert_uint_eq(books(0).cached, 1);
    ck_assert_int_eq(rig_status(&rig, rig_release(&rig, 0, 1, first)), CST_ESTALE);
    ck_assert_uint_ne(rig_get(&rig, 0, 1), first);
}
END_TEST

/* A generation that is not the lease's is stale, and so is any generation of a chunk that is not
 * leased. */
START_TEST(wrong_generation_is_stale)
{
    uint64_t weight;
    uint64_t grad;

    rig_open(&rig, 4, 1, 4, 0);
    rig_start(&rig, 1);
    weight = rig_get(&rig, 0, 0);
    grad = rig_get_grad(&rig, 0, 0);
    ck_assert_int_eq(rig_status(&rig, rig_release(&rig, 0, 0, weight + 7)), CST_ESTALE);
    ck_assert_int_eq(rig_status(&rig, rig_release(&rig, 0, 0, 0)), CST_ESTALE);
    ck_assert_int_eq(rig_status(&rig, rig_release(&rig, 0, 2, weight)), CST_ESTALE);
    ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, 0, 0, weight)), CST_ESTALE);
    ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, 0, 1, grad)), CST_ESTALE);
    ck_assert_uint_eq(books(0).leased, 2);
}
END_TEST

/* Where a pool is told to, the victim is the block that was used longest ago. */
START_TEST(evicts_lru)
{
    const struct cst_core_policy policy = {.prefetch_depth = CST_CORE_NO_PREFETCH,
                                           .eviction = CST_EVICT_LRU};

    rig_open_policy(&rig, 6, 1, 3, &policy);
    rig_start(&rig, 1);
    for (uint32_t c = 0; c < 3; c++) {
        (void)rig_release(&rig, 0, c, rig_get(&rig, 0, c));
    }
    (void)rig_release(&rig, 0, 0, rig_get(&rig, 0, 0)); /* 1 is the oldest now */
    (void)rig_release(&rig, 0, 3, rig_get(&rig, 0, 3));
    ck_assert_int_eq(rig_status(&rig, rig_fetch(&rig, 0, 0)), CST_OK);
    ck_assert_int_eq(rig_status(&rig, rig_fetch(&rig, 0, 2)), CST_OK);
    ck_assert(rig_waits(&rig, rig_fetch(&rig, 0, 1)));
    ck_assert_uint_eq(stats_of(0).evictions, 2);
}
END_TEST

/* The victim is the block whose next use is farthest, in the first step (_i = 0) by the declared
 * order: at the turn from forward to backward the chunks used last stay, where LRU would keep
 * missing. */
START_TEST(evicts_farthest)
{
    rig_open(&rig, 6, 1, 4, 0);
    rig_start(&rig, 1);
    for (int i = 0; i < _i; i++) {
        rig_whole_step(&rig, 6, 1);
    }
    for (uint32_t c = 0; c < 4; c++) {
        (void)rig_release(&rig, 0, c, rig_get(&rig, 0, c));
    }
    (void)rig_release(&rig, 0, 4, rig_get(&rig, 0, 4)); /* of 0..3, 0 is wanted last in backward */
    (void)rig_release(&rig, 0, 5, rig_get(&rig, 0, 5)); /* and then 1 */
    ck_assert(!rig_waits(&rig, rig_fetch(&rig, 0, 2)));
    ck_assert(!rig_waits(&rig, rig_fetch(&rig, 0, 3)));
    ck_assert(!rig_waits(&rig, rig_fetch(&rig, 0, 4)));
    ck_assert(!rig_waits(&rig, rig_fetch(&rig, 0, 5)));
}
END_TEST

/* A fetch that finds no block waits, is counted, and is served when one is released; demands come
 * before what is asked ahead. */
START_TEST(waits_for_a_block)
{
    uint64_t held[3];
    uint64_t ahead;
    uint64_t first;
    uint64_t second;

    rig_open(&rig, 6, 1, 3, 0);
    rig_start(&rig, 1);
    for (uint32_t c = 0; c < 3; c++) {
        held[c] = rig_get(&rig, 0, c);
    }
    ahead = rig_fetch_ahead(&rig, 0, 3);
    first = rig_fetch(&rig, 0, 4);
    second = rig_fetch(&rig, 0, 5);
    ck_assert_uint_eq(rig.n_commands, 0);
    ck_assert_uint_eq(stats_of(0).waits, 3);
    (void)rig_release(&rig, 0, 1, held[1]);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, first), CST_OK);
    ck_assert(rig_waits(&rig, second) && rig_waits(&rig, ahead));
    (void)rig_release(&rig, 0, 0, held[0]);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, second), CST_OK);
    ck_assert(rig_waits(&rig, ahead));
    (void)rig_release(&rig, 0, 2, held[2]);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, ahead), CST_OK);
}
END_TEST

/* A fetch behind one that waits goes on if it needs no block: its chunk is there. */
START_TEST(a_hit_waits_for_nobody)
{
    uint64_t waiting;

    rig_open(&rig, 6, 1, 3, 0);
    rig_start(&rig, 1);
    for (uint32_t c = 0; c < 3; c++) {
        (void)rig_get(&rig, 0, c);
    }
    waiting = rig_fetch(&rig, 0, 4);
    ck_assert_int_eq(rig_status(&rig, rig_fetch(&rig, 0, 1)), CST_OK);
    ck_assert(rig_waits(&rig, waiting));
}
END_TEST

/* A copy that the engine gives up fails that fetch with the engine's words, and the block is free.
 */
START_TEST(copy_fails)
{
    uint64_t tag;

    rig_open(&rig, 4, 1, 4, 0);
    rig_start(&rig, 1);
    tag = rig_fetch(&rig, 0, 1);
    rig_done(&rig, only(CST_COMMAND_COPY).ticket, CST_EIO, "bad sector");
    ck_assert_int_eq(rig_status(&rig, tag), CST_EIO);
    ck_assert_ptr_nonnull(strstr(rig_answer(&rig, tag)->err.text, "bad sector"));
    ck_assert_uint_eq(books(0).free, 4);
    (void)rig_get(&rig, 0, 1);
}
END_TEST

/* -- prefetch --------------------------------------------------------------------------------- */

/* In the first step the declared order predicts: the next operator's chunk is loaded, and a fetch
 * of it is a hit once it is there. */
START_TEST(prefetch_by_declaration)
{
    uint64_t tag;

    rig_open(&rig, 4, 1, 4, 1);
    rig_start(&rig, 1);
    ck_assert_uint_eq(only(CST_COMMAND_COPY).priority,
                      CST_PRIORITY_PREFETCH); /* chunk 0, at the sync */
    rig_drain(&rig);
    tag = rig_fetch(&rig, 0, 0);
    ck_assert(rig_answer(&rig, tag)->hit);
    ck_assert_uint_eq(only(CST_COMMAND_COPY).src[0].offset, rig.layout.chunks[1].rows[0].offset);
    tag = rig_fetch(&rig, 0, 1); /* not there yet: it joins the copy */
    ck_assert(rig_waits(&rig, tag));
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_COPY), 2); /* and 2 is loaded already */
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    ck_assert(!rig_answer(&rig, tag)->hit);
    ck_assert_uint_eq(stats_of(0).hits, 2);
    ck_assert_uint_eq(stats_of(0).late, 1);
    ck_assert_uint_eq(stats_of(0).misses, 0);
    ck_assert_uint_eq(stats_of(0).prefetches, 3);
}
END_TEST

/* A fetch that joined a copy that is overtaken by a write waits anew, and not for ever. */
START_TEST(an_overtaken_fetch_has_a_deadline)
{
    uint64_t tag, load;

    rig_open(&rig, 4, 1, 4, 1);
    rig_start(&rig, 1);
    load = only(CST_COMMAND_COPY).ticket; /* chunk 0, at the sync */
    (void)rig_event(&rig,
                    (struct cst_event){.kind = CST_EV_WRITE, .row = CST_ROW_MASTER, .n_elems = 1});
    tag = rig_fetch(&rig, 0, 0);
    ck_assert_uint_eq(cst_core_deadline(rig.core), CST_CORE_NEVER);
    rig_done(&rig, load, CST_OK, NULL);
    ck_assert(rig_waits(&rig, tag));
    ck_assert_uint_ne(cst_core_deadline(rig.core), CST_CORE_NEVER);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    ck_assert_uint_eq(cst_core_deadline(rig.core), CST_CORE_NEVER);
}
END_TEST

/* From the second step on the record of the last one predicts, whatever was declared. */
START_TEST(prefetch_by_trace)
{
    rig_open(&rig, 4, 1, 8, 1);
    rig_start(&rig, 1);
    rig_drain(&rig);
    for (uint32_t c = 4; c-- > 0;) { /* the wrong way round */
        (void)rig_release(&rig, 0, c, rig_get(&rig, 0, c));
    }
    (void)rig_step(&rig, 0);
    while (rig_count(&rig, CST_COMMAND_UPDATE) == 0) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_UPDATE, 0)->chunk,
                      3); /* in the next forward's order */
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_UPDATE, 3)->chunk, 0);
    ck_assert_uint_eq(only(CST_COMMAND_COPY).src[0].offset, rig.layout.chunks[3].rows[0].offset);
    ck_assert_uint_eq(only(CST_COMMAND_COPY).n_after, 1); /* behind the update of its chunk */
    ck_assert_uint_eq(only(CST_COMMAND_COPY).after[0],
                      rig_command(&rig, CST_COMMAND_UPDATE, 0)->ticket);
}
END_TEST

/* Nothing is loaded that is not used before the commit, when it would be out of date. */
START_TEST(no_prefetch_past_the_commit)
{
    rig_open(&rig, 4, 1, 8, 2);
    rig_start(&rig, 1);
    rig_whole_step(&rig, 4, 1);
    for (uint32_t c = 0; c < 4; c++) {
        (void)rig_release(&rig, 0, c, rig_get(&rig, 0, c));
    }
    for (uint32_t c = 4; c-- > 0;) {
        (void)rig_release(&rig, 0, c, rig_get(&rig, 0, c));
        (void)rig_hand_in(&rig, 0, c, rig_get_grad(&rig, 0, c));
    }
    rig_drain(&rig);
    ck_assert_uint_eq(books(0).moving, 0);
    (void)rig_step(&rig, 0);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_COPY), 0);
}
END_TEST

/* Prefetch leaves a block for the gradient that is opened before the weights it would load. */
START_TEST(prefetch_leaves_room_for_gradients)
{
    uint64_t grad;
    uint64_t before;

    rig_open(&rig, 4, 1, 3, 1);
    rig_start(&rig, 1);
    rig_drain(&rig);
    rig_whole_step(&rig, 4, 1);
    for (uint32_t c = 0; c < 4; c++) {
        (void)rig_release(&rig, 0, c, rig_get(&rig, 0, c));
    }
    (void)rig_get(&rig, 0,
                  3); /* backward begins: next come its gradient and chunk 2, which is cached */
    (void)rig_get(&rig, 0, 2);
    rig_drain(&rig);
    before = stats_of(0).prefetches;
    ck_assert_uint_eq(books(0).leased, 2);
    grad = rig_fetch_grad(&rig, 0, 3); /* the third block was kept for it */
    ck_assert_int_eq(rig_status(&rig, grad), CST_OK);
    ck_assert_uint_eq(stats_of(0).prefetches, before);
}
END_TEST

/* A rank that is ahead of the others: gradients that wait for them leave its pool before the
 * weights that come next are asked for, so that no fetch waits for a block. */
START_TEST(gradients_make_room_for_what_comes)
{
    rig_open(&rig, 8, 2, 4, 3);
    rig_start(&rig, 2);
    rig_drain(&rig);
    for (uint32_t c = 0; c < 8; c++) {
        (void)rig_release(&rig, 0, c, rig_get(&rig, 0, c));
        rig_drain(&rig);
    }
    for (uint32_t c = 8; c-- > 0;) {
        uint64_t weight = rig_get(&rig, 0, c);
        uint64_t grad = rig_get_grad(&rig, 0, c);

        ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, 0, c, grad)), CST_OK);
        (void)rig_release(&rig, 0, c, weight);
        rig_drain(&rig);
    }
    ck_assert_uint_eq(stats_of(0).waits, 0);
    ck_assert_uint_eq(stats_of(0).misses, 0);
    ck_assert_uint_gt(stats_of(0).bytes_down, 0);
}
END_TEST

/* What comes out of order is counted and served, and prediction goes on behind it. */
START_TEST(surprises_are_counted)
{
    rig_open(&rig, 6, 1, 12, 1);
    rig_start(&rig, 1);
    rig_drain(&rig);
    rig_whole_step(&rig, 6, 1);
    rig_drain(&rig);
    ck_assert_uint_eq(stats_of(0).surprises, 0);
    (void)rig_get(&rig, 0, 3);
    ck_assert_uint_eq(stats_of(0).surprises, 1);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, rig_fetch(&rig, 0, 4)), CST_OK); /* was loaded ahead */
    ck_assert_uint_eq(stats_of(0).surprises, 1);
}
END_TEST

/* Hints are answered at once: PREFETCH loads if there is room, EVICT frees what nobody leases, and
 * neither can fail. */
START_TEST(hints)
{
    struct cst_event hint = {.kind = CST_EV_PREFETCH, .rank = 0, .chunk = 2};
    uint64_t held;

    rig_open(&rig, 4, 1, 4, 0);
    rig_start(&rig, 1);
    hint.attempt = rig.attempt;
    ck_assert_int_eq(rig_status(&rig, rig_event(&rig, hint)), CST_OK);
    rig_drain(&rig);
    ck_assert_uint_eq(books(0).cached, 1);
    hint.kind = CST_EV_EVICT;
    ck_assert_int_eq(rig_status(&rig, rig_event(&rig, hint)), CST_OK);
    ck_assert_uint_eq(books(0).free, 4);
    held = rig_get(&rig, 0, 2);
    ck_assert_int_eq(rig_status(&rig, rig_event(&rig, hint)), CST_OK);
    ck_assert_uint_eq(books(0).leased, 1);
    (void)rig_release(&rig, 0, 2, held);
}
END_TEST

/* -- gradients -------------------------------------------------------------------------------- */

/* A gradient's block stays the same within a step and is said to hold something the second time;
 * handed in, it cannot be had again. */
START_TEST(gradient_is_opened_once)
{
    uint64_t first;
    uint64_t again;
    uint64_t late;

    rig_open(&rig, 4, 2, 4, 0);
    rig_start(&rig, 2);
    first = rig_fetch_grad(&rig, 0, 1);
    ck_assert(!rig_answer(&rig, first)->hit);
    again = rig_fetch_grad(&rig, 0, 1);
    ck_assert(rig_answer(&rig, again)->hit);
    ck_assert_uint_eq(rig_answer(&rig, again)->generation, rig_answer(&rig, first)->generation);
    ck_assert_uint_eq(rig_answer(&rig, again)->offset, rig_answer(&rig, first)->offset);
    ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, 0, 1, rig_answer(&rig, first)->generation)),
                     CST_OK);
    ck_assert_uint_eq(books(0).pending, 1);
    late = rig_fetch_grad(&rig, 0, 1);
    ck_assert_int_eq(rig_status(&rig, late), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(rig_answer(&rig, late)->err.text, "handed in already"));
}
END_TEST

/* When the last rank has handed in, the contributions are summed in the order of ranks, whoever
 * came first; then the blocks are free. */
START_TEST(reduced_in_rank_order)
{
    static const uint32_t order[] = {2, 0, 1};
    struct cst_command reduce;

    rig_open(&rig, 4, 3, 4, 0);
    rig_start(&rig, 3);
    for (uint32_t i = 0; i < 3; i++) {
        uint64_t grad = rig_get_grad(&rig, order[i], 1);

        ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_REDUCE), 0);
        (void)rig_hand_in(&rig, order[i], 1, grad);
    }
    reduce = only(CST_COMMAND_REDUCE);
    ck_assert_uint_eq(reduce.chunk, 1);
    ck_assert_uint_eq(reduce.table, RIG_TABLE_SEGMENT);
    ck_assert_uint_eq(reduce.n_src, 3);
    for (uint32_t rank = 0; rank < 3; rank++) {
        ck_assert_uint_eq(reduce.src[rank].segment, RIG_POOL_SEGMENT + rank);
    }
    ck_assert_uint_eq(books(0).moving, 1);
    rig_done(&rig, reduce.ticket, CST_OK, NULL);
    ck_assert_uint_eq(books(0).free, 4);
    ck_assert_uint_eq(books(2).free, 4);
}
END_TEST

/* If only gradients that wait for other ranks are in the way, one moves to its chunk's grad row;
 * the reduction takes it from there, as that rank's contribution, in place. */
START_TEST(gradient_makes_room)
{
    struct cst_command copy;
    struct cst_command reduce;
    uint64_t waiting;

    rig_open(&rig, 6, 2, 3, 0);
    rig_start(&rig, 2);
    for (uint32_t c = 0; c < 3; c++) {
        (void)rig_hand_in(&rig, 1, c, rig_get_grad(&rig, 1, c));
    }
    waiting = rig_fetch(&rig, 1, 4);
    copy = only(CST_COMMAND_COPY);
    ck_assert_uint_eq(copy.src[0].segment, RIG_POOL_SEGMENT + 1);
    ck_assert_uint_eq(copy.dst[0].offset, rig.layout.chunks[2].rows[CST_ROW_GRAD].offset);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, waiting), CST_OK);
    (void)rig_hand_in(&rig, 0, 2, rig_get_grad(&rig, 0, 2));
    reduce = only(CST_COMMAND_REDUCE);
    ck_assert_uint_eq(reduce.n_src, 2);
    ck_assert_uint_eq(reduce.src[0].segment, RIG_POOL_SEGMENT);
    ck_assert_uint_eq(reduce.src[1].segment, copy.dst[0].segment);
    ck_assert_uint_eq(reduce.src[1].offset, copy.dst[0].offset);
    rig_drain(&rig);
    ck_assert_uint_eq(books(1).pending, 2);
}
END_TEST

/* What writes to the grad row, a staged contribution or a reduction, comes behind the update that
 * still reads it. */
START_TEST(grad_row_belongs_to_the_update)
{
    uint64_t update[2];

    rig_open(&rig, 6, 2, 3, 0);
    rig_start(&rig, 2);
    (void)rig_step(&rig, 0);
    (void)rig_step(&rig, 1);
    while (rig_count(&rig, CST_COMMAND_UPDATE) == 0) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    for (uint32_t c = 0; c < 2; c++) {
        update[c] = rig_command(&rig, CST_COMMAND_UPDATE, c)->ticket;
    }
    (void)rig_hand_in(&rig, 0, 0, rig_answer(&rig, rig_fetch_grad(&rig, 0, 0))->generation);
    (void)rig_hand_in(&rig, 1, 0, rig_answer(&rig, rig_fetch_grad(&rig, 1, 0))->generation);
    ck_assert_uint_eq(only(CST_COMMAND_REDUCE).n_after, 1);
    ck_assert_uint_eq(only(CST_COMMAND_REDUCE).after[0], update[0]);
    (void)rig_hand_in(&rig, 0, 1, rig_answer(&rig, rig_fetch_grad(&rig, 0, 1))->generation);
    (void)rig_fetch_grad(&rig, 0, 2);
    (void)rig_fetch_grad(&rig, 0, 3); /* the third block goes with the reduction */
    (void)rig_fetch_grad(&rig, 0, 4);
    ck_assert_uint_eq(only(CST_COMMAND_COPY).after[0], update[1]);
}
END_TEST

/* A contribution that cannot be moved stays where it is; the fetch that wanted its block gets the
 * words. */
START_TEST(staging_fails)
{
    uint64_t waiting;

    rig_open(&rig, 6, 2, 3, 0);
    rig_start(&rig, 2);
    for (uint32_t c = 0; c < 3; c++) {
        (void)rig_hand_in(&rig, 1, c, rig_get_grad(&rig, 1, c));
    }
    waiting = rig_fetch(&rig, 1, 4);
    rig_done(&rig, only(CST_COMMAND_COPY).ticket, CST_EIO, "no luck");
    ck_assert_int_eq(rig_status(&rig, waiting), CST_EIO);
    ck_assert_uint_eq(books(1).pending, 3);
    (void)rig_hand_in(&rig, 0, 2, rig_get_grad(&rig, 0, 2));
    ck_assert_uint_eq(only(CST_COMMAND_REDUCE).src[1].segment, RIG_POOL_SEGMENT + 1);
}
END_TEST

/* -- step and commit -------------------------------------------------------------------------- */

/* A step of two ranks, three times: nothing is left under way, the loss is the ranks' mean. */
START_TEST(whole_step)
{
    rig_open(&rig, 4, 2, 3, 1);
    rig_start(&rig, 2);
    for (int i = 0; i < 3; i++) {
        rig.now += 1000;
        rig_whole_step(&rig, 4, 2);
    }
    rig_drain(&rig);
    ck_assert_uint_eq(core_stats().last_step_ns, 1000);
    ck_assert_uint_eq(core_stats().step, 3);
    ck_assert_uint_eq(core_stats().adam_step, 3);
    ck_assert_uint_eq(core_stats().commands_in_flight, 0);
    ck_assert_double_eq(core_stats().last_loss, 1.5);
}
END_TEST

/* The commit is answered to all ranks before the updates are done; a fetch waits for its own
 * chunk's update alone. */
START_TEST(commit_does_not_wait_for_updates)
{
    uint64_t tags[2];
    uint64_t fetch;
    struct cst_command update;

    rig_open(&rig, 4, 2, 4, 0);
    rig_start(&rig, 2);
    rig.norm = 16.0; /* sum of squares: norm 4 */
    for (uint32_t rank = 0; rank < 2; rank++) {
        tags[rank] = rig_step(&rig, rank);
    }
    while (rig_count(&rig, CST_COMMAND_UPDATE) == 0) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        const struct cst_reply *reply = rig_answer(&rig, tags[rank]);

        ck_assert_int_eq(reply->status, CST_OK);
        ck_assert_uint_eq(reply->step, 1);
        ck_assert(!reply->skipped);
        ck_assert_double_eq(reply->grad_norm, 4.0);
        ck_assert_double_eq(reply->loss, 1.5);
    }
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_UPDATE), 4);
    update = *rig_command(&rig, CST_COMMAND_UPDATE, 2);
    ck_assert_uint_eq(update.mark, 1);
    ck_assert_float_eq(update.hyper.lr, 0.1f);
    fetch = rig_fetch(&rig, 0, update.chunk);
    ck_assert_uint_eq(only(CST_COMMAND_COPY).n_after, 1);
    ck_assert_uint_eq(only(CST_COMMAND_COPY).after[0], update.ticket);
    ck_assert(rig_waits(&rig, fetch));
    ck_assert_uint_eq(core_stats().chunks_updating, 4);
}
END_TEST

/* The update takes grad_scale x clip, with the norm of all gradients scaled. */
START_TEST(clip_goes_into_the_update)
{
    struct cst_event step = {.kind = CST_EV_STEP,
                             .hyper = {.lr = 1, .beta1 = 0, .clip_norm = 1.0f, .grad_scale = 0.5f}};
    uint64_t tag;

    rig_open(&rig, 2, 1, 3, 0);
    rig_start(&rig, 1);
    rig.norm = 64.0; /* norm 8, scaled 4 */
    step.attempt = rig.attempt;
    tag = rig_event(&rig, step);
    while (rig_count(&rig, CST_COMMAND_UPDATE) == 0) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    ck_assert_double_eq(rig_answer(&rig, tag)->grad_norm, 4.0);
    ck_assert_float_eq_tol(rig_answer(&rig, tag)->clip, 0.25f, 1e-6f);
    ck_assert_float_eq(rig_command(&rig, CST_COMMAND_UPDATE, 0)->hyper.grad_scale,
                       0.5f * rig_answer(&rig, tag)->clip);
}
END_TEST

/* A gradient that nobody has counts as zero: reduced with no sources. One that is open and not
 * handed in does not count. */
START_TEST(missing_gradients_are_zero)
{
    rig_open(&rig, 2, 2, 3, 0);
    rig_start(&rig, 2);
    (void)rig_get_grad(&rig, 0, 0); /* not handed in */
    (void)rig_hand_in(&rig, 1, 1, rig_get_grad(&rig, 1, 1));
    (void)rig_step(&rig, 0);
    ck_assert_uint_eq(only(CST_COMMAND_REDUCE).chunk,
                      1); /* both have said what they had to say of it */
    ck_assert_uint_eq(only(CST_COMMAND_REDUCE).n_src, 1);
    (void)rig_step(&rig, 1);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_REDUCE), 2);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_REDUCE, 1)->chunk, 0);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_REDUCE, 1)->n_src, 0);
    rig_drain(&rig);
    ck_assert_uint_eq(core_stats().step, 1);
    ck_assert_uint_eq(books(0).free, 3);
}
END_TEST

/* NaN or infinity: the step counts and is skipped, states and cached weights stay. */
START_TEST(not_finite_is_skipped)
{
    uint64_t tag;

    rig_open(&rig, 2, 1, 3, 0);
    rig_start(&rig, 1);
    (void)rig_release(&rig, 0, 1, rig_get(&rig, 0, 1));
    rig.norm = _i == 0 ? NAN : INFINITY;
    tag = rig_step(&rig, 0);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    ck_assert(rig_answer(&rig, tag)->skipped);
    ck_assert_uint_eq(rig_answer(&rig, tag)->n_skipped, 1);
    ck_assert_uint_eq(core_stats().step, 1);
    ck_assert_uint_eq(core_stats().adam_step, 0);
    ck_assert(!rig_waits(&rig, rig_fetch(&rig, 0, 1)));
    ck_assert_uint_gt(rig.n_logs, 0);
}
END_TEST

/* After a commit cached weights are gone; leased ones can still be read, are freed when released,
 * and a new fetch gets new ones. */
START_TEST(commit_makes_weights_stale)
{
    uint64_t old;
    uint64_t fresh;

    rig_open(&rig, 2, 1, 4, 0);
    rig_start(&rig, 1);
    old = rig_get(&rig, 0, 0);
    (void)rig_release(&rig, 0, 1, rig_get(&rig, 0, 1));
    (void)rig_step(&rig, 0);
    rig_drain(&rig);
    ck_assert_uint_eq(books(0).free, 3);
    ck_assert_uint_eq(books(0).leased, 1);
    fresh = rig_fetch(&rig, 0, 0);
    ck_assert(rig_waits(&rig, fresh));
    rig_drain(&rig);
    ck_assert_uint_eq(books(0).leased, 2);
    ck_assert_int_eq(rig_status(&rig, rig_release(&rig, 0, 0, old)), CST_OK);
    ck_assert_uint_eq(books(0).leased, 1);
    ck_assert_uint_eq(books(0).free, 3);
}
END_TEST

/* A copy that a commit overtakes brings old or torn weights: it is done again behind the update,
 * for those who wait for it. */
START_TEST(overtaken_copy_is_repeated)
{
    struct cst_command load;
    struct cst_event hint = {.kind = CST_EV_PREFETCH, .chunk = 0};
    uint64_t tag;

    rig_open(&rig, 2, 1, 4, 0);
    rig_start(&rig, 1);
    hint.attempt = rig.attempt;
    (void)rig_event(&rig, hint);
    load = only(CST_COMMAND_COPY);
    (void)rig_step(&rig, 0);
    while (rig_count(&rig, CST_COMMAND_UPDATE) == 0) {
        rig_done(&rig, rig.commands[1].ticket, CST_OK, NULL); /* all but the copy */
    }
    tag = rig_fetch(&rig, 0, 0);
    rig_done(&rig, load.ticket, CST_OK, NULL);
    ck_assert(rig_waits(&rig, tag));
    ck_assert_uint_eq(only(CST_COMMAND_COPY).n_after, 1);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
}
END_TEST

/* Ranks that disagree about a step are told which value, whose, and the attempt is over. */
START_TEST(hyper_must_agree)
{
    struct cst_event other = {
        .kind = CST_EV_STEP, .rank = 1, .hyper = {.lr = 0.2f, .grad_scale = 1}};
    uint64_t a;
    uint64_t b;

    rig_open(&rig, 2, 2, 3, 0);
    rig_start(&rig, 2);
    other.attempt = rig.attempt;
    a = rig_step(&rig, 0);
    b = rig_event(&rig, other);
    ck_assert_int_eq(rig_status(&rig, a), CST_EMISMATCH);
    ck_assert_int_eq(rig_status(&rig, b), CST_EMISMATCH);
    ck_assert_ptr_nonnull(strstr(rig_answer(&rig, a)->err.text, "lr is 0.1"));
    ck_assert_ptr_nonnull(strstr(rig_answer(&rig, a)->err.text, "0.2"));
    ck_assert_ptr_nonnull(strstr(rig_answer(&rig, a)->err.text, "rank 1"));
    ck_assert_int_eq(core_stats().phase, CST_PHASE_INTERRUPTED);
    ck_assert_int_eq(rig_status(&rig, rig_fetch(&rig, 0, 0)), CST_EPEERDIED);
}
END_TEST

/* Values that would poison the states are refused, by name, and the step can be asked for again. */
START_TEST(bad_hyper_is_refused)
{
    struct cst_event step = {.kind = CST_EV_STEP, .hyper = {.lr = NAN, .grad_scale = 1}};
    uint64_t tag;

    rig_open(&rig, 2, 1, 3, 0);
    rig_start(&rig, 1);
    step.attempt = rig.attempt;
    tag = rig_event(&rig, step);
    ck_assert_int_eq(rig_status(&rig, tag), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(rig_answer(&rig, tag)->err.text, "lr"));
    step.hyper.lr = 1.0f;
    step.hyper.beta2 = 1.0f;
    ck_assert_int_eq(rig_status(&rig, rig_event(&rig, step)), CST_EINVAL);
    (void)rig_step(&rig, 0);
    rig_drain(&rig);
    ck_assert_uint_eq(core_stats().step, 1);
}
END_TEST

/* Having asked for the step, a rank gets nothing more of it: not a fetch, not a second step. */
START_TEST(nothing_after_step)
{
    uint64_t held;

    rig_open(&rig, 4, 2, 3, 0);
    rig_start(&rig, 2);
    held = rig_get(&rig, 0, 0);
    (void)rig_step(&rig, 0);
    ck_assert_int_eq(rig_status(&rig, rig_fetch(&rig, 0, 1)), CST_EBUSY);
    ck_assert_int_eq(rig_status(&rig, rig_fetch_grad(&rig, 0, 1)), CST_EBUSY);
    ck_assert_int_eq(rig_status(&rig, rig_step(&rig, 0)), CST_EINVAL);
    ck_assert_int_eq(rig_status(&rig, rig_release(&rig, 0, 0, held)), CST_OK);
}
END_TEST

/* A reduction, a norm or an update that the engine gives up ends the job: who waits, and who comes
 * later, gets the words. */
START_TEST(engine_gives_up)
{
    static const enum cst_command_kind kinds[] = {CST_COMMAND_REDUCE, CST_COMMAND_NORM,
                                                  CST_COMMAND_UPDATE};
    uint64_t step;
    uint64_t sync;

    rig_open(&rig, 2, 1, 3, 0);
    rig_start(&rig, 1);
    step = rig_step(&rig, 0);
    while (rig_count(&rig, kinds[_i]) == 0) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    rig_done(&rig, rig_command(&rig, kinds[_i], 0)->ticket, CST_EIO, "smoke");
    ck_assert_int_eq(core_stats().phase, CST_PHASE_FAILED);
    if (kinds[_i] == CST_COMMAND_UPDATE) {
        step = rig_fetch(&rig, 0, 0);
    }
    ck_assert_int_eq(rig_status(&rig, step), CST_EENGINE);
    ck_assert_ptr_nonnull(strstr(rig_answer(&rig, step)->err.text, "smoke"));
    sync = rig_rank_event(&rig, CST_EV_SYNC, 0);
    ck_assert_int_eq(rig_status(&rig, sync), CST_EENGINE);
    rig_drain(&rig);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("core");
    TCase *weights = tcase_create("weights");
    TCase *prefetch = tcase_create("prefetch");
    TCase *gradients = tcase_create("gradients");
    TCase *step = tcase_create("step");

    tcase_add_checked_fixture(weights, NULL, teardown);
    tcase_add_test(weights, miss_is_copied);
    tcase_add_test(weights, hit_is_a_lease_more);
    tcase_add_test(weights, wrong_generation_is_stale);
    tcase_add_test(weights, evicts_lru);
    tcase_add_loop_test(weights, evicts_farthest, 0, 2);
    tcase_add_test(weights, waits_for_a_block);
    tcase_add_test(weights, a_hit_waits_for_nobody);
    tcase_add_test(weights, copy_fails);
    tcase_add_checked_fixture(prefetch, NULL, teardown);
    tcase_add_test(prefetch, prefetch_by_declaration);
    tcase_add_test(prefetch, an_overtaken_fetch_has_a_deadline);
    tcase_add_test(prefetch, prefetch_by_trace);
    tcase_add_test(prefetch, no_prefetch_past_the_commit);
    tcase_add_test(prefetch, prefetch_leaves_room_for_gradients);
    tcase_add_test(prefetch, gradients_make_room_for_what_comes);
    tcase_add_test(prefetch, surprises_are_counted);
    tcase_add_test(prefetch, hints);
    tcase_add_checked_fixture(gradients, NULL, teardown);
    tcase_add_test(gradients, gradient_is_opened_once);
    tcase_add_test(gradients, reduced_in_rank_order);
    tcase_add_test(gradients, gradient_makes_room);
    tcase_add_test(gradients, grad_row_belongs_to_the_update);
    tcase_add_test(gradients, staging_fails);
    tcase_add_checked_fixture(step, NULL, teardown);
    tcase_add_test(step, whole_step);
    tcase_add_test(step, commit_does_not_wait_for_updates);
    tcase_add_test(step, clip_goes_into_the_update);
    tcase_add_test(step, missing_gradients_are_zero);
    tcase_add_loop_test(step, not_finite_is_skipped, 0, 2);
    tcase_add_test(step, commit_makes_weights_stale);
    tcase_add_test(step, overtaken_copy_is_repeated);
    tcase_add_test(step, hyper_must_agree);
    tcase_add_test(step, bad_hyper_is_refused);
    tcase_add_test(step, nothing_after_step);
    tcase_add_loop_test(step, engine_gives_up, 0, 3);
    suite_add_tcase(s, weights);
    suite_add_tcase(s, prefetch);
    suite_add_tcase(s, gradients);
    suite_add_tcase(s, step);
    return s;
}

int main(void)
{
    return suite_run(suite());
}

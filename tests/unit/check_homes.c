/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of offload/machines/homes.h: where the copies of chunks are, and what moves when machines
 * come and go. */
#include "offload/machines/homes.h"
#include "tests/lib/suite.h"

#include <check.h>

enum { N_CHUNKS = 2000, MAX_COPIES = 3, N_RACKS = 3 };

static uint64_t random_state;

static uint32_t below(uint32_t n)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(random_state >> 33) % n;
}

/* The copies of a chunk. */
struct copies {
    uint32_t v[MAX_COPIES];
    uint32_t n;
};

static struct copies copies_of(const struct cst_homes *homes, uint32_t chunk,
                               const struct cst_set *machines)
{
    struct copies copies = {.n = cst_homes_copies(homes, chunk, machines, copies.v)};
    struct cst_set seen = {{0}};

    suite_must(copies.n == (homes->n_copies < cst_set_count(machines) ? homes->n_copies
                                                                      : cst_set_count(machines)),
               "chunk %u has %u copies", chunk, copies.n);
    for (uint32_t i = 0; i < copies.n; i++) {
        suite_must(cst_set_has(machines, copies.v[i]) && !cst_set_has(&seen, copies.v[i]),
                   "chunk %u: copy %u is at %u", chunk, i, copies.v[i]);
        cst_set_add(&seen, copies.v[i]);
    }
    suite_must(copies.n == 0 || cst_homes_home(homes, chunk, machines) == copies.v[0],
               "chunk %u: the home is not the first copy", chunk);
    return copies;
}

static bool has(const struct copies *copies, uint32_t machine)
{
    for (uint32_t i = 0; i < copies->n; i++) {
        if (copies->v[i] == machine) {
            return true;
        }
    }
    return false;
}

/* Racks in turn, and none for numbers from @n on. */
static void fill_racks(uint32_t *racks, uint32_t n)
{
    for (uint32_t m = 0; m < CST_SET_MAX; m++) {
        racks[m] = m < n ? below(N_RACKS) : CST_SET_MAX;
    }
}

START_TEST(homes_take_turns_and_so_do_buddies)
{
    struct cst_homes homes = {.n_first = (uint32_t)_i, .n_copies = 2};
    struct cst_set all = cst_set_range(0, homes.n_first);
    uint32_t n_pairs[16][16] = {{0}}, rounds = 5 * homes.n_first * (homes.n_first - 1);

    for (uint32_t chunk = 0; chunk < rounds; chunk++) {
        struct copies copies = copies_of(&homes, chunk, &all);

        suite_must(copies.v[0] == chunk % homes.n_first, "chunk %u is at %u", chunk, copies.v[0]);
        n_pairs[copies.v[0]][copies.v[1]]++;
    }
    for (uint32_t a = 0; a < homes.n_first; a++) {
        for (uint32_t b = 0; b < homes.n_first; b++) {
            ck_assert_uint_eq(n_pairs[a][b], a == b ? 0 : 5);
        }
    }
}
END_TEST

/* Machines leave one after the other: what lives of the copies stays, in its order, so that the
 * home has the states already; the chunks of the lost machine are spread over the others. */
START_TEST(a_lost_machine_moves_only_its_chunks)
{
    uint32_t racks[CST_SET_MAX];
    struct cst_homes homes = {.racks = _i % 2 == 0 ? NULL : racks};
    struct cst_set machines;

    random_state = (uint64_t)_i + 1;
    homes.n_first = 2 + below(7);
    homes.n_copies = 1 + below(MAX_COPIES);
    machines = cst_set_range(0, homes.n_first + below(4));
    fill_racks(racks, cst_set_count(&machines));
    while (cst_set_count(&machines) > 1) {
        uint32_t lost = cst_set_nth(&machines, below(cst_set_count(&machines)));
        struct cst_set left = cst_set_minus(machines, cst_set_of(lost));

        for (uint32_t chunk = 0; chunk < N_CHUNKS; chunk++) {
            struct copies before = copies_of(&homes, chunk, &machines);
            struct copies after = copies_of(&homes, chunk, &left);
            uint32_t at = 0;

            for (uint32_t i = 0; i < before.n; i++) {
                if (before.v[i] != lost) {
                    suite_must(after.v[at] == before.v[i], "chunk %u: copy %u moves to %u", chunk,
                               i, after.v[at]);
                    at++;
                }
            }
        }
        machines = left;
    }
}
END_TEST

/* Count the chunks whose home and whose copies move if machine @added comes. */
static void count_moves(const struct cst_homes *homes, const struct cst_homes *then,
                        const struct cst_set *machines, uint32_t added, uint32_t *homes_moved)
{
    struct cst_set more = cst_set_union(*machines, cst_set_of(added));

    *homes_moved = 0;
    for (uint32_t chunk = 0; chunk < N_CHUNKS; chunk++) {
        struct copies before = copies_of(homes, chunk, machines);
        struct copies after = copies_of(then, chunk, &more);
        uint32_t n_new = 0;

        for (uint32_t i = 0; i < after.n; i++) {
            suite_must(has(&before, after.v[i]) || after.v[i] == added || homes->racks != NULL,
                       "chunk %u: a copy moves to machine %u, which is not new", chunk, after.v[i]);
            n_new += !has(&before, after.v[i]);
        }
        suite_must(n_new <= 1, "chunk %u: %u copies move for one machine", chunk, n_new);
        *homes_moved += before.v[0] != after.v[0];
    }
}

START_TEST(an_added_machine_takes_its_share_and_nothing_else_moves)
{
    struct cst_homes homes = {.n_first = 1 + (uint32_t)_i % 7, .n_copies = 1 + (uint32_t)_i % 3};
    struct cst_set machines = cst_set_range(0, homes.n_first);

    for (uint32_t added = homes.n_first; added < homes.n_first + 8; added++) {
        uint32_t moved, share = N_CHUNKS / (added + 1);

        count_moves(&homes, &homes, &machines, added, &moved);
        ck_assert_msg(10 * moved >= 8 * share && 10 * moved <= 12 * share,
                      "machine %u takes %u chunks, its share are %u", added, moved, share);
        cst_set_add(&machines, added);
    }
}
END_TEST

/* Most chunks that are at home at one machine, in percent of an equal share. */
static uint32_t worst_load(const struct cst_homes *homes, const struct cst_set *machines,
                           uint32_t n_chunks)
{
    uint32_t load[CST_SET_MAX] = {0}, most = 0;

    for (uint32_t chunk = 0; chunk < n_chunks; chunk++) {
        uint32_t home = cst_homes_home(homes, chunk, machines);

        most = ++load[home] > most ? load[home] : most;
    }
    return (uint32_t)((uint64_t)most * 100 * cst_set_count(machines) / n_chunks);
}

START_TEST(loads_stay_balanced)
{
    struct cst_homes homes = {.n_first = (uint32_t)_i, .n_copies = 2};
    struct cst_set machines = cst_set_range(0, homes.n_first);

    ck_assert_uint_le(worst_load(&homes, &machines, N_CHUNKS), 101);
    cst_set_drop(&machines, homes.n_first / 2);
    ck_assert_uint_le(worst_load(&homes, &machines, N_CHUNKS), 102);
    for (uint32_t added = homes.n_first; added < 2 * homes.n_first; added++) {
        cst_set_add(&machines, added);
        ck_assert_uint_le(worst_load(&homes, &machines, N_CHUNKS), 120);
    }
}
END_TEST

START_TEST(a_machine_that_takes_a_number_takes_its_chunks)
{
    struct cst_homes homes = {.n_first = 5, .n_copies = 2};
    struct cst_set all = cst_set_range(0, 5), without = cst_set_minus(all, cst_set_of(2));
    uint32_t moved;

    count_moves(&homes, &homes, &without, 2, &moved);
    ck_assert_uint_eq(moved, N_CHUNKS / 5);
}
END_TEST

START_TEST(two_copies_are_in_two_racks)
{
    uint32_t racks[CST_SET_MAX];
    struct cst_homes homes = {.n_first = 6, .n_copies = 2, .racks = racks};
    struct cst_set machines = cst_set_range(0, 6);

    random_state = 1;
    fill_racks(racks, 0);
    for (uint32_t m = 0; m < 6; m++) {
        racks[m] = m / 2;
    }
    for (uint32_t added = 6; added < 12; added++) {
        for (uint32_t chunk = 0; chunk < N_CHUNKS; chunk++) {
            struct copies copies = copies_of(&homes, chunk, &machines);

            suite_must(racks[copies.v[0]] != racks[copies.v[1]], "chunk %u is in rack %u twice",
                       chunk, racks[copies.v[0]]);
        }
        {
            uint32_t before[CST_SET_MAX], moved;
            struct cst_homes then = homes;

            memcpy(before, racks, sizeof before);
            racks[added] = below(N_RACKS);
            homes.racks = before;
            count_moves(&homes, &then, &machines, added, &moved);
            homes.racks = racks;
            cst_set_add(&machines, added);
        }
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("homes");
    TCase *c = suite_case(s, "homes", NULL, NULL);

    tcase_add_loop_test(c, homes_take_turns_and_so_do_buddies, 2, 10);
    tcase_add_loop_test(c, a_lost_machine_moves_only_its_chunks, 0, 40);
    tcase_add_loop_test(c, an_added_machine_takes_its_share_and_nothing_else_moves, 0, 21);
    tcase_add_loop_test(c, loads_stay_balanced, 2, 10);
    tcase_add_test(c, a_machine_that_takes_a_number_takes_its_chunks);
    tcase_add_test(c, two_copies_are_in_two_racks);
    return s;
}

int main(void)
{
    return suite_run(suite());
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/team.h"
#include "tests/bench/timing.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

struct member {
    struct cst_team *team;
    pthread_t thread;
    unsigned index;
};

struct cst_team {
    pthread_barrier_t start;
    pthread_barrier_t end;
    cst_team_fn fn; /* NULL: the threads end */
    void *arg;
    unsigned threads;
    struct member members[];
};

unsigned cst_team_cpus(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof set, &set) == 0 ? (unsigned)CPU_COUNT(&set) : 1;
}

/* Bind the thread to the processor number @index, modulo their number, of those that the process
 * may use. */
static void pin(unsigned index)
{
    cpu_set_t all;
    cpu_set_t one;
    unsigned skip;

    if (sched_getaffinity(0, sizeof all, &all) != 0) {
        return;
    }
    skip = index % (unsigned)CPU_COUNT(&all);
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &all) && skip-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            /* Without the right to bind, the benchmark runs unbound. */
            (void)sched_setaffinity(0, sizeof one, &one);
            return;
        }
    }
}

static void *member_main(void *arg)
{
    struct member *member = arg;
    struct cst_team *team = member->team;

    pin(member->index);
    for (;;) {
        pthread_barrier_wait(&team->start);
        if (team->fn == NULL) {
            return NULL;
        }
        team->fn(team->arg, member->index);
        pthread_barrier_wait(&team->end);
    }
}

struct cst_team *cst_team_open(unsigned threads)
{
    struct cst_team *team = calloc(1, sizeof *team + threads * sizeof team->members[0]);
    int rc;

    if (team == NULL) {
        return NULL;
    }
    team->threads = threads;
    pthread_barrier_init(&team->start, NULL, threads + 1);
    pthread_barrier_init(&team->end, NULL, threads + 1);
    for (unsigned i = 0; i < threads; i++) {
        team->members[i] = (struct member){.team = team, .index = i};
        rc = pthread_create(&team->members[i].thread, NULL, member_main, &team->members[i]);
        if (rc != 0) {
            errno = rc; /* threads that exist wait for ever; the program then ends */
            return NULL;
        }
    }
    return team;
}

double cst_team_run(struct cst_team *team, cst_team_fn fn, void *arg)
{
    double start;

    team->fn = fn;
    team->arg = arg;
    start = bench_now();
    pthread_barrier_wait(&team->start);
    pthread_barrier_wait(&team->end);
    return bench_now() - start;
}

void cst_team_close(struct cst_team *team)
{
    team->fn = NULL;
    pthread_barrier_wait(&team->start);
    for (unsigned i = 0; i < team->threads; i++) {
        pthread_join(team->members[i].thread, NULL);
    }
    pthread_barrier_destroy(&team->start);
    pthread_barrier_destroy(&team->end);
    free(team);
}

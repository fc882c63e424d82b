/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/team.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>

struct member {
    struct gpt_team *team; /* team of the member */
    pthread_t thread;
    unsigned number; /* number of the member, from 0 */
};

struct gpt_team {
    pthread_mutex_t lock;
    pthread_cond_t work, done; /* signals: a pass begins; its last member has ended */
    uint64_t pass;             /* number of passes so far; members wait for it to change */
    unsigned n_busy;           /* members that have not ended the pass */
    bool stop;                 /* members are to end */
    gpt_team_fn fn;            /* function of the pass */
    void *arg;                 /* argument of fn */
    unsigned n_members;        /* members that were started */
    struct member members[];
};

static void *member_main(void *arg)
{
    struct member *m = arg;
    struct gpt_team *team = m->team;
    uint64_t pass = 0;

    pthread_mutex_lock(&team->lock);
    for (;;) {
        while (team->pass == pass && !team->stop) {
            pthread_cond_wait(&team->work, &team->lock);
        }
        if (team->stop) {
            break;
        }
        pass = team->pass;
        pthread_mutex_unlock(&team->lock);
        team->fn(team->arg, m->number, team->n_members);
        pthread_mutex_lock(&team->lock);
        if (--team->n_busy == 0) {
            pthread_cond_signal(&team->done);
        }
    }
    pthread_mutex_unlock(&team->lock);
    return NULL;
}

/* Pin @thread to usable core number @n, modulo their number. Pinning is optional, so errors are
 * ignored. */
static void pin(pthread_t thread, const cpu_set_t *usable, unsigned n)
{
    cpu_set_t one;
    unsigned left = n % (unsigned)CPU_COUNT(usable);

    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, usable) && left-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            (void)pthread_setaffinity_np(thread, sizeof one, &one);
            return;
        }
    }
}

int gpt_team_open(struct gpt_team **out, unsigned n_threads, struct cst_err *err)
{
    struct gpt_team *team;
    cpu_set_t usable;

    CPU_ZERO(&usable);
    if (sched_getaffinity(0, sizeof usable, &usable) != 0 || CPU_COUNT(&usable) == 0) {
        CPU_SET(0, &usable);
    }
    if (n_threads == 0) {
        n_threads = (unsigned)CPU_COUNT(&usable);
    }
    team = calloc(1, sizeof *team + n_threads * sizeof team->members[0]);
    if (team == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory");
    }
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->work, NULL);
    pthread_cond_init(&team->done, NULL);
    for (unsigned i = 0; i < n_threads; i++) {
        struct member *m = &team->members[i];

        m->team = team;
        m->number = i;
        if (pthread_create(&m->thread, NULL, member_main, m) != 0) {
            gpt_team_close(team);
            return cst_err_set(err, CST_ENOMEM, "cannot start thread %u of %u", i + 1, n_threads);
        }
        pin(m->thread, &usable, i);
        pthread_mutex_lock(&team->lock);
        team->n_members++;
        pthread_mutex_unlock(&team->lock);
    }
    *out = team;
    return 0;
}

void gpt_team_close(struct gpt_team *team)
{
    if (team == NULL) {
        return;
    }
    pthread_mutex_lock(&team->lock);
    team->stop = true;
    pthread_cond_broadcast(&team->work);
    pthread_mutex_unlock(&team->lock);
    for (unsigned i = 0; i < team->n_members; i++) {
        pthread_join(team->members[i].thread, NULL);
    }
    pthread_cond_destroy(&team->done);
    pthread_cond_destroy(&team->work);
    pthread_mutex_destroy(&team->lock);
    free(team);
}

void gpt_team_run(struct gpt_team *team, gpt_team_fn fn, void *arg)
{
    pthread_mutex_lock(&team->lock);
    team->fn = fn;
    team->arg = arg;
    team->n_busy = team->n_members;
    team->pass++;
    pthread_cond_broadcast(&team->work);
    while (team->n_busy > 0) {
        pthread_cond_wait(&team->done, &team->lock);
    }
    pthread_mutex_unlock(&team->lock);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/run_standbys.h"

#include "client/lib/opened.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool has_standbys(const struct cli_standbys *standbys)
{
    return standbys->group->n > standbys->n_ranks;
}

/* -- ranks and standbys ----------------------------------------------------------------------- */

void cli_standbys_name(const struct cli_standbys *standbys, unsigned i)
{
    const struct cli_place *place = &standbys->places[i];
    char name[CLI_RANK_NAME] = "a standby", prefix[CLI_RANK_NAME] = "[standby] ";

    if (!place->is_standby) {
        (void)snprintf(name, sizeof name, "rank %u", standbys->first + place->rank);
        (void)snprintf(prefix, sizeof prefix, "[%u] ", standbys->first + place->rank);
    }
    cli_rank_name(&standbys->group->members[i].rank, name, prefix);
}

/* Let member @i be a standby when it is started next. */
static void make_standby(struct cli_standbys *standbys, unsigned i)
{
    standbys->places[i] = (struct cli_place){.is_standby = true};
    cli_standbys_name(standbys, i);
}

bool cli_standbys_replace(struct cli_standbys *standbys, const struct cli_member *member)
{
    struct cli_place *place = cli_standbys_place(standbys, member);
    bool any = false;

    /* A standby waits, or has become the rank before the end of the process was noticed. */
    for (unsigned i = 0; i < standbys->group->n; i++) {
        const struct cli_place *other = &standbys->places[i];

        any = any || (other != place && standbys->group->members[i].is_left &&
                      (other->is_standby || other->rank == place->rank));
    }
    if (!any || !place->has_committed) {
        return false;
    }
    make_standby(standbys, member->rank.number);
    return true;
}

bool cli_standbys_is_over(const struct cli_standbys *standbys)
{
    bool runs = false;

    for (unsigned i = 0; i < standbys->group->n; i++) {
        runs = runs || (!standbys->places[i].is_standby && standbys->group->members[i].is_left);
    }
    return standbys->n_done == standbys->n_ranks || (standbys->has_ended && !runs);
}

bool cli_standbys_misses_rank(const struct cli_standbys *standbys)
{
    unsigned n = 0;

    for (unsigned i = 0; standbys->places != NULL && i < standbys->group->n; i++) {
        n += !standbys->places[i].is_standby;
    }
    return n < standbys->n_ranks;
}

/* Another process that is being started as @rank would be refused: let it be a standby. A process
 * that has died as @rank is one already, or its end is not noticed yet. */
static void end_doubles(struct cli_standbys *standbys, unsigned of, unsigned rank)
{
    for (unsigned i = 0; i < standbys->group->n; i++) {
        struct cli_place *place = &standbys->places[i];
        struct cli_member *member = &standbys->group->members[i];

        if (i == of || place->is_standby || place->rank != rank || place->has_committed ||
            !member->is_left) {
            continue;
        }
        if (cli_rank_is_running(&member->rank)) {
            place->is_double = true;
            cli_rank_kill(&member->rank);
        } else {
            make_standby(standbys, i);
        }
    }
}

static void become_rank(struct cli_standbys *standbys, unsigned i, unsigned rank)
{
    struct cli_rank *process = &standbys->group->members[i].rank;

    standbys->places[i] = (struct cli_place){.rank = rank};
    cli_standbys_name(standbys, i);
    cli_group_say(standbys->group, "a standby is %s now", process->name);
    end_doubles(standbys, i, rank);
}

/* -- the pipe --------------------------------------------------------------------------------- */

static void hear(struct cli_standbys *standbys, const struct cstc_opened *said)
{
    struct cli_place *place;

    if (said->place >= standbys->group->n || said->rank >= standbys->n_ranks) {
        return;
    }
    place = &standbys->places[said->place];
    switch (said->what) {
    case CSTC_OPENED_JOB:
        if (place->is_standby) {
            become_rank(standbys, said->place, said->rank);
        }
        place->has_committed = standbys->has_ended = false; /* It may be another job. */
        break;
    case CSTC_OPENED_COMMITTED:
    case CSTC_OPENED_LEFT:
        place->has_committed = said->what == CSTC_OPENED_COMMITTED;
        break;
    case CSTC_OPENED_ENDED:
        standbys->has_ended = true;
        cli_group_look(standbys->group);
        break;
    default:
        break;
    }
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct cli_standbys *standbys = poll->data;
    struct cstc_opened said;

    (void)status;
    (void)events;
    while (read(standbys->fds[0], &said, sizeof said) == (ssize_t)sizeof said) {
        hear(standbys, &said);
    }
}

void cli_standbys_listen(struct cli_standbys *standbys)
{
    if (has_standbys(standbys) &&
        uv_poll_init(&standbys->group->loop, &standbys->poll, standbys->fds[0]) == 0) {
        standbys->polls = true;
        standbys->poll.data = standbys;
        (void)uv_poll_start(&standbys->poll, UV_READABLE, on_readable);
        uv_unref((uv_handle_t *)&standbys->poll); /* Nothing waits for it. */
    }
}

void cli_standbys_stop(struct cli_standbys *standbys)
{
    if (standbys->polls) {
        standbys->polls = false;
        uv_close((uv_handle_t *)&standbys->poll, NULL);
    }
}

void cli_standbys_set(const struct cli_standbys *standbys, const struct cli_member *member)
{
    struct stat st;
    char text[96];

    if (has_standbys(standbys) && fstat(standbys->fds[1], &st) == 0) {
        (void)snprintf(text, sizeof text, "%u %llu /proc/%d/fd/%d", member->rank.number,
                       (unsigned long long)st.st_ino, (int)getpid(), standbys->fds[1]);
        (void)setenv(CSTC_OPENED, text, 1);
    }
}

/* -- the beginning and the end ---------------------------------------------------------------- */

int cli_standbys_init(struct cli_standbys *standbys, struct cli_group *group, unsigned n_ranks,
                      unsigned first, struct cst_err *err)
{
    *standbys =
        (struct cli_standbys){.group = group, .n_ranks = n_ranks, .first = first, .fds = {-1, -1}};
    standbys->places = calloc(group->n, sizeof *standbys->places);
    if (standbys->places == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for %u processes", group->n);
    }
    for (unsigned i = 0; i < group->n; i++) {
        standbys->places[i] = (struct cli_place){.is_standby = i >= n_ranks, .rank = i};
    }
    if (has_standbys(standbys) && pipe2(standbys->fds, O_CLOEXEC | O_NONBLOCK) != 0) {
        return cst_err_errno(err, CST_EINTERNAL, errno, "a pipe for " CSTC_OPENED);
    }
    return CST_OK;
}

void cli_standbys_close(struct cli_standbys *standbys)
{
    for (int i = 0; i < 2 && standbys->places != NULL; i++) {
        if (standbys->fds[i] >= 0) {
            (void)close(standbys->fds[i]);
        }
    }
    free(standbys->places);
}

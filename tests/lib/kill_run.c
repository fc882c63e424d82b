/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/kill_run.h"

#include "kernels/math/undo.h"

#include <check.h>
#include <stdlib.h>
#include <time.h>

#define FLOOD 4000 /* completions with a message, more than fit into a socket */

/* A list of commands, and their progress with one engine. */
struct run {
    struct engine_proc proc;
    const struct engine_command *commands;
    size_t n;
    bool *done;   /* indexed by ticket - 1: the end of the command is known */
    bool *issued; /* indexed by ticket - 1: this engine has received the command, or it is done */
};

static void note_done(struct run *run)
{
    const struct engine_proc *proc = &run->proc;

    for (size_t i = 0; i < proc->n_done; i++) {
        uint64_t ticket = proc->done[i].ticket;

        if (ticket <= run->n) {
            ck_assert_msg(proc->done[i].status == 0, "ticket %llu: %s", (unsigned long long)ticket,
                          proc->done[i].text);
            run->done[ticket - 1] = true;
        }
    }
}

/* True if the engine, or a dead one, has received all that @command waits for, in the required
 * way. */
static bool may_be_issued(const struct run *run, const struct engine_command *command)
{
    for (unsigned i = 0; i < command->n_after; i++) {
        uint64_t after = command->after[i];

        if (after != 0 && !(command->after_ack ? run->done : run->issued)[after - 1]) {
            return false;
        }
    }
    return true;
}

static void issue(struct run *run)
{
    struct engine_command *open = calloc(run->n, sizeof *open);
    size_t n_open = 0;

    ck_assert_ptr_nonnull(open);
    note_done(run);
    for (size_t i = 0; i < run->n; i++) {
        const struct engine_command *command = &run->commands[i];

        if (run->done[i]) {
            run->issued[i] = true;
        } else if (!run->issued[i] && may_be_issued(run, command)) {
            run->issued[i] = true;
            open[n_open++] = *command;
        }
    }
    engine_proc_submit(&run->proc, open, n_open);
    free(open);
}

/* Fill the socket with completions, so that no further completion is received. The engine then
 * completes commands without our knowledge. */
static void deafen(struct run *run)
{
    static struct engine_command nothing[FLOOD];

    for (uint64_t i = 0; i < FLOOD; i++) {
        nothing[i] = engine_command_fill((struct cst_place){.segment = 999}, 1);
        nothing[i].ticket = run->n + 1 + i;
    }
    engine_proc_submit(&run->proc, nothing, FLOOD);
}

/* Start an engine and issue commands; with @deaf no completion is received. Returns the number of
 * commands that are not done. */
static size_t start(struct run *run, struct tiny_job *job, const struct engine_command *commands,
                    size_t n, bool *done, uint32_t threads, unsigned order, bool deaf)
{
    size_t n_open = 0;

    *run = (struct run){
        .commands = commands, .n = n, .done = done, .issued = calloc(n, sizeof *run->issued)};
    ck_assert_ptr_nonnull(run->issued);
    for (size_t i = 0; i < n; i++) {
        n_open += !done[i];
    }
    tiny_job_start(job, &run->proc, threads, 2, order);
    if (deaf) {
        deafen(run);
    }
    issue(run);
    return n_open;
}

/* Issue and receive until @n_wanted commands are done. */
static void run_until(struct run *run, size_t n_wanted)
{
    while (run->proc.n_done < n_wanted) {
        ck_assert(engine_proc_read(&run->proc, -1));
        issue(run);
    }
}

void kill_run_to_end(struct tiny_job *job, const struct engine_command *commands, size_t n,
                     uint32_t threads, bool *done)
{
    struct run run;
    size_t n_open = start(&run, job, commands, n, done, threads, 0, false);

    run_until(&run, n_open);
    note_done(&run);
    for (size_t i = 0; i < n; i++) {
        ck_assert(done[i]);
    }
    ck_assert_int_eq(engine_proc_close(&run.proc), 0);
    free(run.issued);
}

/* Wait for a random time. This is not synchronisation. */
static void pause_us(uint64_t us)
{
    struct timespec ts = {.tv_nsec = (long)us * 1000};

    (void)nanosleep(&ts, NULL);
}

unsigned kill_run(struct tiny_job *job, const struct engine_command *commands, size_t n,
                  unsigned n_slots, bool *done, uint64_t *random)
{
    const struct cst_undo_slot *slots = job->base[TINY_UNDO];
    uint32_t threads = 1 + (uint32_t)(tiny_random(random) % 3);
    bool deaf = tiny_random(random) % 3 == 0;
    unsigned n_held = 0;
    struct run run;
    size_t n_open =
        start(&run, job, commands, n, done, threads, (unsigned)(tiny_random(random) % 3), deaf);

    if (!deaf) {
        run_until(&run, tiny_random(random) % (n_open + 1) / 2);
    }
    pause_us(tiny_random(random) % (deaf ? 12000 : 3000));
    engine_proc_kill(&run.proc);
    note_done(&run);
    (void)engine_proc_close(&run.proc);
    free(run.issued);
    for (unsigned i = 0; i < n_slots; i++) {
        n_held += cst_undo_holds(&slots[i]);
    }
    return n_held;
}

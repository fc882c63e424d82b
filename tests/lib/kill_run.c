#include "tests/lib/kill_run.h"

#include "kernels/undo.h"

#include <check.h>
#include <stdlib.h>
#include <time.h>

/* Issue what is not marked done; how many those are. */
static size_t issue(struct engine_proc *proc, const struct engine_command *commands, size_t n,
                    const bool *done)
{
    struct engine_command *open = calloc(n, sizeof *open);
    size_t n_open = 0;

    ck_assert_ptr_nonnull(open);
    for (size_t i = 0; i < n; i++) {
        if (!done[i]) {
            open[n_open++] = commands[i];
        }
    }
    engine_proc_submit(proc, open, n_open);
    free(open);
    return n_open;
}

static void note_done(const struct engine_proc *proc, bool *done)
{
    for (size_t i = 0; i < proc->n_done; i++) {
        ck_assert_msg(proc->done[i].status == 0, "ticket %llu: %s",
                      (unsigned long long)proc->done[i].ticket, proc->done[i].text);
        done[proc->done[i].ticket - 1] = true;
    }
}

void kill_run_to_end(struct tiny_job *job, const struct engine_command *commands, size_t n,
                     uint32_t threads, bool *done)
{
    struct engine_proc proc;

    tiny_job_start(job, &proc, threads, 2, 0);
    (void)issue(&proc, commands, n, done);
    for (size_t i = 0; i < n; i++) {
        ck_assert(done[i] || engine_proc_wait(&proc, commands[i].ticket) != NULL);
    }
    note_done(&proc, done);
    ck_assert_int_eq(engine_proc_close(&proc), 0);
}

/* Not synchronisation: this is the random moment. */
static void pause_us(uint64_t us)
{
    struct timespec ts = {.tv_nsec = (long)us * 1000};

    (void)nanosleep(&ts, NULL);
}

unsigned kill_run(struct tiny_job *job, const struct engine_command *commands, size_t n,
                  unsigned n_slots, bool *done, uint64_t *random)
{
    const struct cst_undo_slot *slots = job->base[TINY_UNDO];
    size_t n_open, n_wanted;
    struct engine_proc proc;
    unsigned n_held = 0;

    tiny_job_start(job, &proc, 1 + (uint32_t)(tiny_random(random) % 3), 2,
                   (unsigned)(tiny_random(random) % 3));
    n_open = issue(&proc, commands, n, done);
    n_wanted = tiny_random(random) % (n_open + 1) / 2;
    while (proc.n_done < n_wanted) {
        ck_assert(engine_proc_read(&proc, -1));
    }
    pause_us(tiny_random(random) % 3000);
    engine_proc_kill(&proc);
    note_done(&proc, done);
    (void)engine_proc_close(&proc);
    for (unsigned i = 0; i < n_slots; i++) {
        n_held += cst_undo_holds(&slots[i]);
    }
    return n_held;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/reservation_update.h"

#define ALIGN 64u

static const enum cst_row read_rows[] = {CST_ROW_GRAD, CST_ROW_MASTER, CST_ROW_MOMENT,
                                         CST_ROW_MOMENT + 1};
static const enum cst_row written_rows[] = {CST_ROW_WEIGHT, CST_ROW_MASTER, CST_ROW_MOMENT,
                                            CST_ROW_MOMENT + 1};

enum { N_ROWS = 4 };

static uint64_t aligned_bytes(const struct tiny_job *job, unsigned chunk, enum cst_row row)
{
    return (tiny_job_row_bytes(job, chunk, row) + ALIGN - 1) / ALIGN * ALIGN;
}

/* Place those of @rows that the job has, beginning at *@reservation, which is advanced. Returns
 * their number. */
static unsigned place(const struct tiny_job *job, unsigned chunk, const enum cst_row *rows,
                      struct cst_place *reservation, struct engine_row *out)
{
    unsigned n = 0;

    for (int i = 0; i < N_ROWS; i++) {
        if (tiny_job_has(job, rows[i])) {
            out[n++] = (struct engine_row){.row = rows[i], .place = *reservation};
            reservation->offset += aligned_bytes(job, chunk, rows[i]);
        }
    }
    return n;
}

uint64_t reservation_update_bytes(const struct tiny_job *job, unsigned chunk)
{
    struct engine_row rows[N_ROWS];
    struct cst_place at = {.offset = 0};

    (void)place(job, chunk, read_rows, &at, rows);
    (void)place(job, chunk, written_rows, &at, rows);
    return at.offset;
}

/* Let @command wait for the @n tickets up to @last. */
static void come_after(struct engine_command *command, uint64_t last, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        command->after[command->n_after++] = last - i;
    }
}

size_t reservation_update_write(const struct tiny_job *job, unsigned chunk, uint64_t mark,
                                struct cst_place reservation, uint64_t ticket, uint64_t before,
                                unsigned n_before, struct engine_command *out, unsigned *n_last)
{
    struct engine_command update = tiny_job_update(job, chunk, mark), *at = out;

    update.n_in = place(job, chunk, read_rows, &reservation, update.in);
    update.n_out = place(job, chunk, written_rows, &reservation, update.out);
    for (unsigned i = 0; i < update.n_in; i++) {
        enum cst_row row = (enum cst_row)update.in[i].row;

        *at = engine_command_copy(update.in[i].place, tiny_job_row(job, chunk, row),
                                  tiny_job_row_bytes(job, chunk, row));
        come_after(at, before, n_before);
        at->after_ack = true;
        at++->ticket = ++ticket;
    }
    come_after(&update, ticket, update.n_in);
    update.ticket = ++ticket;
    *at++ = update;
    for (unsigned i = 0; i < update.n_out; i++) {
        enum cst_row row = (enum cst_row)update.out[i].row;

        *at = engine_command_copy(tiny_job_row(job, chunk, row), update.out[i].place,
                                  tiny_job_row_bytes(job, chunk, row));
        come_after(at, update.ticket, 1);
        at->after_ack =
            true; /* the command overwrites what a repeated copy to the reservation would read */
        at++->ticket = ++ticket;
    }
    *n_last = update.n_out;
    return (size_t)(at - out);
}

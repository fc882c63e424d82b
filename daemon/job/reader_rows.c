/* SPDX-License-Identifier: Apache-2.0 */
/* What the core says of the weight rows: which have a version, and what readers lose. Makes no
 * event of the core. */
#include "daemon/job/job.h"
#include "daemon/job/readers.h"

void cstd_readers_version(struct cstd_job *job, uint32_t row, uint64_t step)
{
    job->readers.rows[row].readable = true;
    job->readers.rows[row].step = step;
}

/* @reader loses what it holds in @row. */
static void lose(struct cstd_reader *reader, uint32_t row)
{
    for (int i = 0; i < CSTD_READER_HOLDS; i++) {
        struct cstd_reader_hold *hold = &reader->holds[i];

        if (hold->number != 0 && hold->row == row && !hold->lost) {
            hold->lost = true;
            reader->job->readers.n_lost++;
        }
    }
}

void cstd_readers_revoke(struct cstd_job *job, uint32_t row)
{
    struct cstd_reader *reader;

    job->readers.rows[row].readable = false;
    TAILQ_FOREACH(reader, &job->readers.list, link)
    {
        lose(reader, row);
    }
}

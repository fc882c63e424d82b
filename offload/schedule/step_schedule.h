/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules of a step: who contributes to the gradient of a chunk and in which order, when nothing
 * more can come, which ranks a step needs, and what a rank does next. Everything else in the core
 * is the same for all schedules, and asks the functions of the job's row.
 *
 * The gradient of a chunk is the sum of its addends. They are numbered, from 0, in the order in
 * which they are added. A command adds the addends of one sum, which follow each other:
 *
 *   schedule         addend                                   sum
 *   data parallel    of a rank of the group in a micro-batch  all of a micro-batch, in rank order
 *   dispatch         of a stage and a micro-batch             one
 *
 * With three micro-batches the numbers of a chunk that the ranks 0 and 2 hold are in a data
 * parallel job
 *
 *   micro-batch 0: 0 1 | micro-batch 1: 2 3 | micro-batch 2: 4 5
 *
 * The addends of a sum are either those of all ranks of the group, in rank order, or a single one,
 * which any rank may contribute.
 *
 * The model decides which schedule a job has (`serves`). To add one, write a file with its row, and
 * put the row before those in step_schedule.c that serve the same models. The
 * functions of a row read the core, and change nothing but the state of their schedule. */
#ifndef CST_STEP_SCHEDULE_H
#define CST_STEP_SCHEDULE_H

#include "offload/base/command.h"
#include "offload/base/work_unit.h"

struct cst_core;
struct cst_model;

/* What can become of an addend that has not come. */
enum cst_addend_state {
    CST_ADDEND_EXPECTED, /* A rank may contribute it. */
    CST_ADDEND_LEFT_OUT, /* Nobody does, unless a rank takes back that it asked for the step. */
    CST_ADDEND_NEVER,    /* Nobody does any more. */
};

/* Units of work, which ranks ask for by NEXT. */
struct cst_step_work {
    bool exists; /* False: there are no units, and NEXT is refused. */
    /* The unit of @rank; false: it has none. */
    bool (*unit)(const struct cst_core *core, uint32_t rank, struct cst_work_unit *out);
    /* What @rank says when it names unit @number, 0: none, as the last one that it has done. */
    enum cst_work_report (*report)(const struct cst_core *core, uint32_t rank, uint64_t number);
    /* Number of the last unit that @rank has done; 0: none. */
    uint64_t (*last)(const struct cst_core *core, uint32_t rank);
    /* @rank has done its unit, in which the loss was @loss. */
    void (*done)(struct cst_core *core, uint32_t rank, double loss);
    /* Give @rank, which has no unit, the next one. False: none may begin now. */
    bool (*take)(struct cst_core *core, uint32_t rank, struct cst_work_unit *out);
    /* @rank, which has no unit, waits no more for one. */
    void (*leave)(struct cst_core *core, uint32_t rank);
    /* @rank does nothing more of what it has, which can be given to others. True: it had a unit,
     * *lost. */
    bool (*gone)(struct cst_core *core, uint32_t rank, struct cst_work_unit *lost);
    /* True if all units of the step are done. */
    bool (*is_complete)(const struct cst_core *core);
    /* What those wait for that have no unit: a unit that is not done, and the rank that will do it,
     * or CST_NONE. False: all are done. */
    bool (*first)(const struct cst_core *core, struct cst_work_unit *out, uint32_t *rank);
};

#define CST_ADDEND_TEXT 64

struct cst_step_schedule {
    /* An attempt goes on with the ranks that take part in it, and others may join: what a rank has
     * not done is done by another one. What is handed in a second time is dropped. False: an
     * attempt needs all ranks, and a rank hands in once. */
    bool elastic;
    /* A rank does in each step what it did in the step before, so that its weights can be loaded
     * ahead. */
    bool repeats;
    /* A sum has an addend of each rank of the group. False: it has one, of any rank. */
    bool by_rank;
    const struct cst_step_work *work;

    /* True if the steps of @model have this schedule. */
    bool (*serves)(const struct cst_model *model);
    /* CST_OK if the schedule is possible for @model with @micro_batches and @overlap; else
     * CST_EINVAL. */
    int (*check)(const struct cst_model *model, uint32_t micro_batches, enum cst_overlap overlap,
                 struct cst_err *err);

    /* Set n_addends and n_in_sum of each chunk of @core, and core->schedule_state, if the schedule
     * has one. CST_ENOMEM: nothing is allocated. */
    int (*open)(struct cst_core *core, struct cst_err *err);
    /* Free the state. Also after a failed open. */
    void (*close)(struct cst_core *core);
    /* A step or an attempt begins: nothing is done. */
    void (*begin)(struct cst_core *core);

    /* The addend of @chunk that @rank, which is in its group, contributes now; CST_NONE: none. */
    uint32_t (*addend_of)(const struct cst_core *core, uint32_t chunk, uint32_t rank);
    /* What can become of the addend @first of @chunk, which has not come and is alone in its sum,
     * or, by_rank, of that of @rank in the sum that begins with @first. */
    enum cst_addend_state (*state)(const struct cst_core *core, uint32_t chunk, uint32_t first,
                                   uint32_t rank);
    /* by_rank: those of @among, a word of number @word of a set of ranks, whose addend in that sum
     * is EXPECTED. */
    uint64_t (*expected)(const struct cst_core *core, uint32_t chunk, uint32_t first, uint32_t word,
                         uint64_t among);
    /* The rank block here (offload/gradient/partials.h) to which the next addend of @chunk belongs,
     * which @rank has contributed; there are several. */
    uint32_t (*block_of)(const struct cst_core *core, uint32_t chunk, uint32_t rank);
    /* Write what the addend is of, such as "micro-batch 3": micro-batches are counted from 1, and
     * stand at the end. */
    void (*say)(const struct cst_core *core, uint32_t chunk, uint32_t addend,
                char text[CST_ADDEND_TEXT]);

    /* Number of losses of a rank block, and of the ranks here if they are no rank blocks. */
    uint32_t (*n_losses)(const struct cst_core *core);
    /* Write the losses of the step that is being committed to @out: those of the ranks here, rank
     * block after rank block. */
    void (*losses)(const struct cst_core *core, double *out);
    /* The loss of a step with these @n losses, in the order of rank blocks. */
    double (*mean_loss)(const double *losses, uint32_t n);

    /* NULL, or the name of an invariant that does not hold. For tests. */
    const char *(*check_state)(const struct cst_core *core);
};

/* The rows. */
extern const struct cst_step_schedule cst_data_parallel;
extern const struct cst_step_schedule cst_dispatched;

/* The schedule of the steps of @model. */
const struct cst_step_schedule *cst_step_schedule_of(const struct cst_model *model);

/* The work of a schedule that has no units: nobody has one, and all are done. */
extern const struct cst_step_work cst_step_no_work;

#define CST_WORK_UNIT_TEXT 96

/* Write what the unit is: "the backward pass of stage 2 over micro-batch 0". */
void cst_work_unit_say(const struct cst_work_unit *unit, char text[CST_WORK_UNIT_TEXT]);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/metrics_gather.h"

#include "client/cli/job_ranks.h"
#include "client/lib/call.h"
#include "client/lib/client.h"
#include "proto/clock.h"

#include <stdlib.h>
#include <unistd.h>

/* A gather under way. */
struct gather {
    struct cst_client *client;
    struct cstc_limit limit; /* Of all of it. */
    enum cli_metrics_jobs jobs;
    struct cli_metrics *out;
};

/* The types of a request, of its reply, and of the reply's body. */
struct question {
    uint16_t get, reply;
    const ProtobufCMessageDescriptor *form;
};

/* Wait until the call is done. If the time is over, so is the connection, which ends the call. */
static void wait_for(const struct gather *gather, const struct cstc_call *call, struct cst_err *err)
{
    while (call->state != CSTC_CALL_DONE) {
        const int ms = cstc_limit_left(&gather->limit);
        struct cst_err late = {0};

        if (ms > 0) {
            (void)cstc_call_wait(gather->client, ms, err);
        } else {
            (void)cst_err_set(&late, CST_ETIMEDOUT, "the daemon has not answered in %d s",
                              CLI_METRICS_WAIT_MS / 1000);
            cstc_client_die(gather->client, &late);
        }
    }
}

/* Ask, and store the reply in *out, which the caller owns. */
static int ask(const struct gather *gather, const struct question *question,
               const ProtobufCMessage *body, ProtobufCMessage **out, struct cst_err *err)
{
    struct cstc_call call = {0};
    int rc = cstc_call_start(gather->client, &call, question->get, body, question->reply,
                             question->form, err);

    if (rc != CST_OK) {
        return rc;
    }
    wait_for(gather, &call, err);
    rc = cstc_call_result(&call, err);
    if (rc == CST_OK) {
        *out = call.reply;
        call.reply = NULL;
    }
    cstc_call_reset(&call);
    return rc;
}

/* Append @message, which is freed if there is no memory. */
static int append(struct cli_messages *messages, ProtobufCMessage *message, struct cst_err *err)
{
    ProtobufCMessage **v = realloc(messages->v, (messages->n + 1) * sizeof *v);

    if (v == NULL) {
        protobuf_c_message_free_unpacked(message, NULL);
        return cst_err_set(err, CST_ENOMEM, "no memory for %zu replies", messages->n + 1);
    }
    messages->v = v;
    v[messages->n++] = message;
    return CST_OK;
}

static int get_stat(struct gather *gather, struct cst_err *err)
{
    static const struct question question = {CISTERN__MSG_TYPE__MSG_STAT,
                                             CISTERN__MSG_TYPE__MSG_STAT_REPLY,
                                             &cistern__stat_reply__descriptor};
    ProtobufCMessage *reply;
    const int rc = ask(gather, &question, NULL, &reply, err);

    if (rc == CST_OK) {
        gather->out->stat = (Cistern__StatReply *)reply;
    }
    return rc;
}

/* Get all pages of a list. @count returns the number of items of a page, and whether more follow.
 */
static int get_pages(const struct gather *gather, const struct question *question,
                     size_t (*count)(const ProtobufCMessage *page, bool *more),
                     struct cli_messages *out, struct cst_err *err)
{
    /* The requests of all lists have the same form: the number of the first item. */
    Cistern__JobListGet msg = CISTERN__JOB_LIST_GET__INIT;
    bool more = true;
    int rc = CST_OK;

    while (rc == CST_OK && more) {
        ProtobufCMessage *page;

        rc = ask(gather, question, &msg.base, &page, err);
        if (rc == CST_OK) {
            const size_t n = count(page, &more);

            more = more && n > 0; /* An empty page would repeat for ever. */
            msg.first += (uint32_t)n;
            rc = append(out, page, err);
        }
    }
    return rc;
}

static size_t count_jobs(const ProtobufCMessage *page, bool *more)
{
    const Cistern__JobListPart *part = (const Cistern__JobListPart *)page;

    *more = part->more;
    return part->n_jobs;
}

static size_t count_accounts(const ProtobufCMessage *page, bool *more)
{
    const Cistern__QuotaPart *part = (const Cistern__QuotaPart *)page;

    *more = part->more;
    return part->n_accounts;
}

static const struct question job_info = {CISTERN__MSG_TYPE__MSG_JOB_INFO,
                                         CISTERN__MSG_TYPE__MSG_JOB_INFO_REPLY,
                                         &cistern__job_info_reply__descriptor};

/* Get the ranks of @job that its first page does not have. If the job is removed meanwhile, it has
 * fewer. */
static int get_ranks(const struct gather *gather, Cistern__JobInfo *job, struct cst_err *err)
{
    Cistern__JobName name;
    bool more = cli_job_ranks_next(job, &name);

    while (more) {
        ProtobufCMessage *page;
        int rc = ask(gather, &job_info, &name.base, &page, err);

        if (rc != CST_OK) {
            return rc == CST_ENOTFOUND ? CST_OK : rc;
        }
        rc = cli_job_ranks_join(job, ((Cistern__JobInfoReply *)page)->job, &more, err);
        protobuf_c_message_free_unpacked(page, NULL);
        if (rc != CST_OK) {
            return rc;
        }
        (void)cli_job_ranks_next(job, &name);
    }
    return CST_OK;
}

/* Get all of a job. One that is removed meanwhile, and one that the socket does not show to this
 * user, are left out. */
static int get_job(struct gather *gather, const Cistern__JobInfo *job, struct cst_err *err)
{
    Cistern__JobName name = CISTERN__JOB_NAME__INIT;
    ProtobufCMessage *reply;
    int rc;

    name.name = job->name;
    name.has_uid = 1;
    name.uid = job->uid;
    rc = ask(gather, &job_info, &name.base, &reply, err);
    if (rc == CST_ENOTFOUND || rc == CST_EDENIED) {
        return CST_OK;
    }
    rc = rc == CST_OK ? append(&gather->out->jobs, reply, err) : rc;
    return rc == CST_OK ? get_ranks(gather, ((Cistern__JobInfoReply *)reply)->job, err) : rc;
}

static int get_jobs(struct gather *gather, struct cst_err *err)
{
    static const struct question list = {CISTERN__MSG_TYPE__MSG_JOB_LIST,
                                         CISTERN__MSG_TYPE__MSG_JOB_LIST_PART,
                                         &cistern__job_list_part__descriptor};
    const struct cli_messages *pages = &gather->out->listed;
    int rc = get_pages(gather, &list, count_jobs, &gather->out->listed, err);

    for (size_t p = 0; p < pages->n && gather->jobs != CLI_METRICS_NO_JOBS; p++) {
        const Cistern__JobListPart *page = (const Cistern__JobListPart *)pages->v[p];

        for (size_t i = 0; rc == CST_OK && i < page->n_jobs; i++) {
            if (gather->jobs == CLI_METRICS_ALL_JOBS || page->jobs[i]->uid == geteuid()) {
                rc = get_job(gather, page->jobs[i], err);
            }
        }
    }
    return rc;
}

static int get_accounts(struct gather *gather, struct cst_err *err)
{
    static const struct question list = {CISTERN__MSG_TYPE__MSG_QUOTA,
                                         CISTERN__MSG_TYPE__MSG_QUOTA_PART,
                                         &cistern__quota_part__descriptor};

    return gather->jobs == CLI_METRICS_ALL_JOBS
               ? get_pages(gather, &list, count_accounts, &gather->out->accounts, err)
               : CST_OK;
}

int cli_metrics_gather(const char *path, enum cli_metrics_jobs jobs, bool (*stop)(void),
                       struct cli_metrics *out, struct cst_err *err)
{
    struct gather gather = {.limit.end_ns =
                                cst_clock_ns() + UINT64_C(1000000) * CLI_METRICS_WAIT_MS,
                            .limit.stop = stop,
                            .jobs = jobs,
                            .out = out};
    int rc;

    *out = (struct cli_metrics){.stat = NULL};
    rc = cstc_client_connect(&gather.client, path, &gather.limit, err);
    if (rc != CST_OK) {
        return rc;
    }
    rc = get_stat(&gather, err);
    rc = rc == CST_OK ? get_jobs(&gather, err) : rc;
    rc = rc == CST_OK ? get_accounts(&gather, err) : rc;
    cst_disconnect(gather.client);
    if (rc != CST_OK) {
        cli_metrics_close(out);
    }
    return rc;
}

static void free_messages(struct cli_messages *messages)
{
    for (size_t i = 0; i < messages->n; i++) {
        protobuf_c_message_free_unpacked(messages->v[i], NULL);
    }
    free(messages->v);
}

void cli_metrics_close(struct cli_metrics *metrics)
{
    if (metrics->stat != NULL) {
        cistern__stat_reply__free_unpacked(metrics->stat, NULL);
    }
    free_messages(&metrics->listed);
    free_messages(&metrics->jobs);
    free_messages(&metrics->accounts);
    *metrics = (struct cli_metrics){.stat = NULL};
}

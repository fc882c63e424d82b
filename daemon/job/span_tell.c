/* SPDX-License-Identifier: Apache-2.0 */
/* What several files of a span tell other nodes. */
#include "daemon/base/daemon_state.h"
#include "daemon/base/log.h"
#include "daemon/job/ended_parts.h"
#include "daemon/job/job.h"
#include "daemon/job/span_parts.h"
#include "daemon/memory/job_options.h"
#include "daemon/revive/revive.h"
#include "offload/layout/digest.h"

#include <string.h>

void cstd_span_tell_here(struct cstd_job *job, struct cstd_machine *peer, uint64_t heard)
{
    uint8_t options[CST_FRAME_MAX_BODY / 2];
    Cistern__JobOpen open = CISTERN__JOB_OPEN__INIT;
    Span__Here here = SPAN__HERE__INIT;
    Span__Key key = cstd_span_key(job);
    struct cst_job_texts texts;
    struct cst_err unused;

    cst_job_texts_make(&texts, &job->spec);
    cst_job_options_fill(&open.base, &job->spec, &texts, CST_JOB_SAME);
    open.name = (char *)(uintptr_t)job->name;
    open.world = job->world;
    here.from = &key;
    here.first_rank = job->spec.nodes.first_rank;
    here.world = job->world;
    here.all_ranks = cst_job_all_ranks(&job->spec);
    here.digest = cst_model_digest(&job->model, 1);
    here.options.data = options;
    here.options.len = cistern__job_open__get_packed_size(&open);
    here.has_heard = heard != 0;
    here.heard = heard;
    here.has_goes_on = here.goes_on = job->span->is_complete;
    here.has_keeps_lost = here.keeps_lost = job->daemon->revival->keeps_lost;
    if (here.options.len > sizeof options) {
        cstd_log_about(CSTD_LOG_ERROR, CSTD_JOB_ABOUT(job),
                       "its options do not fit into a message");
        return;
    }
    (void)cistern__job_open__pack(&open, options);
    /* If the link goes down now, the part is told when it is up again. */
    (void)cstd_machine_send(peer, SPAN__MSG_TYPE__SPAN_HERE, &here.base, &unused);
}

void cstd_span_send_chunks(struct cstd_job *job, const struct cstd_span_machine *to)
{
    struct cstd_span *span = job->span;
    Span__Chunks chunks = SPAN__CHUNKS__INIT;
    uint64_t class_elems[CST_LAYOUT_MAX_CLASSES];
    Span__Key key = cstd_span_key(job);
    struct cst_err unused;

    for (uint32_t i = 0; i < job->layout.n_classes; i++) {
        class_elems[i] = job->layout.classes[i].capacity;
    }
    chunks.from = &key;
    chunks.class_elems = class_elems;
    chunks.n_class_elems = job->layout.n_classes;
    chunks.token.data = span->token;
    chunks.token.len = sizeof span->token;
    /* If it is not sent the link is down. */
    (void)cstd_machine_send(to->peer, SPAN__MSG_TYPE__SPAN_CHUNKS, &chunks.base, &unused);
}

void cstd_span_tell_none(struct cstd_daemon *daemon, const struct cstd_job *job,
                         struct cstd_machine *peer, const Span__Key *key)
{
    Span__None none = SPAN__NONE__INIT;
    struct cst_err unused;

    if (job == NULL && cstd_ended_parts_again(daemon, peer, key->uid, key->name)) {
        return; /* It was removed here. */
    }
    none.from = (Span__Key *)(uintptr_t)key;
    none.has_replaced = none.replaced = job != NULL && job->span->is_complete;
    if (none.replaced || !cstd_span_may_come_back(daemon)) {
        (void)cstd_machine_send(peer, SPAN__MSG_TYPE__SPAN_NONE, &none.base, &unused);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/fake_engine.h"

#include "daemon/engine/process.h"
#include "proto/engine.pb-c.h"

#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

struct message {
    STAILQ_ENTRY(message) link;
    struct cst_frame frame; /* the frame, followed by its body */
    uint8_t body[];
};

struct cstd_process {
    TAILQ_ENTRY(cstd_process) link;
    const struct cstd_process_ops *ops;
    void *arg;
    bool doomed;                     /* the engine exits at its next turn */
    STAILQ_HEAD(, message) messages; /* messages that were sent and not answered */
};

static TAILQ_HEAD(, cstd_process) processes = TAILQ_HEAD_INITIALIZER(processes);
static unsigned n_commands; /* number of commands so far */

int cstd_process_start(struct cstd_process **out, uv_loop_t *loop, char *const *argv,
                       const struct cstd_process_ops *ops, void *arg, struct cst_err *err)
{
    struct cstd_process *process = calloc(1, sizeof *process);

    (void)loop;
    (void)argv;
    if (process == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for an engine");
    }
    process->ops = ops;
    process->arg = arg;
    STAILQ_INIT(&process->messages);
    TAILQ_INSERT_TAIL(&processes, process, link);
    *out = process;
    return CST_OK;
}

pid_t cstd_process_pid(const struct cstd_process *process)
{
    (void)process;
    return 1;
}

int cstd_process_send(struct cstd_process *process, const struct cst_frame *frame)
{
    struct message *message = malloc(sizeof *message + frame->body_bytes);

    if (message == NULL) {
        abort();
    }
    message->frame = *frame;
    if (frame->body_bytes > 0) {
        memcpy(message->body, frame->body, frame->body_bytes);
    }
    message->frame.body = message->body;
    STAILQ_INSERT_TAIL(&process->messages, message, link);
    return CST_OK;
}

int cstd_process_try_send(struct cstd_process *process, const struct cst_frame *frame)
{
    return cstd_process_send(process, frame);
}

void cstd_process_stop(struct cstd_process *process)
{
    process->doomed = true;
}

void cstd_process_kill(struct cstd_process *process)
{
    process->doomed = true;
}

void cstd_process_abandon(struct cstd_process *process)
{
    cstd_process_kill(process);
}

void cstd_process_forget(struct cstd_process *process)
{
    cstd_process_kill(process);
}

static void reply(struct cstd_process *process, uint16_t type, uint64_t request,
                  const ProtobufCMessage *message)
{
    static uint8_t body[CST_FRAME_MAX_BODY];
    struct cst_frame frame = {.type = type, .request = request, .body = body};

    frame.body_bytes = (uint32_t)protobuf_c_message_pack(message, body);
    process->ops->on_frame(process->arg, &frame);
}

static void answer_segment(struct cstd_process *process, const struct cst_frame *frame, uint32_t id)
{
    Engine__SegmentDone done = ENGINE__SEGMENT_DONE__INIT;

    done.id = id;
    reply(process, ENGINE__MSG_TYPE__ENGINE_SEGMENT_DONE, frame->request, &done.base);
}

static void answer_commands(struct cstd_process *process, const struct cst_frame *frame,
                            unsigned fail)
{
    Engine__Submit *submit = engine__submit__unpack(NULL, frame->body_bytes, frame->body);

    if (submit == NULL) {
        abort();
    }
    for (size_t i = 0; i < submit->n_commands; i++) {
        Engine__Done done = ENGINE__DONE__INIT;
        Engine__Completion completion = ENGINE__COMPLETION__INIT, *pointer = &completion;

        completion.ticket = submit->commands[i]->ticket;
        completion.status = fail != 0 && ++n_commands % fail == 0 ? CST_EIO : CST_OK;
        completion.has_value = 1;
        completion.value = 1.0;
        done.n_completions = 1;
        done.completions = &pointer;
        reply(process, ENGINE__MSG_TYPE__ENGINE_DONE, 0, &done.base);
    }
    engine__submit__free_unpacked(submit, NULL);
}

static void answer(struct cstd_process *process, const struct cst_frame *frame, unsigned fail)
{
    Engine__Ready ready = ENGINE__READY__INIT;
    Engine__NetEnd end = ENGINE__NET_END__INIT;
    Engine__Setup *setup;
    Engine__SegmentAdd *add;
    Engine__SegmentDrop *drop;

    switch (frame->type) {
    case ENGINE__MSG_TYPE__ENGINE_SETUP:
        setup = engine__setup__unpack(NULL, frame->body_bytes, frame->body);
        end.transport = setup->net != NULL ? setup->net->transport : NULL;
        end.version = (char *)(uintptr_t) "1";
        end.address = (char *)(uintptr_t) "127.0.0.1:1";
        ready.end = setup->net != NULL ? &end : NULL;
        ready.threads = ready.copy_threads = 1;
        ready.isa = (char *)(uintptr_t) "fake";
        reply(process, ENGINE__MSG_TYPE__ENGINE_READY, frame->request, &ready.base);
        engine__setup__free_unpacked(setup, NULL);
        break;
    case ENGINE__MSG_TYPE__ENGINE_SEGMENT_ADD:
        add = engine__segment_add__unpack(NULL, frame->body_bytes, frame->body);
        answer_segment(process, frame, add->id);
        engine__segment_add__free_unpacked(add, NULL);
        break;
    case ENGINE__MSG_TYPE__ENGINE_SEGMENT_DROP:
        drop = engine__segment_drop__unpack(NULL, frame->body_bytes, frame->body);
        answer_segment(process, frame, drop->id);
        engine__segment_drop__free_unpacked(drop, NULL);
        break;
    case ENGINE__MSG_TYPE__ENGINE_SUBMIT:
        answer_commands(process, frame, fail);
        break;
    default: /* PING: no answer is a valid answer for a long time */
        break;
    }
}

static void end(struct cstd_process *process)
{
    struct message *message;

    while ((message = STAILQ_FIRST(&process->messages)) != NULL) {
        STAILQ_REMOVE_HEAD(&process->messages, link);
        free(message);
    }
    TAILQ_REMOVE(&processes, process, link);
    process->ops->on_exit(process->arg, "killed by the test");
    free(process);
}

bool fake_engine_turn(unsigned fail)
{
    struct cstd_process *process, *next;
    bool any = false;

    for (process = TAILQ_FIRST(&processes); process != NULL; process = next) {
        struct message *message = STAILQ_FIRST(&process->messages);

        next = TAILQ_NEXT(process, link);
        if (process->doomed) {
            end(process);
            any = true;
            continue;
        }
        while (message != NULL) {
            STAILQ_REMOVE_HEAD(&process->messages, link);
            answer(process, &message->frame, fail);
            free(message);
            any = true;
            message = process->doomed ? NULL : STAILQ_FIRST(&process->messages);
        }
    }
    return any;
}

void fake_engine_kill(void)
{
    struct cstd_process *process, *next;

    for (process = TAILQ_FIRST(&processes); process != NULL; process = next) {
        next = TAILQ_NEXT(process, link);
        /* The daemon starts another engine, which comes after this one in the list. */
        if (next == NULL) {
            end(process);
            break;
        }
        end(process);
    }
}

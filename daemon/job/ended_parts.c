/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/ended_parts.h"

#include "daemon/base/daemon_state.h"
#include "daemon/base/log.h"
#include "daemon/links/links.h"

#include <stdlib.h>
#include <string.h>

/* A part that has ended, and a node that has not answered yet. */
struct cstd_ended_part {
    TAILQ_ENTRY(cstd_ended_part) link;
    char *node; /* Its name; owned. */
    uint32_t uid;
    char *name; /* Of the job; owned. */
    uint64_t life;
    size_t n; /* Of the packed Gone. */
    uint8_t body[];
};

static void forget(struct cstd_ended_parts *ended, struct cstd_ended_part *part)
{
    TAILQ_REMOVE(&ended->parts, part, link);
    free(part->node);
    free(part->name);
    free(part);
}

static void send_part(struct cstd_machine *machine, const struct cstd_ended_part *part)
{
    struct cst_err unused;

    /* If it is not sent the link is down, and on_up follows. */
    (void)cstd_machine_send_bytes(machine, SPAN__MSG_TYPE__SPAN_GONE, part->body, part->n, &unused);
}

static void on_up(struct cstd_links_watch *watch, struct cstd_machine *machine)
{
    const struct cstd_ended_parts *ended = cstd_owner_of(watch, struct cstd_ended_parts, watch);
    const struct cstd_ended_part *part;

    TAILQ_FOREACH(part, &ended->parts, link)
    {
        if (strcmp(part->node, machine->entry.name) == 0) {
            send_part(machine, part);
        }
    }
}

static void on_down(struct cstd_links_watch *watch, struct cstd_machine *machine,
                    const struct cst_err *why)
{
    (void)watch;
    (void)machine;
    (void)why;
}

static void on_drain(struct cstd_links_watch *watch, struct cstd_machine *machine)
{
    (void)watch;
    (void)machine;
}

/* Forget the parts of nodes that are not trusted any more, and the oldest ones of @node if there
 * are too many. */
static void make_room(struct cstd_ended_parts *ended, struct cstd_links *links, const char *node)
{
    struct cstd_ended_part *part, *next;
    unsigned n = 0;

    for (part = TAILQ_LAST(&ended->parts, cstd_ended_part_head); part != NULL; part = next) {
        next = TAILQ_PREV(part, cstd_ended_part_head, link);
        n += strcmp(part->node, node) == 0;
        if (cstd_links_find(links, part->node) == NULL) {
            forget(ended, part);
        } else if (n >= CSTD_ENDED_PARTS_MAX && strcmp(part->node, node) == 0) {
            cstd_log(
                CSTD_LOG_WARNING,
                "job '%s' of uid %u has ended here, and node '%s' is not told any more, because "
                "%d jobs have ended since: 'cistern rm %s' there removes its part",
                part->name, part->uid, part->node, CSTD_ENDED_PARTS_MAX, part->name);
            forget(ended, part);
        }
    }
}

/* Make the entry; NULL: out of memory. */
static struct cstd_ended_part *make(const char *node, const Span__Gone *gone)
{
    const size_t n = span__gone__get_packed_size(gone);
    struct cstd_ended_part *part = calloc(1, sizeof *part + n);

    if (part == NULL) {
        return NULL;
    }
    part->node = strdup(node);
    part->name = strdup(gone->from->name);
    if (part->node == NULL || part->name == NULL) {
        free(part->node);
        free(part->name);
        free(part);
        return NULL;
    }
    part->uid = gone->from->uid;
    part->life = gone->from->life;
    part->n = span__gone__pack(gone, part->body);
    return part;
}

void cstd_ended_parts_tell(struct cstd_daemon *daemon, struct cstd_machine *machine,
                           const Span__Gone *gone)
{
    struct cstd_ended_parts *ended = daemon->ended_parts;
    struct cstd_ended_part *part;

    if (daemon->draining) {
        return; /* All links have ended, and so does the list. */
    }
    make_room(ended, daemon->links, machine->entry.name);
    part = make(machine->entry.name, gone);
    if (part == NULL) {
        struct cst_err unused;

        cstd_log(CSTD_LOG_ERROR,
                 "job '%s' of uid %u: no memory to tell node '%s' again that it has ended here, if "
                 "the link is down: 'cistern rm %s' there removes its part",
                 gone->from->name, gone->from->uid, machine->entry.name, gone->from->name);
        (void)cstd_machine_send(machine, SPAN__MSG_TYPE__SPAN_GONE, &gone->base, &unused);
        return;
    }
    TAILQ_INSERT_TAIL(&ended->parts, part, link);
    send_part(machine, part);
}

bool cstd_ended_parts_again(struct cstd_daemon *daemon, struct cstd_machine *machine, uint32_t uid,
                            const char *name)
{
    const struct cstd_ended_part *part;
    bool any = false;

    TAILQ_FOREACH(part, &daemon->ended_parts->parts, link)
    {
        if (part->uid == uid && strcmp(part->name, name) == 0 &&
            strcmp(part->node, machine->entry.name) == 0) {
            send_part(machine, part);
            any = true;
        }
    }
    return any;
}

void cstd_ended_parts_seen(struct cstd_machine *machine, const Span__Gone *gone)
{
    Span__GoneSeen seen = SPAN__GONE_SEEN__INIT;
    struct cst_err unused;

    seen.from = gone->from;
    /* If it is not sent the link is down, and the other node tells again. */
    (void)cstd_machine_send(machine, SPAN__MSG_TYPE__SPAN_GONE_SEEN, &seen.base, &unused);
}

static int on_seen(void *arg, struct cstd_machine *machine, const uint8_t *body, size_t n,
                   struct cst_err *err)
{
    const struct cstd_daemon *daemon = arg;
    Span__GoneSeen *seen = span__gone_seen__unpack(NULL, n, body);
    struct cstd_ended_part *part, *next;

    if (seen == NULL) {
        return cst_err_set(err, CST_EPROTO, "no answer to the end of a job");
    }
    for (part = TAILQ_FIRST(&daemon->ended_parts->parts); part != NULL; part = next) {
        next = TAILQ_NEXT(part, link);
        if (strcmp(part->node, machine->entry.name) == 0 && part->uid == seen->from->uid &&
            part->life == seen->from->life && strcmp(part->name, seen->from->name) == 0) {
            forget(daemon->ended_parts, part);
        }
    }
    span__gone_seen__free_unpacked(seen, NULL);
    return CST_OK;
}

size_t cstd_ended_parts_untold(const struct cstd_daemon *daemon, uint32_t uid, const char *name,
                               char **names, size_t most)
{
    const struct cstd_ended_part *part;
    size_t n = 0;

    TAILQ_FOREACH(part, &daemon->ended_parts->parts, link)
    {
        const struct cstd_machine *machine = cstd_links_find(daemon->links, part->node);
        size_t known = 0;

        while (known < n && strcmp(names[known], part->node) != 0) {
            known++;
        }
        if (part->uid == uid && strcmp(part->name, name) == 0 && machine != NULL &&
            machine->up == NULL && known == n && n < most) {
            names[n++] = part->node;
        }
    }
    return n;
}

void cstd_ended_parts_init(struct cstd_daemon *daemon)
{
    TAILQ_INIT(&daemon->ended_parts->parts);
}

void cstd_ended_parts_handle(struct cstd_daemon *daemon)
{
    daemon->ended_parts->watch =
        (struct cstd_links_watch){.on_up = on_up, .on_down = on_down, .on_drain = on_drain};
    cstd_links_watch(daemon->links, &daemon->ended_parts->watch);
    cstd_links_handle(daemon->links, SPAN__MSG_TYPE__SPAN_GONE_SEEN, on_seen, daemon);
}

void cstd_ended_parts_close(struct cstd_daemon *daemon)
{
    while (!TAILQ_EMPTY(&daemon->ended_parts->parts)) {
        forget(daemon->ended_parts, TAILQ_FIRST(&daemon->ended_parts->parts));
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/links/links_state.h"

#include <stdlib.h>
#include <string.h>

#define MS UINT64_C(1000000) /* Nanoseconds. */

enum {
    ADMISSIBLE = 16, /* Connections that are accepted between two ticks. */
    /* A tick that comes so late says nothing about other machines: this daemon was stopped. */
    LATE_MS = 2000,
    EXPIRY_DAYS = 14, /* How long before this machine's certificate expires there is a warning. */
};

/* -- the list of machines ---------------------------------------------------------------------- */

struct cstd_machine *cstd_links_find(struct cstd_links *links, const char *name)
{
    struct cstd_machine *machine;

    TAILQ_FOREACH(machine, &links->machines, link)
    {
        if (strcmp(machine->entry.name, name) == 0) {
            return machine;
        }
    }
    return NULL;
}

/* End the connections of @machine, because it is not trusted any more as @what says. */
static void refuse(struct cstd_machine *machine, const char *what)
{
    struct cstd_links *links = machine->links;
    struct cstd_connection *connection;
    struct cst_err why;

    (void)cst_err_set(&why, CST_EDENIED, "node '%s' no longer trusts %s'%s'", links->self.name,
                      what, machine->entry.name);
    TAILQ_FOREACH(connection, &links->connections, link)
    {
        if (connection->machine == machine) {
            cstd_links_refuse(connection, &why);
        }
    }
}

/* Trust @machine no more. A job that holds it finds it again if it is added again. */
static void forget(struct cstd_machine *machine)
{
    struct cstd_links *links = machine->links;

    refuse(machine, "");
    TAILQ_REMOVE(&links->machines, machine, link);
    links->n_machines--;
    TAILQ_INSERT_TAIL(&links->dropped, machine, link);
    machine->is_dropped = true;
    cstd_machine_unref(machine);
}

/* Put the machine of @entry, which a job has held since it was dropped, into the list again.
 * Returns NULL if there is none. */
static struct cstd_machine *find_dropped(struct cstd_links *links,
                                         const struct cstd_machine_entry *entry)
{
    struct cstd_machine *machine;

    TAILQ_FOREACH(machine, &links->dropped, link)
    {
        if (machine->n_holds > 0 && strcmp(machine->entry.name, entry->name) == 0) {
            TAILQ_REMOVE(&links->dropped, machine, link);
            machine->is_dropped = false;
            cstd_machine_ref(machine);
            return machine;
        }
    }
    return NULL;
}

int cstd_links_keep(struct cstd_links *links, const char *name, struct cstd_machine **out,
                    struct cst_err *err)
{
    struct cstd_machine *machine = cstd_links_find(links, name), *dropped;
    struct cstd_machine_entry entry = {.drained = false};

    TAILQ_FOREACH(dropped, &links->dropped, link)
    {
        machine = machine == NULL && strcmp(dropped->entry.name, name) == 0 ? dropped : machine;
    }
    if (machine != NULL) {
        cstd_machine_keep(machine);
        *out = machine;
        return CST_OK;
    }
    (void)snprintf(entry.name, sizeof entry.name, "%s", name);
    if (cstd_machine_make(&machine, links, &entry, err) != CST_OK) {
        return err->status;
    }
    TAILQ_INSERT_TAIL(&links->dropped, machine, link);
    machine->is_dropped = true;
    cstd_machine_keep(machine);
    cstd_machine_unref(machine); /* It is not in the list. */
    *out = machine;
    return CST_OK;
}

static void tell_of_drain(struct cstd_machine *machine)
{
    struct cstd_links_watch *watch, *next;

    for (watch = LIST_FIRST(&machine->links->watches); watch != NULL; watch = next) {
        next = LIST_NEXT(watch, link);
        watch->on_drain(watch, machine);
    }
    cstd_machine_look(machine);
}

/* Let @machine be as @entry says. Jobs know a machine by its name: one that has another key now is
 * the machine that it was, if it proves that it has the new one. */
static void set_entry(struct cstd_machine *machine, const struct cstd_machine_entry *entry)
{
    const bool drains = entry->drained && !machine->entry.drained;

    if (strcmp(machine->entry.identity, entry->identity) != 0) {
        refuse(machine, "the former certificate of ");
    }
    machine->entry = *entry;
    machine->retry_ns = 0;
    if (drains) {
        tell_of_drain(machine);
    }
}

/* Make the list of machines have @entry, which replaces one of its name. */
static int trust(struct cstd_links *links, const struct cstd_machine_entry *entry,
                 struct cst_err *err)
{
    struct cstd_machine *machine = cstd_links_find(links, entry->name);

    if (machine != NULL) {
        set_entry(machine, entry);
        return CST_OK;
    }
    machine = find_dropped(links, entry);
    if (machine == NULL && cstd_machine_make(&machine, links, entry, err) != CST_OK) {
        return err->status;
    }
    set_entry(machine, entry);
    TAILQ_INSERT_TAIL(&links->machines, machine, link);
    links->n_machines++;
    return CST_OK;
}

static int check_own(const struct cstd_links *links, const struct cstd_machine_entry *entry,
                     struct cst_err *err)
{
    if (strcmp(entry->name, links->self.name) == 0 ||
        strcmp(entry->identity, cstd_links_fingerprint(links)) == 0) {
        return cst_err_set(err, CST_EINVAL,
                           "'%s', with %s, is this node itself: its list has the other nodes",
                           entry->name, entry->identity);
    }
    return CST_OK;
}

static int check_own_list(const struct cstd_links *links, const struct cstd_machine_list *list,
                          struct cst_err *err)
{
    int rc = CST_OK;

    for (unsigned i = 0; i < list->n && rc == CST_OK; i++) {
        rc = check_own(links, &list->v[i], err);
    }
    return rc == CST_OK ? CST_OK : cst_err_prefix(err, "%s", links->config->trusted);
}

int cstd_links_add(struct cstd_links *links, const char *name, const char *address,
                   const char *identity, struct cst_err *err)
{
    struct cstd_machine_entry entry;
    const struct cstd_machine *machine;
    int rc = cstd_machine_entry_make(&entry, name, address, identity, err);

    rc = rc == CST_OK ? check_own(links, &entry, err) : rc;
    if (rc != CST_OK) {
        return rc;
    }
    TAILQ_FOREACH(machine, &links->machines, link)
    {
        if (strcmp(entry.identity, CSTD_MACHINE_CA) != 0 &&
            strcmp(machine->entry.name, name) != 0 &&
            strcmp(machine->entry.identity, identity) == 0) {
            return cst_err_set(
                err, CST_EINVAL,
                "node '%s' has this fingerprint: 'cistern node drop %s' first, if it "
                "has another name now",
                machine->entry.name, machine->entry.name);
        }
    }
    if (cstd_links_find(links, name) == NULL && links->n_machines >= CSTD_MACHINES_MAX) {
        return cst_err_set(err, CST_EBUDGET, "there are %u nodes already, the limit is %d",
                           links->n_machines, CSTD_MACHINES_MAX);
    }
    rc = cstd_machine_list_change(links->config->trusted, name, &entry, err);
    return rc == CST_OK ? trust(links, &entry, err) : rc;
}

static int find(struct cstd_links *links, const char *name, struct cstd_machine **out,
                struct cst_err *err)
{
    *out = cstd_links_find(links, name);
    return *out != NULL ? CST_OK
                        : cst_err_set(err, CST_ENOTFOUND,
                                      "no node '%.63s' is in the list (cistern node list)", name);
}

int cstd_links_drop(struct cstd_links *links, const char *name, struct cst_err *err)
{
    struct cstd_machine *machine;
    int rc = find(links, name, &machine, err);

    rc = rc == CST_OK ? cstd_machine_list_change(links->config->trusted, name, NULL, err) : rc;
    if (rc == CST_OK) {
        forget(machine);
    }
    return rc;
}

int cstd_links_drain(struct cstd_links *links, const char *name, struct cst_err *err)
{
    struct cstd_machine_entry entry;
    struct cstd_machine *machine;
    int rc = find(links, name, &machine, err);

    if (rc != CST_OK) {
        return rc;
    }
    entry = machine->entry;
    entry.drained = true;
    rc = cstd_machine_list_change(links->config->trusted, name, &entry, err);
    return rc == CST_OK ? trust(links, &entry, err) : rc;
}

/* -- keys ----------------------------------------------------------------------------------- */

static void warn_of_expiry(const struct cstd_links *links)
{
    const double days = cstd_tls_context_seconds_left(links->context) / 86400;

    if (days < EXPIRY_DAYS) {
        cstd_log(CSTD_LOG_WARNING,
                 days < 0 ? "%s: the certificate of this node has expired %.1f days ago: no other "
                            "node accepts it"
                          : "%s: the certificate of this node expires in %.1f days",
                 links->config->certificate, days < 0 ? -days : days);
    }
}

/* Read the files that the configuration names. */
static int read_files(struct cstd_links *links, struct cst_err *err)
{
    const struct cstd_links_config *config = links->config;
    struct cstd_tls_context *context = NULL, *old = links->context;
    struct cstd_machine_list list;
    struct cstd_machine *machine, *next;
    int rc =
        cstd_tls_context_open(&context, config->key, config->certificate, config->authorities, err);

    rc = rc == CST_OK ? cstd_machine_list_read(&list, config->trusted, err) : rc;
    if (rc == CST_OK) {
        links->context = context;
        rc = check_own_list(links, &list, err);
    }
    if (rc != CST_OK) {
        cstd_tls_context_close(context);
        links->context = old;
        return cst_err_prefix(err, "[node]");
    }
    cstd_tls_context_close(old);
    warn_of_expiry(links);
    for (machine = TAILQ_FIRST(&links->machines); machine != NULL; machine = next) {
        next = TAILQ_NEXT(machine, link);
        if (cstd_machine_list_find(&list, machine->entry.name) == NULL) {
            forget(machine);
        }
    }
    for (unsigned i = 0; i < list.n && rc == CST_OK; i++) {
        rc = trust(links, &list.v[i], err);
    }
    return rc;
}

int cstd_links_reload(struct cstd_links *links, struct cst_err *err)
{
    return read_files(links, err);
}

/* -- time ----------------------------------------------------------------------------------- */

static void on_tick(uv_timer_t *tick)
{
    struct cstd_links *links = tick->data;
    const uint64_t now = uv_hrtime();
    const bool is_late = now - links->ticked_ns > LATE_MS * MS;
    struct cstd_machine *machine;

    links->ticked_ns = now;
    links->n_admissible = ADMISSIBLE;
    cstd_links_accept(links);
    cstd_links_beat(links, now, is_late);
    TAILQ_FOREACH(machine, &links->machines, link)
    {
        if (machine->up == NULL && machine->dialled == NULL && !machine->entry.drained &&
            now >= machine->retry_ns) {
            cstd_links_dial(links, machine);
        }
    }
}

/* -- life ----------------------------------------------------------------------------------- */

static struct cstd_links *make(uv_loop_t *loop, struct cstd_deferred_queue *later,
                               const struct cstd_links_config *config, uint64_t instance)
{
    struct cstd_links *links = calloc(1, sizeof *links);

    if (links == NULL) {
        return NULL;
    }
    links->config = config;
    links->home.loop = loop;
    links->home.later = later;
    links->home.ops = &cstd_links_ops;
    links->home.owner = links;
    links->random = instance;
    links->n_admissible = ADMISSIBLE;
    links->ticked_ns = uv_hrtime();
    TAILQ_INIT(&links->machines);
    TAILQ_INIT(&links->dropped);
    TAILQ_INIT(&links->connections);
    LIST_INIT(&links->watches);
    cstd_hello_init(&links->self, config->name, instance);
    (void)uv_tcp_init(loop, &links->listener);
    (void)uv_timer_init(loop, &links->tick);
    links->listener.data = links->tick.data = links;
    links->n_handles = 2;
    return links;
}

int cstd_links_open(struct cstd_links **out, uv_loop_t *loop, struct cstd_deferred_queue *later,
                    const struct cstd_links_config *config, uint64_t instance, struct cst_err *err)
{
    struct cstd_links *links;
    int rc;

    *out = NULL;
    if (config->listen[0] == '\0') {
        return CST_OK;
    }
    links = make(loop, later, config, instance);
    if (links == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for links to other nodes");
    }
    rc = read_files(links, err);
    rc = rc == CST_OK ? cstd_links_listen(links, err) : rc;
    if (rc != CST_OK) {
        links->is_orphan = true;
        cstd_links_stop(links, err);
        return rc;
    }
    (void)uv_timer_start(&links->tick, on_tick, 0, CSTD_LINKS_TICK_MS);
    cstd_log(CSTD_LOG_NOTICE, "node '%s' listens at %s for %u other%s, its certificate is %s",
             links->self.name, links->address, links->n_machines, links->n_machines == 1 ? "" : "s",
             cstd_links_fingerprint(links));
    *out = links;
    return CST_OK;
}

static void on_closed(uv_handle_t *handle)
{
    struct cstd_links *links = handle->data;

    if (--links->n_handles == 0 && links->is_orphan) {
        cstd_links_close(links);
    }
}

void cstd_links_stop(struct cstd_links *links, const struct cst_err *why)
{
    struct cstd_connection *connection;

    if (links == NULL || links->is_stopping) {
        return;
    }
    links->is_stopping = true;
    TAILQ_FOREACH(connection, &links->connections, link)
    {
        cstd_links_refuse(connection, why);
    }
    if (links->looked_up != NULL) {
        (void)uv_cancel((uv_req_t *)&links->lookup);
    }
    uv_close((uv_handle_t *)&links->listener, on_closed);
    uv_close((uv_handle_t *)&links->tick, on_closed);
}

void cstd_links_close(struct cstd_links *links)
{
    struct cstd_machine *machine;

    if (links == NULL) {
        return;
    }
    while ((machine = TAILQ_FIRST(&links->machines)) != NULL) {
        TAILQ_REMOVE(&links->machines, machine, link);
        cstd_machine_unref(machine);
    }
    while ((machine = TAILQ_FIRST(&links->dropped)) != NULL) {
        TAILQ_REMOVE(&links->dropped, machine, link);
        machine->is_dropped = false; /* It ends with its last user. */
    }
    cstd_tls_context_close(links->context);
    free(links);
}

/* -- for others ----------------------------------------------------------------------------- */

const struct cstd_machine_head *cstd_links_machines(const struct cstd_links *links)
{
    return &links->machines;
}

const struct cstd_hello *cstd_links_self(const struct cstd_links *links)
{
    return &links->self;
}

const char *cstd_links_address(const struct cstd_links *links)
{
    return links->address;
}

const char *cstd_links_fingerprint(const struct cstd_links *links)
{
    return cstd_tls_context_fingerprint(links->context);
}

void cstd_links_watch(struct cstd_links *links, struct cstd_links_watch *watch)
{
    LIST_INSERT_HEAD(&links->watches, watch, link);
}

void cstd_links_unwatch(struct cstd_links_watch *watch)
{
    LIST_REMOVE(watch, link);
}

void cstd_links_handle(struct cstd_links *links, uint16_t type, cstd_link_fn fn, void *arg)
{
    links->handlers[type - CSTD_LINK_FIRST_TYPE].fn = fn;
    links->handlers[type - CSTD_LINK_FIRST_TYPE].arg = arg;
}

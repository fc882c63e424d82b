/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/link_rig.h"

#include "proto/link.pb-c.h"
#include "tests/lib/certificates.h"
#include "tests/lib/patience.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LIMIT_MS = 30000, DAY = 86400 };

struct link_rig link_rig;
static uint64_t advanced_ns;

uint64_t __real_uv_hrtime(void);
uint64_t __wrap_uv_hrtime(void);

uint64_t __wrap_uv_hrtime(void)
{
    return __real_uv_hrtime() + advanced_ns;
}

void link_rig_advance(unsigned ms)
{
    advanced_ns += ms * UINT64_C(1000000);
}

void link_rig_pass(unsigned i, unsigned ms)
{
    const struct cstd_links *links = link_rig.machines[i].links;
    const uint64_t ticked = links->ticked_ns;

    link_rig_advance(ms);
    while (links->ticked_ns == ticked) {
        link_rig_turn();
    }
}

const char *link_rig_path(unsigned i, const char *name)
{
    static char paths[4][128];
    static unsigned next;
    char *path = paths[next++ % 4];

    (void)snprintf(path, sizeof paths[0], "%s/%c.%s", link_rig.dir, (char)('a' + i), name);
    return path;
}

/* -- machines ---------------------------------------------------------------------------------- */

static void on_up(struct cstd_links_watch *watch, struct cstd_machine *machine)
{
    struct link_machine *of = cstd_owner_of(watch, struct link_machine, watch);
    bool *is_up = &of->is_up[machine->entry.name[0] - 'a'];

    ck_assert_ptr_nonnull(machine->up);
    ck_assert_msg(!*is_up, "up twice");
    *is_up = true;
    of->n_up++;
}

static void on_down(struct cstd_links_watch *watch, struct cstd_machine *machine,
                    const struct cst_err *why)
{
    struct link_machine *of = cstd_owner_of(watch, struct link_machine, watch);
    bool *is_up = &of->is_up[machine->entry.name[0] - 'a'];

    ck_assert_ptr_null(machine->up);
    ck_assert_msg(*is_up, "down twice");
    ck_assert_int_ne(why->status, CST_OK);
    *is_up = false;
    of->n_down++;
    of->why = *why;
}

static void on_drain(struct cstd_links_watch *watch, struct cstd_machine *machine)
{
    (void)machine;
    cstd_owner_of(watch, struct link_machine, watch)->n_drain++;
}

static int on_number(void *arg, struct cstd_machine *machine, const uint8_t *body, size_t n,
                     struct cst_err *err)
{
    struct link_machine *of = arg;
    uint64_t number = 0;

    (void)machine;
    if (n < sizeof number) {
        return cst_err_set(err, CST_EPROTO, "a number of %zu bytes", n);
    }
    memcpy(&number, body, sizeof number);
    of->is_wrong = of->is_wrong || number != of->n_got;
    of->n_got++;
    return CST_OK;
}

static void run_deferred(uv_prepare_t *prepare)
{
    (void)prepare;
    cstd_deferred_run(&link_rig.later);
}

static void make_machine(unsigned i)
{
    static const char *const names[] = {"a", "b", "c"};
    struct link_machine *machine = &link_rig.machines[i];

    *machine =
        (struct link_machine){.watch = {.on_up = on_up, .on_down = on_down, .on_drain = on_drain}};
    cstd_links_config_init(&machine->config);
    machine->config.network = CSTD_NETWORK_TRUSTED;
    (void)snprintf(machine->config.name, sizeof machine->config.name, "%s", names[i]);
    (void)snprintf(machine->config.listen, sizeof machine->config.listen, "127.0.0.1:0");
    (void)snprintf(machine->config.key, sizeof machine->config.key, "%s", link_rig_path(i, "key"));
    (void)snprintf(machine->config.certificate, sizeof machine->config.certificate, "%s",
                   link_rig_path(i, "crt"));
    (void)snprintf(machine->config.trusted, sizeof machine->config.trusted, "%s",
                   link_rig_path(i, "nodes"));
    certificate_make(&(struct certificate_spec){.name = names[i], .from_s = -DAY, .until_s = DAY},
                     machine->config.key, machine->config.certificate, machine->fingerprint);
}

void link_rig_open(void)
{
    advanced_ns = 0;
    (void)signal(SIGPIPE, SIG_IGN); /* As the daemon does. */
    (void)strcpy(link_rig.dir, "/tmp/cistern-links-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(link_rig.dir));
    cstd_log_init(getenv("CST_TEST_LOG") != NULL ? CSTD_LOG_DEBUG : (enum cstd_log_level)0);
    ck_assert_int_eq(uv_loop_init(&link_rig.loop), 0);
    cstd_deferred_init(&link_rig.later);
    (void)uv_prepare_init(&link_rig.loop, &link_rig.prepare);
    (void)uv_prepare_start(&link_rig.prepare, run_deferred);
    uv_unref((uv_handle_t *)&link_rig.prepare);
    for (unsigned i = 0; i < LINK_RIG_MACHINES; i++) {
        make_machine(i);
    }
}

void link_rig_start(unsigned i, uint64_t instance)
{
    struct link_machine *machine = &link_rig.machines[i];
    struct cst_err err = {0};

    ck_assert_msg(cstd_links_open(&machine->links, &link_rig.loop, &link_rig.later,
                                  &machine->config, instance, &err) == CST_OK,
                  "%s", err.text);
    cstd_links_watch(machine->links, &machine->watch);
    cstd_links_handle(machine->links, LINK_RIG_TYPE, on_number, machine);
    /* Later starts listen at the same place. */
    (void)snprintf(machine->config.listen, sizeof machine->config.listen, "%s",
                   cstd_links_address(machine->links));
}

static bool is_closed(void *arg)
{
    const struct cstd_links *links = arg;

    return links->n_handles == 0 && TAILQ_EMPTY(&links->connections) && links->looked_up == NULL;
}

void link_rig_stop(unsigned i)
{
    const struct cst_err why = {.status = CST_EDRAINING, .text = "the test stops the node"};
    struct link_machine *machine = &link_rig.machines[i];

    if (machine->links != NULL) {
        cstd_links_stop(machine->links, &why);
        link_rig_wait(is_closed, machine->links);
        cstd_links_close(machine->links);
        machine->links = NULL;
    }
}

void link_rig_close(void)
{
    char command[128];

    for (unsigned i = 0; i < LINK_RIG_MACHINES; i++) {
        link_rig_stop(i);
    }
    cstd_deferred_run(&link_rig.later);
    (void)uv_run(&link_rig.loop, UV_RUN_DEFAULT);
    uv_close((uv_handle_t *)&link_rig.prepare, NULL);
    (void)uv_run(&link_rig.loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&link_rig.loop), 0); /* No handle is left. */
    (void)snprintf(command, sizeof command, "rm -r '%s'", link_rig.dir);
    ck_assert_int_eq(system(command), 0);
}

void link_rig_trust(unsigned i, unsigned j)
{
    struct link_machine *machine = &link_rig.machines[i];
    const struct link_machine *other = &link_rig.machines[j];
    struct cst_err err = {0};

    ck_assert_msg(cstd_links_add(machine->links, other->config.name, other->config.listen,
                                 other->fingerprint, &err) == CST_OK,
                  "%s", err.text);
}

struct cstd_machine *link_rig_find(unsigned i, unsigned j)
{
    return cstd_links_find(link_rig.machines[i].links, link_rig.machines[j].config.name);
}

bool link_rig_is_up(unsigned i, unsigned j)
{
    const struct cstd_machine *machine = link_rig_find(i, j);

    return machine != NULL && machine->up != NULL;
}

/* -- the loop ------------------------------------------------------------------------------- */

void link_rig_turn(void)
{
    (void)uv_run(&link_rig.loop, UV_RUN_ONCE);
}

void link_rig_wait(bool (*is_so)(void *arg), void *arg)
{
    const uint64_t until = patience_until(LIMIT_MS);

    while (!is_so(arg)) {
        ck_assert_msg(!patience_over(until), "nothing happens");
        link_rig_turn();
    }
}

static bool is_set(void *arg)
{
    return *(const bool *)arg;
}

void link_rig_until(const bool *flag)
{
    link_rig_wait(is_set, (void *)(uintptr_t)flag);
}

static bool are_connected(void *arg)
{
    const unsigned *both = arg;

    return link_rig_is_up(both[0], both[1]) && link_rig_is_up(both[1], both[0]);
}

void link_rig_connect(unsigned i, unsigned j)
{
    unsigned both[] = {i, j};

    link_rig_wait(are_connected, both);
}

/* -- a stranger ----------------------------------------------------------------------------- */

static int admit_all(struct cstd_connection *connection, const struct cstd_tls_peer *peer,
                     struct cst_err *err)
{
    (void)connection;
    (void)peer;
    (void)err;
    return CST_OK;
}

static void on_secure(struct cstd_connection *connection)
{
    struct link_stranger *stranger = connection->home->owner;
    uint8_t body[CSTD_HELLO_MAX_BYTES];
    struct cst_err err;

    stranger->is_secure = true;
    (void)cstd_frame_stream_admit(&connection->stream, CST_FRAME_MAX_BODY, &err);
    if (stranger->hello.instance != 0) {
        const size_t n = cstd_hello_write(&stranger->hello, body);

        (void)cstd_connection_send(connection, LINK__MSG_TYPE__LINK_HELLO, body, n, NULL);
    }
}

static void on_frame(struct cstd_connection *connection, const struct cst_frame *frame)
{
    struct link_stranger *stranger = connection->home->owner;

    stranger->n_frames++;
    stranger->is_welcome = stranger->is_welcome || frame->type == LINK__MSG_TYPE__LINK_WELCOME;
    if (frame->type == LINK__MSG_TYPE__LINK_REFUSED) {
        Link__Refused *message = link__refused__unpack(NULL, frame->body_bytes, frame->body);

        ck_assert_ptr_nonnull(message);
        (void)snprintf(stranger->refusal, sizeof stranger->refusal, "%s", message->text);
        link__refused__free_unpacked(message, NULL);
    }
}

static void on_ended(struct cstd_connection *connection)
{
    struct link_stranger *stranger = connection->home->owner;

    stranger->why = connection->why;
    stranger->connection = NULL;
}

static const struct cstd_connection_ops stranger_ops = {
    .admit = admit_all, .on_secure = on_secure, .on_frame = on_frame, .on_ended = on_ended};

void link_stranger_dial(struct link_stranger *stranger, unsigned i, const char *key,
                        const char *certificate)
{
    struct cstd_machine_address address;
    struct sockaddr_storage at;
    struct cst_err err = {0};
    int rc = cstd_machine_address_read(&address, link_rig.machines[i].config.listen, &err);

    stranger->home.loop = &link_rig.loop;
    stranger->home.later = &link_rig.later;
    stranger->home.ops = &stranger_ops;
    stranger->home.owner = stranger;
    ck_assert(cstd_machine_address_number(&address, &at));
    rc =
        rc == CST_OK ? cstd_tls_context_open(&stranger->context, key, certificate, NULL, &err) : rc;
    rc = rc == CST_OK ? cstd_connection_dial(&stranger->connection, &stranger->home,
                                             stranger->context, (struct sockaddr *)&at, &err)
                      : rc;
    ck_assert_msg(rc == CST_OK, "%s", err.text);
}

void link_stranger_pose(struct link_stranger *stranger, unsigned i, unsigned as)
{
    const struct link_machine *machine = &link_rig.machines[as];

    if (stranger->hello.instance == 0) {
        cstd_hello_init(&stranger->hello, machine->config.name, 4711);
    }
    link_stranger_dial(stranger, i, machine->config.key, machine->config.certificate);
}

void link_stranger_close(struct link_stranger *stranger)
{
    const struct cst_err why = {.status = CST_ECONN, .text = "the stranger goes"};

    if (stranger->connection != NULL) {
        cstd_connection_doom(stranger->connection, &why);
        cstd_deferred_run(&link_rig.later);
    }
    cstd_tls_context_close(stranger->context);
    stranger->context = NULL;
}

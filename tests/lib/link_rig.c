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
    const struct cstd_links *links = link_rig.nodes[i].links;
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

/* -- nodes ---------------------------------------------------------------------------------- */

static void on_up(struct cstd_links_watch *watch, struct cstd_node *node)
{
    (void)node;
    cstd_owner_of(watch, struct link_node, watch)->n_up++;
}

static void on_down(struct cstd_links_watch *watch, struct cstd_node *node,
                    const struct cst_err *why)
{
    struct link_node *of = cstd_owner_of(watch, struct link_node, watch);

    (void)node;
    of->n_down++;
    of->why = *why;
}

static void on_drain(struct cstd_links_watch *watch, struct cstd_node *node)
{
    (void)node;
    cstd_owner_of(watch, struct link_node, watch)->n_drain++;
}

static int on_number(void *arg, struct cstd_node *node, const uint8_t *body, size_t n,
                     struct cst_err *err)
{
    struct link_node *of = arg;
    uint64_t number = 0;

    (void)node;
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

static void make_node(unsigned i)
{
    static const char *const names[] = {"a", "b", "c"};
    struct link_node *node = &link_rig.nodes[i];

    *node = (struct link_node){.watch = {.on_up = on_up, .on_down = on_down, .on_drain = on_drain}};
    cstd_links_config_init(&node->config);
    node->config.network = CSTD_NETWORK_TRUSTED;
    (void)snprintf(node->config.name, sizeof node->config.name, "%s", names[i]);
    (void)snprintf(node->config.listen, sizeof node->config.listen, "127.0.0.1:0");
    (void)snprintf(node->config.key, sizeof node->config.key, "%s", link_rig_path(i, "key"));
    (void)snprintf(node->config.certificate, sizeof node->config.certificate, "%s",
                   link_rig_path(i, "crt"));
    (void)snprintf(node->config.trusted, sizeof node->config.trusted, "%s",
                   link_rig_path(i, "nodes"));
    certificate_make(&(struct certificate_spec){.name = names[i], .from_s = -DAY, .until_s = DAY},
                     node->config.key, node->config.certificate, node->fingerprint);
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
    for (unsigned i = 0; i < LINK_RIG_NODES; i++) {
        make_node(i);
    }
}

void link_rig_start(unsigned i, uint64_t instance)
{
    struct link_node *node = &link_rig.nodes[i];
    struct cst_err err = {0};

    ck_assert_msg(cstd_links_open(&node->links, &link_rig.loop, &link_rig.later, &node->config,
                                  instance, &err) == CST_OK,
                  "%s", err.text);
    cstd_links_watch(node->links, &node->watch);
    cstd_links_handle(node->links, LINK_RIG_TYPE, on_number, node);
    /* Later starts listen at the same place. */
    (void)snprintf(node->config.listen, sizeof node->config.listen, "%s",
                   cstd_links_address(node->links));
}

static bool is_closed(void *arg)
{
    const struct cstd_links *links = arg;

    return links->n_handles == 0 && TAILQ_EMPTY(&links->connections);
}

void link_rig_stop(unsigned i)
{
    const struct cst_err why = {.status = CST_EDRAINING, .text = "the test stops the node"};
    struct link_node *node = &link_rig.nodes[i];

    if (node->links != NULL) {
        cstd_links_stop(node->links, &why);
        link_rig_wait(is_closed, node->links);
        cstd_links_close(node->links);
        node->links = NULL;
    }
}

void link_rig_close(void)
{
    char command[128];

    for (unsigned i = 0; i < LINK_RIG_NODES; i++) {
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
    struct link_node *node = &link_rig.nodes[i];
    const struct link_node *other = &link_rig.nodes[j];
    struct cst_err err = {0};

    ck_assert_msg(cstd_links_add(node->links, other->config.name, other->config.listen,
                                 other->fingerprint, &err) == CST_OK,
                  "%s", err.text);
}

struct cstd_node *link_rig_find(unsigned i, unsigned j)
{
    return cstd_links_find(link_rig.nodes[i].links, link_rig.nodes[j].config.name);
}

bool link_rig_is_up(unsigned i, unsigned j)
{
    const struct cstd_node *node = link_rig_find(i, j);

    return node != NULL && node->up != NULL;
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
    struct cstd_node_address address;
    struct sockaddr_storage at;
    struct cst_err err = {0};
    int rc = cstd_node_address_read(&address, link_rig.nodes[i].config.listen, &err);

    stranger->home.loop = &link_rig.loop;
    stranger->home.later = &link_rig.later;
    stranger->home.ops = &stranger_ops;
    stranger->home.owner = stranger;
    ck_assert(cstd_node_address_number(&address, &at));
    rc =
        rc == CST_OK ? cstd_tls_context_open(&stranger->context, key, certificate, NULL, &err) : rc;
    rc = rc == CST_OK ? cstd_connection_dial(&stranger->connection, &stranger->home,
                                             stranger->context, (struct sockaddr *)&at, &err)
                      : rc;
    ck_assert_msg(rc == CST_OK, "%s", err.text);
}

void link_stranger_pose(struct link_stranger *stranger, unsigned i, unsigned as)
{
    const struct link_node *node = &link_rig.nodes[as];

    if (stranger->hello.instance == 0) {
        cstd_hello_init(&stranger->hello, node->config.name, 4711);
    }
    link_stranger_dial(stranger, i, node->config.key, node->config.certificate);
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

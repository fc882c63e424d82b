/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of a worker that maps the memory of its edges again, because the daemon has moved it: more
 * edges than come with one message, and memory that cannot be mapped. With a simulated daemon. */
#include "offload/layout/edge.h"
#include "proto/edge_memory.h"
#include "tests/lib/fake_job.h"
#include "tests/lib/suite.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

/* Edges of the job, and how many come with a message: each has two descriptors. */
enum { N_EDGES = 10, PAGE = 8, SLOTS = 2, SLOT_BYTES = 64 };

static struct fake_job f;
static unsigned replaced; /* How often the daemon has moved the slots. */
static unsigned n_pages;  /* Messages with edges. */
static bool is_sealed;    /* The slots of edge 3 cannot be mapped. */

/* A sealed file of @bytes, which cannot be mapped for writing if it is not @writable. */
static int make_file(uint64_t bytes, bool writable)
{
    int fd = memfd_create("edge", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    ck_assert(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 &&
              fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | (writable ? 0 : F_SEAL_WRITE)) ==
                  0);
    return fd;
}

static void send_page(struct fake_daemon *fake, const struct cst_frame *request)
{
    Cistern__EdgeGet *get = cistern__edge_get__unpack(NULL, request->body_bytes, request->body);
    Cistern__EdgePart part = CISTERN__EDGE_PART__INIT;
    uint32_t edge[PAGE];
    uint64_t bytes[PAGE], slots[PAGE];
    protobuf_c_boolean on_device[PAGE] = {0};
    int fds[2 * PAGE];
    unsigned n = 0;

    for (uint32_t i = get->first; i < N_EDGES && n < PAGE; i++, n++) {
        edge[n] = i;
        bytes[n] = cst_edge_head_bytes(SLOTS);
        slots[n] = cst_edge_slots_bytes(SLOT_BYTES, SLOTS);
        fds[2 * n] = make_file(bytes[n], true);
        fds[2 * n + 1] = make_file(slots[n], !is_sealed || i != 3);
    }
    part.first = get->first;
    part.n_edge = part.n_bytes = part.n_slots_bytes = part.n_slots_device = n;
    part.edge = edge;
    part.bytes = bytes;
    part.slots_bytes = slots;
    part.slots_device = on_device;
    part.has_replaced = true;
    part.replaced = replaced;
    cistern__edge_get__free_unpacked(get, NULL);
    n_pages++;
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_EDGE_PART, &part.base, fds, 2 * n);
    for (unsigned i = 0; i < 2 * n; i++) {
        (void)close(fds[i]);
    }
}

static bool answer(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    static uint64_t attempt = 100;

    (void)arg;
    if (request->type == CISTERN__MSG_TYPE__MSG_SYNC) {
        Cistern__Synced synced = CISTERN__SYNCED__INIT;

        synced.attempt = ++attempt;
        synced.step = 7;
        synced.has_edges_replaced = true;
        synced.edges_replaced = replaced;
        fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_SYNCED, &synced.base, NULL, 0);
        return true;
    }
    if (request->type == CISTERN__MSG_TYPE__MSG_EDGE) {
        send_page(fake, request);
        return true;
    }
    return false;
}

/* A job with N_EDGES edges to itself, committed and synced. */
static void open_job(void)
{
    struct cst_err err = {0};

    replaced = n_pages = 0;
    is_sealed = false;
    f.fake.hook = answer;
    fake_daemon_start(&f.fake);
    fake_job_open(&f);
    for (int i = 0; i < N_EDGES; i++) {
        char name[sizeof "e-2147483648"];
        const struct cst_edge_spec spec = {
            .name = name, .slot_bytes = SLOT_BYTES, .n_slots = SLOTS, .on_device = true};

        (void)snprintf(name, sizeof name, "e%d", i);
        ck_assert_int_eq(cst_edge(f.job, &spec), i);
    }
    fake_job_declare(&f, 1);
    CK_OK(cst_commit(f.job, NULL, &err));
    CK_OK(cst_sync(f.job, NULL, &err));
    ck_assert_uint_eq(n_pages, 2);
}

/* An array goes through each edge. */
static void use_edges(void)
{
    struct cst_err err = {0};

    for (int i = 0; i < N_EDGES; i++) {
        char sent[SLOT_BYTES], got[SLOT_BYTES] = {0};

        memset(sent, 'a' + i, sizeof sent);
        CK_OK(cst_put(f.job, i, 0, sent, sizeof sent, &err));
        CK_OK(cst_take(f.job, i, 0, got, sizeof got, &err));
        ck_assert_mem_eq(got, sent, sizeof sent);
    }
}

START_TEST(all_pages_are_mapped_again)
{
    struct cst_err err = {0};
    uint64_t step = 0;

    open_job();
    use_edges();
    replaced = 1;
    CK_OK(cst_sync(f.job, &step, &err));
    ck_assert_uint_eq(step, 7);
    ck_assert_uint_eq(n_pages, 4);
    use_edges();
    CK_OK(cst_sync(f.job, NULL, &err)); /* Nothing has moved. */
    ck_assert_uint_eq(n_pages, 4);
    fake_job_stop(&f);
}
END_TEST

START_TEST(a_failure_is_made_good_by_the_next_sync)
{
    struct cst_err err = {0};
    char sent[SLOT_BYTES] = {0};

    open_job();
    replaced = 1;
    is_sealed = true;
    ck_assert_int_eq(cst_sync(f.job, NULL, &err), CST_ENOMEM);
    ck_assert_ptr_nonnull(strstr(err.text, "edge 'e3'"));
    ck_assert_int_ne(cst_put(f.job, 3, 0, sent, sizeof sent, &err), CST_OK);
    is_sealed = false;
    CK_OK(cst_sync(f.job, NULL, &err));
    use_edges();
    fake_job_stop(&f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("edge pages");
    TCase *tcase = suite_case(suite, "all", NULL, NULL);

    tcase_add_test(tcase, all_pages_are_mapped_again);
    tcase_add_test(tcase, a_failure_is_made_good_by_the_next_sync);
    return suite_run(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of kernels/engine/mapping on a device that fails, of kernels/engine/cpus on other machines'
 * topologies, and of the checks in kernels/engine/device. Linked with a wrapper of fallocate. */
#include "kernels/host/host.h"
#include "kernels/engine/mapping.h"
#include "kernels/engine/populate.h"
#include "proto/segment_map.h"
#include "tests/lib/engine_proc.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define N_PIECES 6
#define BYTES (N_PIECES * (uint64_t)CSTE_MAPPING_PIECE - 100)

/* The host device with a populate that fails in call number fail_at. It counts the mapped bytes. */
static struct cste_device_ops fault_ops;
static struct cste_memory_ops fault_memory;
static atomic_uint n_calls;
static unsigned fail_at;
static int n_mapped;

static int fault_populate(void *state, int fd, void *base, uint64_t offset, uint64_t bytes,
                          struct cst_err *err)
{
    if (atomic_fetch_add(&n_calls, 1) + 1 == fail_at) {
        return cst_err_set(err, CST_ENOMEM, "backing %" PRIu64 " bytes at %" PRIu64 ": no more",
                           bytes, offset);
    }
    return cste_host_ops.memory->populate(state, fd, base, offset, bytes, err);
}

static int count_map(void *state, int fd, int node, struct cste_mem *mem, struct cst_err *note,
                     struct cst_err *err)
{
    int rc = cste_host_ops.memory->map(state, fd, node, mem, note, err);

    n_mapped += rc == CST_OK;
    return rc;
}

static void count_unmap(void *state, struct cste_mem *mem)
{
    n_mapped--;
    cste_host_ops.memory->unmap(state, mem);
}

static unsigned n_signals; /* Calls of fallocate that a signal interrupts. */

int __real_fallocate(int fd, int mode, off_t offset, off_t bytes);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t bytes);

int __wrap_fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    if (n_signals > 0) {
        n_signals--;
        errno = EINTR;
        return -1;
    }
    return __real_fallocate(fd, mode, offset, bytes);
}

static struct cste_cpus cpus;
static struct cste_device device;
static struct cste_thread_pool lanes;
static struct cste_mailbox box;
static struct cste_mapping mapping;
static atomic_ulong progress;
static bool delivered;

static void deliver(struct cste_mail *mail, void *arg)
{
    ck_assert_ptr_eq(mail, &mapping.mail);
    ck_assert_ptr_eq(arg, &box);
    delivered = true;
}

static void wait_for_mail(void)
{
    delivered = false;
    while (!delivered) {
        struct pollfd fd = {.fd = box.fd, .events = POLLIN};

        ck_assert_int_eq(poll(&fd, 1, -1), 1);
        cste_mailbox_deliver(&box, &box);
    }
}

static void set_up(void)
{
    struct cste_thread_pool_config config = {.name = "lanes", .n_threads = 2};
    struct cste_device_spec spec = {.cpus = &cpus, .n_threads = 2};
    struct cst_err err;

    fault_memory = *cste_host_ops.memory;
    fault_memory.populate = fault_populate;
    fault_memory.map = count_map;
    fault_memory.unmap = count_unmap;
    fault_ops = cste_host_ops;
    fault_ops.memory = &fault_memory;
    ck_assert_int_eq(cste_cpus_open(&cpus, 0, &err), CST_OK);
    ck_assert_int_eq(cste_device_open(&device, &fault_ops, &spec, &err), CST_OK);
    ck_assert_int_eq(cste_mailbox_open(&box, &err), CST_OK);
    ck_assert_int_eq(cste_thread_pool_open(&lanes, &config, &err), CST_OK);
    mapping = (struct cste_mapping){.segment = {.id = 5},
                                    .mail = {.deliver = deliver},
                                    .device = &device,
                                    .box = &box,
                                    .fd = engine_proc_memfd(BYTES, NULL),
                                    .populate = true,
                                    .progress = &progress};
    ck_assert_int_eq(cste_mapping_open(&mapping, BYTES, -1, &err), CST_OK);
}

static void tear_down(void)
{
    cste_mapping_close_fd(&mapping);
    cste_mapping_unmap(&mapping, &lanes);
    wait_for_mail();
    cste_thread_pool_close(&lanes);
    cste_mailbox_close(&box);
    cste_device_close(&device);
    cste_cpus_close(&cpus);
    ck_assert_int_eq(n_mapped, 0);
}

/* Whichever piece fails, there is one message, with the first failure's text and numbers. */
START_TEST(test_fault)
{
    fail_at = (unsigned)_i;
    cste_mapping_populate(&mapping, &lanes);
    wait_for_mail();
    ck_assert(atomic_load(&mapping.failed));
    ck_assert_int_eq(mapping.err.status, CST_ENOMEM);
    ck_assert_ptr_nonnull(strstr(mapping.err.text, "segment 5"));
    ck_assert_ptr_nonnull(strstr(mapping.err.text, "no more"));
    ck_assert_uint_lt(atomic_load(&mapping.populated), BYTES);
}
END_TEST

/* Without a fault every byte is counted once. */
START_TEST(test_no_fault)
{
    cste_mapping_populate(&mapping, &lanes);
    wait_for_mail();
    ck_assert(!atomic_load(&mapping.failed));
    ck_assert_uint_eq(atomic_load(&mapping.populated), BYTES);
    ck_assert_uint_eq(atomic_load(&progress), N_PIECES);
}
END_TEST

/* A mapping that is cancelled before it begins does nothing, and still sends its message. */
START_TEST(test_cancel)
{
    cste_mapping_cancel(&mapping);
    cste_mapping_populate(&mapping, &lanes);
    wait_for_mail();
    ck_assert_int_eq(mapping.err.status, CST_ECANCELLED);
    ck_assert_uint_eq(atomic_load(&mapping.populated), 0);
    ck_assert_uint_eq(atomic_load(&n_calls), 0);
}
END_TEST

/* The device's wrappers refuse ranges that leave the memory or are not aligned, before the device
 * sees them. */
START_TEST(test_wrappers)
{
    const struct cste_mem *mem = &mapping.segment.mem, none = {.bytes = 100};
    struct cste_addr start = {.mem = mem}, end = {.mem = mem, .offset = BYTES};
    struct cste_addr odd = {.mem = mem, .offset = 2}, lost = {.mem = &none};
    struct cste_device_convert odd_src = {
        .src = odd, .dst = {start, start, start, start}, .n_dst = 4, .n_elems = 1, .row_elems = 1};
    struct cste_device_convert huge = odd_src, odd_dst = odd_src, beyond = odd_src, few = odd_src;
    struct cste_device_convert format = odd_src;
    struct cst_table_header table = {.magic = CST_TABLE_MAGIC};
    struct cst_tile_work work = {.mark = 1, .table = &table};
    struct cste_device_update update = {.work = &work};
    struct cst_tile_done done;
    struct cst_err err;

    huge.src = odd_dst.src = beyond.src = few.src = format.src = start;
    huge.n_elems = huge.row_elems = UINT64_MAX / 2;
    odd_dst.dst[3] = odd;
    beyond.first = 1;
    few.n_dst = 1;
    format.moments = CST_MOMENTS_COUNT;

    ck_assert_int_eq(cste_device_copy(&device, 0, start, end, 0, &err), CST_OK);
    ck_assert_int_eq(cste_device_copy(&device, 0, start, end, 1, &err), CST_EINVAL);
    ck_assert_int_eq(cste_device_copy(&device, 0, end, start, 1, &err), CST_EINVAL);
    ck_assert_int_eq(cste_device_copy(&device, 0, start, lost, 1, &err), CST_EINVAL);
    ck_assert_int_eq(cste_device_fill(&device, 0, start, BYTES + 1, &err), CST_EINVAL);
    ck_assert_int_eq(cste_device_convert(&device, 0, &odd_src, &err), CST_EINVAL);
    ck_assert_int_eq(cste_device_convert(&device, 0, &huge, &err), CST_EINVAL);
    ck_assert_int_eq(cste_device_convert(&device, 0, &odd_dst, &err), CST_EINVAL);
    ck_assert_int_eq(cste_device_convert(&device, 0, &beyond, &err), CST_EINVAL);
    ck_assert_int_eq(cste_device_convert(&device, 0, &few, &err), CST_EINVAL);
    ck_assert_int_eq(cste_device_convert(&device, 0, &format, &err), CST_EINVAL);
    ck_assert_int_eq(cste_device_populate(&device, 0, mem, BYTES, 1, &err), CST_EINVAL);
    ck_assert_int_eq(cste_device_reduce(&device, 0, &work, 0, NULL, 0, 1, NULL, &done, &err),
                     CST_EINVAL);
    ck_assert_int_eq(cste_device_update(&device, 0, &update, 0, 1, NULL, &done, &err), CST_EINVAL);
    ck_assert_uint_eq(atomic_load(&n_calls), 0);
}
END_TEST

/* The host updates its own memory only: a row or a contribution in a device's memory is refused,
 * and nothing is written. */
START_TEST(test_memory_of_a_device)
{
    const struct cste_mem *mem = &mapping.segment.mem, far = {.device = 4096, .bytes = BYTES};
    const uint64_t n = 64;
    struct cst_table_header *table = calloc(1, 4096);
    struct cst_tile_hyper hyper = {.lr = 1.0, .grad_scale = 1.0f};
    struct cst_tile_work work = {.mark = 1, .table = table};
    struct cste_addr src = {.mem = &far};
    struct cste_device_update update = {.work = &work, .hyper = &hyper, .row_elems = n};
    struct cst_err err;
    struct cst_tile_done done;

    ck_assert_ptr_nonnull(table);
    cst_table_size(table, 1, 1, 1);
    cst_table_chunks(table)[0] = (struct cst_table_chunk){.n_elems = n, .n_spans = 1};
    cst_table_spans(table)[0] = (struct cst_table_span){.n_elems = n, .lr_scale = 1.0f};
    for (int row = 0; row < CST_ROW_COUNT; row++) {
        struct cste_addr at = {.mem = mem, .offset = (uint64_t)row * n * sizeof(float)};

        update.in[row] = row == CST_ROW_WEIGHT ? (struct cste_addr){0} : at;
        update.out[row] = row == CST_ROW_GRAD ? (struct cste_addr){0} : at;
    }
    update.in[CST_ROW_GRAD].mem = &far;
    ck_assert_int_eq(cste_device_update(&device, 0, &update, 0, 1, NULL, &done, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "memory of a device"));
    update.in[CST_ROW_GRAD] = (struct cste_addr){0};
    update.src = &src;
    update.n_src = 1;
    ck_assert_int_eq(cste_device_update(&device, 0, &update, 0, 1, NULL, &done, &err), CST_EINVAL);
    update.in[CST_ROW_GRAD] = (struct cste_addr){.mem = mem, .offset = n * sizeof(float)};
    update.n_src = 0;
    update.out[CST_ROW_MASTER].mem = &far;
    ck_assert_int_eq(cste_device_update(&device, 0, &update, 0, 1, NULL, &done, &err), CST_EINVAL);
    ck_assert_uint_eq(done.n_elems, 0);
    update.out[CST_ROW_MASTER].mem = mem;
    ck_assert_int_eq(cste_device_update(&device, 0, &update, 0, 1, NULL, &done, &err), CST_OK);
    ck_assert_uint_eq(done.n_elems, n);
    ck_assert_uint_eq(done.bytes, 28 * n);
    free(table);
}
END_TEST

/* A device without a table of functions that compute copies and fills, and refuses the rest. */
START_TEST(test_only_copies)
{
    const struct cste_device_ops ops = {.name = "slow", .memory = cste_host_ops.memory};
    struct cste_device slow = {.ops = &ops, .state = device.state};
    struct cste_addr start = {.mem = &mapping.segment.mem};
    struct cste_device_convert convert = {.src = start, .dst = {start}, .n_dst = 1};
    struct cst_tile_work work = {.mark = 1};
    struct cste_device_update update = {.work = &work};
    struct cst_tile_done done;
    struct cst_err err;

    ck_assert_int_eq(cste_device_fill(&slow, 0, start, 64, &err), CST_OK);
    ck_assert_int_eq(cste_device_copy(&slow, 0, cste_addr_ahead(start, 64), start, 64, &err),
                     CST_OK);
    ck_assert_int_eq(cste_device_convert(&slow, 0, &convert, &err), CST_EUNSUPPORTED);
    ck_assert_int_eq(cste_device_reduce(&slow, 0, &work, 0, NULL, 0, 1, NULL, &done, &err),
                     CST_EUNSUPPORTED);
    ck_assert_int_eq(cste_device_update(&slow, 0, &update, 0, 1, NULL, &done, &err),
                     CST_EUNSUPPORTED);
    ck_assert_int_eq(cste_device_orthogonalise(&slow, 0, &update, 0, 0, 1, &err), CST_EUNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, "'slow' only copies"));
    ck_assert_uint_eq(cste_device_max_team(&ops), 1);
}
END_TEST

/* -- topologies of other machines ----------------------------------------------------------- */

static void open_machine(const char *synthetic, unsigned node)
{
    struct cst_err err;

    (void)setenv("HWLOC_SYNTHETIC", synthetic, 1);
    ck_assert_int_eq(cste_cpus_open(&cpus, node, &err), CST_OK);
}

/* Pages are allocated, also if signals arrive meanwhile, and the content is kept. A page that
 * cannot be allocated is an error and no signal: here one behind the end of the file. */
START_TEST(test_populate)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct stat st;
    char *base;
    int fd = engine_proc_memfd(3 * page, NULL);

    base = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(base, MAP_FAILED);
    base[page + 5] = 7;
    n_signals = 2;
    ck_assert_int_eq(cste_populate(fd, base, page + 3, page), 0);
    ck_assert_uint_eq(n_signals, 0);
    ck_assert_int_eq(fstat(fd, &st), 0);
    ck_assert_uint_gt((uint64_t)st.st_blocks * 512, page);
    ck_assert_int_eq(base[page + 5], 7);
    ck_assert_int_ne(cste_populate(fd, base, 2 * page, 2 * page), 0);
    (void)munmap(base, 4 * page);
    (void)close(fd);
}
END_TEST

/* Returns the bytes of the mapping at @at that the process reaches as large pages. */
static uint64_t large_bytes(const void *at)
{
    char line[256];
    uintmax_t start, end, kib = 0;
    bool here = false;
    FILE *f = fopen("/proc/self/smaps", "re");

    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f) != NULL) {
        if (sscanf(line, "%jx-%jx ", &start, &end) == 2) {
            here = start == (uintptr_t)at;
        } else if (here && sscanf(line, "ShmemPmdMapped: %ju", &kib) == 1) {
            break;
        }
    }
    (void)fclose(f);
    return kib << 10;
}

/* Returns whether the kernel makes large pages of CST_LARGE_PAGE for a process that asks for one,
 * with as little code as this takes. */
static bool has_large_pages(void)
{
    int fd = engine_proc_memfd(CST_LARGE_PAGE, NULL);
    char *at = cst_segment_map(fd, CST_LARGE_PAGE);
    bool large;

    ck_assert_ptr_ne(at, MAP_FAILED);
    at[0] = 0;
    large = madvise(at, CST_LARGE_PAGE, 25 /* MADV_COLLAPSE */) == 0;
    at[0] = 1;
    large = large && large_bytes(at) == CST_LARGE_PAGE;
    (void)munmap(at, CST_LARGE_PAGE);
    (void)close(fd);
    return large;
}

/* Memory has large pages where whole ones fit into what is allocated at once. Memory behind them,
 * and memory that was allocated in part before, has small pages; its content is kept. */
START_TEST(test_large_pages)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct cste_mem mem = {.bytes = 5 * CST_LARGE_PAGE + 3 * page};
    struct cst_err note, err;
    struct stat st;
    int fd = engine_proc_memfd(mem.bytes, NULL);
    void *state = NULL;
    const uint64_t large = has_large_pages() ? CST_LARGE_PAGE : 0;
    char *base;

    ck_assert_int_eq(cste_host_ops.memory->map(state, fd, -1, &mem, &note, &err), CST_OK);
    base = mem.base;
    ck_assert_uint_eq((uintptr_t)base % CST_LARGE_PAGE, 0);
    base[3 * CST_LARGE_PAGE + 7] = 9;
    ck_assert_int_eq(
        cste_host_ops.memory->populate(state, fd, base, page, 3 * CST_LARGE_PAGE - page, &err),
        CST_OK);
    /* The administrator may allow more, and memory may have become too fragmented. */
    ck_assert(large_bytes(base) >= 2 * large || !has_large_pages());
    ck_assert_int_eq(cste_host_ops.memory->populate(state, fd, base, 3 * CST_LARGE_PAGE,
                                                    mem.bytes - 3 * CST_LARGE_PAGE, &err),
                     CST_OK);
    ck_assert_int_eq(base[3 * CST_LARGE_PAGE + 7], 9);
    ck_assert_int_eq(fstat(fd, &st), 0);
    ck_assert_uint_ge((uint64_t)st.st_blocks * 512, mem.bytes - page);
    cste_host_ops.memory->unmap(state, &mem);
    (void)close(fd);
}
END_TEST

/* Map and unmap @bytes. Returns whether the addresses beside them, and then they themselves, are
 * free. Another thread may have mapped something there meanwhile. */
static bool maps_no_more(uint64_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const uint64_t last = (bytes - 1) / page * page;
    int fd = engine_proc_memfd(bytes, NULL);
    char *at = cst_segment_map(fd, bytes);
    unsigned char there;
    bool free = true;

    ck_assert_ptr_ne(at, MAP_FAILED);
    if (bytes >= CST_LARGE_PAGE) {
        ck_assert_uint_eq((uintptr_t)at % CST_LARGE_PAGE, 0);
        free =
            mincore(at - page, page, &there) != 0 && mincore(at + last + page, page, &there) != 0;
    }
    at[bytes - 1] = 3;
    ck_assert_int_eq(munmap(at, bytes), 0);
    free = free && mincore(at, page, &there) != 0 && mincore(at + last, page, &there) != 0;
    (void)close(fd);
    return free;
}

/* A mapping has an aligned address if it is as large as a large page, and munmap leaves nothing of
 * it. */
START_TEST(test_segment_map)
{
    static const uint64_t sizes[] = {
        1, 4096, CST_LARGE_PAGE - 1, CST_LARGE_PAGE, CST_LARGE_PAGE + 1, 7 * CST_LARGE_PAGE + 4097};

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        bool free = false;

        for (int attempt = 0; attempt < 10 && !free; attempt++) {
            free = maps_no_more(sizes[i]);
        }
        ck_assert_msg(free, "%" PRIu64 " bytes", sizes[i]);
    }
    ck_assert_ptr_eq(cst_segment_map(-1, 1), MAP_FAILED);
    ck_assert_ptr_eq(cst_segment_map(-1, CST_LARGE_PAGE), MAP_FAILED);
    ck_assert_int_eq(errno, EBADF);
}
END_TEST

/* A node's cores are used, without hyperthreads and without other nodes' cores. */
START_TEST(test_node)
{
    open_machine("pack:2 [numa] core:4 pu:2", 1);
    ck_assert(cpus.node_found);
    ck_assert_uint_eq(cpus.n_cores, 4);
    ck_assert_int_eq(hwloc_bitmap_weight(cpus.usable), 8);
    for (unsigned i = 0; i < 4; i++) {
        ck_assert_int_eq(hwloc_bitmap_weight(cpus.cores[i]), 2);
        ck_assert(hwloc_bitmap_isincluded(cpus.cores[i], cpus.usable));
    }
    cste_cpus_close(&cpus);
}
END_TEST

/* If the node does not exist, all cores are used, and that is reported. */
START_TEST(test_absent_node)
{
    open_machine("pack:2 [numa] core:4 pu:2", 7);
    ck_assert(!cpus.node_found);
    ck_assert_uint_eq(cpus.n_cores, 8);
    cste_cpus_close(&cpus);
}
END_TEST

/* On a machine without visible cores each PU counts as one. */
START_TEST(test_no_cores)
{
    open_machine("numa:1 pu:3", 0);
    ck_assert(cpus.node_found);
    ck_assert_uint_eq(cpus.n_cores, 3);
    (void)cste_cpus_pin(&cpus, 5);
    cste_cpus_close(&cpus);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("mapping");
    TCase *tcase = suite_case(suite, "mapping", set_up, tear_down);
    TCase *machines = suite_case(suite, "machines", NULL, NULL);

    tcase_add_loop_test(tcase, test_fault, 1, N_PIECES + 1);
    tcase_add_test(tcase, test_no_fault);
    tcase_add_test(tcase, test_cancel);
    tcase_add_test(tcase, test_wrappers);
    tcase_add_test(tcase, test_memory_of_a_device);
    tcase_add_test(tcase, test_only_copies);
    tcase_add_test(tcase, test_populate);
    tcase_add_test(tcase, test_large_pages);
    tcase_add_test(tcase, test_segment_map);
    tcase_add_test(machines, test_node);
    tcase_add_test(machines, test_absent_node);
    tcase_add_test(machines, test_no_cores);
    return suite_run(suite);
}

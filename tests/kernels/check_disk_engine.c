/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the engine process of a drive (cistern-engine-host --disk): segments that are ranges of
 * files, its commands, its counters, and its death in the middle of a write. */
#include "kernels/math/undo.h"
#include "tests/lib/disk_file.h"
#include "tests/lib/disk_rows.h"
#include "tests/lib/engine_proc.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define UNDO 9
#define UNDO_BYTES (2 * sizeof(struct cst_undo_slot))
#define BLOCK 4096
#define PIECE (4u << 20) /* of a copy, which is divided among the lanes */

enum { MEMORY = 1, FILE_ONE, FILE_TWO }; /* segments */

#define FILE_OFFSET ((uint64_t)2 * BLOCK)
#define BYTES ((uint64_t)32 << 20)

static struct engine_proc proc;
static uint64_t seed, state, ticket;
static char *memory;
static int memory_fd, fd;

static uint64_t next(uint64_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

static void fill(void *at, uint64_t bytes)
{
    uint64_t *words = at;

    for (uint64_t i = 0; i < bytes / sizeof *words; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        words[i] = state;
    }
}

static void open_engine(unsigned lanes)
{
    engine_proc_use_option("--disk", NULL);
    engine_proc_open(&proc, 1, lanes, UNDO, engine_proc_memfd(UNDO_BYTES, NULL), UNDO_BYTES);
    engine_proc_must_add(&proc, MEMORY, memory_fd, BYTES);
}

static void add_file(uint32_t id, uint64_t offset, uint64_t bytes, bool populate)
{
    struct engine_segment_done done = engine_proc_add_file(&proc, id, fd, offset, bytes, populate);

    ck_assert_msg(done.status == CST_OK, "%s", done.text);
}

static void set_up(void)
{
    void *base;

    state = seed;
    memory_fd = engine_proc_memfd(BYTES, &base);
    memory = base;
    fd = disk_file_make(0, 0);
    open_engine(2);
}

static void tear_down(void)
{
    ck_assert_int_eq(engine_proc_close(&proc), 0);
    (void)close(fd);
}

static struct cst_place in(uint32_t segment, uint64_t offset)
{
    return (struct cst_place){.segment = segment, .offset = offset};
}

static void submit(struct engine_command command)
{
    command.ticket = ++ticket;
    engine_proc_submit(&proc, &command, 1);
}

static const struct engine_completion *run(struct engine_command command)
{
    submit(command);
    return engine_proc_wait(&proc, ticket);
}

static void must(struct engine_command command)
{
    const struct engine_completion *done = run(command);

    ck_assert_msg(done != NULL && done->status == CST_OK, "%s", done != NULL ? done->text : "");
}

/* -- segments ------------------------------------------------------------------------------- */

/* READY says in which multiples files are used. */
START_TEST(test_ready)
{
    ck_assert_str_eq(proc.device_name, "disk");
    ck_assert_uint_eq(proc.granularity, BLOCK);
    ck_assert_uint_eq(proc.copy_threads, 2);
}
END_TEST

/* A populated segment extends the file, has its space and is zero, and its progress is reported up
 * to the end. One that is not populated keeps what the file has. */
START_TEST(test_populate)
{
    char *now = aligned_alloc(BLOCK, BYTES);

    add_file(FILE_ONE, FILE_OFFSET, BYTES, true);
    ck_assert_uint_gt(proc.n_progress, 0);
    ck_assert_uint_eq(proc.progress_bytes, BYTES);
    ck_assert_uint_eq(disk_file_bytes(fd), FILE_OFFSET + BYTES);
    ck_assert_uint_ge(disk_file_space(fd), BYTES);
    disk_file_read(fd, now, BYTES, FILE_OFFSET);
    memset(memory, 0, BYTES);
    ck_assert_mem_eq(now, memory, BYTES);
    fill(memory, BYTES);
    must(engine_command_copy(in(FILE_ONE, 0), in(MEMORY, 0), BYTES));
    engine_proc_kill(&proc);
    (void)engine_proc_close(&proc);
    open_engine(1);
    add_file(FILE_ONE, FILE_OFFSET, BYTES, false);
    ck_assert_uint_eq(proc.n_progress, 0);
    disk_file_read(fd, now, BYTES, FILE_OFFSET);
    ck_assert_mem_eq(now, memory, BYTES);
    free(now);
}
END_TEST

/* A segment that cannot be made is refused with the reason, and its id stays free. */
START_TEST(test_refused)
{
    struct engine_segment_done done = engine_proc_add_file(&proc, FILE_ONE, fd, 0, BYTES, false);

    ck_assert_int_eq(done.status, CST_EINVAL);
    ck_assert_msg(strstr(done.text, "has 0 bytes") != NULL, "%s", done.text);
    done = engine_proc_add_file(&proc, FILE_ONE, fd, 100, BYTES, true);
    ck_assert_int_eq(done.status, CST_EINVAL);
    ck_assert_msg(strstr(done.text, "multiples of 4096") != NULL, "%s", done.text);
    ck_assert_uint_eq(disk_file_bytes(fd), 0);
    add_file(FILE_ONE, 0, BLOCK, true);
}
END_TEST

/* If a segment is dropped while zeros are written, its space is given back. */
START_TEST(test_drop_early)
{
    Engine__SegmentAdd add = ENGINE__SEGMENT_ADD__INIT;
    struct engine_segment_done done;
    uint64_t added, dropped;

    add.id = FILE_ONE;
    add.bytes = 8 * BYTES;
    add.has_device = add.device = 1;
    add.has_populate = add.populate = 1;
    added = engine_proc_send(&proc, ENGINE__MSG_TYPE__ENGINE_SEGMENT_ADD, &add.base, fd);
    dropped = engine_proc_drop(&proc, FILE_ONE, false);
    done = engine_proc_segment_done(&proc, added);
    ck_assert(done.status == CST_ECANCELLED || done.status == CST_OK);
    ck_assert_int_eq(engine_proc_segment_done(&proc, dropped).status, CST_OK);
    ck_assert_uint_eq(disk_file_bytes(fd), done.status == CST_OK ? 8 * BYTES : 0);
}
END_TEST

/* -- commands ------------------------------------------------------------------------------- */

/* Many copies at a time, cut into pieces for several lanes, whose ends share blocks: neighbours in
 * two segments of one file, to it and back. */
START_TEST(test_many)
{
    uint64_t half = BYTES / 2, at = 0;
    char *before = malloc(BYTES);
    Engine__Pong pong;
    unsigned n = 0;

    add_file(FILE_ONE, 0, half, true);
    add_file(FILE_TWO, half, half, true);
    fill(memory, BYTES);
    memcpy(before, memory, BYTES);
    while (at < half) {
        uint64_t bytes = 1 + next(next(4) == 0 ? 3 * (uint64_t)PIECE : 10 * BLOCK);

        bytes = bytes < half - at ? bytes : half - at;
        submit(engine_command_copy(in(FILE_ONE, at), in(MEMORY, half - at - bytes), bytes));
        submit(engine_command_copy(in(FILE_TWO, at), in(MEMORY, half + at), bytes));
        at += bytes;
        n += 2;
    }
    for (uint64_t t = ticket - n + 1; t <= ticket; t++) {
        const struct engine_completion *done = engine_proc_wait(&proc, t);

        suite_must(done != NULL && done->status == CST_OK, "%s", done != NULL ? done->text : "");
    }
    must(engine_command_copy(in(FILE_ONE, 1), in(FILE_TWO, 7), half - 1000));
    memset(memory, 0, BYTES);
    must(engine_command_copy(in(MEMORY, 0), in(FILE_TWO, 0), half));
    must(engine_command_copy(in(MEMORY, half), in(FILE_ONE, 0), half));
    ck_assert_mem_eq(memory, before + half, half);
    ck_assert_mem_eq(memory + half + 1, before + half + 7, half - 1000);
    engine_proc_ping(&proc, &pong);
    ck_assert_uint_eq(pong.up_bytes, BYTES);
    ck_assert_uint_eq(pong.down_bytes, BYTES);
    ck_assert_uint_eq(pong.copy_bytes, 2 * BYTES + half - 1000);
    ck_assert(pong.up_ns > 0 && pong.down_ns > 0);
    free(before);
}
END_TEST

/* The engine only copies. */
START_TEST(test_only_copies)
{
    struct engine_command round = {.kind = ENGINE__COMMAND_KIND__ROUND,
                                   .src = {in(MEMORY, 0)},
                                   .n_src = 1,
                                   .dst = {in(MEMORY, BLOCK)},
                                   .n_dst = 1,
                                   .n_elems = 16};

    ck_assert_int_eq(run(round)->status, CST_EUNSUPPORTED);
}
END_TEST

/* A fill makes zeros in the file. */
START_TEST(test_fill)
{
    char *now = aligned_alloc(BLOCK, BYTES);

    add_file(FILE_ONE, 0, BYTES, true);
    fill(memory, BYTES);
    must(engine_command_copy(in(FILE_ONE, 0), in(MEMORY, 0), BYTES));
    must(engine_command_fill(in(FILE_ONE, 5), BYTES - 9));
    memset(memory + 5, 0, BYTES - 9);
    disk_file_read(fd, now, BYTES, 0);
    ck_assert_mem_eq(now, memory, BYTES);
    free(now);
}
END_TEST

/* A file is flushed, and nothing else. */
START_TEST(test_flush)
{
    struct engine_command flush = {
        .kind = ENGINE__COMMAND_KIND__FLUSH, .dst = {in(FILE_ONE, 0)}, .n_dst = 1};

    add_file(FILE_ONE, 0, BYTES, true);
    must(flush);
    flush.dst[0].segment = MEMORY;
    ck_assert_int_eq(run(flush)->status, CST_EUNSUPPORTED);
    flush.dst[0].segment = FILE_TWO;
    ck_assert_int_eq(run(flush)->status, CST_ENOTFOUND);
}
END_TEST

/* -- failures ------------------------------------------------------------------------------- */

static void set_up_failing(void)
{
    engine_proc_use("tests/lib/disk_engine", NULL);
    (void)setenv("DISK_IO", "fail", 1);
    (void)setenv("DISK_ERRNO", "5", 1);
    set_up();
}

/* A call that fails ends its command with the drive's error; the commands after it run. */
START_TEST(test_error)
{
    const struct engine_completion *done;

    engine_proc_kill(&proc);
    (void)engine_proc_close(&proc);
    (void)setenv("DISK_NTH", "3", 1); /* after the allocation and the zeros */
    open_engine(1);
    add_file(FILE_ONE, 0, BLOCK, true);
    done = run(engine_command_copy(in(FILE_ONE, 0), in(MEMORY, 0), BLOCK));
    ck_assert_int_eq(done->status, CST_EIO);
    ck_assert_msg(strstr(done->text, "writing 4096 bytes at 0 of '") != NULL &&
                      strstr(done->text, strerror(EIO)) != NULL,
                  "%s", done->text);
    must(engine_command_copy(in(FILE_ONE, 0), in(MEMORY, 0), BLOCK));
}
END_TEST

/* If the zeros cannot be written, the segment fails, and the file is as before. */
START_TEST(test_zeros_fail)
{
    struct engine_segment_done done;

    engine_proc_kill(&proc);
    (void)engine_proc_close(&proc);
    (void)setenv("DISK_NTH", "4", 1);
    open_engine(1);
    done = engine_proc_add_file(&proc, FILE_ONE, fd, 0, BYTES, true);
    ck_assert_int_eq(done.status, CST_EIO);
    ck_assert_msg(strstr(done.text, "writing 4194304 bytes at 8388608 of '") != NULL, "%s",
                  done.text);
    ck_assert_uint_eq(disk_file_bytes(fd), 0);
    add_file(FILE_ONE, 0, BYTES, true);
}
END_TEST

/* The program appends the writes to a file, and waits before each. */
START_TEST(test_other_rows)
{
    char path[64];
    struct disk_record head;
    FILE *log;

    (void)snprintf(path, sizeof path, "./check_disk_engine-%d.tmp", (int)getpid());
    engine_proc_kill(&proc);
    (void)engine_proc_close(&proc);
    (void)setenv("DISK_IO", "record", 1);
    (void)setenv("DISK_RECORD", path, 1);
    open_engine(1);
    add_file(FILE_ONE, FILE_OFFSET, BLOCK, true);
    log = fopen(path, "r");
    ck_assert_ptr_nonnull(log);
    (void)unlink(path);
    ck_assert_uint_eq(fread(&head, sizeof head, 1, log), 1);
    ck_assert(head.offset == FILE_OFFSET && head.bytes == BLOCK);
    (void)fclose(log);
    engine_proc_kill(&proc);
    (void)engine_proc_close(&proc);
    (void)setenv("DISK_IO", "slow", 1);
    (void)setenv("DISK_US", "1000", 1);
    open_engine(1);
    add_file(FILE_ONE, FILE_OFFSET, BLOCK, true);
}
END_TEST

/* -- death ---------------------------------------------------------------------------------- */

/* True if a thread of the engine waits for a drive (state D). */
static bool waits_for_drive(void)
{
    char path[64], line[256];
    bool waits = false;
    struct dirent *entry;
    DIR *dir;

    (void)snprintf(path, sizeof path, "/proc/%d/task", (int)proc.pid);
    dir = opendir(path);
    ck_assert_ptr_nonnull(dir);
    while ((entry = readdir(dir)) != NULL) {
        char stat_path[400];
        FILE *file;

        (void)snprintf(stat_path, sizeof stat_path, "%s/%s/stat", path, entry->d_name);
        file = fopen(stat_path, "r");
        if (file != NULL && fgets(line, sizeof line, file) != NULL) {
            waits = waits || strstr(line, ") D ") != NULL;
        }
        if (file != NULL) {
            (void)fclose(file);
        }
    }
    (void)closedir(dir);
    return waits;
}

/* How many blocks of @now are @new; all others must be @old. */
static uint64_t count_new(const char *now, const char *old, const char *new)
{
    uint64_t n = 0;

    for (uint64_t i = 0; i < BYTES; i += BLOCK) {
        bool is_new = memcmp(now + i, new + i, BLOCK) == 0;

        suite_must(is_new || memcmp(now + i, old + i, BLOCK) == 0, "block %" PRIu64, i / BLOCK);
        n += is_new;
    }
    return n;
}

/* The engine is killed while a thread is in a write. When the process is gone, nothing is written
 * any more, so a new engine can repeat the command: the file has its bytes, then and later. */
START_TEST(test_killed_in_write)
{
    char *old = malloc(BYTES), *now = aligned_alloc(BLOCK, BYTES),
         *again = aligned_alloc(BLOCK, BYTES);
    unsigned n_parts = 0;

    add_file(FILE_ONE, 0, BYTES, true);
    memset(old, 0, BYTES);
    for (int round = 0; round < 20; round++) {
        uint64_t written;

        fill(memory, BYTES);
        submit(engine_command_copy(in(FILE_ONE, 0), in(MEMORY, 0), BYTES));
        while (!waits_for_drive() && engine_proc_find(&proc, ticket) == NULL) {
            ck_assert(engine_proc_read(&proc, 0));
        }
        engine_proc_kill(&proc);
        (void)engine_proc_close(&proc);
        disk_file_read(fd, now, BYTES, 0);
        written = count_new(now, old, memory);
        n_parts += written > 0 && written < BYTES / BLOCK;
        disk_file_read(fd, again, BYTES, 0);
        ck_assert_mem_eq(now, again, BYTES);
        /* Other bytes, over which a late write would come. */
        memcpy(old, memory, BYTES);
        fill(memory, BYTES);
        open_engine(2);
        add_file(FILE_ONE, 0, BYTES, false);
        must(engine_command_copy(in(FILE_ONE, 0), in(MEMORY, 0), BYTES));
        disk_file_read(fd, now, BYTES, 0);
        ck_assert_mem_eq(now, memory, BYTES);
        memcpy(old, memory, BYTES);
    }
    printf("check_disk_engine: %u of 20 kills were in the middle of a command\n", n_parts);
    free(again);
    free(now);
    free(old);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("disk_engine");
    TCase *segments = suite_case(suite, "segments", set_up, tear_down);
    TCase *commands = suite_case(suite, "commands", set_up, tear_down);
    TCase *faults = suite_case(suite, "faults", set_up_failing, tear_down);

    if (disk_file_is_missing("check_disk_engine")) {
        return DISK_FILE_SKIP;
    }
    seed = suite_seed();
    tcase_add_test(segments, test_ready);
    tcase_add_test(segments, test_populate);
    tcase_add_test(segments, test_refused);
    tcase_add_test(segments, test_drop_early);
    tcase_add_test(commands, test_many);
    tcase_add_test(commands, test_only_copies);
    tcase_add_test(commands, test_fill);
    tcase_add_test(commands, test_flush);
    tcase_add_test(faults, test_error);
    tcase_add_test(faults, test_zeros_fail);
    tcase_add_test(faults, test_other_rows);
    tcase_add_test(suite_case(suite, "death", set_up, tear_down), test_killed_in_write);
    return suite_run(suite);
}

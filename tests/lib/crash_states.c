/* SPDX-License-Identifier: Apache-2.0 */
/* crash_states RECORD REFERENCE WORK N SEED FILE...: what a drive has after a loss of power, N
 * times.
 *
 * RECORD has the writes and flushes of a durable job's files FILE (tests/lib/disk_rows.h), which
 * were empty before. The power is lost at a random place of the record. What was written before a
 * flush that had ended is there. Each other write that had begun is there, or is not, or is torn:
 * of its sectors of 512 or 4096 bytes some are there. cst_adopt has to make a checkpoint in WORK of
 * the last step whose record was flushed, or of the one after, with the bytes of that step's
 * checkpoint in REFERENCE; and to refuse, if no step was flushed yet, or to make one that was just
 * being.
 *
 * Prints what was found. The exit status is 1 if a state was recovered wrongly. */
#include "cistern/checkpoint.h"
#include "proto/durable.h"
#include "tests/lib/disk_rows.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_FILES = 4 };

static char *record; /* The whole record. */
static size_t record_bytes;
static const char *reference, *work;
static char *const *paths; /* The files. */
static int n_files;
static uint64_t inodes[MAX_FILES];
static size_t sizes[MAX_FILES];
static char *images[MAX_FILES];
static int image_fds[MAX_FILES];
static uint64_t state;

/* splitmix64 */
static uint64_t next(void)
{
    uint64_t z = state += 0x9e3779b97f4a7c15ull;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static void must(bool ok, const char *what)
{
    if (!ok) {
        perror(what);
        exit(2);
    }
}

/* -- the record ------------------------------------------------------------------------------- */

/* An entry of the record. */
struct entry {
    struct disk_record head;
    const char *data; /* WRITE */
    size_t ends;      /* Number of the entry that ends the call; SIZE_MAX: none does. */
};

static struct entry *entries;
static size_t n_entries;

static uint64_t process_of(size_t i)
{
    return entries[i].head.call >> 32;
}

/* The processes of the record, in the order of their first entries. */
struct process {
    uint64_t id;
    size_t first, last; /* Numbers of its entries. */
};

static struct process *processes;
static size_t n_processes;

/* The index of the process @id; n_processes: it is not in the list. */
static size_t find_process(uint64_t id)
{
    size_t p = 0;

    while (p < n_processes && processes[p].id != id) {
        p++;
    }
    return p;
}

static void list_processes(void)
{
    for (size_t i = 0; i < n_entries; i++) {
        const size_t p = find_process(process_of(i));

        if (p == n_processes) {
            processes = realloc(processes, (n_processes + 1) * sizeof *processes);
            must(processes != NULL, "memory");
            processes[n_processes++] = (struct process){.id = process_of(i), .first = i};
        }
        processes[p].last = i;
    }
}

/* A process that is killed in the middle of a call ends when the call is over, and its successor
 * begins afterwards: returns the number of the first entry of a process that began after the last
 * entry of that of entry @i; SIZE_MAX: there is none. */
static size_t end_of_process(size_t i)
{
    const size_t last = processes[find_process(process_of(i))].last;

    for (size_t p = 0; p < n_processes; p++) {
        if (processes[p].first > last) {
            return processes[p].first;
        }
    }
    return SIZE_MAX;
}

static void read_record(const char *path)
{
    int fd = open(path, O_RDONLY);
    struct stat st;

    must(fd >= 0 && fstat(fd, &st) == 0, path);
    record_bytes = (size_t)st.st_size;
    record = mmap(NULL, record_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    must(record != MAP_FAILED, path);
    for (size_t at = 0; at + sizeof(struct disk_record) <= record_bytes;) {
        struct entry entry = {.ends = SIZE_MAX};

        memcpy(&entry.head, record + at, sizeof entry.head);
        at += sizeof entry.head;
        entry.data = record + at;
        at += entry.head.bytes;
        if (at > record_bytes) {
            break; /* The process was killed in the middle. */
        }
        if (n_entries % 1024 == 0) {
            entries = realloc(entries, (n_entries + 1024) * sizeof *entries);
            must(entries != NULL, "memory");
        }
        entries[n_entries++] = entry;
    }
    list_processes();
    for (size_t i = 0; i < n_entries; i++) {
        entries[i].ends = end_of_process(i);
    }
    for (size_t i = 0; i < n_entries; i++) {
        for (size_t k = i + 1; k < n_entries && (entries[i].head.kind == DISK_RECORD_WRITE ||
                                                 entries[i].head.kind == DISK_RECORD_FLUSH);
             k++) {
            if (entries[k].head.call == entries[i].head.call) {
                entries[i].ends = k;
                break;
            }
        }
    }
}

/* -- states ----------------------------------------------------------------------------------- */

static int file_of(uint64_t inode)
{
    for (int f = 0; f < n_files; f++) {
        if (inodes[f] == inode) {
            return f;
        }
    }
    return -1;
}

/* Apply some sectors of @entry, or all or none. */
static void tear(const struct entry *entry, int f)
{
    const uint64_t sector = next() % 2 == 0 ? 512 : 4096, how = next() % 4;

    for (uint64_t at = 0; at < entry->head.bytes; at += sector) {
        uint64_t left = entry->head.bytes - at;

        if (how == 0 || (how >= 2 && next() % 2 == 0)) {
            memcpy(images[f] + entry->head.offset + at, entry->data + at,
                   left < sector ? left : sector);
        }
    }
}

/* True if entry @i, a write, had ended before the beginning of a flush of its file that had ended
 * before @cut. */
static bool is_flushed(size_t i, size_t cut)
{
    for (size_t k = entries[i].ends; k < cut; k++) {
        if (entries[k].head.kind == DISK_RECORD_FLUSH &&
            entries[k].head.inode == entries[i].head.inode && entries[k].ends < cut) {
            return true;
        }
    }
    return false;
}

/* The step that entry @i seals; 0: none. */
static uint64_t step_of(size_t i)
{
    struct cst_durable_seal seal;

    if (entries[i].head.kind != DISK_RECORD_WRITE || entries[i].head.bytes < sizeof seal) {
        return 0;
    }
    memcpy(&seal, entries[i].data, sizeof seal);
    return seal.magic == CST_DURABLE_SEAL_MAGIC ? seal.step : 0;
}

/* Make the files after a loss of power at @cut. *sure: the last step whose record is there;
 * *perhaps: the last one whose record may be there. */
static void lose_power(size_t cut, uint64_t *sure, uint64_t *perhaps)
{
    *sure = *perhaps = 0;
    for (int f = 0; f < n_files; f++) {
        memset(images[f], 0, sizes[f]);
    }
    for (size_t i = 0; i < cut; i++) {
        int f = file_of(entries[i].head.inode);
        uint64_t step;

        if (entries[i].head.kind != DISK_RECORD_WRITE || f < 0) {
            continue;
        }
        must(entries[i].head.offset + entries[i].head.bytes <= sizes[f], "a write behind the end");
        step = step_of(i);
        *perhaps = step > *perhaps ? step : *perhaps;
        if (is_flushed(i, cut)) {
            memcpy(images[f] + entries[i].head.offset, entries[i].data, entries[i].head.bytes);
            *sure = step > *sure ? step : *sure;
        } else {
            tear(&entries[i], f);
        }
    }
}

/* -- checks ----------------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static char *path_of(char *out, size_t size,
                                                           const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(out, size, format, args);
    va_end(args);
    return out;
}

static char *read_file(const char *path, size_t *bytes)
{
    int fd = open(path, O_RDONLY);
    struct stat st;
    char *data;

    if (fd < 0 || fstat(fd, &st) != 0) {
        return NULL;
    }
    data = malloc((size_t)st.st_size + 1);
    must(data != NULL && read(fd, data, (size_t)st.st_size) == st.st_size, path);
    (void)close(fd);
    *bytes = (size_t)st.st_size;
    return data;
}

/* Remove the checkpoint of step @step. */
static void drop(uint64_t step)
{
    char dir[512], path[1024];
    DIR *list = opendir(path_of(dir, sizeof dir, "%s/step-%08llu", work, (unsigned long long)step));

    must(list != NULL, dir);
    for (struct dirent *e = readdir(list); e != NULL; e = readdir(list)) {
        if (e->d_name[0] != '.') {
            (void)unlink(path_of(path, sizeof path, "%s/%s", dir, e->d_name));
        }
    }
    (void)closedir(list);
    must(rmdir(dir) == 0, dir);
}

/* Compare the files of tensors of step @step. */
static bool compare(uint64_t step)
{
    char dir[512], path[1024];
    DIR *list = opendir(path_of(dir, sizeof dir, "%s/step-%08llu", work, (unsigned long long)step));
    bool same = list != NULL;
    int n = 0;

    for (struct dirent *e = same ? readdir(list) : NULL; e != NULL; e = readdir(list)) {
        const char *suffix = strrchr(e->d_name, '.');
        size_t a_bytes = 0, b_bytes = 0;
        char *a, *b;

        if (e->d_name[0] == '.') {
            continue;
        }
        a = read_file(path_of(path, sizeof path, "%s/step-%08llu/%s", reference,
                              (unsigned long long)step, e->d_name),
                      &a_bytes);
        b = read_file(path_of(path, sizeof path, "%s/%s", dir, e->d_name), &b_bytes);
        if (suffix != NULL && strcmp(suffix, ".safetensors") == 0) {
            same =
                same && a != NULL && b != NULL && a_bytes == b_bytes && memcmp(a, b, a_bytes) == 0;
            n++;
        }
        free(a);
        free(b);
    }
    if (list != NULL) {
        (void)closedir(list);
    }
    return same && n > 0;
}

/* Adopt the images. Returns whether the result is right. */
static bool check(size_t cut, uint64_t sure, uint64_t perhaps)
{
    char names[MAX_FILES][64];
    const char *list[MAX_FILES];
    struct cst_adopt_result result = {.step = 0};
    struct cst_err err = {0};
    bool same;
    int rc;

    for (int f = 0; f < n_files; f++) {
        list[f] = path_of(names[f], sizeof names[f], "/proc/self/fd/%d", image_fds[f]);
    }
    rc = cst_adopt(list, (uint32_t)n_files, work, &result, &err);
    if (rc != CST_OK) {
        if (sure > 0) {
            printf("power lost at %zu of %zu: step %llu was lost: %s\n", cut, n_entries,
                   (unsigned long long)sure, err.text);
        }
        return sure == 0;
    }
    same = compare(result.step);
    drop(result.step);
    if (result.step < sure || result.step > perhaps) {
        printf("power lost at %zu of %zu: step %llu, not %llu to %llu\n", cut, n_entries,
               (unsigned long long)result.step, (unsigned long long)sure,
               (unsigned long long)perhaps);
        return false;
    }
    if (!same) {
        printf("power lost at %zu of %zu: step %llu has other states\n", cut, n_entries,
               (unsigned long long)result.step);
        return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    uint64_t sure, perhaps, n, n_wrong = 0, n_none = 0, n_older = 0;

    if (argc < 7 || argc - 6 > MAX_FILES) {
        fprintf(stderr, "usage: crash_states RECORD REFERENCE WORK N SEED FILE...\n");
        return 2;
    }
    reference = argv[2];
    work = argv[3];
    n = strtoull(argv[4], NULL, 0);
    state = strtoull(argv[5], NULL, 0);
    paths = argv + 6;
    n_files = argc - 6;
    for (int f = 0; f < n_files; f++) {
        struct stat st;

        must(stat(paths[f], &st) == 0, paths[f]);
        inodes[f] = st.st_ino;
        sizes[f] = (size_t)st.st_size;
        image_fds[f] = memfd_create("image", MFD_CLOEXEC);
        must(image_fds[f] >= 0 && ftruncate(image_fds[f], st.st_size) == 0, "image");
        images[f] = mmap(NULL, sizes[f], PROT_READ | PROT_WRITE, MAP_SHARED, image_fds[f], 0);
        must(images[f] != MAP_FAILED, "image");
    }
    read_record(argv[1]);
    for (uint64_t i = 0; i < n; i++) {
        size_t cut = (size_t)(next() % (n_entries + 1));

        lose_power(cut, &sure, &perhaps);
        n_wrong += !check(cut, sure, perhaps);
        n_none += sure == 0;
        n_older += perhaps > sure;
    }
    printf("%llu states of %zu calls: %llu before the first record, %llu while a record was being "
           "written, %llu wrong\n",
           (unsigned long long)n, n_entries, (unsigned long long)n_none,
           (unsigned long long)n_older, (unsigned long long)n_wrong);
    return n_wrong == 0 && n_older < n && n_none < n ? 0 : 1;
}

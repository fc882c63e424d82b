/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/drives.h"

#include "daemon/base/log.h"
#include "daemon/budget/quota.h"
#include "daemon/engine/engines.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

void cstd_drives_init(struct cstd_drives *drives, struct cstd_engines *engines)
{
    *drives = (struct cstd_drives){.engines = engines};
}

const char *cstd_drive_name(const char *number, char out[CSTD_DRIVE_NAME])
{
    char path[128], target[256];
    unsigned first, second;
    ssize_t n = -1;
    int end = 0;

    /* The number may come from a worker. */
    if (sscanf(number, "%u:%u%n", &first, &second, &end) == 2 && number[end] == '\0') {
        (void)snprintf(path, sizeof path, "/sys/dev/block/%u:%u", first, second);
        n = readlink(path, target, sizeof target - 1);
    }
    target[n > 0 ? n : 0] = '\0';
    (void)snprintf(out, CSTD_DRIVE_NAME, "%.63s",
                   strrchr(target, '/') != NULL ? strrchr(target, '/') + 1 : number);
    return out;
}

/* Take a place in the list, and its engine: a new one, or that of a drive that no job uses. NULL:
 * there is none. */
static struct cstd_drive *take(struct cstd_drives *drives, const char *uuid, unsigned *engine,
                               struct cst_err *err)
{
    for (unsigned i = 0; drives->n == CSTD_DRIVES_MAX && i < drives->n; i++) {
        struct cstd_engine *idle = &drives->engines->v[drives->v[i].engine];

        if (idle->n_users == 0 && idle->process == NULL && idle->stuck == NULL &&
            drives->v[i].files.used == 0) {
            *engine = drives->v[i].engine;
            (void)snprintf(idle->device, sizeof idle->device, "%s", uuid);
            return &drives->v[i];
        }
    }
    if (drives->n == CSTD_DRIVES_MAX) {
        (void)cst_err_set(
            err, CST_EUNSUPPORTED,
            "states of jobs are on %d drives already: use one of them, or remove jobs "
            "with states on drives",
            CSTD_DRIVES_MAX);
        return NULL;
    }
    return cstd_engines_add_device(drives->engines, uuid, -1, engine, err) == CST_OK
               ? &drives->v[drives->n++]
               : NULL;
}

int cstd_drives_get(struct cstd_drives *drives, const char *uuid, struct cstd_drive **out,
                    struct cst_err *err)
{
    struct cstd_drive *drive;
    struct cst_err why;
    unsigned engine;

    if (!cstd_drive_is(uuid)) {
        return cst_err_set(err, CST_EINVAL, "'%.63s' is not the name of a drive", uuid);
    }
    for (unsigned i = 0; i < drives->n; i++) {
        if (strcmp(drives->v[i].uuid, uuid) == 0) {
            *out = &drives->v[i];
            return CST_OK;
        }
    }
    drive = take(drives, uuid, &engine, &why);
    if (drive == NULL) {
        if (err != NULL) {
            *err = why;
        }
        return why.status;
    }
    *drive = (struct cstd_drive){
        .engine = engine, .files.limit = UINT64_MAX, .files.resource = CSTD_QUOTA_DISK};
    (void)snprintf(drive->uuid, sizeof drive->uuid, "%.60s", uuid);
    (void)cstd_drive_name(drive->uuid + strlen(CSTD_DRIVE), drive->name);
    (void)snprintf(drive->files_name, sizeof drive->files_name, "files on %.60s", uuid);
    drive->files.name = drive->files_name;
    cstd_log(CSTD_LOG_INFO, "%s is drive %s", drive->uuid, drive->name);
    *out = drive;
    return CST_OK;
}

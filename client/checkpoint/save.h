/* SPDX-License-Identifier: Apache-2.0 */
/* Saves of other users' jobs, for programs of the manager. Internal header of libcistern_files. */
#ifndef CST_CHECKPOINT_SAVE_H
#define CST_CHECKPOINT_SAVE_H

#include "cistern/checkpoint.h"

/* cst_try_save of the job @name of user @uid. @client is connected to the manager socket, unless
 * @uid is its own user. Other statuses than those of cst_try_save: CST_EDENIED. */
int cstc_try_save_of(struct cst_client *client, const char *name, uint32_t uid,
                     const struct cst_save_spec *spec, struct cst_save_result *result,
                     struct cst_err *err);

#endif

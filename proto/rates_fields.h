/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of proto/rates.h in tables: what an engine prints, what a file of rates holds, what
 * is checked and of what medians are taken. A new number needs a row here. */
#ifndef CST_RATES_FIELDS_H
#define CST_RATES_FIELDS_H

#include "proto/rates.h"

#include <stdbool.h>
#include <stddef.h>

struct cst_rates_field {
    const char *name; /* Name in the struct and in JSON; NULL: end of the table. */
    size_t offset;    /* Offset of the double in the struct. */
    bool required;    /* A plan is impossible if the number is not known. */
};

extern const struct cst_rates_field cst_rates_device_fields[];  /* Of struct cst_rates_device. */
extern const struct cst_rates_field cst_rates_node_fields[];    /* Of struct cst_rates_node. */
extern const struct cst_rates_field cst_rates_machine_fields[]; /* Of struct cst_rates. */

/* Returns the value of @field in @rates, a struct of the field's table. */
static inline double *cst_rates_value(void *rates, const struct cst_rates_field *field)
{
    return (double *)(void *)((char *)rates + field->offset);
}

static inline double cst_rates_get(const void *rates, const struct cst_rates_field *field)
{
    return *(const double *)(const void *)((const char *)rates + field->offset);
}

#endif

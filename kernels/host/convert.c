#include "kernels/host/convert.h"

#include <string.h>

static void *pointer(struct cst_addr addr)
{
    return (char *)addr.mem->base + addr.offset;
}

/* Blocks that are cleared whole lose their exponent; code 0 is 0 with any other. */
static void clear_mx8(uint8_t *row, const struct cst_device_convert *c)
{
    uint64_t from = (c->first + CST_MX8_BLOCK - 1) / CST_MX8_BLOCK;
    uint64_t to = (c->first + c->n_elems) / CST_MX8_BLOCK;

    memset(row + c->first, 0, c->n_elems);
    if (from < to) {
        memset(row + c->row_elems + from, 0, to - from);
    }
}

static void clear_moments(void *row, const struct cst_device_convert *c)
{
    uint64_t elem_bytes = cst_table_moment_bytes(c->moments, 1);

    if (c->moments == CST_MOMENTS_MX8) {
        clear_mx8(row, c);
    } else {
        memset((char *)row + c->first * elem_bytes, 0, c->n_elems * elem_bytes);
    }
}

static void convert_states(const struct cst_kernels *kernels, const struct cst_device_convert *c)
{
    memcpy(pointer(c->dst[0]), pointer(c->src), c->n_elems * sizeof(float));
    kernels->cast(c->n_elems, pointer(c->src), pointer(c->dst[1]));
    for (uint32_t i = 2; i < c->n_dst; i++) {
        clear_moments(pointer(c->dst[i]), c);
    }
}

int cst_host_convert(const struct cst_kernels *kernels, const struct cst_device_convert *convert,
                     struct cst_err *err)
{
    switch (convert->what) {
    case CST_CONVERT_STATES:
        convert_states(kernels, convert);
        return CST_OK;
    case CST_CONVERT_WEIGHT:
        kernels->cast(convert->n_elems, pointer(convert->src), pointer(convert->dst[0]));
        return CST_OK;
    case CST_CONVERT_ENCODE:
    case CST_CONVERT_DECODE:
    default:
        return cst_err_set(err, CST_EUNSUPPORTED, "conversion %d", (int)convert->what);
    }
}

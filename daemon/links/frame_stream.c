/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/links/frame_stream.h"

#include <stdlib.h>

int cstd_frame_stream_admit(struct cstd_frame_stream *stream, size_t max_body, struct cst_err *err)
{
    uint8_t *bytes = realloc(stream->bytes, CST_FRAME_HEADER_BYTES + max_body);

    if (bytes == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for messages of %zu bytes", max_body);
    }
    stream->bytes = bytes;
    stream->max_body = max_body;
    stream->n = 0;
    stream->wanted = CST_FRAME_HEADER_BYTES;
    return CST_OK;
}

void cstd_frame_stream_close(struct cstd_frame_stream *stream)
{
    free(stream->bytes);
    *stream = (struct cstd_frame_stream){.bytes = NULL};
}

uint8_t *cstd_frame_stream_next(struct cstd_frame_stream *stream, size_t *n)
{
    *n = stream->wanted - stream->n;
    return stream->bytes + stream->n;
}

int cstd_frame_stream_take(struct cstd_frame_stream *stream, size_t n, struct cst_frame *out,
                           struct cst_err *err)
{
    stream->n += n;
    if (stream->n == CST_FRAME_HEADER_BYTES && stream->wanted == CST_FRAME_HEADER_BYTES) {
        const int rc = cst_frame_length(stream->bytes, &stream->wanted, err);

        if (rc != CST_OK) {
            return rc;
        }
        if (stream->wanted - CST_FRAME_HEADER_BYTES > stream->max_body) {
            return cst_err_set(err, CST_EPROTO, "header says a body of %zu bytes, limit %zu",
                               stream->wanted - CST_FRAME_HEADER_BYTES, stream->max_body);
        }
    }
    if (stream->n < stream->wanted) {
        return CST_EAGAIN;
    }
    n = stream->n;
    stream->n = 0;
    stream->wanted = CST_FRAME_HEADER_BYTES;
    return cst_frame_parse(stream->bytes, n, 0, out, err);
}

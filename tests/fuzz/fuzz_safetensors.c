/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a safetensors file: refused in one line, or read, and then every tensor is found, its bytes there. */
#include "io/safetensors.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    lf_safetensors st;
    lf_diag d = {{0}};
    if (lf_safetensors_read(bytes, n, "w.safetensors", &st, &d) != LF_OK) {
        assert(d.text[0] && !strchr(d.text, '\n'));
        assert(!st.tensors && st.count == 0);
        return 0;
    }
    size_t total = 0;
    for (size_t i = 0; i < st.count; i++) {
        const lf_tensor_view *t = &st.tensors[i];
        assert(lf_safetensors_find(&st, t->name) == t);
        assert((const uint8_t *)t->data >= bytes && t->size <= (size_t)(bytes + n - (const uint8_t *)t->data));
        total += t->size;
        /* At least a byte, so that a tensor of none has somewhere to go. */
        float *out = t->count <= (int64_t)n * 2 ? malloc((size_t)t->count * sizeof *out + 1) : NULL;
        if (out && lf_tensor_read(t, LF_F32, out, &d) != LF_OK)
            assert(d.text[0] && !strchr(d.text, '\n'));
        free(out);
    }
    assert(total <= n);
    lf_safetensors_free(&st);
    return 0;
}

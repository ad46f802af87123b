/* SPDX-License-Identifier: Apache-2.0 */
/* The table KERN_ISA of what the headers before hold; OWN(function): one that another table of the file has otherwise.
 * Included by kern_template.h, and once more by a file that has two tables. */
const lf_kern PASTE(lf_kern_, KERN_ISA) = {
    .isa = TEXT(KERN_ISA),
    .usable = OWN(usable),
    .nr = KERN_NR,
    .mr = KERN_MR,
    .x_floats = OWN(x_floats),
#if HAS_PAIRS
    .has_pairs = OWN(has_pairs),
#endif
    .w_type = W_TYPES,
    .w_floats = w_floats,
    .pack_x = OWN(pack_x),
    .pack_w = pack_w,
    .multiply = OWN(multiply),
    .dots = dots,
    .map = {
#define LF_OP(name, kind, ...) [LF_OP_##name] = MAP_OF_##kind(name),
#include "ir/ops.def"
#undef LF_OP
    },
    .map_one = {
#define LF_OP(name, kind, ...) [LF_OP_##name] = MAP_ONE_OF_##kind(name),
#include "ir/ops.def"
#undef LF_OP
    },
    .mul_add = mul_then_add,
    .spread = spread,
    .stream = stream_strip,
    .stream_end = stream_end,
    .all_finite = all_finite,
    .load = {
#define LF_DTYPE(name, id, bits, use, npy) [LF_##id] = LOAD_OF_##use(name),
#include "base/dtypes.def"
#undef LF_DTYPE
    },
    .store = {
#define LF_DTYPE(name, id, bits, use, npy) [LF_##id] = STORE_OF_##use(name),
#include "base/dtypes.def"
#undef LF_DTYPE
    },
    .window = {
#define LF_MONOID(name, states, ...) [LF_MONOID_##name] = WINDOW_OF_##states(name),
#include "ir/monoids.def"
#undef LF_MONOID
    },
    .fold = {
#define LF_MONOID(name, ...) [LF_MONOID_##name] = fold_rows_##name,
#include "ir/monoids.def"
#undef LF_MONOID
    },
    .fold_exps = fold_exps,
    .put = {
#define LF_MONOID(name, ...) [LF_MONOID_##name] = put_##name,
#include "ir/monoids.def"
#undef LF_MONOID
    },
};

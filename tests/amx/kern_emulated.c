/* SPDX-License-Identifier: Apache-2.0 */
/* The library's AVX-512 kernels once more, with emulated tiles: in a program with this file, the table amx is theirs,
 * on any machine that has AVX-512. */
#define KERN_TILE_UNIT "amx/tile_unit.h"
#include "amx/tile_emulation.h" /* before kern_math.h takes fabs for itself */
#include "cpu/kern_avx512.c"

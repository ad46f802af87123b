/* SPDX-License-Identifier: Apache-2.0 */
/* Emulated tiles in place of the unit's: included by cpu/kern_tile_unit.h. */
#include "amx/tile_emulation.h"

#define tile_usable() true
#define tile_begin emulated_begin
#define tile_end emulated_end
#define tile_zero emulated_zero
#define tile_load emulated_load
#define tile_store emulated_store
#define tile_dot_bf16 emulated_dot_bf16

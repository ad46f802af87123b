/* SPDX-License-Identifier: Apache-2.0 */
/* Right on any machine: four lanes are what every 64-bit machine has, and the compiler takes them apart where one
 * has not. Compiled without contraction: multiply and add round each by itself. */
#define KERN_ISA scalar
#define KERN_LANES 4
#define KERN_MR 4
#define KERN_NV 2
#define KERN_USABLE true
#include "cpu/kern_template.h"

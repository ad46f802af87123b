/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"
#include "cli/report.h"

int cli_emit(const cli_options *o)
{
    (void)o;
    return cli_fail("emit comes with the GPU backend, which this version does not have yet");
}

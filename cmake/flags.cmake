# SPDX-License-Identifier: Apache-2.0
# linfuse_flags: what every file of the project is compiled with. Not installed, not seen by users of the library.
add_library(linfuse_flags INTERFACE)
target_compile_definitions(linfuse_flags INTERFACE _POSIX_C_SOURCE=200809L)
target_compile_options(linfuse_flags INTERFACE
    -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Werror
    -fvisibility=hidden
    # x * y + z is fused only where a kernel's file says so: the same source gives the same bits on every machine.
    -ffp-contract=off)

if(LINFUSE_SANITIZE)
    set(sanitize -fsanitize=${LINFUSE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    add_compile_options(${sanitize})
    add_link_options(${sanitize})
endif()
if(LINFUSE_FUZZ)
    if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
        message(FATAL_ERROR "the fuzz targets need clang (libFuzzer); configure with: cmake --preset fuzz")
    endif()
    add_compile_options(-fsanitize=fuzzer-no-link)
endif()

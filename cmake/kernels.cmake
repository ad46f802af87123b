# SPDX-License-Identifier: Apache-2.0
# One file per instruction set, each compiled for its own; which one runs is chosen at run time.
# None lets the compiler fuse a multiplication and an addition where it sees fit: it may fuse them in one loop
# and not in another, and a number's bits would depend on which of the two it came through. Kernels ask for it
# by name (kern_vec.h).
set(kernels_x86_64 kern_avx2.c kern_avx512.c)
set(kernels_aarch64 kern_neon.c)
set(flags_kern_avx2.c -mavx2 -mfma -mf16c)
set(flags_kern_avx512.c -mavx512f -mavx512dq -mavx512vl -mfma -mprefer-vector-width=512)
set(flags_kern_neon.c)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    set(kernels ${kernels_x86_64})
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    set(kernels ${kernels_aarch64})
else()
    set(kernels)
endif()

foreach(kernel ${kernels_x86_64} ${kernels_aarch64})
    set(path ${PROJECT_SOURCE_DIR}/src/cpu/${kernel})
    if(kernel IN_LIST kernels)
        set_source_files_properties(${path} PROPERTIES COMPILE_OPTIONS "${flags_${kernel}}")
    else()
        list(REMOVE_ITEM sources ${path})
    endif()
endforeach()
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/cpu/kern_scalar.c PROPERTIES
    COMPILE_OPTIONS "$<$<CONFIG:Release,RelWithDebInfo>:-O3>")

# The fuzz targets read files; no kernel is among what they reach, and instrumenting them takes clang minutes.
if(LINFUSE_FUZZ)
    foreach(kernel scalar avx2 avx512 neon)
        set_property(SOURCE ${PROJECT_SOURCE_DIR}/src/cpu/kern_${kernel}.c APPEND PROPERTY
            COMPILE_OPTIONS -fno-sanitize=all)
    endforeach()
endif()

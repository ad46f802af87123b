# SPDX-License-Identifier: Apache-2.0
# One file per instruction set, each compiled for its own; which one runs is chosen at run time.
# Kernels may fuse multiply and add, the scalar one, which every other is compared with, may not.
set(kernels_x86_64 kern_avx2.c kern_avx512.c)
set(kernels_aarch64 kern_neon.c)
set(flags_kern_avx2.c -mavx2 -mfma -ffp-contract=fast)
set(flags_kern_avx512.c -mavx512f -mavx512dq -mavx512vl -mfma -mprefer-vector-width=512 -ffp-contract=fast)
set(flags_kern_neon.c -ffp-contract=fast)

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
    COMPILE_OPTIONS "$<$<CONFIG:Release,RelWithDebInfo>:-O3>;-ffp-contract=off")

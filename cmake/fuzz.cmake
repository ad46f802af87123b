# SPDX-License-Identifier: Apache-2.0
# tests/fuzz/fuzz_NAME.c with its corpus tests/fuzz/corpus_NAME: a libFuzzer program each, run for a while by ctest.
# What it finds that is new stays in the build folder; what breaks it lies there as fuzz_NAME.crash-*.
file(GLOB fuzz_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/fuzz/fuzz_*.c)
math(EXPR fuzz_timeout "${LINFUSE_FUZZ_SECONDS} + 120")
foreach(source IN LISTS fuzz_sources)
    get_filename_component(target ${source} NAME_WE)
    string(REGEX REPLACE "^fuzz_" "" name ${target})
    add_executable(${target} ${source})
    set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS -Wno-missing-prototypes) # libFuzzer has no header
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(${target} PRIVATE linfuse_flags linfuse_static m)
    target_link_options(${target} PRIVATE -fsanitize=fuzzer)
    set(found ${CMAKE_CURRENT_BINARY_DIR}/found_${name})
    file(MAKE_DIRECTORY ${found})
    set(corpus ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus_${name})
    if(NOT IS_DIRECTORY ${corpus})
        message(FATAL_ERROR "tests/fuzz/${target}.c has no corpus: tests/fuzz/corpus_${name} is not there")
    endif()
    test(${target} fuzz $<TARGET_FILE:${target}> -max_total_time=${LINFUSE_FUZZ_SECONDS} -seed=${LINFUSE_FUZZ_SEED}
        -timeout=10 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1
        -artifact_prefix=${CMAKE_CURRENT_BINARY_DIR}/${target}. ${found} ${corpus})
    set_tests_properties(${target} PROPERTIES TIMEOUT ${fuzz_timeout})
endforeach()

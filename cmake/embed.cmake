# SPDX-License-Identifier: Apache-2.0
# The fixed parts of generated kernels stand in src/cuda/text as CUDA C that editors understand, and the style of the
# account's page in src/run/page.css; each becomes a string, lf_text_NAME. Run as a script to write one (SOURCE, NAME,
# OUT), included to have them all written and added to `sources`.
if(CMAKE_SCRIPT_MODE_FILE)
    file(READ ${SOURCE} hex HEX)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
    file(WRITE ${OUT} "extern const char lf_text_${NAME}[];\nconst char lf_text_${NAME}[] = {${bytes}0};\n")
    return()
endif()

file(GLOB texts CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/text/*.cu
    ${PROJECT_SOURCE_DIR}/src/run/*.css)
foreach(text IN LISTS texts)
    get_filename_component(name ${text} NAME_WE)
    set(out ${PROJECT_BINARY_DIR}/text_${name}.c)
    add_custom_command(OUTPUT ${out} DEPENDS ${text} ${CMAKE_CURRENT_LIST_FILE}
        COMMAND ${CMAKE_COMMAND} -DSOURCE=${text} -DNAME=${name} -DOUT=${out} -P ${CMAKE_CURRENT_LIST_FILE} VERBATIM)
    list(APPEND sources ${out})
endforeach()

# SPDX-License-Identifier: Apache-2.0
# The wheel (pyproject.toml sets LINFUSE_WHEEL): liblinfuse.so and the shortcut (python/shortcut.c) beside the Python
# modules, and the command among the environment's scripts. All run where there is no jansson. The command has it linked
# in from libjansson.a. So has the library where that archive can go into a shared library; Debian's cannot (it was
# compiled for programs), and then libjansson.so.4 lies beside ours.
include(CheckCSourceCompiles)
include(CheckLinkerFlag)

# What is linked in is ours and nobody else's: another jansson in the process stays apart. (zig's linker has neither
# flag: tools/wheel gives it an archive whose functions are hidden, and it refuses text relocations anyway.)
set(jansson_hidden)
foreach(flag -Wl,--exclude-libs,libjansson.a -Wl,-z,text)
    string(MAKE_C_IDENTIFIER linker_has${flag} found)
    check_linker_flag(C ${flag} ${found})
    if(${found})
        list(APPEND jansson_hidden ${flag})
    endif()
endforeach()
find_library(JANSSON_ARCHIVE libjansson.a HINTS ${JANSSON_LIBRARY_DIRS} ${JANSSON_LIBDIR})
if(JANSSON_ARCHIVE)
    set(CMAKE_REQUIRED_INCLUDES ${JANSSON_INCLUDE_DIRS})
    set(CMAKE_REQUIRED_LIBRARIES ${JANSSON_ARCHIVE})
    set(CMAKE_REQUIRED_FLAGS -fPIC)
    set(CMAKE_REQUIRED_LINK_OPTIONS -shared ${jansson_hidden})
    check_c_source_compiles("#include <jansson.h>
        char *text(const char *json);
        char *text(const char *json) { return json_dumps(json_loads(json, 0, 0), 0); }" JANSSON_ARCHIVE_FITS)
endif()

add_library(wheel_jansson INTERFACE)
add_library(wheel_jansson_static INTERFACE)
foreach(target wheel_jansson wheel_jansson_static)
    target_include_directories(${target} INTERFACE ${JANSSON_INCLUDE_DIRS})
endforeach()
target_link_libraries(wheel_jansson_static INTERFACE ${JANSSON_ARCHIVE})
if(JANSSON_ARCHIVE_FITS)
    target_link_libraries(wheel_jansson INTERFACE ${JANSSON_ARCHIVE})
    target_link_options(wheel_jansson INTERFACE ${jansson_hidden})
else()
    find_library(JANSSON_SHARED jansson REQUIRED HINTS ${JANSSON_LIBRARY_DIRS} ${JANSSON_LIBDIR})
    file(REAL_PATH ${JANSSON_SHARED} jansson_file)
    message(STATUS "${jansson_file} goes into the wheel")
    target_link_libraries(wheel_jansson INTERFACE ${JANSSON_SHARED})
    set(CMAKE_INSTALL_RPATH $ORIGIN)
    install(FILES ${jansson_file} DESTINATION . COMPONENT wheel RENAME libjansson.so.4) # its soname since 2.0
endif()
set(jansson wheel_jansson)
set(jansson_static wheel_jansson_static)

# Its licence (MIT) wants to be where it is.
find_file(JANSSON_LICENCE NAMES libjansson4/copyright libjansson-dev/copyright jansson/LICENSE
    HINTS ${JANSSON_PREFIX}/share/licenses PATHS /usr/share/doc /usr/share/licenses)
if(JANSSON_LICENCE)
    install(FILES ${JANSSON_LICENCE} DESTINATION . COMPONENT wheel RENAME jansson.LICENSE)
endif()

# wheel_install(): what goes into the wheel. A wheel holds no symbolic links: no version in the file's name.
function(wheel_install)
    set_target_properties(linfuse PROPERTIES VERSION "" SOVERSION "" NO_SONAME ON)
    install(TARGETS linfuse linfuse_shortcut LIBRARY DESTINATION . COMPONENT wheel)
    if(JANSSON_ARCHIVE AND SKBUILD_SCRIPTS_DIR)
        set_target_properties(linfuse_command PROPERTIES INSTALL_RPATH "")
        install(TARGETS linfuse_command RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT wheel)
    endif()
endfunction()

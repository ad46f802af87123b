# SPDX-License-Identifier: Apache-2.0
# What `make install` leaves: headers, both libraries, the command (see CMakeLists.txt), linfuse.pc, the CMake package.
# Nothing in them names the prefix: an installed tree can be moved.
include(CMakePackageConfigHelpers)

install(FILES include/linfuse.h include/linfuse_tools.h TYPE INCLUDE)

# The static library's own needs (jansson) are asked for only where it is used: hence two export sets.
install(TARGETS linfuse EXPORT linfuseTargets LIBRARY)
install(TARGETS linfuse_static EXPORT linfuseStaticTargets ARCHIVE)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/linfuse)
install(EXPORT linfuseTargets NAMESPACE linfuse:: DESTINATION ${package_dir})
install(EXPORT linfuseStaticTargets NAMESPACE linfuse:: DESTINATION ${package_dir})

configure_package_config_file(cmake/linfuseConfig.cmake.in linfuseConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(linfuseConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/linfuseConfig.cmake ${PROJECT_BINARY_DIR}/linfuseConfigVersion.cmake
    DESTINATION ${package_dir})

file(RELATIVE_PATH pc_to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" pc_to_prefix "${pc_to_prefix}")
configure_file(cmake/linfuse.pc.in linfuse.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/linfuse.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

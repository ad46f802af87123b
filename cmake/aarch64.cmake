# SPDX-License-Identifier: Apache-2.0
# Cross-compiles for 64-bit Arm with the distribution's compiler; tests run under qemu's user emulation.
# jansson and cmocka for Arm lie in build/aarch64-root, where `tools/setup cross` unpacks them.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)

set(arm_root ${CMAKE_CURRENT_LIST_DIR}/../build/aarch64-root)
get_filename_component(arm_root ${arm_root} ABSOLUTE)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${arm_root})
set(ENV{PKG_CONFIG_LIBDIR} ${arm_root}/usr/lib/aarch64-linux-gnu/pkgconfig:${arm_root}/usr/share/pkgconfig)

find_program(QEMU_AARCH64 NAMES qemu-aarch64 qemu-aarch64-static)
if(QEMU_AARCH64)
    set(CMAKE_CROSSCOMPILING_EMULATOR ${QEMU_AARCH64} -L /usr/aarch64-linux-gnu)
endif()

# SPDX-License-Identifier: Apache-2.0
# Compiles for Linux of another machine or an older glibc, with zig's clang. tools/wheel sets what it reads:
# LINFUSE_ZIG (the program), LINFUSE_ARCH (x86_64 or aarch64), LINFUSE_GLIBC (2.17).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR $ENV{LINFUSE_ARCH})
set(zig $ENV{LINFUSE_ZIG})
set(CMAKE_C_COMPILER ${zig} cc -target $ENV{LINFUSE_ARCH}-linux-gnu.$ENV{LINFUSE_GLIBC})
set(CMAKE_EXE_LINKER_FLAGS_INIT -s) # this machine's strip may not know the other's files
set(CMAKE_SHARED_LINKER_FLAGS_INIT -s)
set(CMAKE_MODULE_LINKER_FLAGS_INIT -s)
# (ar and ranlib are words of zig's)
set(CMAKE_C_ARCHIVE_CREATE "${zig} ar qc <TARGET> <LINK_FLAGS> <OBJECTS>")
set(CMAKE_C_ARCHIVE_APPEND "${zig} ar q <TARGET> <LINK_FLAGS> <OBJECTS>")
set(CMAKE_C_ARCHIVE_FINISH "${zig} ranlib <TARGET>")

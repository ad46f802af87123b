#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh BUILD CC: installs BUILD into a folder of its own, moves it, and uses it as an outsider would: by pkg-config
# (shared and static) and by find_package. Then looks at what the libraries export.
set -eu
build=$1
cc=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/moved

fail() { echo "install: $*" >&2; exit 1; }
cases=0
# check NAME PROGRAM shared|static: runs it, and sees that it is linked the way it should be
check()
{
    "$2" || fail "$1: the program's check did not hold"
    if readelf -d "$2" | grep -q 'NEEDED.*liblinfuse'; then linked=shared; else linked=static; fi
    [ $linked = "$3" ] || fail "$1: linked $linked, not $3"
    echo "ok: $1"
    cases=$((cases + 1))
}

unset DESTDIR
cmake --install "$build" --prefix "$work/prefix" >"$work/log" || { cat "$work/log"; fail "cmake --install"; }
mv "$work/prefix" "$prefix"
libdir=$(dirname "$(find "$prefix" -name liblinfuse.so)")
PKG_CONFIG_PATH=$libdir/pkgconfig
LD_LIBRARY_PATH=$libdir
export PKG_CONFIG_PATH LD_LIBRARY_PATH

# The flags are lists of words.
# shellcheck disable=SC2046
{
    "$cc" -std=c11 -Wall -Wextra -Werror "$here/consumer.c" -o "$work/shared" $(pkg-config --cflags --libs linfuse)
    check "pkg-config, shared" "$work/shared" shared

    # The linker prefers a shared library that lies beside the static one.
    mkdir "$work/aside"
    mv "$libdir"/liblinfuse.so* "$work/aside"
    "$cc" -std=c11 "$here/consumer.c" -o "$work/static" $(pkg-config --static --cflags --libs linfuse)
    check "pkg-config, static" "$work/static" static
    mv "$work/aside"/* "$libdir"

    if command -v c++ >/dev/null; then
        echo '#include <linfuse_tools.h>
        int main() { return lf_version() == nullptr; }' >"$work/header.cpp"
        c++ -std=c++11 -Wall -Wextra -Werror "$work/header.cpp" -o "$work/header" $(pkg-config --cflags --libs linfuse)
        check "the headers in C++" "$work/header" shared
    fi
}

cmake -S "$here" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" >"$work/log" 2>&1 &&
    cmake --build "$work/cmake" >>"$work/log" 2>&1 || { cat "$work/log"; fail "find_package"; }
check "find_package, linfuse::linfuse" "$work/cmake/consumer_shared" shared
check "find_package, linfuse::linfuse_static" "$work/cmake/consumer_static" static

"$prefix/bin/linfuse" ops >/dev/null || fail "the installed command does not run"

# Outside the library only lf_* is seen, and all of the headers' is.
names() { sed -n 's/^[0-9a-f]* [A-Z] //p' | sort -u; }
nm -D --defined-only "$libdir/liblinfuse.so" | names >"$work/exported"
nm -g --defined-only "$libdir/liblinfuse.a" 2>/dev/null | names >"$work/archived"
grep -oh '\blf_[a-z0-9_]*(' "$prefix"/include/linfuse*.h | tr -d '(' | sort -u >"$work/declared"
[ -s "$work/declared" ] || fail "no function found in the headers"
for list in exported archived; do
    ! grep -v '^lf_' "$work/$list" || fail "$list, but not lf_*: see above"
done
comm -3 "$work/declared" "$work/exported" >"$work/apart"
[ ! -s "$work/apart" ] || { cat "$work/apart"; fail "declared only (left) or exported only (right): see above"; }
echo "ok: exports are the headers' $(wc -l <"$work/declared") functions"

! grep -rlF "$work" "$prefix" || fail "installed files name the folder they were installed to: see above"
echo "$cases programs built and run"

# SPDX-License-Identifier: Apache-2.0
# Debian's systems and sources, for scripts in bash: . tools/debian.sh

# The package mirror: what apt's first source says. A mirror is not a fact of this project.
debian_mirror()
{
    apt-get indextargets --format '$(REPO_URI)' | sort -u | grep -v security | head -n 1
}

# debian_source PACKAGE FOLDER: unpacks the release that this machine's Debian or Ubuntu has, as its authors published
# it, into FOLDER. apt looks it up with lists of its own: the system's sources stay as they are.
debian_source()
{
    local package=$1 folder state
    folder=$(realpath -m "$2")
    command -v apt-get >/dev/null || { echo "linfuse: no apt-get, which brings the source of $1" >&2; return 1; }
    rm -rf "$folder"
    mkdir -p "$folder"
    state=$(mktemp -d)
    mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
    : >"$state/status"
    echo "deb-src $(debian_mirror) $(. /etc/os-release && echo "$VERSION_CODENAME") main" >"$state/sources.list"
    local apt=(apt-get -qq -o Dir::State="$state" -o Dir::State::status="$state/status" -o Dir::Cache="$state/cache"
        -o Dir::Etc::sourcelist="$state/sources.list" -o Dir::Etc::sourceparts=- -o APT::Sandbox::User=)
    (cd "$state" && "${apt[@]}" update && "${apt[@]}" source --download-only "$package") >"$state/log" 2>&1 || {
        tail -n 5 "$state/log" >&2
        rm -rf "$state"
        return 1
    }
    tar -xf "$(find "$state" -name '*.orig.tar.*' ! -name '*.asc')" -C "$folder" --strip-components=1
    rm -rf "$state"
}

# Whoever makes systems needs these.
debian_can_make_systems()
{
    [ "$(id -u)" = 0 ] || { echo "linfuse: a chroot is made, which root may do" >&2; return 1; }
    command -v debootstrap >/dev/null || { echo "linfuse: please install first: debootstrap" >&2; return 1; }
}

# debian_system SUITE FOLDER OPTION...: a minimal system of that release, made anew, by debootstrap with these options.
debian_system()
{
    local suite=$1 folder=$2
    shift 2
    if mountpoint -q "$folder/proc"; then
        echo "linfuse: $folder is in use by another run" >&2
        return 1
    fi
    rm -rf "$folder"
    mkdir -p "$folder"
    debootstrap --variant=minbase "$@" "$suite" "$folder" "$(debian_mirror)" >"$folder.log" 2>&1 || {
        tail -n 20 "$folder.log" >&2
        return 1
    }
}

# debian_mount FOLDER: /proc and /dev/shm of a system there, until this script ends.
mounted=()
debian_unmount() { for ((i = ${#mounted[@]} - 1; i >= 0; i--)); do umount "${mounted[i]}"; done; }
trap debian_unmount EXIT
debian_mount()
{
    mount -t proc proc "$1/proc" && mounted+=("$1/proc")
    mount -t tmpfs tmpfs "$1/dev/shm" && mounted+=("$1/dev/shm")
}

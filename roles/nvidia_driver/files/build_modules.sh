# build_modules.sh [HEADERS...]: builds NVIDIA's DKMS module for the running and the newest kernel, and those of these header
# packages, if they have none. A host with two flavours may start another kernel next than the newest.
# DKMS builds when a kernel, its headers or the module arrives. It skips a kernel without headers, and does not come back.
# It does not write to disk what it has installed: after a power failure, a file may be empty, which DKMS counts as installed.
# What does not build is left to the check driver.module_built, and the kernel guard keeps the kernel from being the default.
set -euo pipefail
root=${ROOT:-}
# The kernel has modules of its own whose names begin with nvidia.
module='.*/nvidia\(-current\|-tesla[^/]*\|-legacy[^/]*\)?'
has_driver() { # KERNEL: whether it has the driver's module, and each module of the driver is whole
  local found
  [ -n "$(find "$root/lib/modules/$1" -regex "$module"'\.ko\(\.[a-z]+\)?' -print -quit)" ] || return 1
  while read -r found; do
    modinfo "$found" >/dev/null 2>&1 || return 1
  done < <(find "$root/lib/modules/$1" -regex "$module"'\(-uvm\|-modeset\|-drm\|-peermem\)?\.ko\(\.[a-z]+\)?')
}

# Copies of images lie beside them (.dpkg-new, .old): a kernel has modules of its name.
newest=$({ find "$root/boot" -maxdepth 1 -name 'vmlinuz-*' 2>/dev/null || true; } | sed 's/.*vmlinuz-//' | sort -V |
  while read -r name; do [ ! -d "$root/lib/modules/$name" ] || echo "$name"; done | tail -n 1)
for kernel in $(printf '%s\n' "$(uname -r)" "$newest" "$@" | sed -E 's/^(linux-headers|kernel-devel)-//' | sort -u); do
  [ -e "$root/lib/modules/$kernel/build/include" ] || continue
  ! has_driver "$kernel" || continue
  for source in "$root"/var/lib/dkms/nvidia*/*/source; do
    [ -e "$source" ] || continue
    IFS=/ read -r name version _ <<<"${source#"$root"/var/lib/dkms/}"
    [ "$name" != nvidia-fs ] || continue
    # Without --force, DKMS skips what it has built or installed before, and succeeds.
    if dkms build -m "$name" -v "$version" -k "$kernel" --force &&
      dkms install -m "$name" -v "$version" -k "$kernel" --force && has_driver "$kernel"; then
      echo "built $name/$version for $kernel"
    else
      echo "DKMS did not build $name/$version for $kernel"
    fi
  done
done

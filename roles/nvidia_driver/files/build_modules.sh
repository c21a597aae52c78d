# build_modules.sh [HEADERS...]: builds NVIDIA's DKMS module for the running and the newest kernel, and those of these header
# packages, if they have none. A host with two flavours may start another kernel next than the newest.
# DKMS builds when a kernel, its headers or the module arrives. It skips a kernel without headers, and does not come back.
# What does not build is left to the check driver.module_built, and the kernel guard keeps the kernel from being the default.
set -euo pipefail
root=${ROOT:-}
# The kernel has modules of its own whose names begin with nvidia.
module='.*/nvidia\(-current\|-tesla[^/]*\|-legacy[^/]*\)?\.ko\(\.[a-z]+\)?'

newest=$({ find "$root/boot" -maxdepth 1 -name 'vmlinuz-*' ! -name '*.dpkg-*' 2>/dev/null || true; } | sed 's/.*vmlinuz-//' | sort -V | tail -n 1)
for kernel in $(printf '%s\n' "$(uname -r)" "$newest" "${@#linux-headers-}" | sort -u); do
  [ -e "$root/lib/modules/$kernel/build/include" ] || continue
  [ -z "$(find "$root/lib/modules/$kernel" -regex "$module" -print -quit)" ] || continue
  for source in "$root"/var/lib/dkms/nvidia*/*/source; do
    [ -e "$source" ] || continue
    IFS=/ read -r name version _ <<<"${source#"$root"/var/lib/dkms/}"
    [ "$name" != nvidia-fs ] || continue
    if dkms install -m "$name" -v "$version" -k "$kernel"; then
      echo "built $name/$version for $kernel"
    else
      echo "DKMS did not build $name/$version for $kernel"
    fi
  done
done

# rebuild_initramfs.sh [BOOT [STAMP]]: rebuilds each initramfs that would load nouveau or nova_core.
# An image that contains both nouveau and its blacklist needs no rebuild. Reading an image takes a second or more, so the
# stamp file records the name, size and time of each checked image; only changed images are read again.
set -euo pipefail
boot=${1:-/boot}
stamp=${2:-/var/lib/gpuhost/initramfs-without-nouveau}

describe() { stat --format '%n %s %Y' "$1"; }
lists() { grep --count --quiet --extended-regexp "$1" <<<"$listing"; }

checked=""
for image in "$boot"/initrd.img-*; do
  [ -e "$image" ] || continue
  if ! grep --quiet --line-regexp --fixed-strings "$(describe "$image")" "$stamp" 2>/dev/null; then
    listing=$(lsinitramfs "$image")
    if lists '/(nouveau|nova[-_]core)[.]ko' && ! lists 'etc/modprobe[.]d/gpuhost-nouveau[.]conf$'; then
      update-initramfs -u -k "${image##*/initrd.img-}"
      echo "rebuilt $image"
    fi
  fi
  checked+="$(describe "$image")"$'\n'
done
if [ "$checked" != "$(cat "$stamp" 2>/dev/null || true)"$'\n' ]; then
  mkdir -p "$(dirname "$stamp")"
  printf '%s' "$checked" > "$stamp.part"
  mv "$stamp.part" "$stamp"
fi

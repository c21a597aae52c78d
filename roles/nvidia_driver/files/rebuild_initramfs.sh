# rebuild_initramfs.sh [BOOT [STAMP]]: rebuilds each initramfs that would load nouveau.
# An image that contains both nouveau and its blacklist is fine. Reading an image takes a second or more, so the stamp file
# records the name, size and time of each image that is fine; only changed images are read again.
set -euo pipefail
boot=${1:-/boot}
stamp=${2:-/var/lib/gpuhost/initramfs-without-nouveau}

described() { stat --format '%n %s %Y' "$1"; }
listed() { grep --count --quiet --extended-regexp "$1" <<<"$listing"; }

good=""
for image in "$boot"/initrd.img-*; do
  [ -e "$image" ] || continue
  if ! grep --quiet --line-regexp --fixed-strings "$(described "$image")" "$stamp" 2>/dev/null; then
    listing=$(lsinitramfs "$image")
    if listed '/nouveau[.]ko' && ! listed 'etc/modprobe[.]d/gpuhost-nouveau[.]conf$'; then
      update-initramfs -u -k "${image##*/initrd.img-}"
      echo "rebuilt $image"
    fi
  fi
  good+="$(described "$image")"$'\n'
done
if [ "$good" != "$(cat "$stamp" 2>/dev/null || true)"$'\n' ]; then
  mkdir -p "$(dirname "$stamp")"
  printf '%s' "$good" > "$stamp.part"
  mv "$stamp.part" "$stamp"
fi

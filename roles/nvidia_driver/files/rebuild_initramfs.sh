# rebuild_initramfs.sh [BOOT [STAMP]]: rebuilds each initramfs that would load nouveau or nova_core.
# An image that contains both nouveau and its blacklist needs no rebuild; dracut leaves nouveau out. One that cannot be read,
# as after a power failure, is rebuilt. Reading an image takes a second or more, so the stamp file records the name, size and
# time of each checked image; only changed images are read again.
# A host has initramfs-tools or dracut; the core package of the other one may be there, too.
set -euo pipefail
boot=${1:-/boot}
stamp=${2:-/var/lib/gpuhost/initramfs-without-nouveau}

has() { command -v "$1" >/dev/null; }
if has update-initramfs; then
  list=lsinitramfs
  has lsinitramfs || list=lsinitrd # update-initramfs of a distribution's dracut
  rebuild() { update-initramfs -u -k "$2"; }
elif has dracut; then
  list=lsinitrd
  rebuild() { dracut --quiet --force "$1" "$2"; }
else
  echo "This host has neither update-initramfs nor dracut: no initramfs can be rebuilt."
  exit 0
fi

describe() { stat --format '%n %s %Y' "$1"; }
lists() { grep --count --quiet --extended-regexp "$1" <<<"$listing"; }

checked=""
for image in "$boot"/initrd.img-* "$boot"/initramfs-*.img; do
  kernel=${image##*/initrd.img-}
  kernel=${kernel##*/initramfs-}
  kernel=${kernel%.img}
  # Others are copies: of DKMS before 3 (.old-dkms), of update-initramfs (.bak), or of an update that was killed (.new).
  [ -e "$image" ] && [ -e "$boot/vmlinuz-$kernel" ] || continue
  if ! grep --quiet --line-regexp --fixed-strings "$(describe "$image")" "$stamp" 2>/dev/null; then
    if ! listing=$("$list" "$image"); then
      rebuild "$image" "$kernel"
      echo "rebuilt $image (it could not be read)"
      listing=$("$list" "$image")
    fi
    if lists '/(nouveau|nova[-_]core)[.]ko' && ! lists 'etc/modprobe[.]d/gpuhost-nouveau[.]conf$'; then
      rebuild "$image" "$kernel"
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

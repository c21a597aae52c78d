# update_grub.sh [CHANGED]: has GRUB count the boots of a new kernel, if its configuration does not or the script for it has changed.
# A grub.cfg without update-grub is what a removed GRUB left: another boot loader starts this host, and the guard only warns.
set -euo pipefail
configuration=${ROOT:-}/boot/grub/grub.cfg

if ! command -v update-grub >/dev/null; then
  echo "GRUB is not installed: $configuration is left over"
elif [ -n "${1:-}" ] || ! grep -q gpuhost_entry "$configuration"; then
  update-grub
  echo "updated $configuration"
fi

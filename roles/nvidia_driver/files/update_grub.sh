# Has GRUB count the boots of a new kernel, if its configuration does not. A change of the script for it is an effect of its place.
# A grub.cfg without update-grub is what a removed GRUB left: another boot loader starts this host, and the guard only warns.
set -euo pipefail
configuration=${ROOT:-}/boot/grub/grub.cfg

if ! command -v update-grub >/dev/null; then
  echo "GRUB is not installed: $configuration is left over"
elif ! grep -q gpuhost_entry "$configuration"; then
  update-grub
  echo "updated $configuration"
fi

#!/bin/sh
# Keep a kernel update from taking the GPUs away. Managed by gpuhost (role nvidia_driver).
#
# apt, the installation of a kernel and each boot run this. The newest kernel is what GRUB boots by default. Without
# NVIDIA's module in the version of the running kernel's, it does not become the default: GRUB boots the running kernel
# instead. With the module it is booted `tries` times; the first boot in which the module loads makes it the default.
#
# GRUB's environment holds all state, and /etc/grub.d/07_gpuhost reads it: gpuhost_kernel is the newest kernel,
# gpuhost_tries its boots that are left, or no-module, gpuhost_entry the menu entry to boot when none is left.
# Messages go to the journal (journalctl -t gpuhost-kernel-guard). This never fails: apt would fail with it.
#
# kernel-guard [ROOT]; `kernel-guard --off` gives the choice back to GRUB.
tries=3
off=
[ "${1:-}" = --off ] && { off=yes; shift; }
root=${1:-}
config=$root/boot/grub/grub.cfg
environment=$root/boot/grub/grubenv

say() {
  echo "gpuhost: $2"
  logger -t gpuhost-kernel-guard -p "daemon.$1" -- "$2" 2>/dev/null || true
}

# The version of a kernel's module; nothing without one.
module_version() {
  module=$(find "$root/lib/modules/$1" -regex '.*/nvidia\(-current\|-tesla[^/]*\|-legacy[^/]*\)?\.ko\(\.[a-z]+\)?' 2>/dev/null |
    head -n 1)
  [ -z "$module" ] || modinfo -F version "$module" 2>/dev/null
}

get() { grub-editenv "$environment" list 2>/dev/null | sed -n "s/^$1=//p"; }

clear_state() {
  [ -z "$(get gpuhost_kernel)" ] || grub-editenv "$environment" unset gpuhost_kernel gpuhost_tries gpuhost_entry
}

# What GRUB boots: the newest kernel only if its default is the first entry.
default_is_newest() {
  entry=$(sed -n 's/^ *set default="\(.*\)"$/\1/p' "$config" | grep -v -e next_entry -e gpuhost_entry | head -n 1)
  # shellcheck disable=SC2016
  [ "$entry" != '${saved_entry}' ] || entry=$(get saved_entry)
  [ "${entry:-0}" = 0 ]
}

# The identifier of a kernel's menu entry, with that of its submenu.
entry_of() {
  awk -v kernel="gnulinux-$1-advanced-" '
    match($0, /menuentry_id_option .[^ ]+. *[{]/) {
      id = substr($0, RSTART, RLENGTH)
      sub(/^menuentry_id_option ./, "", id); sub(/. *[{]$/, "", id)
      if ($1 == "submenu") submenu = id
      else if (index(id, kernel) == 1) { print (/^[ \t]/ && submenu ? submenu ">" : "") id; exit }
    }' "$config"
}

# keep KERNEL TRIES: boot the running kernel after that many boots of KERNEL. Returns 1 where GRUB cannot do that.
keep() {
  entry=$(entry_of "$running")
  if [ -z "$entry" ] || ! grep -q gpuhost_entry "$config"; then
    say err "GRUB's configuration does not allow to keep kernel $running as the default (run update-grub)"
    return 1
  fi
  grub-editenv "$environment" set "gpuhost_kernel=$1" "gpuhost_tries=$2" "gpuhost_entry=$entry"
}

guard() {
  running=$(uname -r)
  newest=$(find "$root/boot" -maxdepth 1 -name 'vmlinuz-*' ! -name '*.dpkg-*' 2>/dev/null | sed 's/.*vmlinuz-//' | sort -V | tail -n 1)
  kernel=$(get gpuhost_kernel) left=$(get gpuhost_tries)
  loaded=$([ -e "$root/sys/module/nvidia" ] && echo yes)
  version=$(module_version "$running")
  grub=$([ -f "$config" ] && command -v grub-editenv >/dev/null && echo yes)

  if [ -z "$newest" ]; then
    : # a container, which boots no kernel
  elif [ "$running" = "$newest" ]; then
    if [ -n "$kernel" ] && [ -n "$loaded" ]; then
      clear_state
      say notice "kernel $running loads NVIDIA's module: it is the default now"
    elif [ "$kernel" = "$running" ]; then
      say err "kernel $running has not loaded NVIDIA's module; after $left more boots GRUB boots the kernel before it"
    fi
  elif [ -z "$version" ] || ! { [ -z "$grub" ] || default_is_newest; }; then
    clear_state # there is nothing to keep, or the operator has chosen the kernel
  elif [ "$(module_version "$newest")" != "$version" ]; then
    say warning "kernel $newest has no module of NVIDIA's driver $version (see: dkms status)"
    if [ -z "$grub" ]; then
      say warning "this host has no GRUB: check which kernel boots next"
    elif [ "$kernel/$left" = "$newest/no-module" ] || keep "$newest" no-module; then
      say warning "kernel $running stays the default until it has one"
    fi
  elif [ -z "$grub" ]; then
    :
  elif [ "$kernel" = "$newest" ] && [ "$left" = 0 ]; then
    say warning "kernel $newest was booted $tries times and did not load NVIDIA's module: kernel $running stays the default"
  elif [ "$kernel" != "$newest" ] || [ "$left" = no-module ]; then
    if ! grep -q 'save_env gpuhost_tries' "$config"; then
      clear_state
      say notice "kernel $newest is the default from the next boot on; GRUB cannot count boots on this file system"
    elif keep "$newest" "$tries"; then
      say notice "kernel $newest has $tries boots to load NVIDIA's module, then kernel $running is the default again"
    fi
  fi
}

if [ -n "$off" ]; then
  clear_state
else
  guard
fi
exit 0

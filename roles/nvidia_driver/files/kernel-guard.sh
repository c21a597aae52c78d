#!/bin/sh
# Keep a kernel update from taking the GPUs away. Managed by gpuhost (role nvidia_driver).
#
# apt, the installation of a kernel and each boot run this. What GRUB boots by default is the first entry of its menu,
# usually the newest kernel. Without NVIDIA's module in the version of the running kernel's, that one does not become the
# default: GRUB boots the running kernel instead (or, if that has no module either, the newest kernel that has one).
# With the module it is booted `tries` times; the first boot in which the module loads makes it the default.
#
# GRUB's environment holds all state, and /etc/grub.d/07_gpuhost reads it: gpuhost_kernel is the kernel of the first
# entry, gpuhost_tries its boots that are left, or no-module, gpuhost_entry the menu entry to boot when none is left.
# On Enterprise Linux, where each new kernel becomes the saved entry and GRUB does not read those, that entry is changed, too.
# Messages go to the journal (journalctl -t gpuhost-kernel-guard). This never fails: apt would fail with it.
#
# kernel-guard [ROOT]; `kernel-guard --off` gives the choice back to GRUB, `kernel-guard --next` says what boots next.
tries=3
option= broken=
case ${1:-} in --off | --next) option=$1; shift ;; esac
root=${1:-}
directory=$root/boot/grub editor=grub-editenv
if [ ! -f "$directory/grub.cfg" ] && [ -f "$root/boot/grub2/grub.cfg" ]; then
  directory=$root/boot/grub2 editor=grub2-editenv
fi
config=$directory/grub.cfg
environment=$directory/grubenv

say() {
  echo "gpuhost: $2"
  logger -t gpuhost-kernel-guard -p "daemon.$1" -- "$2" 2>/dev/null || true
}

# The version of a kernel's module; nothing without one. Of several, depmod selects the one in updates (DKMS's), then in ubuntu,
# then in kernel (prebuilt ones).
module_version() {
  module=$(find "$root/lib/modules/$1" -regex '.*/nvidia\(-current\|-tesla[^/]*\|-legacy[^/]*\)?\.ko\(\.[a-z]+\)?' 2>/dev/null |
    sort -r | head -n 1)
  [ -z "$module" ] || modinfo -F version "$module" 2>/dev/null
}

get() { "$editor" "$environment" list 2>/dev/null | sed -n "s/^$1=//p"; }

clear_state() {
  held=$(get gpuhost_kernel)
  [ -n "$held" ] || return 0
  entry=$(answer "entry of $held")
  if [ -n "$(answer files)" ] && [ -n "$entry" ] && [ "$(get saved_entry)" = "$(get gpuhost_entry)" ]; then
    "$editor" "$environment" set "saved_entry=$entry"
  fi
  "$editor" "$environment" unset gpuhost_kernel gpuhost_tries gpuhost_entry
}

# The kernels in /boot, oldest first; not copies: their names (.old, .efi.signed) go on after a release, and no modules have them.
kernels() {
  find "$root/boot" -maxdepth 1 -name 'vmlinuz-*' ! -name '*.dpkg-*' ! -name 'vmlinuz-0-rescue-*' 2>/dev/null | sed 's/.*vmlinuz-//' | sort -V |
    while read -r name; do
      release=$name
      [ -d "$root/lib/modules/$name" ] || while [ "$release" != "${release%.*}" ]; do
        release=${release%.*}
        if [ -e "$root/boot/vmlinuz-$release" ] || [ -d "$root/lib/modules/$release" ]; then continue 2; fi
      done
      echo "$name"
    done
}

# What grub.py reads from GRUB's configuration: next, default, first, selected, files, "entry of KERNEL".
answer() { printf '%s\n' "$answers" | sed -n "s/^$1=//p"; }

# The newest kernel with a module, but for one.
other_with_module() {
  kernels | sort -rV | while read -r name; do
    if [ "$name" != "$1" ] && [ -n "$(module_version "$name")" ]; then
      echo "$name"
      break
    fi
  done
}

# keep KERNEL TRIES: boot the kernel $safe after that many boots of KERNEL. Returns 1 where GRUB cannot do that.
keep() {
  entry=$(answer "entry of $safe")
  files=$(answer files)
  if [ -z "$entry" ] || { [ -z "$files" ] && ! grep -q gpuhost_entry "$config"; }; then
    say err "GRUB's configuration does not allow to keep kernel $safe as the default (run update-grub)"
    return 1
  fi
  [ "$kernel $left $(get gpuhost_entry)" = "$1 $2 $entry" ] ||
    "$editor" "$environment" set "gpuhost_kernel=$1" "gpuhost_tries=$2" "gpuhost_entry=$entry"
  [ -z "$files" ] || "$editor" "$environment" set "saved_entry=$entry"
}

guard() {
  running=$(uname -r)
  grub=$([ -f "$config" ] && command -v "$editor" >/dev/null && echo yes)
  chosen=$(answer default) default=$(answer first) selected=$(answer selected)
  kernel=$(get gpuhost_kernel) left=$(get gpuhost_tries)
  if [ -n "$(answer files)" ]; then
    # The newest kernel, not the first entry of the menu: other entries may have another identifier of the machine.
    default=$(kernels | tail -n 1)
    case $chosen in "$(answer "entry of $default")" | "$(get gpuhost_entry)") chosen=0 ;; esac
  fi
  loaded=$([ -e "$root/sys/module/nvidia" ] && echo yes)
  safe=$running version=$(module_version "$running")
  if [ -z "$version" ]; then
    safe=$(other_with_module "$default") version=
    [ -z "$safe" ] || version=$(module_version "$safe")
  fi

  if [ -z "$default" ]; then
    following=$(answer next) # nothing in a container, which boots no kernel
    case $following in unknown*) say warning "the kernel that boots next is $following" ;; esac
  elif [ -n "$grub" ] && [ "$chosen" != 0 ]; then
    clear_state # the operator has chosen the kernel
    if [ -n "$selected" ] && [ -n "$version" ] && [ "$(module_version "$selected")" != "$version" ]; then
      say warning "kernel $selected, which GRUB is set to start, has no module of NVIDIA's driver $version (see: dkms status)"
    fi
  elif [ "$running" = "$default" ] && [ -n "$loaded" ]; then
    if [ -n "$kernel" ]; then
      clear_state
      say notice "kernel $running loads NVIDIA's module: it is the default now"
    fi
  elif [ "$running" = "$default" ] && [ "$safe" = "$running" ]; then
    if [ "$kernel/$left" = "$running/no-module" ]; then
      clear_state
      say notice "kernel $running has NVIDIA's module now: it is the default"
    elif [ "$kernel" = "$running" ]; then
      say err "kernel $running has not loaded NVIDIA's module; after $left more boots GRUB boots the kernel before it"
    fi
  elif [ -z "$version" ]; then
    clear_state # there is nothing to keep
  elif [ "$(module_version "$default")" != "$version" ]; then
    say warning "kernel $default has no module of NVIDIA's driver $version (see: dkms status)"
    if [ -z "$grub" ]; then
      say warning "this host has no GRUB: check which kernel boots next"
    elif keep "$default" no-module; then
      say warning "kernel $safe stays the default until it has one"
    fi
  elif [ -z "$grub" ]; then
    :
  elif [ "$kernel" = "$default" ] && [ "$left" = 0 ]; then
    keep "$default" 0 && say warning "kernel $default was booted $tries times and did not load NVIDIA's module: kernel $safe stays the default"
  elif [ "$kernel" != "$default" ] || [ "$left" = no-module ]; then
    if ! grep -q 'save_env gpuhost_tries' "$config"; then
      clear_state
      say notice "kernel $default is the default from the next boot on; GRUB cannot count boots here"
    elif keep "$default" "$tries"; then
      say notice "kernel $default has $tries boots to load NVIDIA's module, then kernel $safe is the default again"
    fi
  else
    keep "$default" "$left"
  fi
}

# apt may be replacing Python just now; its end, and the next boot, run this again. Kernels have no spaces in their names.
# shellcheck disable=SC2046
answers=$(python3 -I -S "${0%/*}/grub.py" "$root" $(kernels) 2>&1) && [ -n "$(answer default)$(answer next)" ] || broken=yes

if [ "$option" = --off ]; then
  clear_state
  exit 0
fi

[ -z "$broken" ] || {
  said=$(printf '%s\n' "$answers" | grep '^[^ ].*\([Ee]rror\|not found\)' | tail -n 1)
  problem="GRUB's menu cannot be read: python3 does not run ${0%/*}/grub.py (${said:-no answer})"
  if [ "$option" = --next ]; then
    echo "unknown: $problem"
  else
    say warning "$problem. GRUB's choice stays as it is until this runs again, at the end of apt or at the next boot"
  fi
  exit 0
}

if [ "$option" = --next ]; then answer next; else guard; fi
exit 0

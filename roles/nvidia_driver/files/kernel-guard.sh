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
# Messages go to the journal (journalctl -t gpuhost-kernel-guard). This never fails: apt would fail with it.
#
# kernel-guard [ROOT]; `kernel-guard --off` gives the choice back to GRUB, `kernel-guard --next` says what boots next.
tries=3
option=
case ${1:-} in --off | --next) option=$1; shift ;; esac
root=${1:-}
config=$root/boot/grub/grub.cfg
environment=$root/boot/grub/grubenv

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

get() { grub-editenv "$environment" list 2>/dev/null | sed -n "s/^$1=//p"; }

clear_state() {
  [ -z "$(get gpuhost_kernel)" ] || grub-editenv "$environment" unset gpuhost_kernel gpuhost_tries gpuhost_entry
}

# The kernels in /boot, oldest first.
kernels() {
  find "$root/boot" -maxdepth 1 -name 'vmlinuz-*' ! -name '*.dpkg-*' 2>/dev/null | sed 's/.*vmlinuz-//' | sort -V
}

# The entries of GRUB's menu: index, identifier, title (each after those of its submenus, and the index is "?" where it
# depends on a condition of GRUB) and kernel, separated by tabs; > in place of the kernel is a submenu.
menu() {
  [ ! -f "$config" ] || awk '
    function title(line, quote) {
      match(line, /[\047"]/); quote = substr(line, RSTART, 1); line = substr(line, RSTART + 1)
      return substr(line, 1, index(line, quote) - 1)
    }
    function id(line) {
      if (!match(line, /menuentry_id_option .[^ ]+. *[{]$/)) return ""
      line = substr(line, RSTART, RLENGTH); sub(/^menuentry_id_option ./, "", line); sub(/. *[{]$/, "", line)
      return line
    }
    function put() { print places[level + 1] "\t" ids[level + 1] "\t" titles[level + 1] "\t" kernel }
    { line = $0; gsub(/^[ \t]+|[ \t]+$/, "", line) }
    line == "}" {
      if (block[depth] == "menuentry") put()
      if (block[depth] == "submenu") level--
      if (depth) depth--
      next
    }
    line ~ /[{]$/ {
      block[++depth] = $1
      if ($1 != "menuentry" && $1 != "submenu") next
      if (conditions[level]) uncertain[level] = 1
      places[level + 1] = (level ? places[level] ">" : "") (uncertain[level] ? "?" : count[level] + 0); count[level]++
      ids[level + 1] = (level ? ids[level] ">" : "") id(line)
      titles[level + 1] = (level ? titles[level] ">" : "") title(line)
      kernel = ""; foreign = id(line) ~ /^osprober-/
      if ($1 == "submenu") { kernel = ">"; put(); level++; count[level] = conditions[level] = uncertain[level] = 0 }
      next
    }
    block[depth] == "menuentry" {
      if ($1 ~ /^linux(efi|16)?$/ && kernel == "" && !foreign) { kernel = $2; sub(/.*vmlinuz-/, "", kernel) }
      next
    }
    $1 == "if" && line !~ /fi$/ { conditions[level]++ }
    $1 == "fi" { conditions[level]-- }
  ' "$config"
}

# GRUB's default, as the administrator has set it; 0 is the first entry, nothing: it is set to more than one.
chosen_entry() {
  [ -f "$config" ] || { echo 0; return; }
  # shellcheck disable=SC2016
  entry=$(sed -n 's/^[ \t]*set default="\{0,1\}\([^"]*\)"\{0,1\}[ \t]*$/\1/p' "$config" |
    grep -v -x -F -e '${next_entry}' -e '${gpuhost_entry}' | sort -u)
  [ "$(echo "$entry" | wc -l)" = 1 ] || return
  # shellcheck disable=SC2016
  [ "$entry" != '${saved_entry}' ] || entry=$(get saved_entry)
  echo "${entry:-0}"
}

# The kernel field of a menu entry, by the index, identifier or title on each level; returns 1 without such an entry.
menu_kernel() {
  menu | entry=$1 awk -F '\t' '
    BEGIN { levels = split(ENVIRON["entry"], part, ">") }
    {
      if (split($1, place, ">") != levels) next
      split($2, name, ">"); split($3, text, ">")
      for (n = 1; n <= levels; n++) {
        if (part[n] == "" || part[n] == "?") next
        if (part[n] "" != place[n] "" && part[n] "" != name[n] "" && part[n] "" != text[n] "") next
      }
      print $4; found = 1; exit
    }
    END { exit !found }'
}

# The kernel of a menu entry; nothing if no such entry boots a kernel in /boot.
kernel_of() {
  found=$(menu_kernel "$1")
  [ -z "$found" ] || [ ! -e "$root/boot/vmlinuz-$found" ] || echo "$found"
}

# The kernel that GRUB boots next, or "unknown: " and the reason. gpuhost's probe (host/grub.py) says the same.
next_boot() {
  newest=$(kernels | tail -n 1)
  if [ ! -f "$config" ] || [ -z "$newest" ]; then
    echo "$newest"
    return
  fi
  if [ -e "$root/boot/grub/custom.cfg" ] && grep -q 'custom\.cfg' "$config"; then
    echo "unknown: /boot/grub/custom.cfg may choose another entry of GRUB's menu"
    return
  fi
  entry=$(get next_entry)
  if [ -z "$entry" ] && [ -z "$(get prev_saved_entry)" ] && grep -q gpuhost_entry "$config"; then
    case $(get gpuhost_tries) in 1 | 2 | 3) ;; *) entry=$(get gpuhost_entry) ;; esac
  fi
  entry=${entry:-$(chosen_entry)}
  if [ -z "$entry" ]; then
    echo "unknown: grub.cfg sets GRUB's default to more than one entry"
  elif ! found=$(menu_kernel "$entry"); then
    echo "unknown: GRUB's menu has no entry $entry"
  elif [ "$found" = ">" ]; then
    echo "unknown: entry $entry of GRUB's menu is a submenu, which waits for a choice"
  elif [ -z "$found" ] || [ ! -e "$root/boot/vmlinuz-$found" ]; then
    echo "unknown: entry $entry of GRUB's menu boots no kernel in /boot"
  else
    echo "$found"
  fi
}

# The newest kernel with a module, but for one.
other_with_module() {
  kernels | sort -rV | while read -r name; do
    if [ "$name" != "$1" ] && [ -n "$(module_version "$name")" ]; then
      echo "$name"
      break
    fi
  done
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

# keep KERNEL TRIES: boot the kernel $safe after that many boots of KERNEL. Returns 1 where GRUB cannot do that.
keep() {
  entry=$(entry_of "$safe")
  if [ -z "$entry" ] || ! grep -q gpuhost_entry "$config"; then
    say err "GRUB's configuration does not allow to keep kernel $safe as the default (run update-grub)"
    return 1
  fi
  [ "$kernel $left $(get gpuhost_entry)" = "$1 $2 $entry" ] ||
    grub-editenv "$environment" set "gpuhost_kernel=$1" "gpuhost_tries=$2" "gpuhost_entry=$entry"
}

guard() {
  running=$(uname -r)
  grub=$([ -f "$config" ] && command -v grub-editenv >/dev/null && echo yes)
  chosen=$(chosen_entry)
  default=$(kernel_of 0)
  [ -f "$config" ] || default=$(kernels | tail -n 1)
  kernel=$(get gpuhost_kernel) left=$(get gpuhost_tries)
  loaded=$([ -e "$root/sys/module/nvidia" ] && echo yes)
  safe=$running version=$(module_version "$running")
  if [ -z "$version" ]; then
    safe=$(other_with_module "$default") version=
    [ -z "$safe" ] || version=$(module_version "$safe")
  fi

  if [ -z "$default" ]; then
    answer=$(next_boot) # nothing in a container, which boots no kernel
    case $answer in unknown*) say warning "the kernel that boots next is $answer" ;; esac
  elif [ -n "$grub" ] && [ "$chosen" != 0 ]; then
    clear_state # the operator has chosen the kernel
    selected=$(kernel_of "$chosen")
    if [ -n "$selected" ] && [ -n "$version" ] && [ "$(module_version "$selected")" != "$version" ]; then
      say warning "kernel $selected, which GRUB_DEFAULT selects, has no module of NVIDIA's driver $version (see: dkms status)"
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
      say notice "kernel $default is the default from the next boot on; GRUB cannot count boots on this file system"
    elif keep "$default" "$tries"; then
      say notice "kernel $default has $tries boots to load NVIDIA's module, then kernel $safe is the default again"
    fi
  else
    keep "$default" "$left"
  fi
}

case $option in
  --off) clear_state ;;
  --next) next_boot ;;
  *) guard ;;
esac
exit 0

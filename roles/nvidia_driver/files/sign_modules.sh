# sign_modules.sh CERTIFICATE [DKMS_TREE]: rebuilds NVIDIA's DKMS modules that were not signed with this certificate.
# modinfo shows the serial number of the certificate as sig_key. A kernel without headers keeps what it has: it is neither the
# running nor the next-boot one, whose headers are installed before.
set -euo pipefail
certificate=$1
tree=${2:-/var/lib/dkms}
root=${ROOT:-}

serial=$(openssl x509 -noout -serial -in "$certificate" 2>/dev/null || openssl x509 -inform DER -noout -serial -in "$certificate")
serial=${serial#*=}
foreign() { # DIRECTORY: prints the modules in it that are not signed with the certificate
  local module
  for module in "$1"/*.ko*; do
    [ -e "$module" ] || continue
    [ "$(modinfo -F sig_key "$module" | tr -d ':\n')" = "$serial" ] || printf '%s\n' "$module"
  done
}

status=0
for modules in "$tree"/nvidia*/*/*/*/module; do # NAME/VERSION/KERNEL/ARCHITECTURE
  [ -d "$modules" ] && [ ! -L "${modules%/*/*}" ] || continue
  [ -n "$(foreign "$modules")" ] || continue
  IFS=/ read -r name version kernel architecture _ <<<"${modules#"$tree"/}"
  if [ ! -e "$root/lib/modules/$kernel/build/include" ]; then
    echo "$name/$version for $kernel keeps its signature: the headers of that kernel are not installed"
    continue
  fi
  for step in build install; do
    dkms "$step" --force -m "$name" -v "$version" -k "$kernel" -a "$architecture"
  done
  wrong=$(foreign "$modules")
  if [ -n "$wrong" ]; then
    printf '%s\n' "Found other signatures than with serial number $serial after a rebuild: ${wrong//$'\n'/ }" \
      "$(dkms --version) may be older than 3.0.4, which signs with the host's key alone (NVIDIA's repository has a newer one)," \
      "or a file in /etc/dkms/framework.conf.d that sorts after zz-gpuhost-module-signing.conf names another key." >&2
    status=1
  else
    echo "rebuilt $name/$version for $kernel"
  fi
done
exit $status

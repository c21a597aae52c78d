# shellcheck shell=sh
# Sourced by the scripts whose arguments Python reads; $root is the checkout.

# read_arguments MODULE WORD...: end the script after --help, --version and wrong arguments, before it installs anything.
read_arguments() {
  python="$root/.venv/bin/python"
  [ -x "$python" ] || python=python3
  # With an older Python, or none, arguments are read by the one that script/bootstrap installs.
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || return 0
  status=0
  GPUHOST_ONLY_ARGUMENTS=1 PYTHONPATH="$root:$root/collections" "$python" -P -m "$@" || status=$?
  [ "$status" = 100 ] || exit "$status"
}

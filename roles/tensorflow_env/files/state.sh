# Says what is missing from the environment; sh, read from standard input, arguments: environment, its lock, uv's folder, Python.
# The environment's record (gpuhost.lock, gpuhost.freeze) is written last, so one without it was left half made.
environment="$1" lock="$2" uv="$3" python="$4"

if ! cmp -s "$uv.lock" "$uv/gpuhost.lock" || [ ! -x "$uv/bin/uv" ]; then
  echo "uv: missing, not complete or another version"
  exit 0
fi
echo "uv: ok"

if [ ! -x "$environment/bin/python" ]; then
  echo "environment: missing"
elif ! "$environment/bin/python" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$python')"; then
  echo "environment: not Python $python, or its interpreter is gone"
elif ! cmp -s "$lock" "$environment/gpuhost.lock"; then
  echo "environment: not complete, or made from another lock file"
elif ! "$uv/bin/uv" pip freeze --quiet --python "$environment/bin/python" | cmp -s - "$environment/gpuhost.freeze"; then
  echo "environment: packages were added, removed or changed"
else
  echo "environment: ok"
fi

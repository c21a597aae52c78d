#!/bin/sh
# Print everything that a run could change on a host. conftest.py and the tests of the scenarios read these sections.
set -eu
roots="/boot /opt /usr/bin /usr/lib /usr/local /usr/sbin /usr/share/keyrings /usr/src /var/lib/dkms /var/lib/gpuhost"
# Python's bytecode is written by whoever runs a module first.
# The applied plan is compared without its reasons, which say why the last run chose, or kept, what it has, and without the warning
# that the last run could not read the repository.
fact=/etc/ansible/facts.d/gpu_stack.fact
locks=/etc/dnf/plugins/versionlock.list  # without an order, as apt's holds
list() { find /etc $roots -xdev "$@" 2>/dev/null | grep -v -e __pycache__ -e "^$fact " | LC_ALL=C sort; }
if command -v dpkg-query > /dev/null; then
  echo "== packages"; dpkg-query -W -f '${Package} ${Version} ${Status}\n'; apt-mark showhold
  echo "== automatically installed"; apt-mark showauto
  echo "== repository lists"; ls /var/lib/apt/lists
else
  # Streams are files of /etc. A teardown leaves NVIDIA's key (scenario enterprise_linux).
  echo "== packages"; rpms="$(rpm -qa)"; echo "$rpms" | grep -v ^gpg-pubkey- | sort; LC_ALL=C sort "$locks"
  echo "== automatically installed"; reasons="$(dnf --quiet --cacheonly repoquery --installed --qf '%{name} %{reason}')"
  echo "$reasons" | grep -v ^gpg-pubkey | sort
  echo "== repository lists"; ls /var/cache/dnf
fi
echo "== /etc"; find /etc -xdev -type f ! -path "$fact" ! -path "$locks" -exec sha256sum {} + | sort -k 2
echo "== applied plan"
what_is_planned="import json, sys; plan = json.load(sys.stdin); del plan['reasons']
plan['warnings'] = [each for each in plan['warnings'] if each['code'] != 'repository-not-read']; print(json.dumps(plan, indent=1))"
test ! -e "$fact" || python3 -c "$what_is_planned" < "$fact"
# Small files alone: a toolkit has gigabytes, whose sizes are below.
echo "== contents"
find $roots -xdev -type f -size -64k ! -path '*/__pycache__/*' -exec sha256sum {} + 2>/dev/null | sort -k 2
# Paths with modes and owners. A link's mode is always 777, and a directory's size means nothing.
echo "== links"; list -type l -printf '%p -> %l %u:%g\n'
echo "== directories"; list -type d -printf '%p %m %u:%g\n'
echo "== files"; list ! -type l ! -type d -printf '%p %y %m %u:%g %s %T@\n'
echo "== alternatives"; update-alternatives --get-selections
# Without the logins of these tests.
echo "== units"; systemctl list-unit-files --no-legend --no-pager | grep -v '^session-.*transient'
# Each command on its own: in a pipeline its failure would be an empty section, equal to the next one.
echo "== services"
enabled="$(systemctl list-unit-files --type=service --state=enabled --no-legend --no-pager)"
names="$(echo "$enabled" | cut -d ' ' -f 1 | grep -v @)"
states="$(systemctl show --property=Id,ActiveState,SubState $names)"
echo "$states" | awk -v RS= '{ print $1, $2, $3 }'

#!/bin/sh
# Print everything that a run could change on a host: packages and their states, configuration, files, links, services.
set -eu
echo "== packages"; dpkg-query -W -f '${Package} ${Version} ${Status}\n'; apt-mark showhold
echo "== repository lists"; ls /var/lib/apt/lists
echo "== /etc"; find /etc -xdev -type f -exec sha256sum {} + | sort -k 2
echo "== links"; find /etc /usr/local /opt -xdev -type l -printf '%p -> %l\n' | sort
echo "== files"; find /opt /usr/local /usr/bin /usr/lib /boot /var/lib/gpuhost -xdev -type f -printf '%p %s %T@\n' 2>/dev/null \
  | grep -v __pycache__ | sort || true
echo "== units"; systemctl list-unit-files --no-legend --no-pager

#!/bin/sh
# No job on a host that fails; a host without gpuhost is not judged.
[ ! -x /usr/local/sbin/gpuhost-verify ] || exec /usr/local/sbin/gpuhost-verify --prolog

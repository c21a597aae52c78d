#!/bin/sh
# Drains this node when its host fails, and resumes it when that is repaired.
[ ! -x /usr/local/sbin/gpuhost-verify ] || exec /usr/local/sbin/gpuhost-verify --health-check

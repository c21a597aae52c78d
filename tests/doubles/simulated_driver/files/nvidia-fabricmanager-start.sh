#!/bin/sh
# Simulated start script of Fabric Manager, for NVSwitches on the PCI bus alone. Its messages are those of public logs: an H200 with driver
# 590, and an H100 whose module was older. What the precheck does is not public: it prints nothing there and succeeds.
program=$GPUHOST_SIMULATED_ROOT/usr/bin/nv-fabricmanager
command="$program -c $GPUHOST_SIMULATED_ROOT/usr/share/nvidia/nvswitch/fabricmanager.cfg"
case "$*" in
"--mode precheck") exit 0 ;;
"--mode start") ;;
*)
    echo "nvidia-fabricmanager-start.sh (simulated): no such options: $*" >&2
    exit 1
    ;;
esac
echo "Detected Pre-NVL5 system (simulated)"
$command || {
    echo "\"$command\" failed! Exit code: $? (simulated)"
    exit 1
}
echo 'Started "Nvidia Fabric Manager" (simulated)'

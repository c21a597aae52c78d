"""The container lab: systemd hosts with simulated GPUs, reached over SSH. Used by script/demo and by Molecule."""

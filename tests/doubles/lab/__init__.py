"""The container lab: systemd hosts with simulated GPUs, reached over SSH; script/demo and Molecule use it."""

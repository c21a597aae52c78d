"""The contents of the simulated NVIDIA driver packages: names and dependencies as NVIDIA's, no driver inside."""

"""Repositories laid out as NVIDIA's own, for apt and dnf: real CUDA, cuDNN and NCCL from wheels, a simulated driver."""

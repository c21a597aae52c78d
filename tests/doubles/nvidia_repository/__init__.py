"""An apt repository laid out as NVIDIA's own: real CUDA, cuDNN and NCCL from wheels, a simulated driver."""

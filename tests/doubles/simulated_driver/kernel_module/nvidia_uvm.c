// SPDX-License-Identifier: GPL-2.0 OR MIT
/* SIMULATED nvidia-uvm.ko: the device that every CUDA program opens. */
#include "simulated.h"

MODULE_DESCRIPTION("SIMULATED NVIDIA unified memory kernel module (gpuhost's tests)");

int nvidia_simulated_present(void);

SIMULATED_DEVICE(uvm, "nvidia-uvm");

static int __init nvidia_uvm_init(void)
{
	return nvidia_simulated_present() ? misc_register(&uvm) : -ENODEV;
}

static void __exit nvidia_uvm_exit(void)
{
	misc_deregister(&uvm);
}

module_init(nvidia_uvm_init);
module_exit(nvidia_uvm_exit);

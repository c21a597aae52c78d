// SPDX-License-Identifier: GPL-2.0 OR MIT
/* SIMULATED nvidia.ko: /proc/driver/nvidia/version, /dev/nvidiactl and /dev/nvidia0. */
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

#include "simulated.h"

MODULE_DESCRIPTION("SIMULATED NVIDIA kernel module (gpuhost's tests)");
/* Like modprobe.d of the packages for the real module. */
MODULE_SOFTDEP("post: nvidia_uvm");

SIMULATED_DEVICE(control, "nvidiactl");
SIMULATED_DEVICE(gpu, "nvidia0");

static struct proc_dir_entry *folder;

/* The real modules on top of this one need its functions; here they need a symbol only. */
int nvidia_simulated_present(void);
int nvidia_simulated_present(void)
{
	return 1;
}
EXPORT_SYMBOL(nvidia_simulated_present);

/* Line by line as captured from real modules (tests/fixtures/probe/proc-driver-nvidia-version-*). */
static int show_version(struct seq_file *file, void *unused)
{
	seq_puts(file, "NVRM version: NVIDIA UNIX " SIMULATED_TITLE "  Thu Jan  1 00:00:00 UTC 2026\n");
	seq_puts(file, "GCC version:  gcc version " __VERSION__ "\n");
	return 0;
}

static int __init nvidia_init(void)
{
	int error;

	folder = proc_mkdir("driver/nvidia", NULL);
	if (!folder)
		return -ENOMEM;
	if (!proc_create_single("version", 0444, folder, show_version)) {
		error = -ENOMEM;
		goto no_version;
	}
	error = misc_register(&control);
	if (error)
		goto no_version;
	error = misc_register(&gpu);
	if (error)
		goto no_gpu;
	pr_info("NVRM: loading SIMULATED NVIDIA UNIX " SIMULATED_TITLE "\n");
	return 0;

no_gpu:
	misc_deregister(&control);
no_version:
	proc_remove(folder);
	return error;
}

static void __exit nvidia_exit(void)
{
	misc_deregister(&gpu);
	misc_deregister(&control);
	proc_remove(folder);
	pr_info("NVRM: SIMULATED NVIDIA kernel module unloaded\n");
}

module_init(nvidia_init);
module_exit(nvidia_exit);

/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * SIMULATED NVIDIA kernel modules. Written for gpuhost's tests; they contain nothing from NVIDIA and drive no GPU.
 * They have the names, the version file and the use counts of the real ones, to test loading, unloading and replacing
 * modules on a real kernel.
 */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>

#include "release.h"

MODULE_LICENSE(SIMULATED_LICENCE);
MODULE_VERSION(SIMULATED_VERSION);

/* A device whose open file keeps its module in use; it reads as empty. */
static int simulated_open(struct inode *inode, struct file *file)
{
	return 0;
}

static const struct file_operations simulated_fops = {
	.owner = THIS_MODULE,
	.open = simulated_open,
};

#define SIMULATED_DEVICE(variable, device) \
	static struct miscdevice variable = { \
		.minor = MISC_DYNAMIC_MINOR, \
		.name = device, \
		.fops = &simulated_fops, \
		.mode = 0666, \
	}

/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The release, filled in when the package is built. The licence is the one that the real flavour declares, since modinfo
 * distinguishes flavours by it; a module with NVIDIA's licence must not use GPL-only symbols, like the real one.
 */
#define SIMULATED_VERSION "@driver@"
#define SIMULATED_LICENCE "@licence@"
#define SIMULATED_TITLE "@title@"

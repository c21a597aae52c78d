/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The release, filled in when the package is made. The licence is the one that the real flavour declares, since modinfo is
 * how flavours are told apart; a module that declares NVIDIA's may use no GPL-only symbol, as the real one.
 */
#define SIMULATED_VERSION "@driver@"
#define SIMULATED_LICENCE "@licence@"
#define SIMULATED_TITLE "@title@"

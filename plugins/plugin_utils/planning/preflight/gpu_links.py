"""Check the PCIe links of GPUs, and the paths between GPUs."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.module_utils.host import pcie
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, FindingSpec
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import Pcie, PcieLink
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Context

PCIE_LINK_BELOW_ABILITY = FindingSpec(
    "pcie-link-below-ability",
    "Warning: a GPU's PCIe link is narrower or slower than the card supports",
    "Reseat the card or riser; check the firmware's slot settings; nothing, where the slot offers no more",
)


def _ours(context: Context) -> Pcie:
    return context.probe.without_others(context.plan.request["ignore_gpus"]).pcie


def check_links(context: Context, findings: Findings) -> None:
    """Warn of links that are narrower or slower than their card."""
    for address, gpu in _ours(context).gpus.items():
        limits = _link_limits(gpu.link, gpu.slot or PcieLink(), is_loaded=context.probe.driver.loaded is not None)
        if limits:
            advice = "if the slot supports more, reseat the card or its riser and check the firmware's slot settings"
            if all(limits.values()):
                advice = "the slot offers no more, so that nothing is to be repaired"
            PCIE_LINK_BELOW_ABILITY.add_warning(
                findings,
                f"the PCIe link of GPU {address} runs below what the card supports: {', '.join(limits)}; {advice}",
            )


_PARTIAL_SPEED = 64.0  # GT/s of PCIe 6, from which on an idle link leaves lanes unused (L0p)


def _link_limits(link: PcieLink, slot: PcieLink, is_loaded: bool) -> dict[str, bool]:
    """Return where a link is below its card's ability, each with whether it is at that of its slot.

    Its speed counts only without a loaded driver, which lowers it on an idle GPU. So do its lanes from PCIe 6 on.
    """
    limits = {}
    may_be_partial = is_loaded and (link.speed or 0.0) >= _PARTIAL_SPEED
    if link.width is not None and link.max_width is not None and link.width < link.max_width and not may_be_partial:
        text = f"x{link.width} of x{link.max_width}{_slot_limit(slot.max_width, link.max_width, 'x')}"
        limits[text] = link.width >= (slot.max_width or link.max_width)
    if not is_loaded and link.speed is not None and link.max_speed is not None and link.speed < link.max_speed:
        text = f"{link.speed:g} of {link.max_speed:g} GT/s{_slot_limit(slot.max_speed, link.max_speed, '')}"
        limits[text] = link.speed >= (slot.max_speed or link.max_speed)
    return limits


def _slot_limit(slot: float | None, card: float, unit: str) -> str:
    return f" (the slot supports {unit}{slot:g})" if slot is not None and slot < card else ""


GPU_MEMORY_WINDOW_MISSING = FindingSpec(
    "gpu-memory-window-missing",
    "The firmware has given a GPU no window for its memory (BAR1), without which no driver takes it",
    pcie.WINDOW_REMEDY,
)


def check_windows(context: Context, findings: Findings) -> None:
    """Refuse a host with a GPU that the driver will not take; one that has a driver is not asked."""
    links = _ours(context).gpus
    free = [gpu.pci_address for gpu in context.probe.gpus if gpu.kernel_driver is None]
    without = [address for address in free if address in links and links[address].lacks_window]
    if without:
        GPU_MEMORY_WINDOW_MISSING.add_problem(
            findings,
            f"the firmware has given {', '.join(without)} no window for its memory (BAR1): NVIDIA's driver does not "
            "take such a GPU",
        )


PEER_TO_PEER_BLOCKED = FindingSpec(
    "peer-to-peer-blocked",
    "Warning: the IOMMU or ACS redirects traffic between GPUs; NCCL may hang",
    "Kernel option `iommu=pt`; disable ACS in the firmware setup",
)
_PEER_TO_PEER_REDIRECTS = {"ReqRedir", "CmpltRedir"}  # ACS controls, by lspci's names


def check_peer_to_peer(context: Context, findings: Findings) -> None:
    """Check the paths between GPUs without NVSwitches, which reach each other over PCIe alone."""
    links = _ours(context)
    if len(links.gpus) < 2 or context.probe.nvswitches:
        return
    if len(links.translated) > 1:
        options = " ".join(links.kernel_options) or "none"
        PEER_TO_PEER_BLOCKED.add_warning(
            findings,
            f"the IOMMU translates the traffic between GPUs {', '.join(links.translated)} (kernel options: {options}); "
            "NCCL may hang or compute NaN: boot with the kernel option iommu=pt",
        )
    redirecting = [name for name, controls in links.acs.items() if _PEER_TO_PEER_REDIRECTS.intersection(controls or ())]
    if redirecting:
        PEER_TO_PEER_BLOCKED.add_warning(
            findings,
            f"ACS of the PCIe bridges {', '.join(redirecting)} redirects the traffic between GPUs through the root "
            "complex; disable ACS in the firmware setup, or with setpci on each of them",
        )


FINDINGS = (PCIE_LINK_BELOW_ABILITY, GPU_MEMORY_WINDOW_MISSING, PEER_TO_PEER_BLOCKED)

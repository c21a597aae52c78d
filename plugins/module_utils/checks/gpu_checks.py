# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Check the health of the GPUs: memory errors, links, slowdowns, and the Xid messages in the kernel log.

`nvidia-smi -q -x`, `nvidia-smi nvlink -s` and `nvidia-smi nvlink -e`, once each, answer all checks but the last. A
check passes only if each GPU reports each value that it reads; a value that is not what it must be is unknown, and one
that a product does not have is a reason to skip.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import Callable, Iterable, Sequence, TypeVar

from ansible_collections.gpuhost.stack.plugins.module_utils.checks import gpu_counters
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.causes import known_causes
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import (
    HARDWARE,
    HOST,
    Check,
    CheckSpec,
    Context,
    Symptom,
    not_planned,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.host import pci, pcie
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import PcieLink
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import (
    FAIL,
    PASS,
    SKIP,
    UNKNOWN,
    WAIVED,
    WARN,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import (
    kernel_log,
    nvidia_smi,
    nvidia_smi_log,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia.nvidia_smi_log import Gpu, Links, Log, Unreadable

PERSISTENCE_UNIT = "nvidia-persistenced.service"
_LINK = "pci/pci_gpu_link_info/"
_RECOVERY_ACTION = "gpu_recovery_action"
_GSP_REMEDY = (
    "Where a GPU's firmware does not start, switch the host off and on, which a reboot may not do for the GPU; if that "
    "does not help, compare the board's VBIOS with the vendor's newest."
)
_XID_CATALOGUE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
_UNKNOWN_SLOT = (
    "Many boards give two cards eight lanes each: look up the slot's lanes in the board's manual. Only if it has "
    "more, reseat the card and its riser, and check the bifurcation setting in the firmware."
)
_SET_LOW = (
    "`nvidia-smi -i %d -rgc` (memory: `-rmc`) ends locked clocks, `nvidia-smi -i %d -rac` those of applications. If "
    "that is meant, nothing is wrong; a unit or script sets them at each boot."
)
_LINK_REMEDY = (
    "PCIe errors are of the card's link, whatever the driver: reseat the card, its riser or cable and its power, or "
    "try another slot; `journalctl -k -b -g 'AER|PCIe Bus Error'` shows them."
)
_FLOOD = 100  # a link that is well has a few corrected errors in weeks; those of reports have several in a second
_LOADED = 50  # % of utilization
_VENDOR = "If it persists after a GPU reset (`nvidia-smi --gpu-reset`) and a reboot, contact the vendor."
# From performance state P5 on, and without load, a GPU lowers the generation of its PCIe link to save power.
_IDLE_STATE = 5
# Groups of nvidia-smi's document with memory repairs, where "Yes" asks for a reset or for the vendor. Pages are retired
# up to Turing, rows remapped since Ampere (NVIDIA's "GPU memory error management"); banks since branch 615, repairs of
# channels and TPCs since Hopper.
_REPAIRS = ("retired_pages", "remapped_rows", "remapped_banks", "ecc_errors")
_CLOCK_GROUPS = ("clocks_event_reasons", "clocks_throttle_reasons")


# A GPU to which a check does not apply, beside others to which it does.
EXEMPT = "exempt"
_RECOVERY = ("None", "Reset", "GPU Reset", "Reset Bus", "Reboot", "Node Reboot", "Drain P2P", "Drain and Reset")
_FABRIC_STATES = ("Not Started", "In Progress", "Completed")
_FABRIC_HEALTH = ("Healthy", "Unhealthy", "Limited Capacity")
_VIRTUALIZATION = ("None", "Pass-Through", "VGPU", "Host VGPU", "Host VSGA")


Value = TypeVar("Value", float, str)


@dataclass(frozen=True)
class Reading:
    """The outcome of one GPU: PASS, WARN, FAIL, UNKNOWN, SKIP or EXEMPT; what to type, if it is this GPU's own."""

    outcome: str
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class GpuCheck:
    """A check that is judged GPU by GPU; `spec.skipped` is the reason if a product does not have the value."""

    spec: CheckSpec
    read: Callable[[Gpu], Reading]

    def reading(self, gpu: Gpu) -> Reading:
        """Return the outcome of a GPU, UNKNOWN if a value is not what it must be."""
        try:
            return self.read(gpu)
        except Unreadable as error:
            return Reading(UNKNOWN, str(error))


def _judged(good: bool, text: str) -> Reading:
    return Reading(PASS if good else FAIL, text)


def _each(
    leaves: Iterable[tuple[str, str]], parse: Callable[[str, str], Value | None]
) -> tuple[dict[str, Value], list[str]]:
    """Parse many values; return those that are not absent by name, and what is unreadable: one bad value counts."""
    values: dict[str, Value] = {}
    unreadable = []
    for name, text in leaves:
        try:
            value = parse(name, text)
        except Unreadable as error:
            unreadable.append(str(error))
        else:
            if value is not None:
                values[name] = value
    return values, unreadable


def _yes_or_no(name: str, text: str | None) -> str | None:
    return nvidia_smi_log.choice(name, text, "Yes", "No")


def _active(name: str, text: str | None) -> str | None:
    return nvidia_smi_log.choice(name, text, "Active", "Not Active")


def _listed(errors: dict[str, str]) -> str:
    return "%s (%s)" % (", ".join(sorted(set(errors.values()))), ", ".join(sorted(errors)[:5]))


def _answers(gpu: Gpu) -> Reading:
    lost, errors = gpu.errors(nvidia_smi_log.LOST), gpu.errors(nvidia_smi_log.ERRORS)
    if lost:
        return Reading(FAIL, _listed(lost))
    if not errors:
        return Reading(PASS, "answers")
    is_needed = any(check.reading(gpu).outcome == UNKNOWN for check in PER_GPU if check.read is not _answers)
    is_needed = is_needed or bool(gpu_counters.of_document(gpu.element, gpu.index).unreadable)
    if is_needed or len(gpu.errors(nvidia_smi_log.OF_A_VALUE)) < len(errors):
        return Reading(UNKNOWN, _listed(errors))
    remedy = "No check reads what nvidia-smi prints an error for; if monitoring needs it, try another driver version."
    return Reading(WARN, _listed(errors), remedy)


def _recovery(gpu: Gpu) -> Reading:
    """Read `gpu_recovery_action`; branches before 570 report two flags instead."""
    action = gpu.choice(_RECOVERY_ACTION, *_RECOVERY)
    if action is not None:
        return _judged(action == "None", "recovery action %s" % action)
    flags, unreadable = _each(gpu.leaves("gpu_reset_status"), _yes_or_no)
    requested = [name.replace("_", " ") for name, value in flags.items() if value == "Yes"]
    if requested:
        return Reading(FAIL, ", ".join(requested))
    if unreadable:
        return Reading(UNKNOWN, ", ".join(unreadable))
    if "reset_required" in flags:
        return Reading(PASS, "no reset required")
    return Reading(SKIP, "recovery action not reported")


def _persistence(gpu: Gpu) -> Reading:
    mode = gpu.choice("persistence_mode", "Enabled", "Disabled")
    if mode is None:
        return Reading(SKIP, "persistence mode not reported")
    return Reading(PASS if mode == "Enabled" else WARN, "persistence mode %s" % mode)


def _ecc(gpu: Gpu) -> Reading:
    reading = _ecc_errors(gpu)
    current, pending = (gpu.choice("ecc_mode/%s_ecc" % name, "Enabled", "Disabled") for name in ("current", "pending"))
    if reading.outcome in (FAIL, UNKNOWN) or current is None or pending in (None, current):
        return reading
    remedy = "A reset of the GPU or a reboot applies that; `nvidia-smi -i %d -e %d` keeps ECC as it is."
    text = "ECC %s, %s after a reset" % (current, pending)
    return Reading(WARN, text, remedy % (gpu.index, current == "Enabled"))


def _ecc_errors(gpu: Gpu) -> Reading:
    """Read the volatile counters: one per kind of memory, before Turing only `double_bit`, with MIG per instance."""
    mode = gpu.choice("ecc_mode/current_ecc", "Enabled", "Disabled")
    if mode != "Enabled":
        return Reading(SKIP, "ECC %s" % (mode or "not reported"))
    counters, instances = list(_counters(gpu)), list(_instance_counters(gpu))
    values, unreadable = _each([*counters, *instances], nvidia_smi_log.number)
    errors = ["%s %d" % (name, count) for name, count in values.items() if count]
    if errors:
        return Reading(FAIL, "uncorrectable errors: " + ", ".join(errors))
    if unreadable:
        return Reading(UNKNOWN, ", ".join(unreadable))
    if values:
        return Reading(PASS, "no uncorrectable error")
    if gpu.raw("mig_mode/current_mig") == "Enabled" and not instances:
        return Reading(SKIP, "MIG without an instance")
    guest = gpu.choice("gpu_virtualization_mode/virtualization_mode", *_VIRTUALIZATION) == "VGPU"
    return Reading(SKIP if guest else UNKNOWN, "ECC enabled, errors not reported")


def _counters(gpu: Gpu) -> Iterable[tuple[str, str]]:
    """Return the counters of the whole GPU."""
    if gpu.element.find("ecc_errors/volatile/double_bit") is not None:
        return [("double_bit", text) for _unused, text in gpu.leaves("ecc_errors/volatile/double_bit/total")]
    leaves = list(gpu.leaves("ecc_errors/volatile"))
    return [leaf for leaf in leaves if leaf[0] == "volatile" or "uncorrectable" in leaf[0]]


def _instance_counters(gpu: Gpu) -> Iterable[tuple[str, str]]:
    """Return the counters of the MIG instances, or what is printed in place of the mode or the instances."""
    mode, devices = gpu.raw("mig_mode/current_mig"), gpu.element.findall("mig_devices/mig_device")
    if mode in (None, "Disabled", *nvidia_smi_log.ABSENT):
        return
    if mode != "Enabled":
        yield "current_mig", str(mode)
    if not devices and gpu.raw("mig_devices") not in (None, "", "None"):
        yield "mig_devices", str(gpu.raw("mig_devices"))
    for number, device in enumerate(devices):
        for name, text in Gpu(number, device).leaves("ecc_error_count"):
            if name in ("ecc_error_count", "volatile_count") or "uncorrectable" in name:
                yield "%s of MIG device %d" % (name, number), text


def _memory_repair(gpu: Gpu) -> Reading:
    def repair(name: str) -> bool:
        pending = name.endswith(("_pending", "_failure", "_threshold_exceeded")) or name.startswith("pending_")
        return pending or name == "unrepairable_memory" or name in _REPAIRS  # the group, if it is not reported

    leaves = [leaf for group in _REPAIRS for leaf in gpu.leaves(group) if repair(leaf[0])]
    values, unreadable = _each(leaves, _yes_or_no)
    wrong = sorted(name for name, value in values.items() if value == "Yes")
    if wrong:
        return Reading(FAIL, ", ".join(wrong))
    if unreadable:
        return Reading(UNKNOWN, ", ".join(unreadable))
    return Reading(PASS, "nothing pending, nothing failed") if values else Reading(SKIP, "repairs not reported")


def _passed_through(gpu: Gpu) -> bool:
    """Return whether this is a virtual machine, whose view of the physical slot is not reliable."""
    mode = gpu.choice("gpu_virtualization_mode/virtualization_mode", *_VIRTUALIZATION)
    return mode in ("Pass-Through", "VGPU")


def _pcie_width(gpu: Gpu) -> Reading:
    """Compare with `max_link_width`, which is what GPU and slot support together (nvidia-smi's manual).

    Drivers 595 and 610 print the GPU's own there (noonghunna/club-3090 issue 474): a slot with fewer lanes is no fault.
    """
    current, maximum = (gpu.number(_LINK + "link_widths/%s_link_width" % name, "x") for name in ("current", "max"))
    virtual = _passed_through(gpu)
    if current is None or maximum is None:
        return Reading(SKIP, "link width not reported")
    text = "x%d of x%d" % (current, maximum)
    if current < maximum and virtual:
        return Reading(SKIP, text + ", in a virtual machine")
    if 0 < current < maximum and _leaves_lanes_unused(gpu):
        return Reading(SKIP, text + ", idle")
    if 0 < current < maximum and gpu.slot.max_width is None:
        return Reading(WARN, text + ", and the slot's lanes are not known", _UNKNOWN_SLOT)
    if 0 < current < maximum and (gpu.slot.max_width or 0) <= current:
        return Reading(PASS, text + " (the slot has x%d)" % (gpu.slot.max_width or 0))
    return _judged(0 < maximum <= current, text)


def _with_slots(context: Context, gpus: list[Gpu]) -> list[Gpu]:
    """Return the GPUs with what their slots offer; where a port does not tell, at least as many lanes as a twin has."""
    found = []
    for gpu, own in zip(gpus, nvidia_smi_log.checked(gpus, None)):  # noqa: B905
        slot = pcie.slot(context.root, gpu.pci_address) or PcieLink()
        twins = [twin.pcie_width or 0 for twin in nvidia_smi_log.checked(gpus, None) if twin.name == own.name]
        if slot.max_width is None and max(twins) > (own.pcie_width or 0):
            slot = dataclasses.replace(slot, max_width=max(twins))
        found.append(dataclasses.replace(gpu, slot=slot))
    return found


def _leaves_lanes_unused(gpu: Gpu) -> bool:
    generation = gpu.number(_LINK + "pcie_gen/current_link_gen")
    return generation is not None and generation >= gpu_counters.PARTIAL_GENERATION and _idle(gpu)


def _idle(gpu: Gpu) -> bool:
    state = gpu.choice("performance_state", *("P%d" % number for number in range(16)))
    load = gpu.number("utilization/gpu_util", "%")
    idle = "Active" in [_active(name, text) for name, text in _clock_leaves(gpu, ("gpu_idle",))]
    low = state is not None and int(state[1:]) >= _IDLE_STATE
    return low or not load or idle


def _pcie_generation(gpu: Gpu) -> Reading:
    generation = _LINK + "pcie_gen/"
    current, maximum = (gpu.number(generation + "%s_link_gen" % name) for name in ("current", "max"))
    device = gpu.number(generation + "max_device_link_gen")
    virtual, idle = _passed_through(gpu), _idle(gpu)
    if current is None or maximum is None:
        return Reading(SKIP, "link generation not reported")
    text = "generation %d of %d" % (current, maximum)
    if device and device > maximum:
        text += " (the GPU supports %d, the slot does not)" % device
    if current < maximum and (virtual or idle):
        return Reading(SKIP, text + (", in a virtual machine" if virtual else ", idle"))
    if 0 < current < maximum and gpu.slot.max_speed in gpu_counters.GIGATRANSFERS[: int(current)]:
        return Reading(PASS, text + " (the slot has %g GT/s)" % gpu.slot.max_speed)
    return _judged(0 < maximum <= current, text)


def _clock_leaves(gpu: Gpu, names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the reasons for the current clocks without their prefix, which changed with branch 535."""
    leaves = [leaf for group in _CLOCK_GROUPS for leaf in gpu.leaves(group)]
    short = [(name.split("_reason_")[-1], text) for name, text in leaves]
    return [leaf for leaf in short if leaf[0].startswith(names) or leaf[0] in _CLOCK_GROUPS]


def _clock_reasons(gpu: Gpu, names: tuple[str, ...]) -> tuple[dict[str, str], list[str]]:
    """Return which of the reasons are active, and what is unreadable."""
    return _each(_clock_leaves(gpu, names), _active)


def _hardware_slowdowns(gpu: Gpu) -> list[str]:
    reasons, _unused = _clock_reasons(gpu, ("hw_",))
    return sorted(name for name, value in reasons.items() if value == "Active")


def _slowdown(gpu: Gpu) -> Reading:
    reasons, unreadable = _clock_reasons(gpu, ("hw_", "sw_thermal_slowdown"))
    slowdowns = _hardware_slowdowns(gpu)
    if slowdowns:
        return Reading(FAIL, "slowed down by " + ", ".join(slowdowns))
    if unreadable:
        return Reading(UNKNOWN, ", ".join(unreadable))
    set_low = _set_low(gpu)
    if set_low:
        return Reading(WARN, ", ".join(set_low), _SET_LOW % (gpu.index, gpu.index))
    if "hw_slowdown" not in reasons:
        return Reading(SKIP, "slowdowns not reported")
    if reasons.get("sw_thermal_slowdown") == "Active":
        return Reading(WARN, "no hardware slowdown, but the driver lowers the clocks: too hot")
    return Reading(PASS, "no hardware slowdown")


def _set_low(gpu: Gpu) -> list[str]:
    """Return the clocks that somebody has set low: those of applications, or under load without a reason of the driver.

    No element tells of clocks that are locked (`nvidia-smi -lgc`): at the lowest steps they have a tenth of the most.
    """
    found = []
    active = {name for name, value in _clock_reasons(gpu, ("",))[0].items() if value == "Active"}
    is_loaded = (gpu.number("utilization/gpu_util", "%") or 0) >= _LOADED and active <= {"applications_clocks_setting"}
    part = 2 if active else 6
    for name in ("graphics_clock", "mem_clock"):
        current, most, chosen, default = (
            gpu.number("%s/%s" % (group, name), "MHz")
            for group in ("clocks", "max_clocks", "applications_clocks", "default_applications_clocks")
        )
        if chosen and default and chosen < default:
            found.append("applications' %s %g MHz of %g (default)" % (name, chosen, default))
        elif is_loaded and current and most and current < min(most / part, default or most):
            found.append("%s %g MHz of %g under load" % (name, current, most))
    return found


def _fabric(gpu: Gpu) -> Reading:
    """Read whether the GPU joined the NVLink fabric, which Fabric Manager builds from GPUs and NVSwitches.

    `status` is the result of joining: `Success`, or an error, so that any other text is a failure.
    """
    state = gpu.choice("fabric/state", *_FABRIC_STATES)
    health = gpu.choice("fabric/health/summary", *_FABRIC_HEALTH)
    if state is None:
        return Reading(SKIP, "no fabric")
    status = gpu.raw("fabric/status")
    text = "fabric %s, %s" % (state, "status not reported" if status in (None, *nvidia_smi_log.ABSENT) else status)
    text += ", %s" % health if health else ""
    return _judged(state == "Completed" and status == "Success" and health in (None, "Healthy"), text)


def _mig(gpu: Gpu) -> Reading:
    current, pending = (gpu.choice("mig_mode/%s_mig" % name, "Enabled", "Disabled") for name in ("current", "pending"))
    if current is None:
        return Reading(SKIP, "no MIG")
    if pending not in (None, current):
        return Reading(FAIL, "MIG %s, %s after a reset" % (current, pending))
    return Reading(PASS, "MIG %s" % current)


def _power_limit(gpu: Gpu) -> Reading:
    current, default = known_causes.power_limits(gpu)
    if current is None or default is None:
        return Reading(SKIP, "power limit not reported")
    text = "power limit %g W of %g W (default)" % (current, default)
    if current < default:
        groups = ("gpu_power_readings", "gpu_power_readings/" + known_causes.CEILING)
        leaves = [leaf for group in groups for leaf in gpu.leaves(group + "/requested_power_limit")]
        requested, _unreadable = _each(leaves, lambda name, text: nvidia_smi_log.number(name, text, "W"))
        if any(watts >= default for watts in requested.values()):
            text += ", which is requested"
            return Reading(WARN, text, "Not `nvidia-smi -pl`: the board or its controller (BMC) limits more.")
        if leaves and all(watts in nvidia_smi_log.ABSENT for _name, watts in leaves):
            return Reading(SKIP, text + ", which the platform sets: none can be requested")
        return Reading(WARN, text, "`nvidia-smi -i %d -pl %g` sets the default." % (gpu.index, default))
    return Reading(PASS, text)


def _compute_mode(gpu: Gpu) -> Reading:
    mode = known_causes.compute_mode(gpu)
    if mode is None:
        return Reading(SKIP, "compute mode not reported")
    text = "compute mode %s" % mode
    if mode != "Default":
        return Reading(WARN, text, "`nvidia-smi -i %d -c 0` sets the default." % gpu.index)
    return Reading(PASS, text)


def _inforom(gpu: Gpu) -> Reading:
    words = gpu.errors(nvidia_smi_log.CORRUPTED)
    if gpu.corrupted or words:
        return Reading(FAIL, "infoROM corrupted (%s)" % gpu.pci_address)
    return Reading(PASS, "no warning")


PER_GPU = (
    GpuCheck(
        CheckSpec(
            "gpu.answers",
            measures="values that nvidia-smi replaces with an error, such as `GPU is lost`",
            expected="every GPU answers every query; an error in place of a value that no check reads is a warning",
            skipped="no GPU is expected, or the driver must not be loaded",
            remedy="Where the driver lost the GPU, `journalctl -k -b -g Xid` shows when. Reboot; if it happens again, "
            "check the card's power, seating and cooling.",
        ),
        _answers,
    ),
    GpuCheck(
        CheckSpec(
            "gpu.recovery",
            measures="recovery that the driver requests (`gpu_recovery_action`, before branch 570 `reset_required`)",
            expected="no GPU requests a reset or a reboot",
            skipped="the driver does not report whether a reset is required",
            remedy="Drain the host and do what the driver requests: reset the GPU (`nvidia-smi --gpu-reset -i N`) or "
            "reboot.",
            cause=HARDWARE,
        ),
        _recovery,
    ),
    GpuCheck(
        CheckSpec(
            "gpu.persistence",
            measures="persistence mode",
            expected="persistence mode is on, so that the driver does not initialize the GPU for each program",
            skipped="the daemon is disabled (`nvidia_driver_persistence: false`), or a GPU does not report the mode",
            remedy="Run `systemctl enable --now nvidia-persistenced` (or, until the next reboot, `nvidia-smi -pm 1`).",
        ),
        _persistence,
    ),
    GpuCheck(
        CheckSpec(
            "gpu.ecc_errors",
            measures="volatile counters of uncorrectable memory errors, with MIG those of each instance; the pending "
            "ECC mode",
            expected="no uncorrectable memory error since the driver was loaded; ECC that a reset switches on or off "
            "is a warning",
            skipped="a GPU has no ECC or ECC is disabled: its memory errors are not counted",
            remedy="Results computed since then may be wrong. Drain the host and reset the GPU (`nvidia-smi "
            "--gpu-reset -i N`), which retires the bad memory. " + _VENDOR,
            cause=HARDWARE,
        ),
        _ecc,
    ),
    GpuCheck(
        CheckSpec(
            "gpu.memory_repair",
            measures="retired pages, remapped rows and other repairs: pending, failed, threshold exceeded",
            expected="no repair is pending, none failed",
            skipped="a product without memory repairs",
            remedy="Pending: drain the host and reset the GPU (`nvidia-smi --gpu-reset -i N`). Failed or threshold "
            "exceeded: have the vendor replace the card.",
            cause=HARDWARE,
        ),
        _memory_repair,
    ),
    GpuCheck(
        CheckSpec(
            "gpu.pcie_width",
            measures="PCIe lanes in use, and the lanes that GPU and slot support together",
            expected="each link is as wide as GPU and slot support; a narrower one in a slot whose lanes are not known "
            "is a warning, unless a GPU of the same model has more",
            skipped="a GPU does not report its lanes, or they are fewer in a virtual machine, where they are the "
            "host's matter, or on an idle GPU from PCIe 6 on (`cuda.bandwidth` measures under load)",
            remedy="Half the lanes give half the transfer rate. Reseat the card and its riser; check the slot's lanes "
            "in the board's manual and the bifurcation setting in the firmware.",
            cause=HARDWARE,
        ),
        _pcie_width,
    ),
    GpuCheck(
        CheckSpec(
            "gpu.pcie_generation",
            measures="PCIe generation in use, and the generation that GPU and slot support together",
            expected="under load, each link runs at the generation that GPU and slot support",
            skipped="an idle GPU lowers its link to save power (`cuda.bandwidth` measures under load), or the GPU is "
            "in a virtual machine or does not report it",
            remedy="Check the slot's setting in the firmware, risers that are made for an older generation, and "
            "`journalctl -k -g AER`.",
            cause=HARDWARE,
        ),
        _pcie_generation,
    ),
    GpuCheck(
        CheckSpec(
            "gpu.fabric",
            measures="state, status and health of each GPU in the NVLink fabric",
            expected="each GPU joined the fabric",
            skipped="no fabric: a GPU without NVSwitch needs none",
            remedy="Fabric Manager builds the fabric: see `systemctl status nvidia-fabricmanager` and "
            "/var/log/fabricmanager.log; its version must be the driver's. Without it CUDA fails with error 802 "
            "(system not yet initialized).",
        ),
        _fabric,
    ),
    GpuCheck(
        CheckSpec(
            "gpu.slowdown",
            measures="clocks that the hardware lowers because of heat or power, or that were set low",
            expected="no hardware slowdown; clocks that the driver lowers because of heat, those of applications below "
            "the default, or under load far below the most for no other reason that nvidia-smi prints, are a warning",
            skipped="a GPU does not report the reasons for its clocks",
            remedy="Check fans, air flow and power supply: `nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`. A power "
            "brake is the server's: a power supply that failed, or a card that its controller (BMC) does not know.",
            cause=HARDWARE,
        ),
        _slowdown,
    ),
    GpuCheck(
        CheckSpec(
            "gpu.mig",
            measures="current and pending MIG mode",
            expected="no change of the MIG mode is pending",
            skipped="a GPU has no MIG",
            remedy="Reset the GPU, which applies the pending mode: `nvidia-smi --gpu-reset -i N`. First end all "
            "programs that have it open, nvidia-persistenced and monitoring, too; or reboot. With MIG enabled, a "
            "program sees one instance, not the whole GPU. `nvidia-smi -i N -mig 0` takes the request back.",
            cause=HOST,
        ),
        _mig,
    ),
    GpuCheck(
        CheckSpec(
            "gpu.power_limit",
            measures="current and default power limit",
            expected="the limit is not below the default; a lower one is a warning, since the GPU is slower than "
            "others of its model",
            skipped="a GPU does not report its limits, or no limit can be requested: the platform sets it (laptops)",
            remedy="If the limit is meant, nothing is wrong. The driver forgets it when it is unloaded: a unit, a "
            "script or the board's management controller (BMC) sets it at each boot.",
        ),
        _power_limit,
    ),
    GpuCheck(
        CheckSpec(
            "gpu.compute_mode",
            measures="compute mode",
            expected="Default: any number of programs may use the GPU. Another mode is a warning; where CUDA refuses a "
            "program for it (error 46), the checks of CUDA and the frameworks fail, of the host",
            skipped="a GPU does not report its mode",
            remedy="With Exclusive_Process, a second program on the GPU ends with CUDA's error 46, as a check does "
            "beside a job; with Prohibited, every program does.",
        ),
        _compute_mode,
    ),
)
INFOROM = CheckSpec(
    "gpu.inforom",
    measures="nvidia-smi's warning `infoROM is corrupted`, its exit code 14, `Corrupted infoROM` in place of a value",
    expected="no warning",
    skipped="no GPU is expected, or the driver must not be loaded",
    remedy="The GPU computes, but its board has lost what it records of itself, such as retired memory. Have the "
    "vendor reflash the infoROM or replace the board.",
    cause=HARDWARE,
)
NVLINK = CheckSpec(
    "gpu.nvlink",
    measures="state and speed of each NVLink (`nvidia-smi nvlink -s`)",
    expected="every link that GPU model and board use is up, at full speed",
    skipped="no NVLink between GPUs: none, one GPU, no bridge, or MIG",
    remedy="`nvidia-smi nvlink -e` counts errors, `journalctl -k -b -g 'Xid|SXid|NVLink'` shows the cause; on NVSwitch "
    "systems see gpu.fabric. Reseat bridges. " + _VENDOR,
)
ERROR_COUNTERS = CheckSpec(
    "gpu.error_counters",
    measures="counters of errors and corrections: of the NVLinks (`nvidia-smi nvlink -e`), PCIe and memory",
    expected="0 since the driver was loaded, for each counter whose total warns (`catalog/gpu_thresholds.yml`)",
    skipped="a GPU counts nothing",
    remedy="An error while a link was brought up is no fault; one that comes back is: read it again after a training "
    "(`gpu-errors` of the smoke training compares). An NVLink that recovers again and again will fail: reseat "
    "bridges. " + _VENDOR,
    cause=HARDWARE,
)
XID_ERRORS = CheckSpec(
    "gpu.xid_errors",
    measures="messages of the driver (Xid, SXid and others) in the kernel log since it was loaded or the GPU was "
    "reset, and errors of the PCIe links above the GPUs (AER)",
    expected="none that asks for a reset or a reboot, and none that the catalog does not know (a warning), nor that a "
    "GPU or its firmware did not start, nor 100 corrected PCIe errors (a warning); other messages of the driver are "
    "shown. Where each is of the board's memory or power, or an uncorrected PCIe error, it is a failure of the "
    "hardware",
    skipped="the kernel log is not this host's (container), or the driver is simulated",
    remedy="See `journalctl -k -b -g 'NVRM|nvswitch'`. Drain the host and reset the GPU (`nvidia-smi --gpu-reset`) or "
    "reboot; if it happens again, check power, seating and cooling, and contact the vendor. That a GPU was reset is "
    "known where the driver asked for it (Xid 154) and asks no more: before branch 570, reload the module or reboot.",
)
CHECKS = (*(check.spec for check in PER_GPU), INFOROM, NVLINK, ERROR_COUNTERS, XID_ERRORS)
BY_GPU = frozenset(spec.id for spec in CHECKS if spec is not XID_ERRORS)  # those that a waiver can limit to one GPU


def run(context: Context) -> list[Check]:
    """Run the GPU checks."""
    if context.component("driver") is None:
        return not_planned(CHECKS, "driver")
    for reason, outcome in ((_not_needed(context), SKIP), (_unavailable(context), UNKNOWN)):
        if reason is not None:
            return [*(Check(spec.id, outcome, reason=reason) for spec in CHECKS[:-1]), _xid_errors(context, [])]
    log = nvidia_smi_log.read(context.smi_path, context.run, context.left_alone)
    if any(_hardware_slowdowns(gpu) == ["hw_slowdown"] for gpu in log.gpus):
        # NVML reports it briefly while clocks change; only a slowdown that lasts is still there in a second reading.
        log = nvidia_smi_log.read(context.smi_path, context.run, context.left_alone)
    log = _with_corrupted(context, log)
    log = dataclasses.replace(log, gpus=_with_slots(context, log.gpus))
    missing, problem = _missing(context, log), log.problem or _others(context, log)
    checks = []
    for check in PER_GPU:
        readings = [check.reading(gpu) for gpu in log.gpus]
        checks.append(_judge(context, check.spec, log.gpus, readings, missing or problem))
    if missing and checks[0].status != FAIL:
        checks[0] = dataclasses.replace(PER_GPU[0].spec.compare(False, missing), symptom=Symptom(seen=len(log.gpus)))
    checks = [_accept_disabled_daemon(context, check) for check in checks]
    checks = [_with_notices(context, log, check) for check in checks]
    inforom = _inforoms(context, log, missing or problem)
    links_check = _nvlinks(context, log.gpus, missing or problem)
    counters = _judge(context, ERROR_COUNTERS, log.gpus, _error_counters(context, log.gpus), missing or problem)
    return [*checks, inforom, links_check, counters, _xid_errors(context, log.gpus)]


def _not_needed(context: Context) -> str | None:
    """Return why nvidia-smi need not answer on this host, None if it must."""
    if context.driver_state == "not_loaded":
        return "nvidia-smi cannot answer: the driver is not loaded, as requested"
    return "no GPU is expected on this host" if context.expect_gpus == 0 else None


def _unavailable(context: Context) -> str | None:
    """Return why nvidia-smi cannot answer, None if it can."""
    if context.smi is None:
        return "nvidia-smi is not installed"
    # With a lost GPU it exits with 15 or 255 and still lists the others; with these codes it lists none.
    if context.smi.exit_code in (6, 9, 12, 18, 124, 127):
        return "nvidia-smi exits with %s, see driver.nvidia_smi" % context.smi.exit_code
    return None


def _with_corrupted(context: Context, log: Log) -> Log:
    """Return the document with each GPU marked of whose infoROM one of the two queries warns."""
    named = {*log.corrupted, *(context.smi.corrupted if context.smi else ())}
    gpus = [dataclasses.replace(gpu, corrupted=gpu.pci_address in named) for gpu in log.gpus]
    return dataclasses.replace(log, gpus=gpus, corrupted=tuple(sorted(named)))


def _inforoms(context: Context, log: Log, problem: str | None) -> Check:
    """Judge the warnings; one that names no GPU of the document, or only the exit code, is a failure as well."""
    check = _judge(context, INFOROM, log.gpus, [_inforom(gpu) for gpu in log.gpus], problem)
    absent = [name for name in log.corrupted if name not in {gpu.pci_address for gpu in log.gpus}]
    has_exit = nvidia_smi.CORRUPTED_EXIT in (context.smi.exit_code if context.smi else 0, log.exit_code)
    if check.status in (FAIL, WAIVED) or not (absent or has_exit):
        return check
    named = ", ".join(absent) or "nvidia-smi exits with %d and names no GPU" % nvidia_smi.CORRUPTED_EXIT
    return INFOROM.compare(False, "infoROM corrupted (%s)" % named)


def _with_notices(context: Context, log: Log, check: Check) -> Check:
    """Warn of lines around the document, unless driver.nvidia_smi does: an error may be reported there alone."""
    new = [line for line in log.notices if line not in context.smi_notices]
    if check.id != PER_GPU[0].spec.id or check.status not in (PASS, WARN) or not new:
        return check
    found = "%s; around the document: %s" % (check.found, " | ".join(new)[:200])
    remedy = "Run `nvidia-smi -q -x | head` and see what these lines tell."
    return PER_GPU[0].spec.warn(found, " ".join([check.remedy or "", remedy]).strip())


def _missing(context: Context, log: Log) -> str | None:
    """Return how many GPUs the document lacks, None if it lists as many as are expected, or could not be read."""
    expected = max(context.expect_gpus, len(context.smi_gpus))
    if len(log.gpus) >= expected or (log.problem and not log.gpus):
        return None
    return "nvidia-smi -q -x lists %d of %d GPUs" % (len(log.gpus), expected)


def _others(context: Context, log: Log) -> str | None:
    """Return which GPUs the two queries of nvidia-smi do not agree on."""
    if not nvidia_smi.answers(context.smi):
        return None
    rows = context.smi_gpus
    queried = {gpu.pci_address for gpu in rows if gpu.pci_address}
    listed = {gpu.pci_address for gpu in log.gpus}
    uuids = {gpu.pci_address: gpu.uuid for gpu in rows}
    for gpu in log.gpus:
        uuid = uuids.get(gpu.pci_address)
        if uuid and gpu.uuid != uuid:
            texts = (gpu.pci_address, uuid, gpu.uuid or "no UUID")
            return "%s is %s for nvidia-smi --query-gpu, %s for nvidia-smi -q -x" % texts
    if queried <= listed and len(log.gpus) == len(rows) == len(listed):
        return None
    return "nvidia-smi --query-gpu lists %s, nvidia-smi -q -x lists %s" % (
        ", ".join(sorted(queried)) or "no GPU", ", ".join(sorted(listed)) or "no GPU",
    )  # fmt: skip


def _names(gpu: Gpu) -> tuple[str, ...]:
    """Return by what a waiver can name a GPU."""
    return "%d" % gpu.index, gpu.uuid, gpu.bus_id, gpu.pci_address


def _judge(context: Context, spec: CheckSpec, gpus: list[Gpu], readings: list[Reading], problem: str | None) -> Check:
    """Return the worst outcome of the GPUs; `problem` is why they are not all the GPUs of the host."""
    note = " (simulated values)" if context.driver_simulated else ""
    by_outcome: dict[str, list[tuple[Gpu, Reading]]] = {}
    waivers = []
    for gpu, reading in zip(gpus, readings):  # noqa: B905
        waiver = context.waiver(spec.id, *_names(gpu)) if reading.outcome == FAIL else None
        waivers += [waiver] if waiver else []
        by_outcome.setdefault(WAIVED if waiver else reading.outcome, []).append((gpu, reading))
    found = _by_text(list(zip(gpus, readings))) + note if gpus else None  # noqa: B905
    if FAIL in by_outcome:
        text = _by_text(by_outcome[FAIL]) + note
        return spec.of_host(text, text, spec.remedy) if spec.cause == HOST else spec.compare(False, text)
    if UNKNOWN in by_outcome or problem:
        return spec.unknown(problem or _by_text(by_outcome[UNKNOWN]), found)
    if WARN in by_outcome:
        remedies = dict.fromkeys(reading.remedy for _gpu, reading in by_outcome[WARN] if reading.remedy)
        texts = [*remedies] if remedies and spec.cause == HARDWARE else [*remedies, spec.remedy]  # that is for damage
        return spec.warn(_by_text(by_outcome[WARN]) + note, " ".join(texts))
    if WAIVED in by_outcome:
        return spec.waived(str(found), waivers)
    if SKIP in by_outcome or PASS not in by_outcome:
        return spec.skip(spec.skipped, found)
    return spec.compare(True, str(found))


def _by_text(readings: list[tuple[Gpu, Reading]]) -> str:
    """Return each text once, with the indexes of its GPUs."""
    texts: dict[str, list[str]] = {}
    for gpu, reading in readings:
        texts.setdefault(reading.text, []).append("%d" % gpu.index)
    return "; ".join("GPU %s: %s" % (", ".join(indexes), text) for text, indexes in texts.items())


def _accept_disabled_daemon(context: Context, check: Check) -> Check:
    """Skip persistence mode where the operator disabled the daemon (nvidia_driver_persistence)."""
    if check.id != "gpu.persistence" or check.status != WARN:
        return check
    state = context.run(["systemctl", "is-enabled", PERSISTENCE_UNIT], 30).output.strip()
    if state != "disabled":
        return check
    (spec,) = (item.spec for item in PER_GPU if item.spec.id == check.id)
    return spec.skip("%s is disabled on this host" % PERSISTENCE_UNIT, check.found)


def _nvlinks(context: Context, gpus: list[Gpu], problem: str | None) -> Check:
    """Judge the links; if nvidia-smi does not list them, each GPU is unknown.

    The check's data are all GPUs with what identifies them, their PCIe links and their NVLinks.
    """
    links: dict[int, Links] | None = None
    try:
        links = nvidia_smi_log.nvlinks(context.smi_path, context.run, context.smi_notices) if gpus else {}
    except ValueError as error:
        readings = [Reading(UNKNOWN, str(error)) for _unused in gpus]
    else:
        readings = [_nvlink(context, gpu, gpus, links) for gpu in gpus]
    check = _judge(context, NVLINK, gpus, readings, problem)
    return dataclasses.replace(check, data={"gpus": to_json(nvidia_smi_log.checked(gpus, links))})


def _error_counters(context: Context, gpus: list[Gpu]) -> list[Reading]:
    """Read what was counted; a GPU of which nvidia-smi does not print the links' counters is unknown."""

    def run(arguments: Sequence[str]) -> tuple[int, str]:
        answer = nvidia_smi.ask(context.run, [context.smi_path, *arguments])
        return answer.exit_code, "\n".join(nvidia_smi.lines(answer.output, context.smi_notices))

    links = gpu_counters.read_links(run, gpus[-1].index + 1) if gpus else gpu_counters.Links()
    counted = [gpu_counters.of_document(gpu.element, gpu.index) for gpu in gpus]
    return [_counted(context, gpu_counters.with_links(each, links)) for each in counted]


def _counted(context: Context, gpu: gpu_counters.Counters) -> Reading:
    findings = gpu_counters.totals(gpu, context.gpu_counters)
    warnings = [finding.text for finding in findings if finding.outcome == WARN]
    if gpu.unreadable:
        return Reading(UNKNOWN, "; ".join([*warnings, *gpu.unreadable[:5]]))
    if not gpu.values:
        return Reading(SKIP, "nothing is counted")
    shown = "; ".join(finding.text for finding in findings if finding.outcome == PASS)
    if warnings:
        return Reading(WARN, "; ".join([*warnings, *([shown] if shown else [])]))
    return Reading(PASS, "no error counted" + ("; " + shown if shown else ""))


def _nvlink(context: Context, gpu: Gpu, gpus: list[Gpu], links: dict[int, Links]) -> Reading:
    """Judge the links of one GPU: with NVSwitches each must be up, else it is compared with GPUs of the same model.

    Boards without switches leave links unused, and a bridge joins two GPUs out of three, so there a GPU whose links are
    all down is not judged. A link far slower than the fastest (1.562 GB/s instead of 26.562) counts as down.
    """
    own = links.get(gpu.index, Links("unsupported", {}))
    peers = [links[other.index] for other in gpus if other.name == gpu.name and other.index in links]
    switched = bool(pci.read(context.root)[1]) or known_causes.has_fabric(gpu)
    if own.state == "unknown":
        return Reading(UNKNOWN, "nvidia-smi nvlink -s printed %s" % (own.line or "nothing"))
    if own.state == "mig":
        return Reading(EXEMPT, "no NVLink in MIG mode")
    if own.state == "unsupported":
        linked = switched or any(peer.state in ("links", "inactive") for peer in peers)
        return Reading(UNKNOWN if linked else EXEMPT, "nvidia-smi nvlink -s lists no link" if linked else "no NVLink")
    if len(gpus) == 1:
        return Reading(SKIP, "the only GPU: its links connect it to no other")
    unlisted = {number for peer in peers for number in peer.speeds} - set(own.speeds)
    if own.state == "links" and unlisted:
        numbers = ", ".join("%d" % number for number in sorted(unlisted))
        return Reading(UNKNOWN, "nvidia-smi nvlink -s does not list the links %s, as of its peers" % numbers)
    fastest = max([speed or 0.0 for peer in peers for speed in peer.speeds.values()] or [0.0])
    if own.state == "inactive" or not any(own.speeds.values()):
        certain = switched or ("SXM" in gpu.name and fastest > 0)
        return Reading(FAIL if certain else SKIP, "all links are down" + ("" if certain else ", or it has no bridge"))
    up = [number for number, speed in own.speeds.items() if speed is not None and speed >= fastest]
    slow = {number: speed for number, speed in own.speeds.items() if speed is not None and speed < fastest}
    down = [number for number, speed in own.speeds.items() if speed is None]
    most = max(sum(speed is not None for speed in peer.speeds.values()) for peer in peers)
    text = "%d links of %d at %g GB/s" % (len(up), len(own.speeds), fastest)
    text += "".join(", link %d at %g GB/s" % pair for pair in sorted(slow.items()))
    text += ", down: " + ", ".join("%d" % number for number in down) if down else ""
    return _judged(not slow and not (down and (switched or len(up) < most)), text)


def _xid_errors(context: Context, gpus: list[Gpu]) -> Check:
    if context.kernel_module != "loaded":
        return XID_ERRORS.skip("the kernel log belongs to the machine that runs this container, or to another kernel")
    if context.driver_simulated:
        return XID_ERRORS.skip("the NVIDIA driver is simulated: it writes nothing to a kernel log")
    text, problem = kernel_log.read(context.run)
    if text is None:
        return XID_ERRORS.unknown(problem)
    recovered = [gpu.pci_address.partition(".")[0] for gpu in gpus if gpu.raw(_RECOVERY_ACTION) == "None"]
    alone = [address.partition(".")[0] for address in context.left_alone]
    events = [e for e in kernel_log.parse(text, context.xid_errors, recovered) if e.device not in alone]
    by_outcome = {o: [event for event in events if event.outcome == o] for o in (FAIL, WARN, PASS)}
    data, rest = {"kernel_log": kernel_log.position(text)}, kernel_log.rest(text)
    broken, flooded = _bus_errors(context, text)
    logged = ["the driver also logged: %s" % _listed_lines(rest.unknown)] if rest.unknown else []
    others = [*broken.values(), *flooded, *rest.trouble, *logged]
    if (by_outcome[WARN] or rest.trouble or flooded) and not (by_outcome[FAIL] or broken):
        remedies = ["See `journalctl -k -b -g 'NVRM|nvswitch'`, and %s for a number." % _XID_CATALOGUE]
        remedies += [_GSP_REMEDY] if rest.trouble else []
        remedies += [_LINK_REMEDY] if flooded else []
        numbered = [_listed_events(by_outcome[WARN])] if by_outcome[WARN] else []
        return dataclasses.replace(XID_ERRORS.warn("; ".join(numbered + others), " ".join(remedies)), data=data)
    listed = [] if broken and not events else [_listed_events(by_outcome[FAIL] or events)]
    found = "; ".join([*listed, *others])
    fell = [event for event in by_outcome[FAIL] if event.number == kernel_log.OFF_THE_BUS and event.device in broken]
    cause = HARDWARE if all(event.of_hardware or event in fell for event in by_outcome[FAIL]) else None
    remedy = " ".join([_LINK_REMEDY, XID_ERRORS.remedy]) if broken else None
    return XID_ERRORS.compare(not (by_outcome[FAIL] or broken), found, remedy=remedy, cause=cause, data=data)


def _bus_errors(context: Context, text: str) -> tuple[dict[str, str], list[str]]:
    """Return the uncorrected PCIe errors on the way to a GPU, by its device as Event has it, and floods of others."""
    broken, flooded = {}, []
    for gpu in known_causes.Host(context).pci[0]:
        address = gpu.pci_address
        uncorrected, corrected = kernel_log.bus_errors(text, [address, *pcie.bridges(context.root, address)])
        if uncorrected:
            named = ", ".join(sorted(uncorrected))
            broken[address.partition(".")[0]] = "PCIe errors (AER) on the way to GPU %s: %s" % (address, named)
        elif corrected >= _FLOOD:
            flooded.append("%d corrected PCIe errors (AER) on the way to GPU %s" % (corrected, address))
    return broken, flooded


def _listed_lines(messages: Sequence[str]) -> str:
    """Return the last three messages, cut, and how many more there are."""
    shown = " | ".join(message[:120] for message in messages[-3:])
    return shown + (" (and %d others)" % (len(messages) - 3) if len(messages) > 3 else "")


def _listed_events(events: list[kernel_log.Event]) -> str:
    """Return the eight most frequent numbers, each once, with its devices and how often it was logged."""
    counts = Counter((event.kind, event.number, event.meaning) for event in events)
    texts = []
    for (kind, number, meaning), count in counts.most_common(8):
        same = [e.address for e in events if (e.kind, e.number, e.meaning) == (kind, number, meaning)]
        addresses = list(dict.fromkeys(same))
        named = ", ".join(addresses[:8]) + (" and %d others" % (len(addresses) - 8) if len(addresses) > 8 else "")
        texts.append("%s %d on %s (%s)" % (kind, number, named, meaning) + (", %d times" % count if count > 1 else ""))
    return "; ".join(texts) + ("; and %d others" % (len(counts) - 8) if len(counts) > 8 else "") or "none"

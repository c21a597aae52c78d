# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Check the health of the GPUs: memory errors, links, slowdowns, and the Xid messages in the kernel log.

One `nvidia-smi -q -x` and one `nvidia-smi nvlink -s` answer all checks but the last. A value that a GPU does not report
never passes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Callable

from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import (
    FAIL,
    HARDWARE,
    Check,
    CheckSpec,
    Context,
    not_planned,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.host import pci
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import kernel_log, nvidia_smi_log
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia.nvidia_smi_log import Gpu, Links, Log

PERSISTENCE_UNIT = "nvidia-persistenced.service"
_LINK = "pci/pci_gpu_link_info/"
_VENDOR = "If it persists after a GPU reset (`nvidia-smi --gpu-reset`) and a reboot, contact the vendor."
# From performance state P5 on, and without load, a GPU lowers the generation of its PCIe link to save power.
_IDLE_STATE = 5
# Groups of nvidia-smi's document with memory repairs, where "Yes" asks for a reset or for the vendor. Pages are retired
# up to Turing, rows remapped since Ampere (NVIDIA's "GPU memory error management"); banks since branch 615, repairs of
# channels and TPCs since Hopper.
_REPAIRS = ("retired_pages", "remapped_rows", "remapped_banks", "ecc_errors")


@dataclass(frozen=True)
class Reading:
    """The state of one GPU: good, bad, or (None) not reported."""

    good: bool | None
    text: str


@dataclass(frozen=True)
class GpuCheck:
    """A check that is judged GPU by GPU; `spec.skipped` is the reason if a GPU does not report the value."""

    spec: CheckSpec
    read: Callable[[Gpu], Reading]


def _answers(gpu: Gpu) -> Reading:
    lost = gpu.lost()
    if lost:
        return Reading(False, "%s (%s)" % (", ".join(sorted(set(lost.values()))), ", ".join(sorted(lost)[:5])))
    return Reading(True, "answers")


def _recovery(gpu: Gpu) -> Reading:
    """Read `gpu_recovery_action`; branches before 570 report two flags instead."""
    action = gpu.text("gpu_recovery_action")
    if action is not None:
        return Reading(action == "None", "recovery action %s" % action)
    flags = {name: gpu.text("gpu_reset_status/" + name) for name in ("reset_required", "drain_and_reset_recommended")}
    requested = [name.replace("_", " ") for name, value in flags.items() if value == "Yes"]
    if requested:
        return Reading(False, ", ".join(requested))
    if flags["reset_required"] == "No":
        return Reading(True, "no reset required")
    return Reading(None, "recovery action not reported")


def _persistence(gpu: Gpu) -> Reading:
    mode = gpu.text("persistence_mode")
    return Reading(None if mode is None else mode == "Enabled", "persistence mode %s" % (mode or "not reported"))


def _ecc_errors(gpu: Gpu) -> Reading:
    """Read the volatile counters: one per kind of memory, before Turing only `double_bit`."""
    mode = gpu.text("ecc_mode/current_ecc")
    if mode != "Enabled":
        return Reading(None, "ECC %s" % (mode or "not reported"))
    volatile = gpu.element.find("ecc_errors/volatile")
    older = None if volatile is None else volatile.find("double_bit")
    if older is not None:
        counts = {"double_bit": gpu.number("ecc_errors/volatile/double_bit/total")}
    else:
        names = [name for name, _unused in gpu.leaves("ecc_errors/volatile") if "uncorrectable" in name]
        counts = {name: gpu.number("ecc_errors/volatile/" + name) for name in names}
    reported = {name: count for name, count in counts.items() if count is not None}
    errors = ["%s %d" % (name, count) for name, count in reported.items() if count]
    if errors:
        return Reading(False, "uncorrectable errors: " + ", ".join(errors))
    return Reading(True, "no uncorrectable error") if reported else Reading(None, "ECC enabled, errors not reported")


def _memory_repair(gpu: Gpu) -> Reading:
    wrong, reported = [], False
    for group in _REPAIRS:
        for name, value in gpu.leaves(group):
            pending = name.endswith(("_pending", "_failure", "_threshold_exceeded")) or name.startswith("pending_")
            if pending or name == "unrepairable_memory":
                reported = reported or value is not None
                if value == "Yes":
                    wrong.append(name)
    if wrong:
        return Reading(False, ", ".join(sorted(set(wrong))))
    return Reading(True, "nothing pending, nothing failed") if reported else Reading(None, "repairs not reported")


def _passed_through(gpu: Gpu) -> bool:
    """Return whether this is a virtual machine, whose view of the physical slot is not reliable."""
    return gpu.text("gpu_virtualization_mode/virtualization_mode") in ("Pass-Through", "VGPU")


def _pcie_width(gpu: Gpu) -> Reading:
    """Compare with `max_link_width`, which is what GPU and slot support together (nvidia-smi's manual)."""
    current, maximum = (gpu.number(_LINK + "link_widths/%s_link_width" % name) for name in ("current", "max"))
    if not current or not maximum:
        return Reading(None, "link width not reported")
    text = "x%d of x%d" % (current, maximum)
    if current < maximum and _passed_through(gpu):
        return Reading(None, text + ", in a virtual machine")
    return Reading(current >= maximum, text)


def _idle(gpu: Gpu) -> bool:
    state = gpu.text("performance_state") or ""
    low = state[1:].isdigit() and int(state[1:]) >= _IDLE_STATE
    return low or not gpu.number("utilization/gpu_util") or _clock_reasons(gpu).get("gpu_idle") == "Active"


def _pcie_generation(gpu: Gpu) -> Reading:
    generation = _LINK + "pcie_gen/"
    current, maximum = (gpu.number(generation + "%s_link_gen" % name) for name in ("current", "max"))
    device = gpu.number(generation + "max_device_link_gen")
    if not current or not maximum:
        return Reading(None, "link generation not reported")
    text = "generation %d of %d" % (current, maximum)
    if device and device > maximum:
        text += " (the GPU supports %d, the slot does not)" % device
    if current < maximum and _passed_through(gpu):
        return Reading(None, text + ", in a virtual machine")
    if current < maximum and _idle(gpu):
        return Reading(None, text + ", idle")
    return Reading(current >= maximum, text)


def _clock_reasons(gpu: Gpu) -> dict[str, str | None]:
    """Return the reasons for the current clocks, without their prefix, which changed with branch 535."""
    reasons = {}
    for group in ("clocks_event_reasons", "clocks_throttle_reasons"):
        for name, value in gpu.leaves(group):
            reasons[name.split("_reason_", 1)[-1]] = value
    return reasons


def _hardware_slowdowns(gpu: Gpu) -> list[str]:
    return sorted(name for name, value in _clock_reasons(gpu).items() if name.startswith("hw_") and value == "Active")


def _slowdown(gpu: Gpu) -> Reading:
    reasons, slowdowns = _clock_reasons(gpu), _hardware_slowdowns(gpu)
    if slowdowns:
        return Reading(False, "slowed down by " + ", ".join(slowdowns))
    if reasons.get("hw_slowdown") is None:
        return Reading(None, "slowdowns not reported")
    thermal = reasons.get("sw_thermal_slowdown") == "Active"
    return Reading(True, "no hardware slowdown" + (", but the driver lowers the clocks: too hot" if thermal else ""))


def _fabric(gpu: Gpu) -> Reading:
    """Read whether the GPU joined the NVLink fabric, which Fabric Manager builds from GPUs and NVSwitches."""
    state, status = gpu.text("fabric/state"), gpu.text("fabric/status")
    if state is None:
        return Reading(None, "no fabric")
    health = gpu.text("fabric/health/summary")
    text = "fabric %s, %s" % (state, status or "status not reported") + (", %s" % health if health else "")
    return Reading(state == "Completed" and status == "Success" and health in (None, "Healthy"), text)


def _mig(gpu: Gpu) -> Reading:
    current, pending = gpu.text("mig_mode/current_mig"), gpu.text("mig_mode/pending_mig")
    if current is None:
        return Reading(None, "no MIG")
    if pending not in (None, current):
        return Reading(False, "MIG %s, %s after a reset" % (current, pending))
    return Reading(True, "MIG %s" % current)


PER_GPU = (
    GpuCheck(
        CheckSpec(
            "gpu.answers",
            measures="values that nvidia-smi replaces with an error, such as `GPU is lost`",
            expected="every GPU answers every query",
            skipped="the list of nvidia-smi is incomplete",
            remedy="The driver lost the GPU: `journalctl -k -b -g Xid` shows when. Reboot; if it happens again, check "
            "the card's power, seating and cooling.",
        ),
        _answers,
    ),
    GpuCheck(
        CheckSpec(
            "gpu.recovery",
            measures="recovery that the driver requests (`gpu_recovery_action`, before branch 570 `reset_required`)",
            expected="no GPU requests a reset or a reboot",
            skipped="the driver or a GPU does not report whether a reset is required",
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
            measures="volatile counters of uncorrectable memory errors",
            expected="no uncorrectable memory error since the driver was loaded",
            skipped="a GPU has no ECC or ECC is disabled: its memory errors are not counted",
            remedy="Results computed since then may be wrong. Drain the host and reset the GPU (`nvidia-smi "
            "--gpu-reset -i N`), which retires the bad memory. " + _VENDOR,
            cause=HARDWARE,
        ),
        _ecc_errors,
    ),
    GpuCheck(
        CheckSpec(
            "gpu.memory_repair",
            measures="retired pages, remapped rows and other repairs: pending, failed, threshold exceeded",
            expected="no repair is pending, none failed",
            skipped="a GPU does not report memory repairs",
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
            expected="each link is as wide as GPU and slot support",
            skipped="a GPU does not report its lanes, or they are fewer in a virtual machine, where they are the "
            "host's matter",
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
            measures="clocks that the hardware lowers because of heat or power",
            expected="no hardware slowdown",
            skipped="a GPU does not report the reasons for its clocks",
            remedy="Check fans, air flow and power supply: `nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`.",
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
            remedy="Reset the GPU, which applies the pending mode: `nvidia-smi --gpu-reset -i N`. With MIG enabled, a "
            "program sees one instance, not the whole GPU.",
        ),
        _mig,
    ),
)
NVLINK = CheckSpec(
    "gpu.nvlink",
    measures="state and speed of each NVLink (`nvidia-smi nvlink -s`)",
    expected="every link that GPU model and board use is up, at full speed",
    skipped="no NVLink between GPUs (none, one GPU, or no bridge), or nvidia-smi does not report the links",
    remedy="`nvidia-smi nvlink -e` counts errors, `journalctl -k -b -g 'Xid|SXid|NVLink'` shows the cause; on NVSwitch "
    "systems see gpu.fabric. Reseat bridges. " + _VENDOR,
)
XID_ERRORS = CheckSpec(
    "gpu.xid_errors",
    measures="Xid and SXid messages in the kernel log since boot",
    expected="none that asks for a reset or a reboot",
    skipped="the kernel log is not this host's (container) or cannot be read, or the driver is simulated",
    remedy="See `journalctl -k -b -g 'NVRM|nvswitch'`. Drain the host and reset the GPU (`nvidia-smi --gpu-reset`) or "
    "reboot; if it happens again, check power, seating and cooling, and contact the vendor. Messages since boot count: "
    "after a GPU reset alone this check fails until the next reboot.",
)
CHECKS = (*(check.spec for check in PER_GPU), NVLINK, XID_ERRORS)


def run(context: Context) -> list[Check]:
    """Run the GPU checks."""
    if context.component("driver") is None:
        return not_planned(CHECKS, "driver")
    xid_errors = _xid_errors(context)
    reason = _unavailable_reason(context)
    if reason is not None:
        return [*(spec.skip(reason) for spec in CHECKS[:-1]), xid_errors]
    path = str((context.smi or {})["path"])
    log = nvidia_smi_log.read(path, context.run)
    if any(_hardware_slowdowns(gpu) == ["hw_slowdown"] for gpu in log.gpus):
        # NVML reports it briefly while clocks change; only a slowdown that lasts is still there in a second reading.
        log = nvidia_smi_log.read(path, context.run)
    checks = [_judge(context, check.spec, log, [check.read(gpu) for gpu in log.gpus]) for check in PER_GPU]
    checks = [_accept_disabled_daemon(context, check) for check in checks]
    return [*checks, _judge(context, NVLINK, log, _nvlinks(context, log.gpus, path)), xid_errors]


def _unavailable_reason(context: Context) -> str | None:
    """Return why nvidia-smi cannot answer, None if it can."""
    if context.smi is None:
        return "nvidia-smi is not installed"
    if context.driver_state == "not_loaded":
        return "nvidia-smi cannot answer: the driver is not loaded, as requested"
    # With a lost GPU it exits with 15 or 255 and still lists the others; with these codes it lists none.
    if context.smi["exit_code"] in (6, 9, 12, 18, 124, 127):
        return "nvidia-smi exits with %s, see driver.nvidia_smi" % context.smi["exit_code"]
    return None


def _judge(context: Context, spec: CheckSpec, log: Log, readings: list[Reading]) -> Check:
    """Fail if one GPU is bad; pass only if nvidia-smi listed every GPU and each reported a good value."""
    by_gpu = list(zip(log.gpus, readings))  # noqa: B905
    bad = [(gpu, reading) for gpu, reading in by_gpu if reading.good is False]
    note = " (simulated values)" if context.driver_simulated else ""
    if bad:
        return spec.compare(False, _by_text(bad) + note)
    found = _by_text(by_gpu) + note if by_gpu else None
    if log.exit_code != 0:
        return spec.skip("nvidia-smi -q -x exits with %d: it does not list every GPU" % log.exit_code, found)
    if not by_gpu:
        return spec.skip("nvidia-smi lists no GPU")
    if any(reading.good is None for reading in readings):
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
    if check.id != "gpu.persistence" or check.status != FAIL:
        return check
    state = context.run(["systemctl", "is-enabled", PERSISTENCE_UNIT], 30).stdout.decode("utf-8", "replace").strip()
    if state != "disabled":
        return check
    (spec,) = (item.spec for item in PER_GPU if item.spec.id == check.id)
    return spec.skip("%s is disabled on this host" % PERSISTENCE_UNIT, check.found)


def _nvlinks(context: Context, gpus: list[Gpu], path: str) -> list[Reading]:
    """Read the links; a line in an unknown format (of a newer release) is shown and not judged."""
    try:
        links = nvidia_smi_log.nvlinks(path, context.run) if gpus else {}
    except ValueError as error:
        return [Reading(None, str(error)) for _unused in gpus]
    return [_nvlink(context, gpu, gpus, links) for gpu in gpus]


def _nvlink(context: Context, gpu: Gpu, gpus: list[Gpu], links: dict[int, Links] | None) -> Reading:
    """Judge the links of one GPU: with NVSwitches each must be up, else it is compared with GPUs of the same model.

    Boards without switches leave links unused, and a bridge joins two GPUs out of three, so there a GPU whose links are
    all down is not judged. A link far slower than the fastest (1.562 GB/s instead of 26.562) counts as down.
    """
    if links is None:
        return Reading(None, "nvidia-smi nvlink -s does not report the links")
    own = links.get(gpu.index, Links("unsupported", {}))
    if own.state == "unsupported":
        return Reading(None, "no NVLink")
    if len(gpus) == 1:
        return Reading(None, "the only GPU: its links connect it to no other")
    peers = [links[other.index] for other in gpus if other.name == gpu.name and other.index in links]
    switched = bool(pci.read(context.root)[1]) or gpu.text("fabric/state") is not None
    fastest = max([speed or 0.0 for peer in peers for speed in peer.speeds.values()] or [0.0])
    if own.state == "inactive" or not any(own.speeds.values()):
        certain = switched or ("SXM" in gpu.name and fastest > 0)
        return Reading(False if certain else None, "all links are down" + ("" if certain else ", or it has no bridge"))
    up = [number for number, speed in own.speeds.items() if speed is not None and speed >= fastest]
    slow = {number: speed for number, speed in own.speeds.items() if speed is not None and speed < fastest}
    down = [number for number, speed in own.speeds.items() if speed is None]
    most = max(sum(speed is not None for speed in peer.speeds.values()) for peer in peers)
    text = "%d links of %d at %g GB/s" % (len(up), len(own.speeds), fastest)
    text += "".join(", link %d at %g GB/s" % pair for pair in sorted(slow.items()))
    text += ", down: " + ", ".join("%d" % number for number in down) if down else ""
    return Reading(not slow and not (down and (switched or len(up) < most)), text)


def _xid_errors(context: Context) -> Check:
    if context.kernel_module != "loaded":
        return XID_ERRORS.skip("the kernel log belongs to the machine that runs this container, or to another kernel")
    if context.driver_simulated:
        return XID_ERRORS.skip("the NVIDIA driver is simulated: it writes nothing to a kernel log")
    text = kernel_log.read(context.run)
    if text is None:
        return XID_ERRORS.skip("neither journalctl nor dmesg shows a kernel message")
    events = kernel_log.parse(text)
    fatal = [event for event in events if event.fatal]
    return XID_ERRORS.compare(not fatal, _count_events(fatal or events))


def _count_events(events: list[kernel_log.Event]) -> str:
    """Return the eight most frequent messages, each with its count."""
    counts = Counter(str(event) for event in events)
    texts = ["%s%s" % (text, ", %d times" % count if count > 1 else "") for text, count in counts.most_common(8)]
    return "; ".join(texts) + ("; and %d others" % (len(counts) - 8) if len(counts) > 8 else "") or "none"

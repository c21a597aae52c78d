"""Checks of the GPUs' health: memory errors, links, slowdowns, what the kernel log has of them. Runs on the target.

Everything comes from one `nvidia-smi -q -x` and one `nvidia-smi nvlink -s`; what a GPU does not tell is no pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import FAIL, Check, Context, compared, skipped
from ansible_collections.gpuhost.stack.plugins.module_utils.host import pci
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import kernel_log, nvidia_smi_log
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia.nvidia_smi_log import Gpu, Links, Log

PERSISTENCE_DAEMON = "nvidia-persistenced.service"
_LINK = "pci/pci_gpu_link_info/"
_ASK_VENDOR = "If it stays so after a reset of the GPU (`nvidia-smi --gpu-reset`) and a restart, ask the vendor."
# From these performance states down, and without work, a GPU lets its PCIe link rest at a lower generation.
_RESTING = 5


@dataclass(frozen=True)
class Reading:
    """What one GPU tells: good, bad, or (None) nothing that could be judged."""

    good: bool | None
    text: str


@dataclass(frozen=True)
class Question:
    id: str
    ask: Callable[[Gpu], Reading]
    expected: str
    remedy: str
    unknown: str  # why nothing is judged where a GPU does not tell


def run(context: Context) -> list[Check]:
    ids = [question.id for question in QUESTIONS] + ["gpu.nvlink", kernel_log.CHECK_ID]
    if context.component("driver") is None:
        return [skipped(check_id, context.without("the driver")) for check_id in ids]
    xid_errors = kernel_log.check(context)
    reason = _silent(context)
    if reason is not None:
        return [skipped(check_id, reason) for check_id in ids[:-1]] + [xid_errors]
    path = str((context.smi or {})["path"])
    log = nvidia_smi_log.read(path, context.run)
    if any(_slowed(gpu) == ["hw_slowdown"] for gpu in log.gpus):
        # NVML reports it for a moment while clocks change; a second look tells that from a slowdown that stays.
        log = nvidia_smi_log.read(path, context.run)
    found = [_answer(context, question, log, [question.ask(gpu) for gpu in log.gpus]) for question in QUESTIONS]
    found = [_by_choice(context, check) for check in found]
    return [*found, _answer(context, NVLINK, log, _nvlinks(context, log.gpus, path)), xid_errors]


def _silent(context: Context) -> str | None:
    """Why nvidia-smi is not asked."""
    if context.smi is None:
        return "there is no nvidia-smi to ask"
    if context.driver_state == "not_loaded":
        return "nvidia-smi cannot tell: the driver is not loaded, as expected here"
    # With a lost GPU it ends with 15 or 255 and still shows the others; with these it shows none.
    if context.smi["exit_code"] in (6, 9, 12, 18, 124, 127):
        return "nvidia-smi ends with %s, see driver.nvidia_smi" % context.smi["exit_code"]
    return None


def _answer(context: Context, question: Question, log: Log, readings: list[Reading]) -> Check:
    bad = [(gpu, reading.text) for gpu, reading in zip(log.gpus, readings) if reading.good is False]  # noqa: B905
    every = [(gpu, reading.text) for gpu, reading in zip(log.gpus, readings)]  # noqa: B905
    note = " (simulated values)" if context.driver_simulated else ""
    if bad:
        return compared(question.id, False, _told(bad) + note, question.expected, question.remedy)
    found = _told(every) + note if every else None
    if log.exit_code != 0:
        return skipped(question.id, "nvidia-smi -q -x ends with %d: it does not show every GPU" % log.exit_code, found)
    if not every:
        return skipped(question.id, "nvidia-smi shows no GPU")
    if any(reading.good is None for reading in readings):
        return skipped(question.id, question.unknown, found)
    return compared(question.id, True, str(found), question.expected, question.remedy)


def _by_choice(context: Context, check: Check) -> Check:
    """Persistence mode that somebody switched off by disabling the daemon (nvidia_driver_persistence) is no failure."""
    if check.id != "gpu.persistence" or check.status != FAIL:
        return check
    state = context.run(["systemctl", "is-enabled", PERSISTENCE_DAEMON], 30).stdout.decode("utf-8", "replace").strip()
    if state != "disabled":
        return check
    return skipped(check.id, "%s is disabled on this host" % PERSISTENCE_DAEMON, check.found)


def _told(readings: list[tuple[Gpu, str]]) -> str:
    """Each text once, with the GPUs that it is true of."""
    texts: dict[str, list[str]] = {}
    for gpu, text in readings:
        texts.setdefault(text, []).append("%d" % gpu.index)
    return "; ".join("GPU %s: %s" % (", ".join(indexes), text) for text, indexes in texts.items())


def _answers(gpu: Gpu) -> Reading:
    lost = gpu.lost()
    if lost:
        return Reading(False, "%s (%s)" % (", ".join(sorted(set(lost.values()))), ", ".join(sorted(lost)[:5])))
    return Reading(True, "answers")


def _recovery(gpu: Gpu) -> Reading:
    """`gpu_recovery_action` since branch 565; before it two flags."""
    action = gpu.text("gpu_recovery_action")
    if action is not None:
        return Reading(action == "None", "recovery action %s" % action)
    flags = {name: gpu.text("gpu_reset_status/" + name) for name in ("reset_required", "drain_and_reset_recommended")}
    wanted = [name.replace("_", " ") for name, value in flags.items() if value == "Yes"]
    if wanted:
        return Reading(False, ", ".join(wanted))
    return Reading(True, "no reset required") if flags["reset_required"] == "No" else Reading(None, "does not tell")


def _persistence(gpu: Gpu) -> Reading:
    mode = gpu.text("persistence_mode")
    return Reading(None if mode is None else mode == "Enabled", "persistence mode %s" % (mode or "not told"))


def _ecc_errors(gpu: Gpu) -> Reading:
    """Uncorrectable errors since the driver was loaded: by kind of memory, before Turing `double_bit`."""
    mode = gpu.text("ecc_mode/current_ecc")
    if mode != "Enabled":
        return Reading(None, "ECC %s" % (mode or "not told"))
    volatile = gpu.element.find("ecc_errors/volatile")
    older = None if volatile is None else volatile.find("double_bit")
    if older is not None:
        counts = {"double_bit": gpu.number("ecc_errors/volatile/double_bit/total")}
    else:
        names = [name for name, _ in gpu.below("ecc_errors/volatile") if "uncorrectable" in name]
        counts = {name: gpu.number("ecc_errors/volatile/" + name) for name in names}
    some = {name: count for name, count in counts.items() if count is not None}
    wrong = ["%s %d" % (name, count) for name, count in some.items() if count]
    if wrong:
        return Reading(False, "uncorrectable errors: " + ", ".join(wrong))
    return Reading(True, "no uncorrectable error") if some else Reading(None, "ECC enabled, errors not told")


# Yes wants a reset, or the vendor. Pages are retired up to Turing, rows remapped since Ampere (NVIDIA's "GPU memory
# error management"); banks since branch 615, repairs of channels and TPCs since Hopper.
_REPAIRS = ("retired_pages", "remapped_rows", "remapped_banks", "ecc_errors")


def _memory_repair(gpu: Gpu) -> Reading:
    wrong, told = [], False
    for group in _REPAIRS:
        for name, value in gpu.below(group):
            pending = name.endswith(("_pending", "_failure", "_threshold_exceeded")) or name.startswith("pending_")
            if pending or name == "unrepairable_memory":
                told = told or value is not None
                if value == "Yes":
                    wrong.append(name)
    if wrong:
        return Reading(False, ", ".join(sorted(set(wrong))))
    return Reading(True, "nothing pending, nothing failed") if told else Reading(None, "does not tell")


def _passed_through(gpu: Gpu) -> bool:
    """Whether this is a virtual machine's view: the physical slot belongs to the host around it."""
    return gpu.text("gpu_virtualization_mode/virtualization_mode") in ("Pass-Through", "VGPU")


def _pcie_width(gpu: Gpu) -> Reading:
    """`max_link_width` is what GPU and slot can do together (nvidia-smi's manual)."""
    current, best = (gpu.number(_LINK + "link_widths/%s_link_width" % name) for name in ("current", "max"))
    if not current or not best:
        return Reading(None, "link width not told")
    text = "x%d of x%d" % (current, best)
    if current < best and _passed_through(gpu):
        return Reading(None, text + ", in a virtual machine")
    return Reading(current >= best, text)


def _resting(gpu: Gpu) -> bool:
    state = gpu.text("performance_state") or ""
    low = state[1:].isdigit() and int(state[1:]) >= _RESTING
    return low or not gpu.number("utilization/gpu_util") or _reasons(gpu).get("gpu_idle") == "Active"


def _pcie_generation(gpu: Gpu) -> Reading:
    generation = _LINK + "pcie_gen/"
    current, best = (gpu.number(generation + "%s_link_gen" % name) for name in ("current", "max"))
    device = gpu.number(generation + "max_device_link_gen")
    if not current or not best:
        return Reading(None, "link generation not told")
    text = "generation %d of %d" % (current, best)
    if device and device > best:
        text += " (the GPU has %d, the slot not)" % device
    if current < best and _passed_through(gpu):
        return Reading(None, text + ", in a virtual machine")
    if current < best and _resting(gpu):
        return Reading(None, text + ", at rest")
    return Reading(current >= best, text)


def _reasons(gpu: Gpu) -> dict[str, str | None]:
    """Why clocks are as they are, by the name without its prefix, which changed with branch 535."""
    found = {}
    for group in ("clocks_event_reasons", "clocks_throttle_reasons"):
        for name, value in gpu.below(group):
            found[name.split("_reason_", 1)[-1]] = value
    return found


def _slowed(gpu: Gpu) -> list[str]:
    return sorted(name for name, value in _reasons(gpu).items() if name.startswith("hw_") and value == "Active")


def _slowdown(gpu: Gpu) -> Reading:
    reasons = _reasons(gpu)
    if _slowed(gpu):
        return Reading(False, "slowed by " + ", ".join(_slowed(gpu)))
    if reasons.get("hw_slowdown") is None:
        return Reading(None, "does not tell")
    software = reasons.get("sw_thermal_slowdown") == "Active"
    return Reading(True, "no hardware slowdown" + (", slowed by the driver for its temperature" if software else ""))


def _fabric(gpu: Gpu) -> Reading:
    """Whether the GPU was taken into the NVLink fabric that Fabric Manager makes of GPUs and NVSwitches."""
    state, status = gpu.text("fabric/state"), gpu.text("fabric/status")
    if state is None:
        return Reading(None, "takes part in no fabric")
    health = gpu.text("fabric/health/summary")
    text = "fabric %s, %s" % (state, status or "status not told") + (", %s" % health if health else "")
    return Reading(state == "Completed" and status == "Success" and health in (None, "Healthy"), text)


def _mig(gpu: Gpu) -> Reading:
    now, then = gpu.text("mig_mode/current_mig"), gpu.text("mig_mode/pending_mig")
    if now is None:
        return Reading(None, "has no MIG")
    return Reading(now == (then or now), "MIG %s" % now + ("" if now == (then or now) else ", %s after a reset" % then))


def _nvlinks(context: Context, gpus: list[Gpu], path: str) -> list[Reading]:
    """A line of a form that is not known (a newer release's) is told and judged by nobody."""
    try:
        links = nvidia_smi_log.nvlinks(path, context.run) if gpus else {}
    except ValueError as error:
        return [Reading(None, str(error)) for _ in gpus]
    return [_nvlink(context, gpu, gpus, links) for gpu in gpus]


def _nvlink(context: Context, gpu: Gpu, gpus: list[Gpu], links: dict[int, Links] | None) -> Reading:
    """Where NVSwitches join the GPUs, each link must be up; else each GPU is held against its likes.

    Boards without switches leave links unused, and a bridge joins two GPUs of three, so all links of a GPU down says
    nothing there. A link far slower than its likes (1.562 GB/s instead of 26.562) counts as down.
    """
    if links is None:
        return Reading(None, "nvidia-smi nvlink -s does not tell")
    own = links.get(gpu.index, Links("unsupported", {}))
    if own.state == "unsupported":
        return Reading(None, "has no NVLink")
    if len(gpus) == 1:
        return Reading(None, "alone on this host: its links lead to no other GPU")
    likes = [links[other.index] for other in gpus if other.name == gpu.name and other.index in links]
    switched = bool(pci.read(context.root)[1]) or gpu.text("fabric/state") is not None
    fastest = max([speed or 0.0 for like in likes for speed in like.speeds.values()] or [0.0])
    if own.state == "inactive" or not any(own.speeds.values()):
        certain = switched or ("SXM" in gpu.name and fastest > 0)
        return Reading(False if certain else None, "all links are down" + ("" if certain else ", or it has no bridge"))
    up = [number for number, speed in own.speeds.items() if speed is not None and speed >= fastest]
    slow = {number: speed for number, speed in own.speeds.items() if speed is not None and speed < fastest}
    down = [number for number, speed in own.speeds.items() if speed is None]
    most = max(sum(speed is not None for speed in like.speeds.values()) for like in likes)
    text = "%d links of %d at %g GB/s" % (len(up), len(own.speeds), fastest)
    text += "".join(", link %d at %g GB/s" % pair for pair in sorted(slow.items()))
    text += ", down: " + ", ".join("%d" % number for number in down) if down else ""
    return Reading(not slow and not (down and (switched or len(up) < most)), text)


QUESTIONS = [
    Question(
        "gpu.answers",
        _answers,
        "every GPU answers every question",
        "The driver has lost the GPU: `journalctl -k -b -g Xid` tells when. Restart the host; if it comes back, look "
        "at power, seat and cooling of the card.",
        "",
    ),
    Question(
        "gpu.recovery",
        _recovery,
        "no GPU wants to be reset or the host restarted",
        "Drain the host and do what the driver asks: reset the GPU (`nvidia-smi --gpu-reset -i N`) or restart.",
        "this driver or this GPU does not tell whether it wants a reset",
    ),
    Question(
        "gpu.persistence",
        _persistence,
        "persistence mode on, so that no GPU is set up anew for each program",
        "systemctl enable --now nvidia-persistenced (or, until the next start, `nvidia-smi -pm 1`).",
        "nvidia-smi does not tell the persistence mode",
    ),
    Question(
        "gpu.ecc_errors",
        _ecc_errors,
        "no uncorrectable memory error since the driver was loaded",
        "Results computed since then may be wrong. Drain the host and reset the GPU (`nvidia-smi --gpu-reset -i N`), "
        "which retires the bad memory. " + _ASK_VENDOR,
        "a GPU has no ECC or has it switched off: its memory errors are not counted",
    ),
    Question(
        "gpu.memory_repair",
        _memory_repair,
        "no bad memory waits to be retired, no repair failed",
        "Pending: drain the host and reset the GPU (`nvidia-smi --gpu-reset -i N`). Failure, or a threshold exceeded: "
        "the card is for the vendor.",
        "a GPU does not tell of retired or remapped memory",
    ),
    Question(
        "gpu.pcie_width",
        _pcie_width,
        "each link as wide as GPU and slot allow",
        "Half the lanes are half the transfer rate. Reseat the card and its riser, look at the slot's lanes in the "
        "board's manual and at bifurcation in the firmware's settings.",
        "in a virtual machine the lanes are the host's matter, or a GPU does not tell them",
    ),
    Question(
        "gpu.pcie_generation",
        _pcie_generation,
        "each link, while its GPU works, of the generation that GPU and slot allow",
        "Look at the slot's setting in the firmware, at risers that are made for an older generation, and at "
        "`journalctl -k -g AER`.",
        "a GPU at rest lets its link rest, too (cuda_check measures under load); in a virtual machine it is the host's",
    ),
    Question(
        "gpu.fabric",
        _fabric,
        "each GPU joined to the NVLink fabric",
        "Fabric Manager makes the fabric: `systemctl status nvidia-fabricmanager` and /var/log/fabricmanager.log; its "
        "version must be the driver's. Without it CUDA fails with error 802 (system not yet initialized).",
        "no fabric: a GPU without NVSwitch needs none",
    ),
    Question(
        "gpu.slowdown",
        _slowdown,
        "no clock held down by heat or power",
        "Look at fans, air flow and power supply (`nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`): the hardware "
        "holds the clocks down.",
        "a GPU does not tell why its clocks are as they are",
    ),
    Question(
        "gpu.mig",
        _mig,
        "MIG as it stays after the next reset",
        "A change of the MIG mode waits for a reset: `nvidia-smi --gpu-reset -i N`. With MIG on, one program sees one "
        "instance, not the GPU.",
        "a GPU has no MIG",
    ),
]
NVLINK = Question(
    "gpu.nvlink",
    lambda gpu: Reading(None, ""),
    "every link that the product and the board have is up, at full speed",
    "`nvidia-smi nvlink -e` counts errors, `journalctl -k -b -g 'Xid|SXid|NVLink'` tells why; on NVSwitch systems see "
    "gpu.fabric. Bridges: reseat them. " + _ASK_VENDOR,
    "no NVLink between GPUs here, or nvidia-smi does not tell",
)

"""Find services that a plan enables and an administrator has masked: only the administrator removes a mask."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import Findings
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe

PERSISTENCED = "nvidia-persistenced"
CODES = {
    "service-masked": (
        "A service that the run would enable is masked (`systemctl mask`), nvidia-persistenced for example",
        "`systemctl unmask NAME` on the host; or, to keep nvidia-persistenced off, `nvidia_driver_persistence: false`",
    ),
}


def check(plan: Plan, probe: Probe, findings: Findings, persistence: bool) -> None:
    """Report each masked service of a planned driver; persistence: whether nvidia-persistenced is to be enabled."""
    if plan.components.driver is None:
        return
    wanted = {name for part in probe.applied.values() for name in part.repairs.services}
    wanted = wanted - {PERSISTENCED} | ({PERSISTENCED} if persistence else set())
    for name in (name for name in probe.masked_services if name in wanted):
        keep = "; or set nvidia_driver_persistence: false to keep it masked" if name == PERSISTENCED else ""
        findings.problem(
            "service-masked",
            f"the service {name} is masked on this host, and the run would enable it, which systemd refuses",
            f"on the host: systemctl unmask {name}{keep}",
        )

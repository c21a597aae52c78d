#!/usr/bin/python
# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Verify that the planned stack is installed on the host and works."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_verify
short_description: Verify the driver, CUDA, cuDNN, NCCL, packages and frameworks of a GPU host
version_added: "0.1.0"
description:
  - Runs all checks of a host in one task. docs/checks.md of this collection lists them.
  - Compiles, links and runs a CUDA program, and imports the planned frameworks. Programs that do not use the GPUs run
    in parallel, those that do run one after the other.
  - Keeps the result in O(state_directory) as C(last_result.json), where that directory exists, with these options as
    C(verify_options.json). It is what the checks after the next change are compared with, and
    what C(gpuhost-verify) on the host answers from. Where it cannot be written, the result has a warning.
  - Packs C(gpuhost-verify) anew from these checks, where the role C(host_verify) has made its directory. Writes nothing
    else.
  - The CUDA program C(cuda_check.cu) calls cuDNN and NCCL. On a host with GPUs it copies data in every direction,
    between each pair of GPUs and in an all-reduce, compares what arrives, and measures the bandwidth. For eight GPUs it
    needs some seconds.
options:
  plan:
    description: The host's plan, as M(gpuhost.stack.stack_plan) stores it in the fact C(gpu_stack_plan).
    type: dict
    required: true
  expect_gpus:
    description: The number of GPUs that the host must have. By default the plan's number.
    type: int
  kernel_module:
    description:
      - V(loaded) if the running kernel uses the driver's module.
      - V(built) if a module is built for an installed kernel that does not run.
      - V(not_managed) if the kernel is not the host's own, as in a container.
    type: str
    choices: [loaded, built, not_managed]
    default: loaded
  driver_state:
    description:
      - The state in which nvidia-smi must find the driver.
      - V(working) expects exit code 0, V(not_loaded) expects exit code 9.
      - V(auto) means V(not_loaded) if O(kernel_module=built), else V(working).
    type: str
    choices: [auto, working, not_loaded]
    default: auto
  environment_paths:
    description: Paths of environments by the name of the framework; F(/opt/gpuhost/NAME) for those that are not named.
    type: dict
    default: {}
  tensorflow_path:
    description: The path of the TensorFlow environment; O(environment_paths) takes precedence.
    type: path
    default: /opt/gpuhost/tensorflow
  state_directory:
    description: The directory of the host's records, as of M(gpuhost.stack.stack_state).
    type: path
    default: /var/lib/gpuhost
  cuda_check_source:
    description: The source of C(cuda_check.cu). The action plugin adds it; tasks need not set it.
    type: str
  gpu_thresholds:
    description:
      - Minimum bandwidths in GB/s by PCI ID such as V(10de:2335), with the optional keys C(host), C(memory), C(nvlink)
        and C(name) (shown in the results). GPUs without an entry are measured and not judged.
      - By default the action plugin adds the thresholds of the planned GPUs from C(catalog/gpu_thresholds.yml).
    type: dict
  link_thresholds:
    description:
      - What part of a link's rate its measurements must reach. C(pcie) has C(percent) and C(lanes), the GB/s of one
        lane by GT/s. C(nvlink) has C(percent), C(rates), the GB/s of a link by the speed that nvidia-smi prints, and
        C(links), the number of links by PCI ID. Without a key, such links are not judged.
      - By default the action plugin adds those of C(catalog/gpu_thresholds.yml).
    type: dict
  fabric_manager_packages:
    description: Globs of Fabric Manager's packages. By default the action plugin adds those of C(catalog/packages.yml).
    type: list
    elements: str
  user_settings:
    description:
      - Variables of the host's users that the checks' programs drop, keep or set, as the rows of
        C(catalog/user_settings.csv). By default the action plugin adds these.
    type: list
    elements: dict
  gpu_counters:
    description:
      - How the counters of GPUs and NVLinks are judged, as the rows of C(counters) in C(catalog/gpu_thresholds.yml). A
        counter without a row is shown.
      - By default the action plugin adds these rows.
    type: list
    elements: dict
  xid_errors:
    description:
      - What is done about the Xid messages of the driver. C(numbers) has C(outcome), C(blame) and C(meaning) by
        number, C(nvlink) the rows of C(catalog/xid_nvlink.csv). A number without an entry is a warning.
      - By default the action plugin adds those of C(catalog/xids.csv).
    type: dict
  waivers:
    description: Failures that are accepted until a date. Such a check has the outcome V(waived).
    type: list
    elements: dict
    default: []
    suboptions:
      check:
        description: Id of the check.
        type: str
        required: true
      reason:
        description: Why the failure is accepted.
        type: str
        required: true
      until:
        description: The last day, as C(YYYY-MM-DD). The action plugin ignores waivers that have expired.
        type: str
        required: true
      gpu:
        description: Index, UUID or PCI address of one GPU. By default the check is waived for the whole host.
        type: str
  unknown:
    description: With V(fail), a host with a check that has no answer (V(unknown)) is not verified; with V(warn) it is.
    type: str
    choices: [fail, warn]
    default: fail
  before_change:
    description:
      - Ask the checks just before the host is changed, for the comparison with those after the change. On a host that
        was checked before they are asked as they were then, and O(plan) and the other options are for one that was not.
      - What waits for idle GPUs, or uses GPUs whose loaded module is not the installed one, has the answer of the last
        result with the same GPUs.
    type: bool
    default: false
  damage:
    description: What is known to be damaged on the host, a message by name, for C(gpuhost-verify), which prints it.
    type: dict
    default: {}
  accept_damage:
    description: The names of damage that is to stay, which C(gpuhost-verify --fresh) does not look for.
    type: list
    elements: str
    default: []
  max_age:
    description:
      - The days for which the last verification stands for checks that are V(deferred), and the last training for a new
        one. Not for these checks, but for C(gpuhost-verify) on the host, which reads it from O(state_directory).
    type: float
    default: 30
  timeout_factor:
    description: What the time limits of programs on the host, such as nvidia-smi, are multiplied by.
    type: float
    default: 1
  fail:
    description: Whether the task fails if a check failed or had no answer. Deferred checks do not fail it.
    type: bool
    default: false
author: gpuhost contributors (!UNKNOWN)
attributes:
  action:
    description: An action plugin adds the CUDA program, thresholds, package names and settings on the controller.
    support: full
  check_mode:
    description: Runs the same checks, and does not keep their result.
    support: full
"""

EXAMPLES = r"""
- name: Verify the host
  gpuhost.stack.gpu_verify:
    plan: "{{ gpu_stack_plan }}"
  register: gpu_host_verified

- name: Verify the host without judging bandwidths, and fail if a check fails
  gpuhost.stack.gpu_verify:
    plan: "{{ gpu_stack_plan }}"
    gpu_thresholds: {}
    link_thresholds: {}
    fail: true
"""

RETURN = r"""
verify:
  description: The results of all checks.
  returned: always
  type: dict
  contains:
    schema:
      description: Version of this structure.
      returned: always
      type: int
    status:
      description:
        - The worst outcome of V(fail), V(unknown) and V(deferred). V(pass) if none of them occurred and something was
          measured.
      returned: always
      type: str
      sample: pass
    counts:
      description: Number of checks by outcome.
      returned: always
      type: dict
      sample: {pass: 41, fail: 0, skip: 3}
    unknown_counts:
      description: Whether unknown checks keep the host from being verified.
      returned: always
      type: bool
    worse:
      description:
        - The checks that the change that is pending has made worse. They were right just before it and when the
          configuration from before it was verified, have not been right since, and now fail without evidence that the
          hardware or the host explains it, or have no answer.
      returned: always
      type: list
      elements: str
    before:
      description: By check that is not right now, the outcome just before the change that is pending, if it was asked.
      returned: always
      type: dict
    checks:
      description: One result per check, in a fixed order. Keys without a value are omitted.
      returned: always
      type: list
      elements: dict
      contains:
        id:
          description: Stable identifier of the check.
          type: str
          sample: gpu.ecc_errors
        status:
          description: Outcome of the check.
          type: str
          sample: fail
        found:
          description: What was measured.
          type: str
          sample: "GPU 1: uncorrectable errors: dram_uncorrectable 5"
        expected:
          description: What the check expects.
          type: str
          sample: no uncorrectable memory error since the driver was loaded
        remedy:
          description: What to do about a failure.
          type: str
        reason:
          description: Why the check was skipped or has another outcome than V(pass) and V(fail).
          type: str
        cause:
          description:
            - What a failure is caused by. V(stack), something that gpuhost installs or sets; V(hardware), a GPU, link
              or board; V(host), a setting for all users, or a program of the host, that explains it and is not ours.
          type: str
          sample: hardware
        setting:
          description: The setting that explains a failure of the V(host), and where it is set.
          type: str
          sample: LD_LIBRARY_PATH=/opt/x in /etc/environment
        versions:
          description: Versions that the running software reports, by component.
          type: dict
          sample: {driver: 595.71.05}
        loaded:
          description: Versions of the files that the check's program has loaded, by component.
          type: dict
          sample: {cudnn: 9.28.0}
        simulated:
          description: Whether the check judged values of a simulated driver.
          type: bool
    simulated:
      description: What is simulated on the host, empty on a real host.
      returned: always
      type: list
      elements: str
    gpu_jobs:
      description: The programs that use the GPUs, because of which checks are V(deferred); empty if there is none.
      returned: always
      type: str
    kernel_log:
      description:
        - When the last message of the kernel that C(gpu.xid_errors) has read was logged. In ISO 8601 from the journal,
          in seconds since boot from C(dmesg).
      returned: if the check read the kernel log
      type: str
    cuda_check:
      description:
        - The document of the CUDA program with versions, devices, copies, peer access, all-reduce and bandwidths in
          GB/s.
      returned: if the CUDA program ran
      type: dict
    gpus:
      description:
        - The GPUs that C(nvidia-smi -q -x) lists, by name, serial number, UUID and PCI address, with their memory,
          VBIOS, PCIe link and NVLinks. What nvidia-smi does not report is null.
      returned: if nvidia-smi was asked
      type: list
      elements: dict
    bandwidths:
      description:
        - The measured bandwidths in GB/s, each with the C(minimum) that C(cuda.bandwidth) compares it with (null if
          there is none) and the C(source) of that. C(kind) is a copy of one GPU, C(peer) or C(all_reduce), C(gpus) are
          CUDA's indexes.
      returned: if the CUDA program used GPUs
      type: list
      elements: dict
"""

import dataclasses
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuhost.stack.plugins.module_utils.base import module_options, store
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import model, verify
from ansible_collections.gpuhost.stack.plugins.module_utils.model import outcomes, records
from ansible_collections.gpuhost.stack.plugins.module_utils.state import last_result
from ansible_collections.gpuhost.stack.plugins.module_utils.verdict import program


def asked_last(options: verify.Options) -> verify.Options:
    """Return the options with which this host was checked last; those given for one that was not."""
    kept = last_result.asked_last(options.state_directory)
    if kept is None:
        return options
    try:
        kept_options = verify.Options.from_json(kept, time.strftime("%Y-%m-%d"))
    except (KeyError, TypeError):  # of a release that asked something else
        return options
    return dataclasses.replace(kept_options, timeout_factor=options.timeout_factor, fail=False)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec=module_options.argument_spec(verify.Options),
        supports_check_mode=True,
    )
    options = module_options.read(verify.Options, module.params)
    if not isinstance(options.plan.get("components"), dict):
        module.fail_json(
            msg="`plan` has no key `components`: found the keys %s, expected the complete plan, "
            "`{{ gpu_stack_plan }}`." % (", ".join(sorted(options.plan)) or "(none)")
        )
    if not options.cuda_check_source:
        module.fail_json(
            msg="cuda_check_source is missing: the module runs without its action plugin, which adds the CUDA program. "
            "Call gpuhost.stack.gpu_verify in a task, with plugins/action/gpu_verify.py installed beside "
            "plugins/modules, or pass the text of plugins/module_utils/nvidia/cuda_check.cu."
        )
    newer = store.newer(options.state_directory)
    if newer:
        module.fail_json(msg=str(newer))
    last = None
    try:
        if options.before_change:
            last = last_result.read(options.state_directory)
            options = asked_last(options)
        context = verify.context(options)
    except records.RecordError as error:
        module.fail_json(msg="%s. `plan` must be the complete plan, `{{ gpu_stack_plan }}`." % error)
    result = verify.verify(context)
    if not module.check_mode:
        record = last_result.with_last(last_result.compose(context.root, context.smi, result), last)
        asked = dataclasses.replace(options, before_change=False)
        kept = last_result.write(options.state_directory, record, asked.to_json())
        for problem in filter(None, (kept, program.refresh())):
            module.warn(problem)
    if options.fail and result["status"] not in (outcomes.PASS, outcomes.DEFERRED):
        module.fail_json(msg=model.failure_message(result), verify=result)
    module.exit_json(changed=False, verify=result)


if __name__ == "__main__":
    main()

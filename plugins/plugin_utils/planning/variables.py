"""Check the variables of a host before it is probed: their names, and the value of each that the user has set.

The request's values are read by model/request.py, those of roles by the roles' argument specifications. Every mistake
is returned, so that one run shows all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.gpuhost.stack.plugins.module_utils.base import urls
from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import (
    Components,
    CudaComponent,
    FrameworkComponent,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import spelling, versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs import user_request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.declared import declared, of_request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.user_request import URL, shown
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import (
    BY_NAME,
    FRAMEWORKS,
    PARTS,
    PUBLISHED,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.user_variables import PREFIX, Variable, is_empty
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import role_inputs
from ansible_collections.gpuhost.stack.plugins.plugin_utils.verification import waivers

# What roles set for the plays after them.
RESULTS = (
    "gpu_benchmark_result",
    "gpu_benchmark_scaling_result",
    "nvidia_driver_reboot_pending",
    "smoke_train_job_directory",
    "smoke_train_result",
)
_SWITCHES = ("enable", "enabled", "disable", "disabled", "install", "skip")  # how other roles end such names
_SERIAL = re.compile(r"[1-9]\d*|(100|[1-9]\d?)(\.\d+)?%")
CUDA_LINK = "/usr/local/cuda"
# What the plan decides together: the versions of components, what has them, and where shells find nvcc.
PLANNED = (
    *(f"{part.role}_{name}" for part in PARTS for name in ("version", "python", "packages", "lock")),
    *(f"{part.role}_{field}" for part in PARTS for field in part.role_fields),
    *("cuda_toolkit_default", "env_paths_cuda_home", "env_paths_state"),
)
# Roles that are used alone obey these. In playbooks others rely on the default, as each entry says: no other value is
# accepted there.
_FIXED = {
    **dict.fromkeys(
        [f"{part.role}_path" for part in FRAMEWORKS], "the probe, the checks, gpuhost-env and teardown look there"
    ),
    **dict.fromkeys([f"{part.role}_uv_path" for part in FRAMEWORKS], "each run compares it, and teardown removes it"),
    "nvidia_repo_adopted_source": "each run finds it",
    "nvidia_repo_key_path": "the probe, rollback and teardown look there",
    "nvidia_repo_set_aside_folder": "the plan names it, and teardown removes it",
    "smoke_train_python": "the run records the environments that it installs as verified",
}
# Variables that a role takes from one of gpu_stack_*, which the plan reads as well.
_ASKED_WITH = {
    f"nvidia_driver_{name}": f"{PREFIX}{name}" for name in ("module_signing_key", "module_signing_certificate")
}
# What people have in their group_vars for NVIDIA's own role, nvidia.nvidia_driver on Galaxy, with the variable of ours
# that means the same. From defaults/main.yml of https://github.com/NVIDIA/ansible-role-nvidia-driver.
_NVIDIAS_ROLE = {
    **dict.fromkeys(
        (
            *("nvidia_driver_branch", "nvidia_driver_debian_branch", "nvidia_driver_rhel_branch"),
            *("nvidia_driver_ubuntu_branch", "nvidia_driver_package_state", "nvidia_driver_package_version"),
            *("nvidia_driver_debian_cuda_package", "nvidia_driver_ubuntu_cuda_package"),
        ),
        f"{PREFIX}driver",
    ),
    **dict.fromkeys(
        (
            *("nvidia_driver_add_repos", "nvidia_driver_debian_install_from_cuda_repo"),
            *("nvidia_driver_ubuntu_install_from_cuda_repo", "nvidia_driver_debian_install_tesla_driver"),
            *("nvidia_driver_debian_packages", "nvidia_driver_debian_tesla_package"),
            *("nvidia_driver_ubuntu_packages", "nvidia_driver_ubuntu_packages_suffix"),
        ),
        f"{PREFIX}driver_source",
    ),
    **dict.fromkeys(
        [f"nvidia_driver_{name}_cuda_repo_baseurl" for name in ("debian", "rhel", "ubuntu")], f"{PREFIX}repository_url"
    ),
    **dict.fromkeys(
        [
            "nvidia_driver_rhel_cuda_repo_gpgkey",
            *(
                f"nvidia_driver_{name}_cuda_keyring_{what}"
                for name in ("debian", "ubuntu")
                for what in ("package", "url")
            ),
        ],
        f"{PREFIX}repository_key_url",
    ),
    "nvidia_driver_skip_reboot": f"{PREFIX}reboot",
    "nvidia_driver_persistence_mode_on": "nvidia_driver_persistence",
    "nvidia_driver_module_file": None,
    "nvidia_driver_module_params": None,
}
SHARED_ROLE = "framework_env"  # the roles that use it set all of its variables
_TYPES = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "list": "a list",
    "dict": "a mapping",
    "str": "text",
    "path": "a path",
}


def role_options() -> dict[str, dict[str, Any]]:
    """Return the options of all roles, and those of playbooks alone, by the name of the variable."""
    of_playbooks = {each.name: {"type": each.type} for each in declared().values() if not each.name.startswith(PREFIX)}
    return of_playbooks | {name: option for options in role_inputs.roles().values() for name, option in options.items()}


def of_same_role(name: str) -> set[str]:
    """Return the other variables of the role that a variable is of."""
    return {other for options in role_inputs.roles().values() if name in options for other in options} - {name}


def set_by_user(variables: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Return the variables to check, as templates: those of `known`, and those of roles."""
    names = {*known, *role_options()}
    return {name: value for name, value in variables.items() if name in names}


# Names ----------------------------------------------------------------------------------------------------------


def misspelt(names: Iterable[str], known: Iterable[str], internal: Iterable[str]) -> list[str]:
    """Return a message for each unknown variable that looks like one of this collection, with the nearest known name.

    known: the gpu_stack_* variables that a user may set; internal: the other ones. Other projects
    use the prefixes of some roles, too (nccl_debug): such a name is a mistake only where it is like a known one. A
    variable of NVIDIA's role may stay beside the one of ours that means the same.
    """
    ours = [*known, *role_options()]
    accepted = {*ours, *internal, *RESULTS}
    prefixes = tuple(f"{role}_" for role in role_inputs.roles())
    mistakes = []
    texts = {name for name in names if isinstance(name, str)}  # Ansible reads {a: 13,2} as two, and warns of 2
    for name in sorted(name for name in texts - accepted if not name.startswith(("_", "ansible_"))):
        if why := not_ours(name):
            mistakes += [why] if _NVIDIAS_ROLE.get(name) not in texts else []
        elif re.sub(r"[^a-z]", "", name.lower()).startswith("gpustack"):
            near = spelling.nearest(_option(name), [option.removeprefix(PREFIX) for option in known])
            mistakes.append(
                f"{name}: no such variable; did you mean {PREFIX}{near}?"
                if near
                else f"{name}: no such variable; known are {', '.join(known)}"
            )
        elif near := spelling.nearest(name, ours, 0.85 if name.startswith(prefixes) else 0.93):
            mistakes.append(f"{name}: no such variable; did you mean {near}?")
    return mistakes


def not_ours(name: str) -> str | None:
    """Return a message for a variable of another role, or one by which other roles are switched off; else None."""
    if name in _NVIDIAS_ROLE:
        ours = _NVIDIAS_ROLE[name]
        instead = f"set {ours}, beside it or in its place" if ours else "none of ours means the same; remove the line"
        return f"{name} is a variable of NVIDIA's role nvidia.nvidia_driver, not of gpuhost; {instead}"
    role, ending = name.rpartition("_")[::2]
    role = role.removeprefix(PREFIX)
    if ending not in _SWITCHES or role not in role_inputs.roles():
        return None
    component = next((part.name for part in PARTS if part.role == role), None)
    instead = f"set {PREFIX}{component}=none" if component else f"add --skip-tags {role} to the command"
    return f"{name}: no such variable; to leave {role} out, {instead}"


def _option(name: str) -> str:
    """Return a name without its prefix, however that is written: `gpustack_cuda` and `GPU-STACK-CUDA` give `cuda`."""
    return re.sub(r"^gpu[^a-z]?stack[^a-z]?", "", name.lower()).replace("-", "_")


# Values ---------------------------------------------------------------------------------------------------------


def wrong_values(values: Mapping[str, Any], catalog: Catalog, today: date) -> list[str]:
    """Return a mistake for each value that is not accepted. values: by the name of the variable, without templates."""
    request = {name: values[f"{PREFIX}{name}"] for name in of_request() if f"{PREFIX}{name}" in values}
    wrong = dict(user_request.read(request, catalog).errors)
    mistakes = [wrong.get(name) or _dropped_zero(f"{PREFIX}{name}", name, request[name], catalog) for name in request]
    options = role_options()
    for name, value in values.items():
        if name in options:
            mistakes.append(_of_role(name, value, options[name], catalog) or _read_elsewhere(name, value, options))
        elif (variable := declared().get(name)) and not variable.request:
            mistakes += _check_run_variable(variable, value, today)
    return [str(urls.without_credentials(mistake)) for mistake in mistakes if mistake]


def _check_run_variable(variable: Variable, value: Any, today: date) -> list[str]:
    """Return what is wrong with a variable that is not part of the request."""
    if variable.type == "waivers":
        return _of_waivers(value, today)
    if _accepts(variable, value):
        return []
    words = tuple(variable.choices)
    accepted = variable.expected or _TYPES.get(variable.type)
    expected = accepted or f"one of {', '.join(words)}{spelling.hint(str(value), words)}"
    return [f"{variable.name} is {shown(value)}; expected {expected}"]


def _accepts(variable: Variable, value: Any) -> bool:
    """Return whether a value is one of its variable's type; an empty one is, where it means the default."""
    if variable.type == "bool":
        return _fits(value, {"type": "bool"}) and not is_empty(value)
    if variable.type in ("number", "seconds"):
        return bool(re.fullmatch(r"\d+", str(value)))
    if is_empty(value):
        return True
    match variable.type:
        case "choice":
            return str(value) in variable.choices
        case "text":
            return True  # a file that the run looks for
        case "path":
            return isinstance(value, str) and Path(value).expanduser().is_absolute()
        case "list":
            return isinstance(value, list) and all(isinstance(item, str) and item.strip() for item in value)
        case "mapping":
            return isinstance(value, Mapping)
        case "batches":
            batches = value if isinstance(value, list) else [value]
            return bool(batches) and all(not isinstance(b, bool) and _SERIAL.fullmatch(str(b)) for b in batches)
        case "factor":
            number = value if _fits(value, {"type": "float"}) and not isinstance(value, bool) else 0
            return 0 < float(number) <= variable.maximum
    raise ValueError(f"{variable.name}: no check for the type {variable.type}")


def _of_waivers(value: Any, today: date) -> list[str]:
    if is_empty(value):
        return []
    try:
        waivers.read(value, today)
    except waivers.WaiverError as error:
        return [str(error)]
    return []


def _of_role(name: str, value: Any, option: Mapping[str, Any], catalog: Catalog) -> str | None:
    """Return what is wrong with a role variable, by the role's argument specification."""
    if value is None:
        return f"{name} is empty; remove the line to get the role's default" if "default" in option else None
    kind = str(option["type"])
    is_nested = isinstance(value, (list, tuple, Mapping))
    if choices := option.get("choices"):
        if value in choices and not is_nested:
            return None
        words = [str(choice) for choice in choices]
        return f"{name} is {shown(value)}; expected one of {', '.join(words)}{spelling.hint(str(value), words)}"
    if (kind in ("str", "path") and (is_nested or isinstance(value, bool))) or not _fits(value, {"type": kind}):
        return f"{name} is {shown(value)}; expected {_TYPES[kind]}"
    if kind == "path" and value and not Path(value).expanduser().is_absolute():
        return f"{name} is {shown(value)}; expected an absolute path"
    if name.endswith("_url") and value and not URL.fullmatch(str(value)) and not str(value).startswith("/"):
        return f"{name} is {shown(value)}; expected an address such as https://mirror.example.org/directory"
    if errors := _errors(value, dict(option)):
        return f"{name}: {'; '.join(errors)}"
    role = name.rsplit("_", 1)[0]
    component = next((part.name for part in PARTS if part.role == role), None)
    return _dropped_zero(name, component, value, catalog) if component else None


def _read_elsewhere(name: str, value: Any, options: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return what is wrong with a value that the role would obey, and that others than the role do not read."""
    expected = None
    if name in _FIXED and value != options[name]["default"]:
        expected = f"the role's default, {options[name]['default']}: {_FIXED[name]}; remove the line"
    elif name in _ASKED_WITH and not is_empty(value):
        expected = f"{_ASKED_WITH[name]}, which the plan reads, too"
    elif name.startswith(f"{SHARED_ROLE}_"):
        own = [f"{part.role}_{name.removeprefix(f'{SHARED_ROLE}_')}" for part in FRAMEWORKS]
        own = [variable for variable in own if variable in options and variable not in _FIXED]
        expected = " and ".join(own) or f"no such line: the roles that use {SHARED_ROLE} set it"
    elif name == "env_paths_commands" and "nvcc" not in value:
        expected = "nvcc in it, which the checks start in every kind of shell"
    elif name == "smoke_train_mirror_url" and urls.user_info(str(value)):
        expected = "an address without a login, which the download does not use and the host's process list shows"
    return f"{name} is {shown(value)}; expected {expected}" if expected else None


def other_than_planned(values: Mapping[str, Any], components: Components) -> list[str]:
    """Return a mistake for each value of a role that is not the plan's, although the packages are.

    values: the variables of PLANNED that the user has set. Who sets the packages or the lock, too, wins over the plan.
    """
    mistakes = []
    for part in PARTS:
        component, role = part.planned(components), part.role
        if component is None or values.keys() & {f"{role}_packages", f"{role}_lock"}:
            continue
        planned, value = component.full_version, values.get(f"{role}_version")
        if value is not None and not _is_version(str(value), planned):
            mistakes.append(
                f"{role}_version is {shown(value)}, and the plan has {part.label} {planned}; expected "
                f"{PREFIX}{part.name} to ask for it, without {role}_version"
            )
        python = values.get(f"{role}_python")
        if isinstance(component, FrameworkComponent) and python is not None and str(python) != component.python:
            mistakes.append(
                f"{role}_python is {shown(python)}, and the plan has Python {component.python} for {part.label}; "
                f"expected {role}_lock with wheels for it, too, or no {role}_python"
            )
        for field in part.role_fields:
            variable, own = f"{role}_{field}", getattr(component, field)
            value = values.get(variable)
            if value is not None and value != own:
                option = f"{part.name}_{field}"
                is_asked = option in of_request()
                ask = f"{PREFIX}{option} to ask for it, without {variable}" if is_asked else f"no {variable}"
                mistakes.append(f"{variable} is {shown(value)}, and the plan has {own}; expected {ask}")
    return [*mistakes, *_where_shells_find_cuda(values, CudaComponent.of(components))]


def _where_shells_find_cuda(values: Mapping[str, Any], cuda: CudaComponent | None) -> list[str]:
    """Return a mistake for each value with which shells would find another nvcc than the planned one, or none."""
    if cuda is None:
        return []
    mistakes = []
    state, planned = values.get("env_paths_state"), "absent" if cuda.home == "/usr" else "present"
    if state not in (None, planned):
        mistakes.append(f"env_paths_state is {shown(state)}, and the plan has {planned}; expected no env_paths_state")
    home = values.get("env_paths_cuda_home", CUDA_LINK)
    if home not in (CUDA_LINK, cuda.home):
        mistakes.append(
            f"env_paths_cuda_home is {shown(home)}, and the plan has CUDA toolkit {cuda.version} in {cuda.home}; "
            "expected that, or no env_paths_cuda_home"
        )
    selects = values.get("cuda_toolkit_default", True)
    if home == CUDA_LINK and cuda.home != "/usr" and not boolean(selects, strict=False):
        mistakes.append(
            f"cuda_toolkit_default is {shown(selects)}, and {CUDA_LINK} may point to another toolkit than the plan's; "
            f"expected env_paths_cuda_home: {cuda.home} with it, or no cuda_toolkit_default"
        )
    return mistakes


def _is_version(value: str, planned: str) -> bool:
    """Return whether a planned version is the given one; of a distribution's driver the plan knows the branch alone."""
    return versions.has_prefix(planned, value) or ("." not in planned and versions.has_prefix(value, planned))


def _fits(value: Any, option: Mapping[str, Any]) -> bool:
    return not _errors(value, option)


def _errors(value: Any, option: Mapping[str, Any]) -> list[str]:
    """Return what Ansible says about a value when it validates a role's arguments."""
    known = {key: option[key] for key in ("type", "elements", "choices", "options") if key in option}
    return list(ArgumentSpecValidator({"value": known}).validate({"value": value}).error_messages)


def _dropped_zero(name: str, component: str, value: Any, catalog: Catalog) -> str | None:
    """Return a message if YAML dropped the last zero of an unquoted version, and a version with that zero exists."""
    if not isinstance(value, float) or component not in BY_NAME:
        return None
    published = PUBLISHED[component](catalog)
    if name.endswith("_python"):
        releases = [release for part in FRAMEWORKS for release in part.releases(catalog)]
        published = [python for release in releases for python in release.pythons]
    meant = versions.before_yaml(str(value), published)
    if meant is None:
        return None
    other = f' or "{value}"' if any(versions.has_prefix(known, str(value)) for known in published) else ""
    return f'{name} is the number {value}, and YAML reads {meant} so; expected it in quotes: "{meant}"{other}'

"""Contracts between the files of this project: roles, their specifications, playbooks, scenarios, documents, tests."""

import ast
import collections
import configparser
import contextlib
import importlib
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.model.state import Repairs
from ansible_collections.gpuhost.stack.plugins.module_utils.resources import service
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import Removal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.declared import declared
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import NOTHING
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import PARTS as PARTS_OF_REGISTRY
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import role_inputs
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.leftovers import Cleanup
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan_diff import PlanDiff

from tests.unit.playbooks import rendering
from tests.unit.requested import requested

PROJECT = Path(__file__).resolve().parents[2]
ROLES = sorted(path for path in (PROJECT / "roles").iterdir() if path.is_dir())
TASK_FILES = sorted([*PROJECT.glob("roles/*/tasks/*.yml"), *PROJECT.glob("playbooks/**/*.yml")])
SCENARIOS = sorted(path.parent for path in PROJECT.glob("molecule/*/molecule.yml"))
# A default that a run of the playbooks gives, or that of a role that is used alone.
GIVEN = re.compile(r"\{\{ __\w+?(?:_inputs\.\w+|_planned) \| default\((['\[\d].*)\) \}\}")
NO_PLAN = Plan(request=requested({}), components=NOTHING)
NO_DIFF = PlanDiff((), Cleanup(), {part.name: Removal() for part in PARTS_OF_REGISTRY})


USES = re.compile(r"ansible\.builtin\.(?:import|include)_role:\n +name: gpuhost\.stack\.(\w+)$", re.MULTILINE)
# Roles that other roles include; those have the examples and the inputs.
PARTS = {
    name
    for role in ROLES
    for path in role.glob("tasks/*.yml")
    for name in USES.findall(path.read_text())
    if name != role.name
}


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(PROJECT)) for path in paths]


def values_of(role: Path) -> dict[str, Any]:
    path = role / "vars/main.yml"
    return yaml.safe_load(path.read_text()) if path.exists() else {}


def options(role: Path) -> dict[str, dict[str, object]]:
    return yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]["main"].get("options", {})


def test_a_playbook_and_a_file_that_it_includes_never_have_the_same_name():
    """Ansible looks beside the playbook, too: include_tasks of `plan.yml` in tasks/ found playbooks/plan.yml."""
    files = [path.name for folder in (".", "tasks", "vars") for path in (PROJECT / "playbooks" / folder).glob("*.yml")]
    assert len(files) > 40
    assert [name for name, count in collections.Counter(files).items() if count > 1] == []


def test_roles_and_scenarios_are_found():
    assert len(ROLES) >= 8
    assert len(SCENARIOS) >= 2


def alone(defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the defaults of what a run gives, where a role is used alone."""
    found = {name: GIVEN.fullmatch(str(value)) for name, value in defaults.items()}
    return {name: ast.literal_eval(match.group(1)) for name, match in found.items() if match}


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_defaults_equal_the_argument_specification(role):
    """A default that depends on the host or the play is described in words instead.

    What a run of the playbooks gives has one besides, for the role alone.
    """
    defaults = yaml.safe_load((role / "defaults/main.yml").read_text()) or {}
    defaults |= alone(defaults)
    required = {name for name, option in options(role).items() if option.get("required")}
    defaults = {name: value for name, value in defaults.items() if name not in required}
    specified = {name: option["default"] for name, option in options(role).items() if "default" in option}
    rendered = {name for name, value in defaults.items() if re.search("_defaults[.]|ansible_play_|_inputs", str(value))}
    assert {name: value for name, value in defaults.items() if name not in rendered} == specified
    assert [name for name in rendered if "By default" not in str(options(role)[name]["description"])] == []


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_a_role_is_for_the_distributions_of_the_catalog_and_for_our_ansible(role):
    """By the names of Galaxy: codenames, and EL by its number."""
    info = yaml.safe_load((role / "meta/main.yml").read_text())["galaxy_info"]
    files = sorted((PROJECT / "catalog/distro").glob("*.yml"))
    releases = [yaml.safe_load(path.read_text())["os_release"] for path in files]
    named = {"debian": "Debian", "rhel": "EL", "ubuntu": "Ubuntu"}
    expected = {(named[release["id"]], release["codename"] or release["version_id"]) for release in releases}
    listed = [(platform["name"], version) for platform in info["platforms"] for version in platform["versions"]]
    assert (set(listed), len(listed)) == (expected, len(expected))
    runtime = yaml.safe_load((PROJECT / "meta/runtime.yml").read_text())["requires_ansible"]
    assert runtime.startswith(f">={info['min_ansible_version']}.")


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_role_requires_only_versions(role):
    if role.name in PARTS:
        return
    required = {name for name, option in options(role).items() if option.get("required")}
    assert required <= {f"{role.name}_version", f"{role.name}_python"}


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_variables_start_with_the_role_name_and_required_ones_have_no_default(role):
    assert [name for name in options(role) if not name.startswith(role.name + "_")] == []
    assert [name for name, option in options(role).items() if option.get("required") and "default" in option] == []


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_no_default_needs_a_required_variable(role):
    """Otherwise the missing variable is reported as a template that cannot be resolved."""
    required = {name for name, option in options(role).items() if option.get("required")}
    defaults = {name: str(option["default"]) for name, option in options(role).items() if "default" in option}
    assert {name: text for name, text in defaults.items() if required & set(re.findall(r"\w+", text))} == {}


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_roles_do_not_use_the_request(role):
    texts = [path for path in role.rglob("*") if path.suffix in {".yml", ".j2"} and "gpu_stack_" in path.read_text()]
    assert names(texts) == []


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_role_has_a_readme_and_an_example_in_the_roles_scenario(role):
    assert (role / "README.md").exists()
    if role.name in PARTS:
        assert [name for name, option in options(role).items() if "default" in option] == []
        return
    (play,) = yaml.safe_load((PROJECT / f"playbooks/examples/{role.name}.yml").read_text())
    assert f"gpuhost.stack.{role.name}" in [entry["role"] for entry in play["roles"]]
    converge = (PROJECT / "molecule/roles/converge.yml").read_text()
    assert f"examples/{role.name}.yml" in converge


def test_tasks_find_files_wherever_their_play_is_imported_from():
    """`playbook_dir` is the directory of the playbook on the command line, which may import ours by their names."""
    assert [str(path) for path in TASK_FILES if "tasks" in path.parts and "playbook_dir" in path.read_text()] == []


@pytest.mark.parametrize("path", TASK_FILES, ids=names(TASK_FILES))
def test_task_and_playbook_files_stay_short(path):
    assert len(path.read_text().splitlines()) < 80


@pytest.mark.parametrize("path", TASK_FILES, ids=names(TASK_FILES))
def test_no_task_ignores_its_failure(path):
    text = path.read_text()
    assert not re.search(r"ignore_errors:|failed_when: *false|that: *true", text)


@pytest.mark.parametrize("part", PARTS_OF_REGISTRY, ids=lambda part: part.name)
def test_a_role_of_a_component_has_what_a_run_gives_as_its_defaults(part):
    """Without them a component would be planned, and what its role has by itself installed."""
    role = PROJECT / "roles" / part.role
    defaults = yaml.safe_load((role / "defaults/main.yml").read_text())
    given = {name for name, value in defaults.items() if re.search(f"__{part.role}_(inputs|defaults)[. ]", str(value))}
    transition = role_inputs.of_plan(NO_PLAN, NO_DIFF, Repairs(), {}, load_catalog()).transition
    needed = {f"{part.role}_version", *(f"{part.role}_{field}" for field in part.role_fields), *part.build_variables}
    needed |= {f"{part.role}_{key}" for key in ("packages", "lock", "python") if f"{part.role}_{key}" in options(role)}
    needed |= {name for name in (*role_inputs.SETTINGS, *transition) if name in options(role)}
    assert needed - given == set()


def test_what_a_run_gives_is_a_variable_of_a_role_or_read_in_its_vars():
    text = "".join(path.read_text() for path in PROJECT.glob("roles/*/vars/main.yml"))
    text += "".join(path.read_text() for path in PROJECT.glob("roles/*/defaults/main.yml"))
    read = set(re.findall(r"__(\w+)_inputs\.(\w+)", text))
    names = {f"{role}_{key}" for role, key in read}
    assert set(role_inputs.SETTINGS) - names == set()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.name)
def test_scenario_uses_its_own_lab(scenario):
    hosts = yaml.safe_load((scenario / "hosts.yml").read_text())["gpu_hosts"]
    assert hosts["vars"]["ansible_ssh_common_args"] == f"-F .lab/{scenario.name}/ssh_config"
    assert (scenario / ".lab").readlink() == Path("../../.lab")
    assert (scenario / "group_vars").readlink() == Path("../../inventories/demo/group_vars")
    playbooks = yaml.safe_load((scenario / "molecule.yml").read_text()).get("ansible", {}).get("playbooks", {})
    assert (scenario / "converge.yml").exists() == ("converge" in playbooks)


def test_generated_documents_are_up_to_date():
    answer = subprocess.run(
        [sys.executable, str(PROJECT / "script/docs"), "--check"], capture_output=True, text=True, cwd=PROJECT
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_unknown_option_of_script_docs_writes_nothing(tmp_path):
    """In a copy: a misspelled --check must not write the documents."""
    copy = tmp_path / "clone"
    for name in "script collections plugins tools catalog meta benchmarks tests README.md galaxy.yml".split():
        source = PROJECT / name
        shutil.copytree(source, copy / name, symlinks=True) if source.is_dir() else shutil.copy(source, copy / name)
    (copy / "README.md").write_text("<!-- support -->\nstale\n<!-- end -->\n")
    answer = subprocess.run([sys.executable, str(copy / "script/docs"), "--chek"], capture_output=True, text=True)
    assert answer.returncode == 2
    assert "--chek" in answer.stderr
    assert "stale" in (copy / "README.md").read_text()


def test_lock_files_have_hashes_and_no_url():
    locks = [*PROJECT.glob("requirements/*.txt"), *PROJECT.glob("roles/*/files/*.txt")]
    assert len(locks) > 3
    for lock in locks:
        assert "--hash=sha256:" in lock.read_text(), lock
        assert "://" not in lock.read_text(), lock


def tasks_of(path: Path) -> Iterator[dict[str, Any]]:
    pending = yaml.safe_load(path.read_text())
    while pending:
        task = pending.pop(0)
        yield task
        pending = [*(task.get("block") or []), *(task.get("rescue") or []), *(task.get("always") or []), *pending]


TEMPLATES = jinja2.Environment(undefined=jinja2.StrictUndefined)
TEMPLATES.filters["dirname"] = os.path.dirname


def looked_up(values: dict[str, Any], plugin: str, name: str, **_default: Any) -> Any:
    """Return a variable by its name as the lookup `vars` does; all others need Ansible."""
    if plugin != "ansible.builtin.vars" or name not in values:
        raise TypeError(f"no value for lookup {plugin}, {name}")
    return values[name]


def role_values(*roles: str) -> dict[str, Any]:
    """Return the defaults and vars of roles, the later ones win; those that need a host stay templates."""
    files = [PROJECT / "roles" / role / kind / "main.yml" for role in roles for kind in ("defaults", "vars")]
    values: dict[str, Any] = {}
    for path in files:
        values |= (yaml.safe_load(path.read_text()) or {}) if path.exists() else {}
    values |= alone(values)
    for _unused in range(3):  # a variable of a variable of a variable
        known = {name: value for name, value in values.items() if "{{" not in str(value)}
        for name in values.keys() - known.keys():
            with contextlib.suppress(jinja2.TemplateError, TypeError):
                values[name] = TEMPLATES.from_string(values[name]).render(
                    {**known, "lookup": partial(looked_up, known)}
                )
    return values


READING = ("find", "slurp", "stat")
# Where the run's own temporary directory, the controller, or an environment below /opt/gpuhost is meant.
ELSEWHERE = ("__gpu_benchmark_directory", "gpu_benchmark_results_directory")


def written_paths(path: Path, values: dict[str, Any]) -> Iterator[str]:
    """Yield what the tasks of a file write with these variables; a path that cannot be rendered is an error."""
    for task in tasks_of(path):
        resources = task.get("gpuhost.stack.apply", {}).get("resources", [])
        if isinstance(resources, list):  # else they are a list of the role's, which the lookup managed reads
            yield from (TEMPLATES.from_string(each["path"]).render(values) for each in resources)
        for module, options in task.items():
            target = options.get("dest", options.get("path")) if isinstance(options, dict) else None
            if (
                module == "vars"
                or module.rpartition(".")[2] in READING
                or not target
                or options.get("state") == "absent"
            ):
                continue
            loop = task.get("loop", [None])
            items = values.get(loop.strip("{ }"), ["*"]) if isinstance(loop, str) else loop
            if not any(name in target for name in ELSEWHERE):
                yield from (TEMPLATES.from_string(target).render({**values, "item": item}) for item in items)


def test_what_roles_write_is_restored_by_a_rollback_or_removed_by_teardown():
    """Whatever module writes it, under whatever variable."""
    known = {
        path
        for part in rendering.managed().values()
        for kind in ("files", "environments")
        for path in part.get(kind, [])
    }
    services = {name for part in rendering.managed().values() for name in part.get("services", ())}
    known |= {f"{service.WANTS}{name}.service" for name in services}
    written = set()
    for role in (role.name for role in ROLES):
        for user in ("tensorflow_env", "pytorch_env") if role == "framework_env" else (role,):
            values = role_values(role, user)
            for path in (PROJECT / "roles" / role).glob("tasks/*.yml"):
                written |= set(written_paths(path, values))
    assert {"/etc/apt/sources.list.d/nvidia-cuda.sources", "/etc/apt/keyrings/nvidia-cuda.asc"} <= written
    assert {"/opt/gpuhost/pytorch", "/opt/gpuhost/bin/gpuhost-env"} <= written
    assert {"/etc/profile.d/cuda.sh", "/usr/local/bin/nvcc", "/etc/grub.d/07_gpuhost"} <= known
    own = tuple(rendering.group_vars()["gpu_stack_own_folders"])
    data = ("/opt/gpuhost/", "/var/lib/gpuhost/", "/var/cache/gpuhost/")  # which no rollback needs
    assert {path for path in written - known if path not in own and not path.startswith(data)} == set()


def test_what_is_for_root_alone_is_a_secret():
    """Its content is then in no output and no record but the baseline."""
    found = {}
    for path in PROJECT.glob("roles/*/vars/main.yml"):
        lists = [values for name, values in yaml.safe_load(path.read_text()).items() if name.endswith("_resources")]
        found |= {
            each["path"]: each.get("secret") for each in itertools.chain(*lists) if each.get("mode") in ("0600", "0400")
        }
    names = [f"{{{{ __nvidia_driver_signing_directory }}}}/{name}" for name in ("key", "certificate")]
    login = ["/etc/apt/auth.conf.d/gpuhost-nvidia-repository.conf"]
    login += [f"/etc/dnf/vars/gpuhost_nvidia_{name}" for name in ("username", "password")]
    assert found == dict.fromkeys([*login, *names], True)
    assert [path for path in TASK_FILES if re.search(r"mode: .?0[64]00", path.read_text())] == []


def test_each_file_of_tasks_is_part_of_a_playbook():
    text = "".join(path.read_text() for path in PROJECT.glob("playbooks/**/*.yml"))
    names = {path.name for path in (PROJECT / "playbooks/tasks").glob("*.yml")}
    assert {name for name in names if not re.search(rf"_tasks: (tasks/)?{name}$", text, re.M)} == set()


TRANSACTIONS = [role for role in ROLES if f"__{role.name}_transaction" in values_of(role)]


@pytest.mark.parametrize("role", TRANSACTIONS, ids=names(TRANSACTIONS))
def test_a_transaction_has_all_that_its_role_is_told_of_packages(role):
    """Of a role that is used alone, such as what it has to replace, and what is damaged."""
    fields = {"packages", "helpers", "replaces", "reinstall", "may_remove"}
    told = {field: f"{{{{ {role.name}_{field} }}}}" for field in fields if f"{role.name}_{field}" in options(role)}
    assert told or role.name.endswith("_env")
    assert told.items() <= values_of(role)[f"__{role.name}_transaction"].items()


def test_nothing_on_the_controller_is_done_as_root():
    """Inventories set ansible_become for the hosts; who runs a playbook needs no sudo on the controller."""
    files = [path for path in TASK_FILES if "delegate_to: localhost" in path.read_text()]
    delegated = [task for path in files for task in tasks_of(path) if "delegate_to" in task]
    assert len(delegated) >= 5
    root = [task["name"] for task in delegated if task.get("vars", {}).get("ansible_become") is not False]
    assert root == []


def test_systemd_is_reloaded_only_where_a_unit_has_changed():
    """A reload can take the GPUs away from running containers: gpuhost.stack.apply does it, by the place of a file."""
    assert [path.name for path in TASK_FILES if re.search("daemon.reload", path.read_text())] == []


def step(task: dict[str, Any]) -> str:
    """Return what a task includes: a file of tasks, or a role with the name of its file."""
    for module in ("ansible.builtin.import_role", "ansible.builtin.include_role"):
        if role := task.get(module):
            return f"{role['name'].rpartition('.')[2]} {role.get('tasks_from', 'main')}"
    return str(task.get("ansible.builtin.import_tasks", task.get("ansible.builtin.include_tasks", "")))


@pytest.mark.parametrize(
    ("path", "preparation", "packages"),
    [
        ("playbooks/tasks/install.yml", "nvidia_driver prepare", "install_packages.yml"),
        ("roles/nvidia_driver/tasks/main.yml", "prepare.yml", "install.yml"),
    ],
)
def test_nouveau_is_blacklisted_before_packages_build_the_initramfs(path, preparation, packages):
    steps = [step(task) for task in tasks_of(PROJECT / path)]
    (first,) = (number for number, found in enumerate(steps) if found == preparation)
    (second,) = (number for number, found in enumerate(steps) if found == packages)
    assert first < second
    (task,) = (
        task for task in tasks_of(PROJECT / "roles/nvidia_driver/tasks/prepare.yml") if "gpuhost.stack.apply" in task
    )
    assert task["gpuhost.stack.apply"]["resources"] == "{{ __nvidia_driver_resources }}"
    assert "when" not in task


def test_results_of_tasks_are_not_taken_for_misspelled_variables():
    """A site's playbook imports several of ours: stack_plan then refuses each gpu_stack_* variable it does not know."""
    internal = yaml.safe_load((PROJECT / "playbooks/group_vars/all/internal.yml").read_text())
    known = {*declared(), *internal["gpu_stack_internal_variables"]}
    texts = "\n".join(path.read_text() for path in TASK_FILES)
    results = set(re.findall(r"(?:register: |set_fact:\n +)(\w+)", texts))
    assert "__gpu_stack_baseline" in results
    assert {name for name in results if name.startswith("gpu_stack_")} - known == set()


def test_the_clone_comes_before_an_installed_collection():
    """An installed gpuhost.stack must not run instead of the clone; ansible-lint installs one."""
    configuration = configparser.ConfigParser()
    configuration.read(PROJECT / "ansible.cfg")
    assert configuration["defaults"]["collections_path"].split(":")[0] == "collections"


def modules() -> list[str]:
    found = [*PROJECT.glob("plugins/**/*.py"), *PROJECT.glob("roles/*/files/*.py"), *PROJECT.glob("tools/**/*.py")]
    return names(sorted(path for path in found if path.name != "__init__.py"))


MODULES_IN_A_FOLDER = 16  # what a newcomer can hold in mind; more are two subjects


def test_the_requirements_are_installed_without_a_network(tmp_path):
    command = [Path(sys.executable).with_name("ansible-galaxy"), "install", "-r", PROJECT / "requirements.yml"]
    environment = {"HOME": str(tmp_path), "ANSIBLE_GALAXY_SERVER": "http://127.0.0.1:9/", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_folder_has_too_many_modules():
    counts = collections.Counter(str(Path(module).parent) for module in modules() if not module.startswith("roles/"))
    assert {folder: count for folder, count in counts.items() if count > MODULES_IN_A_FOLDER} == {}


def test_each_filter_has_a_document() -> None:
    """ansible-doc reads it from a file of the filter's name."""
    modules = [path.stem for path in (PROJECT / "plugins/filter").glob("*.py")]
    package = "ansible_collections.gpuhost.stack.plugins.filter"
    filters = {
        name for stem in modules for name in importlib.import_module(f"{package}.{stem}").FilterModule().filters()
    }
    assert filters == {path.stem for path in (PROJECT / "plugins/filter").glob("*.yml")}

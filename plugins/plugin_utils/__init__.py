"""Run on the controller: what the plugins and playbooks of this collection decide with."""

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import bytecode

bytecode.use()

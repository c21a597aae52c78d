"""Merge the packages of all roles into one transaction, so that apt sees every conflict before the first change."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


def package_transaction(
    roles: Mapping[str, Mapping[str, Sequence[str]]], parts: Collection[str], left_out: Collection[str]
) -> dict[str, list[str]]:
    """Return the requirements of the roles, merged by kind, in the order of the roles and without duplicates.

    roles: {role: {kind: [...]}}, where a kind is an option of apt_transaction or `apt_components`; parts: the parts of
    the stack that are planned for the host; left_out: the parts that --skip-tags leaves out. Every kind is in the
    result, also if no role contributes to it.
    """
    merged: dict[str, list[str]] = {kind: [] for wanted in roles.values() for kind in wanted}
    for role, wanted in roles.items():
        if role in parts and role not in left_out:
            for kind, values in wanted.items():
                merged[kind] += [value for value in values if value not in merged[kind]]
    return merged

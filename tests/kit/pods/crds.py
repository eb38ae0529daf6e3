"""The definitions of operators' kinds, for an API server without the operators: with the schemas that tests hold."""

from __future__ import annotations

import json
from typing import Any

from kit.kubernetes import CUSTOM_SCHEMAS, METADATA

PLURALS = {"ServiceMonitor": "servicemonitors", "ScaledObject": "scaledobjects"}


def custom_resource_definitions() -> list[dict[str, Any]]:
    """Of the Prometheus operator and KEDA."""
    found = []
    for name, schema in json.loads(CUSTOM_SCHEMAS.read_text())["definitions"].items():
        group, version, kind = name.split("/")
        if kind not in PLURALS:
            continue
        names = {"kind": kind, "plural": PLURALS[kind], "singular": kind.lower()}
        served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": _structural(schema)}}
        found.append(
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": f"{PLURALS[kind]}.{group}"},
                "spec": {"group": group, "names": names, "scope": "Namespaced", "versions": [served]},
            }
        )
    return found


def _structural(schema: Any) -> Any:
    """As the API server wants it: unknown fields are refused by its strict validation, and metadata is its own."""
    if isinstance(schema, list):
        return [_structural(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("$ref") == f"#/definitions/{METADATA}":
        return {"type": "object"}
    if schema.get("type") == ["integer", "string"]:
        return {"x-kubernetes-int-or-string": True}
    closed = schema.get("additionalProperties") is False
    return {name: _structural(one) for name, one in schema.items() if not (closed and name == "additionalProperties")}

"""Manifests of Kubernetes held against its API's own schemas, without a cluster.

`kubernetes.json` has the definitions of the kinds that examples/kubernetes uses, out of the OpenAPI document of
Kubernetes (`api/openapi-spec/swagger.json` of the Go module k8s.io/kubernetes): without descriptions, without what a
cluster writes (`status`), one a line. `python -m kit.kubernetes SWAGGER VERSION` writes it anew.
"""

from __future__ import annotations

import argparse
import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonschema import Draft7Validator

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMAS = Path(__file__).with_name("kubernetes.json")
KINDS = {
    ("v1", "ConfigMap"): "io.k8s.api.core.v1.ConfigMap",
    ("v1", "Pod"): "io.k8s.api.core.v1.Pod",
    ("v1", "Service"): "io.k8s.api.core.v1.Service",
    ("v1", "ServiceAccount"): "io.k8s.api.core.v1.ServiceAccount",
    ("apps/v1", "Deployment"): "io.k8s.api.apps.v1.Deployment",
    ("rbac.authorization.k8s.io/v1", "Role"): "io.k8s.api.rbac.v1.Role",
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): "io.k8s.api.rbac.v1.RoleBinding",
}
KEPT = ("type", "format", "items", "properties", "additionalProperties", "required", "$ref")
EITHER = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["integer", "string"]},
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["number", "string"]},
}
"""What the document calls strings, and the API takes as numbers too."""


def faults(document: dict[str, Any]) -> list[str]:
    """What the API would refuse of an object, each with its place; unknown fields among it."""
    kind = (document.get("apiVersion"), document.get("kind"))
    if kind not in KINDS:
        return [f"{kind} is none of {', '.join(map(str, KINDS))}"]
    errors = _validator(KINDS[kind]).iter_errors(document)
    return [f"{'/'.join(map(str, error.absolute_path)) or '.'}: {error.message}" for error in errors]


@cache
def _validator(definition: str) -> Draft7Validator:
    found = json.loads(SCHEMAS.read_text())
    return Draft7Validator({"$ref": f"#/definitions/{definition}", "definitions": found["definitions"]})


def _reduced(swagger: dict[str, Any]) -> dict[str, Any]:
    """The definitions that `KINDS` need."""
    found: dict[str, Any] = {}
    todo = list(KINDS.values())
    while todo:
        name = todo.pop()
        if name not in found:
            found[name] = EITHER.get(name) or _closed(_stripped(swagger["definitions"][name]))
            todo += re.findall(r'"#/definitions/([^"]+)"', json.dumps(found[name]))
    return dict(sorted(found.items()))


def _stripped(schema: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in schema.items() if name in KEPT}
    for name in ("items", "additionalProperties"):
        if isinstance(kept.get(name), dict):
            kept[name] = _stripped(kept[name])
    if "properties" in kept:
        kept["properties"] = {name: _stripped(one) for name, one in kept["properties"].items() if name != "status"}
    return kept


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    return schema | {"additionalProperties": False} if "properties" in schema else schema


def _lines(version: str, definitions: dict[str, Any]) -> Iterator[str]:
    yield f'{{"origin": "k8s.io/kubernetes {version}, api/openapi-spec/swagger.json (Apache License 2.0)",'
    yield '"definitions": {'
    each = [f"{json.dumps(name)}: {json.dumps(one, separators=(',', ':'))}" for name, one in definitions.items()]
    yield ",\n".join(each)
    yield "}}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kit.kubernetes", description=__doc__)
    parser.add_argument("swagger", type=Path)
    parser.add_argument("version", help="of Kubernetes, for example v1.34.1")
    args = parser.parse_args()
    definitions = _reduced(json.loads(args.swagger.read_text()))
    SCHEMAS.write_text("\n".join(_lines(args.version, definitions)) + "\n")


if __name__ == "__main__":
    main()

"""Manifests of Kubernetes held against its API's own schemas, without a cluster.

`kubernetes.json` has the definitions of the kinds that examples/kubernetes uses, out of the OpenAPI document of
Kubernetes (`api/openapi-spec/swagger.json` of the Go module k8s.io/kubernetes): without descriptions, without what a
cluster writes (`status`), one a line. `custom_resources.json` has the same of the definitions that operators bring
along. `python -m kit.kubernetes SWAGGER VERSION` writes the one anew, `python -m kit.kubernetes --custom ORIGIN FILE`
the other one.
"""

from __future__ import annotations

import argparse
import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from jsonschema import Draft7Validator

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMAS = Path(__file__).with_name("kubernetes.json")
CUSTOM_SCHEMAS = Path(__file__).with_name("custom_resources.json")
KINDS = {
    ("v1", "Pod"): "io.k8s.api.core.v1.Pod",
    ("v1", "Service"): "io.k8s.api.core.v1.Service",
    ("v1", "ServiceAccount"): "io.k8s.api.core.v1.ServiceAccount",
    ("apps/v1", "Deployment"): "io.k8s.api.apps.v1.Deployment",
    ("apps/v1", "StatefulSet"): "io.k8s.api.apps.v1.StatefulSet",
    ("networking.k8s.io/v1", "NetworkPolicy"): "io.k8s.api.networking.v1.NetworkPolicy",
    ("policy/v1", "PodDisruptionBudget"): "io.k8s.api.policy.v1.PodDisruptionBudget",
    ("rbac.authorization.k8s.io/v1", "Role"): "io.k8s.api.rbac.v1.Role",
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): "io.k8s.api.rbac.v1.RoleBinding",
}
CUSTOM = {
    ("monitoring.coreos.com/v1", "ServiceMonitor"): "monitoring.coreos.com/v1/ServiceMonitor",
    ("keda.sh/v1alpha1", "ScaledObject"): "keda.sh/v1alpha1/ScaledObject",
}
METADATA = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
KEPT = ("type", "format", "enum", "items", "properties", "additionalProperties", "required", "$ref")
EITHER = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["integer", "string"]},
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["number", "string"]},
}
"""What the document calls strings, and the API takes as numbers too."""


def faults(document: dict[str, Any]) -> list[str]:
    """What the API would refuse of an object, each with its place; unknown fields among it."""
    kind = (document.get("apiVersion"), document.get("kind"))
    known = KINDS | CUSTOM
    if kind not in known:
        return [f"{kind} is none of {', '.join(map(str, known))}"]
    errors = _validator(known[kind]).iter_errors(document)
    return [f"{'/'.join(map(str, error.absolute_path)) or '.'}: {error.message}" for error in errors]


@cache
def _validator(definition: str) -> Draft7Validator:
    definitions = {
        name: one
        for file in (SCHEMAS, CUSTOM_SCHEMAS)
        for name, one in json.loads(file.read_text())["definitions"].items()
    }
    reference = "#/definitions/" + definition.replace("/", "~1")
    return Draft7Validator({"$ref": reference, "definitions": definitions})


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
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    kept = {name: value for name, value in schema.items() if name in KEPT}
    for name in ("items", "additionalProperties"):
        if isinstance(kept.get(name), dict):
            kept[name] = _stripped(kept[name])
    if "properties" in kept:
        kept["properties"] = {name: _stripped(one) for name, one in kept["properties"].items() if name != "status"}
    return kept


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    return schema | {"additionalProperties": False} if "properties" in schema else schema


def _custom(definition: dict[str, Any]) -> dict[str, Any]:
    """Each version of a CustomResourceDefinition. Schemas stand inside each other, so each is closed in its place."""
    spec = definition["spec"]
    found: dict[str, Any] = {}
    for version in spec["versions"]:
        schema = _all_closed(_stripped(version["schema"]["openAPIV3Schema"]))
        schema["properties"]["metadata"] = {"$ref": f"#/definitions/{METADATA}"}
        found[f"{spec['group']}/{version['name']}/{spec['names']['kind']}"] = schema
    return found


def _all_closed(schema: dict[str, Any]) -> dict[str, Any]:
    inside = {name: _all_closed(one) for name, one in schema.items() if name in ("items", "additionalProperties")}
    properties = {name: _all_closed(one) for name, one in schema.get("properties", {}).items()}
    return _closed(schema | inside | ({"properties": properties} if properties else {}))


def _lines(origin: str, definitions: dict[str, Any]) -> Iterator[str]:
    yield f'{{"origin": "{origin} (Apache License 2.0)",'
    yield '"definitions": {'
    each = [f"{json.dumps(name)}: {json.dumps(one, separators=(',', ':'))}" for name, one in definitions.items()]
    yield ",\n".join(each)
    yield "}}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kit.kubernetes", description=__doc__)
    parser.add_argument("swagger", type=Path, nargs="?")
    parser.add_argument("version", nargs="?", help="of Kubernetes, for example v1.34.1")
    parser.add_argument("--custom", nargs=2, action="append", metavar=("ORIGIN", "FILE"), help="may be repeated")
    args = parser.parse_args()
    if args.custom:
        definitions = [_custom(yaml.safe_load(Path(file).read_text())) for _, file in args.custom]
        merged = {name: one for each in definitions for name, one in each.items()}
        lines = _lines(", ".join(origin for origin, _ in args.custom), merged)
        CUSTOM_SCHEMAS.write_text("\n".join(lines) + "\n")
    else:
        origin = f"k8s.io/kubernetes {args.version}, api/openapi-spec/swagger.json"
        lines = _lines(origin, _reduced(json.loads(args.swagger.read_text())))
        SCHEMAS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

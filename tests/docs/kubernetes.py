"""Validates the examples for Kubernetes against the published schemas: `python -m tests.docs.kubernetes`.

The schemas are downloaded, and no copy of them is in this repository: those of KEDA are the custom resource definitions
in its Go module, and those of Kubernetes come with the package kubernetes-validate.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jsonschema
import yaml

from tests import toolchains

from .pages import REPOSITORY

FILES: Final = REPOSITORY / "examples/operating/kubernetes"
KEDA: Final = "github.com/kedacore/keda/v2@v2.21.0"
KUBERNETES: Final = "kubernetes-validate==1.37.0"
KUBERNETES_VERSION: Final = "1.37"


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every document of the examples, with the name of its file."""
    for path in sorted(FILES.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            yield path.name, document


def of_keda(scratch: Path) -> dict[str, dict[str, Any]]:
    """The schemas of KEDA's kinds."""
    downloaded = toolchains.run(
        "go", "mod", "download", "-json", KEDA, directory=scratch, environ=toolchains.go(scratch)
    )
    directory = Path(json.loads(downloaded)["Dir"]) / "config/crd/bases"
    schemas = {}
    for path in directory.glob("keda.sh_*.yaml"):
        definition = yaml.safe_load(path.read_text())["spec"]
        (version,) = [each for each in definition["versions"] if each["name"] == "v1alpha1"]
        schemas[definition["names"]["kind"]] = closed(version["schema"]["openAPIV3Schema"])
    return schemas


def closed(schema: Any) -> Any:
    """The schema without room for unknown members, which a cluster would drop silently."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: closed(each) for name, each in schema.items()}
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object" and not is_open:
        if set(schema["properties"]) == {"apiVersion", "kind", "metadata", "spec", "status"}:
            return inner
        inner["additionalProperties"] = False
    return inner


def check_keda(scratch: Path) -> list[str]:
    schemas = of_keda(scratch)
    checked = []
    for file, document in documents():
        if document["apiVersion"].startswith("keda.sh/"):
            jsonschema.Draft202012Validator(schemas[document["kind"]]).validate(document)
            checked.append(f"{file}: {document['kind']}")
    return checked


def check_kubernetes(scratch: Path) -> list[str]:
    python = toolchains.virtual_environment(scratch / "kubernetes-validate", KUBERNETES) / "python"
    checked = []
    for number, (file, document) in enumerate(documents()):
        if document["apiVersion"].startswith("keda.sh/"):
            continue
        one = scratch / f"{number}.yaml"
        one.write_text(yaml.safe_dump(document))
        words = [python, "-m", "kubernetes_validate", "-k", KUBERNETES_VERSION, "--strict", one]
        toolchains.run(*words, directory=scratch)
        checked.append(f"{file}: {document['kind']}")
    return checked


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        checked = [*check_keda(Path(scratch)), *check_kubernetes(Path(scratch))]
    for line in checked:
        print(f"valid  {line}")
    return 0 if checked else 1


if __name__ == "__main__":
    sys.exit(main())

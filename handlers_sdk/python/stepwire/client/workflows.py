"""Calls on workflows: store, activate, read."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .transport import Calls, in_path, with_query

if TYPE_CHECKING:
    from stepwire.workflow import Workflow


class WorkflowCalls(Calls):
    """Workflow definitions and their versions."""

    def apply_workflow(self, document: "Mapping[str, Any] | Workflow") -> dict[str, Any]:
        """Store a workflow: the content of its file, or a workflow that is written in Python.

        Storing a version again with the same content has no effect. Storing it with other content is refused.
        """
        if not isinstance(document, Mapping):
            document = document.document()
        return self._transport.post("/v1/workflows", document, is_safe=True)

    def apply_workflow_text(self, text: bytes, content_type: str, *, activate: bool = True) -> dict[str, Any]:
        """Store a workflow from the text of a file: `application/yaml` or `application/json`."""
        path = "/v1/workflows" if activate else "/v1/workflows?activate=false"
        return self._transport.post(path, text, is_safe=True, content_type=content_type)

    def workflows(self) -> dict[str, Any]:
        """The stored workflows."""
        return self._transport.get("/v1/workflows")

    def workflow(self, name: str, *, namespace: str | None = None, version: str | None = None) -> dict[str, Any]:
        """One workflow with its document: the active version, or the named one."""
        return self._transport.get(f"/v1/workflows/{in_path(name)}", {"namespace": namespace, "version": version})

    def activate_workflow(self, name: str, version: str, *, namespace: str | None = None) -> dict[str, Any]:
        """Use this version for new tasks that name no version."""
        query = {"version": version, "namespace": namespace}
        return self._transport.post(with_query(f"/v1/workflows/{in_path(name)}/activate", query), {}, is_safe=True)

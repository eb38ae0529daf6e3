"""The project's URLs in a release, from where it is built: `release.yml` says which repository that is. A build
elsewhere names none."""

from __future__ import annotations

import os
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class ProjectUrls(MetadataHookInterface):
    """Reads the repository's address from KEYLANE_REPOSITORY."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository = os.environ.get("KEYLANE_REPOSITORY")
        if repository:
            metadata["urls"] = {
                "Repository": repository,
                "Documentation": f"{repository}/blob/main/docs/index.md",
                "Changelog": f"{repository}/blob/main/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }

"""ApiVersions 5: the request says which cluster and node the client takes this one for (KIP-1242)."""

from dataclasses import dataclass, field
from typing import ClassVar

from kio.schema.api_versions.v4 import request as v4
from kio.schema.api_versions.v4.response import ApiVersion as ApiVersion
from kio.schema.api_versions.v4.response import ApiVersionsResponse as ApiVersionsResponse
from kio.schema.api_versions.v4.response import FinalizedFeatureKey as FinalizedFeatureKey
from kio.schema.api_versions.v4.response import SupportedFeatureKey as SupportedFeatureKey
from kio.static.primitive import i16, i32


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsRequest(v4.ApiVersionsRequest):
    __version__: ClassVar[i16] = i16(5)
    cluster_id: str | None = field(metadata={"kafka_type": "string"}, default=None)
    """Null: the client does not know yet."""
    node_id: i32 = field(metadata={"kafka_type": "int32"}, default=i32(-1))
    """-1: the same."""

"""The certificates of a control plane: an authority, the API server's, an administrator's, and the key of accounts."""

from __future__ import annotations

import datetime
import ipaddress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SERVICE = "kubernetes.default.svc"


def make_certificates(folder: Path, api_ip: str) -> None:
    """`ca`, `server` and `admin` as .crt and .key, and `accounts.key`, for a day."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("ca", "server", "admin", "accounts")}
    subjects = {name: x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in ("ca", "server")} | {
        "admin": x509.Name(
            [
                x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "system:masters"),
                x509.NameAttribute(x509.NameOID.COMMON_NAME, "admin"),
            ]
        )
    }
    hosts = [SERVICE.rsplit(".", count)[0] for count in range(3)] + [f"{SERVICE}.cluster.local"]
    names = [*map(x509.DNSName, hosts), x509.IPAddress(ipaddress.ip_address(api_ip))]
    now = datetime.datetime.now(datetime.UTC)
    for name, subject in subjects.items():
        builder = x509.CertificateBuilder(
            subjects["ca"],
            subject,
            keys[name].public_key(),
            x509.random_serial_number(),
            now - datetime.timedelta(hours=1),
            now + datetime.timedelta(days=1),
        )
        builder = builder.add_extension(x509.BasicConstraints(ca=name == "ca", path_length=None), critical=True)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        signed = builder.sign(keys["ca"], hashes.SHA256())
        (folder / f"{name}.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    for name, key in keys.items():
        form = (
            serialization.PrivateFormat.PKCS8 if name != "accounts" else serialization.PrivateFormat.TraditionalOpenSSL
        )
        pem = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        (folder / f"{name}.key").write_bytes(pem)

"""Certificates for the hosts whose TLS the gateway opens; the one file that knows `cryptography`.

Each sandbox has an authority of its own, whose certificate says that it may sign for these
hosts only. Its key and those of the hosts are in the worker's memory and nowhere else.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import ssl
import threading
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_BEFORE = datetime.timedelta(days=1)  # clocks inside may be late
_AFTER = datetime.timedelta(days=90)  # longer than any trial, short enough for every client

Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class _Signed:
    certificate: x509.Certificate
    key: Key


class Authority:
    """The authority of one sandbox; see `TlsAuthority`.

    Args:
        hosts: Whom it may sign for.
    """

    def __init__(self, hosts: Collection[str]) -> None:
        self._root = _make_root(sorted(hosts))
        self._lock = threading.Lock()
        self._contexts: dict[str, ssl.SSLContext] = {}

    @property
    def certificate(self) -> str:
        """Its certificate (PEM)."""
        return _pem(self._root.certificate)

    def context(self, host: str) -> ssl.SSLContext:
        """Return what a server needs to speak as a host."""
        with self._lock:
            if host not in self._contexts:
                self._contexts[host] = _context(_make_leaf(host, self._root))
            return self._contexts[host]


def _make_root(hosts: Sequence[str]) -> _Signed:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _named("BenchFlow gateway of one sandbox")
    builder = (
        _dated(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.NameConstraints([x509.DNSName(host) for host in hosts], None), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _Signed(builder.sign(key, hashes.SHA256()), key)


def _make_leaf(host: str, root: _Signed) -> _Signed:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(root.key.public_key())
    builder = (
        _dated(_named("BenchFlow gateway"), root.certificate.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(issuer, critical=False)
    )
    return _Signed(builder.sign(root.key, hashes.SHA256()), key)


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _dated(subject: x509.Name, issuer: x509.Name, key: Key) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509
        .CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + _AFTER)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _context(leaf: _Signed) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    secret = leaf.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    with _in_memory(_pem(leaf.certificate) + secret) as path:
        context.load_cert_chain(path)
    return context


@contextlib.contextmanager
def _in_memory(text: str) -> Generator[str, None, None]:
    """Yield a path at which OpenSSL reads a text that is on no disk."""
    file = os.memfd_create("bf-tls", os.MFD_CLOEXEC)
    try:
        os.write(file, text.encode())
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()

"""Certificates for tests, made with the `openssl` command as the README makes them."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from segue.cluster.config.tls import TlsConfig

KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]


@dataclass(frozen=True)
class Authority:
    """A CA in a folder of its own."""

    folder: Path

    @property
    def ca_file(self) -> Path:
        return self.folder / "ca.pem"

    def certificate(
        self, label: str, *, name: str = "segue", days: int = 2, passphrase: str = ""
    ) -> TlsConfig:
        cert, key, request = (self.folder / f"{label}.{end}" for end in ("pem", "key", "csr"))
        secret = ["-passout", f"pass:{passphrase}"] if passphrase else ["-nodes"]
        subject = ["-subj", f"/CN={label}", "-addext", f"subjectAltName=DNS:{name}"]
        _openssl("req", *KEY, *secret, *subject, "-keyout", str(key), "-out", str(request))
        signer = ["-CA", str(self.ca_file), "-CAkey", str(self.folder / "ca.key")]
        _openssl(
            *("x509", "-req", "-in", str(request), *signer, "-copy_extensions", "copy"),
            *("-days", str(days), "-out", str(cert)),
        )
        return TlsConfig(ca_file=str(self.ca_file), cert_file=str(cert), key_file=str(key))


def authority(folder: Path) -> Authority:
    folder.mkdir()
    target = ["-keyout", str(folder / "ca.key"), "-out", str(folder / "ca.pem")]
    _openssl("req", "-x509", *KEY, "-nodes", "-days", "2", "-subj", "/CN=a CA of tests", *target)
    return Authority(folder)


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

//! TLS to browsers. The certificate is read again when its files change, so that renewing it needs no restart.

use std::cell::RefCell;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// A certificate with its key, and the files that they come from.
pub struct Certificate {
    certificate: PathBuf,
    key: PathBuf,
    used: RefCell<TlsAcceptor>,
    /// The versions of the files that were read last, even if they could not be used.
    seen: RefCell<Versions>,
}

/// The inode and the time of the last change of both files.
type Versions = [Option<(u64, i64, i64)>; 2];

impl Certificate {
    /// Reads the files of `--tls-cert` and `--tls-key`.
    pub fn read(certificate: &str, key: &str) -> Result<Self, String> {
        let (certificate, key) = (PathBuf::from(certificate), PathBuf::from(key));
        let seen = RefCell::new(versions(&certificate, &key));
        let used = RefCell::new(acceptor(&certificate, &key)?);
        Ok(Self { certificate, key, used, seen })
    }

    /// For the next connection. If the files have changed and cannot be used, the certificate before stays.
    pub fn acceptor(&self) -> TlsAcceptor {
        let now = versions(&self.certificate, &self.key);
        if *self.seen.borrow() != now {
            *self.seen.borrow_mut() = now;
            match acceptor(&self.certificate, &self.key) {
                Ok(fresh) => *self.used.borrow_mut() = fresh,
                Err(why) => eprintln!("queue dashboard: the new certificate is not used: {why}"),
            }
        }
        self.used.borrow().clone()
    }
}

fn versions(certificate: &Path, key: &Path) -> Versions {
    [certificate, key].map(|path| {
        let about = std::fs::metadata(path).ok()?;
        Some((about.ino(), about.mtime(), about.mtime_nsec()))
    })
}

fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, String> {
    let complain = |option: &str, path: &Path, why: &str| format!("{option} {}: {why}", path.display());
    let chain = readable(certificate).and_then(|text| {
        let chain = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
        chain.ok().filter(|chain| !chain.is_empty()).ok_or("the file has no certificate in PEM".to_owned())
    });
    let chain = chain.map_err(|why| complain("--tls-cert", certificate, &why))?;
    let secret = readable(key).and_then(|text| {
        PrivateKeyDer::from_pem_slice(&text).map_err(|_| "the file has no unencrypted key in PEM".to_owned())
    });
    let secret = secret.map_err(|why| complain("--tls-key", key, &why))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, secret));
    // Above all, that the key is not that of the certificate.
    let mut config = config.map_err(|error| complain("--tls-key", key, &error.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn readable(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error: io::Error| error.to_string())
}

//! TLS by rustls, with the modes of libpq. "require" and below do not check the server's certificate, as in libpq, unless
//! a root certificate is there.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::failure::Failure;

/// How far the server is to be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

/// The parameters about TLS.
#[derive(Clone, Debug)]
pub struct Security {
    pub mode: Mode,
    /// The file with the root certificates; "system" means those of the operating system.
    pub roots: Option<PathBuf>,
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

/// What a connection needs.
pub struct Tls {
    mode: SslMode,
    config: Option<ClientConfig>,
}

impl Tls {
    /// For Unix sockets, which have no TLS.
    pub fn none() -> Self {
        Self { mode: SslMode::Disable, config: None }
    }

    pub fn new(security: &Security) -> Result<Self, Failure> {
        let mode = match security.mode {
            Mode::Disable => return Ok(Self::none()),
            Mode::Prefer => SslMode::Prefer,
            _ => SslMode::Require,
        };
        let complaint = |error: Error| Failure::new(format!("TLS: {error}"));
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(complaint)?;
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier(security, provider)?);
        let config = match (&security.certificate, &security.key) {
            (Some(certificate), Some(key)) => {
                let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, error))?;
                builder.with_client_auth_cert(certificates(certificate)?, key).map_err(complaint)?
            }
            _ => builder.with_no_client_auth(),
        };
        Ok(Self { mode, config: Some(config) })
    }

    pub fn mode(&self) -> SslMode {
        self.mode
    }

    pub fn connector(&self) -> Option<MakeRustlsConnect> {
        self.config.clone().map(MakeRustlsConnect::new)
    }
}

fn unreadable(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::new(format!("{}: {error}", path.display()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = found.map_err(|error| unreadable(path, error))?;
    if found.is_empty() { Err(unreadable(path, "the file has no certificate")) } else { Ok(found) }
}

fn verifier(
    security: &Security,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, Failure> {
    let Some(path) = security.roots.as_deref().filter(|_| security.mode != Mode::Prefer) else {
        return match security.mode {
            Mode::Prefer | Mode::Require => Ok(Arc::new(Lenient { provider, chain: None })),
            _ => Err(Failure::new("sslmode verify-ca and verify-full need a root certificate")
                .hint("Set sslrootcert to the file of the certificate authority, or to \"system\".")),
        };
    };
    let mut roots = RootCertStore::empty();
    if path == Path::new("system") {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    } else {
        for certificate in certificates(path)? {
            roots.add(certificate).map_err(|error| unreadable(path, error))?;
        }
    }
    let chain = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .build()
        .map_err(|error| unreadable(path, error))?;
    // As in libpq, "require" with a root certificate checks the authority.
    Ok(if security.mode == Mode::VerifyFull {
        chain
    } else {
        Arc::new(Lenient { provider, chain: Some(chain) })
    })
}

/// Checks the certificate's authority, if it knows one, and not the host's name.
#[derive(Debug)]
struct Lenient {
    provider: Arc<CryptoProvider>,
    chain: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match chain.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            // The name is checked last, so everything else is right.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

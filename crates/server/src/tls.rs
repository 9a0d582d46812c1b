//! The server's certificate, and the encryption that it makes possible.
//!
//! rustls with ring: TLS 1.2 and 1.3, HTTP/1.1 by ALPN. The files are read again when the process
//! gets SIGHUP, as certificates are renewed; connections that are open keep the old one, and files
//! that cannot be used change nothing.

use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use tokio_rustls::TlsAcceptor;

/// Where a certificate and its key lie, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, then the ones that vouch for it.
    pub certificates: PathBuf,
    /// The certificate's private key: PKCS #8, PKCS #1 or SEC 1.
    pub key: PathBuf,
}

/// A certificate and its key, which can be read anew.
#[derive(Clone)]
pub struct TlsIdentity {
    files: TlsFiles,
    current: Arc<CurrentIdentity>,
    config: Arc<rustls::ServerConfig>,
}

/// Why files cannot be used for TLS.
#[derive(Debug)]
pub enum TlsError {
    /// The file cannot be read, or holds no PEM text of the kind.
    File {
        /// The file.
        path: PathBuf,
        /// What should be in it.
        expected: &'static str,
        /// What is wrong.
        source: pem::Error,
    },
    /// There is no certificate in the file.
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// The key's kind is not supported.
    Key {
        /// The key's file.
        path: PathBuf,
        /// What is wrong.
        source: rustls::Error,
    },
    /// The certificate is not one that belongs to the key, or cannot be read.
    Pair {
        /// Both files.
        files: TlsFiles,
        /// What is wrong.
        source: rustls::Error,
    },
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, expected, .. } => {
                write!(f, "{} cannot be read as {expected} in PEM", path.display())
            }
            Self::NoCertificate { path } => {
                write!(f, "{} holds no certificate in PEM", path.display())
            }
            Self::Key { path, .. } => {
                write!(f, "the key in {} is of no supported kind", path.display())
            }
            Self::Pair { files, .. } => write!(
                f,
                "the certificate in {} and the key in {} do not belong together",
                files.certificates.display(),
                files.key.display()
            ),
        }
    }
}

impl Error for TlsError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::File { source, .. } => Some(source),
            Self::NoCertificate { .. } => None,
            Self::Key { source, .. } | Self::Pair { source, .. } => Some(source),
        }
    }
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsIdentity").field("files", &self.files).finish_non_exhaustive()
    }
}

impl TlsIdentity {
    /// Reads the certificate and its key.
    ///
    /// # Errors
    /// When a file cannot be read, holds something else, or the two do not belong together.
    ///
    /// # Panics
    /// Never: ring has the cipher suites of TLS 1.2 and 1.3.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let certified = Arc::new(read(&files)?);
        let current = Arc::new(CurrentIdentity { certified: RwLock::new(certified) });
        let builder = rustls::ServerConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .expect("ring has cipher suites for each default version");
        let resolver = Arc::clone(&current) as Arc<dyn ResolvesServerCert>;
        let mut config = builder.with_no_client_auth().with_cert_resolver(resolver);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { files, current, config: config.into() })
    }

    /// Reads the files again; handshakes from here on use what is in them.
    ///
    /// # Errors
    /// As [`TlsIdentity::load`]; the old certificate then stays.
    pub fn reload(&self) -> Result<(), TlsError> {
        let certified = Arc::new(read(&self.files)?);
        *self.current.certified.write().unwrap_or_else(PoisonError::into_inner) = certified;
        Ok(())
    }

    /// Reads the files again each time that the process gets SIGHUP.
    pub(crate) async fn reload_on_hangup(self) {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let mut hangup = match signal(SignalKind::hangup()) {
                Ok(hangup) => hangup,
                Err(error) => return tracing::error!(%error, "cannot listen to SIGHUP"),
            };
            while hangup.recv().await.is_some() {
                match self.reload() {
                    Ok(()) => tracing::info!("the certificate was read again"),
                    Err(error) => {
                        let cause = error.source().map(ToString::to_string);
                        tracing::error!(%error, cause, "the old certificate stays");
                    }
                }
            }
        }
    }

    /// Returns what does handshakes.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        Arc::clone(&self.config).into()
    }
}

/// The certificate that handshakes use.
#[derive(Debug)]
struct CurrentIdentity {
    certified: RwLock<Arc<CertifiedKey>>,
}

impl ResolvesServerCert for CurrentIdentity {
    fn resolve(&self, _client: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.certified.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

fn read(files: &TlsFiles) -> Result<CertifiedKey, TlsError> {
    let path = &files.certificates;
    let wrong = |source| TlsError::File { path: path.clone(), expected: "certificates", source };
    let certificates = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let certificates: Vec<CertificateDer<'static>> = certificates.map_err(wrong)?;
    if certificates.is_empty() {
        return Err(TlsError::NoCertificate { path: path.clone() });
    }
    let path = &files.key;
    let wrong = |source| TlsError::File { path: path.clone(), expected: "a private key", source };
    let key = PrivateKeyDer::from_pem_file(path).map_err(wrong)?;
    let key = ring::sign::any_supported_type(&key)
        .map_err(|source| TlsError::Key { path: path.clone(), source })?;
    let certified = CertifiedKey::new(certificates, key);
    match certified.keys_match() {
        Ok(()) => Ok(certified),
        Err(source) => Err(TlsError::Pair { files: files.clone(), source }),
    }
}

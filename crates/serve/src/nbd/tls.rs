//! Certificates for TLS, in the files that QEMU and libnbd name.

use std::path::Path;
use std::sync::Arc;

use block::{Error, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

/// How a server proves who it is, and whether clients must.
#[derive(Clone)]
pub struct Tls {
    pub(crate) config: Arc<ServerConfig>,
}

impl Tls {
    /// From the files `server-cert.pem` and `server-key.pem` of `folder`. If `verify_clients`, a client needs a
    /// certificate that the authority in `ca-cert.pem` signed.
    pub fn from_folder(folder: &Path, verify_clients: bool) -> Result<Self> {
        let read = |name: &str| {
            let path = folder.join(name);
            std::fs::read(&path).map_err(|error| Error::io("read", error).path(path.display()))
        };
        let authority = if verify_clients { Some(read("ca-cert.pem")?) } else { None };
        Self::from_pem(&read("server-cert.pem")?, &read("server-key.pem")?, authority.as_deref())
    }

    /// From the text of a chain of certificates and its key, and of the authority that signs clients' certificates if
    /// they must have one.
    pub fn from_pem(chain: &[u8], key: &[u8], client_authority: Option<&[u8]>) -> Result<Self> {
        let chain = certificates("server certificate", chain)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| Error::invalid(format!("server key: {error}")))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::invalid(format!("TLS: {error}")))?;
        let builder = match client_authority {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates("authority's certificate", authority)? {
                    roots
                        .add(certificate)
                        .map_err(|error| Error::invalid(format!("authority's certificate: {error}")))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .build()
                    .map_err(|error| Error::invalid(format!("authority's certificate: {error}")))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let config = builder
            .with_single_cert(chain, key)
            .map_err(|error| Error::invalid(format!("server certificate: {error}")))?;
        Ok(Self { config: Arc::new(config) })
    }
}

fn certificates(what: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| Error::invalid(format!("{what}: {error}")))?;
    if found.is_empty() {
        Err(Error::invalid(format!("{what}: there is none in the file")))
    } else {
        Ok(found)
    }
}

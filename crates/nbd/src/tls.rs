//! TLS as its client: certificates in the files that libnbd and QEMU name.

use std::sync::Arc;

use block::{Error, Result};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

/// Whom a client believes, and who it says it is.
#[derive(Clone, Debug)]
pub struct ClientTls {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) host: ServerName<'static>,
}

impl ClientTls {
    /// From the text of the authorities that may sign for the server (`None`: whoever it is is believed), and of the client's own chain
    /// of certificates and key, if it has any.
    pub fn from_pem(host: &str, authorities: Option<&[u8]>, own: Option<(&[u8], &[u8])>) -> Result<Self> {
        let host = ServerName::try_from(host.to_owned())
            .map_err(|error| Error::invalid(format!("the server's name '{host}' for TLS: {error}")))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::invalid(format!("TLS: {error}")))?;
        let builder = match authorities {
            Some(authorities) => builder.with_root_certificates(roots(authorities)?),
            None => builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider))),
        };
        let config = match own {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let key = PrivateKeyDer::from_pem_slice(key)
                    .map_err(|error| Error::invalid(format!("client key: {error}")))?;
                builder
                    .with_client_auth_cert(certificates("client certificate", chain)?, key)
                    .map_err(|error| Error::invalid(format!("client certificate: {error}")))?
            }
        };
        Ok(Self { config: Arc::new(config), host })
    }
}

/// Those of a system's authorities that cannot be read are left out; if none is left, that is an error.
fn roots(authorities: &[u8]) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(certificates("authority's certificate", authorities)?);
    match added {
        0 => Err(Error::invalid("authority's certificate: it cannot be read")),
        _ => Ok(roots),
    }
}

fn certificates(what: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| Error::invalid(format!("{what}: {error}")))?;
    if found.is_empty() {
        return Err(Error::invalid(format!("{what}: there is none in the file")));
    }
    Ok(found)
}

/// Believes whoever answers: `tls-verify-peer=false`. What is sent is hidden from those who only listen.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

//! HTTP requests, one attempt each: what is sent and answered whole, in bounded memory, within bounded silence.
//!
//! Invariants: a redirection is never followed, since it would take credentials elsewhere; a body is whole or an error.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{Error, Result};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use ureq::http::header::HeaderName;
use ureq::http::{HeaderMap, HeaderValue, Method, Request as HttpRequest};
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};

use crate::backend::Limits;
use crate::fault::{Attempt, Fault, shown};

/// Bodies of answers that say what went wrong.
const REASON_BYTES_MAX: u64 = 64 << 10;
/// Connections that are kept for the next request.
const IDLE_MAX: usize = 8;
/// Where distributions have the authorities that they believe.
const BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Whom a client believes over TLS.
#[derive(Clone, Debug)]
pub(crate) enum Authorities {
    /// These alone, as `--cacert` names them.
    In(PathBuf),
    /// Those of the system.
    System,
}

/// Whether requests go by the proxy that the environment names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Proxy {
    OfEnvironment,
    Never,
}

/// A client of one server.
pub(crate) struct Client {
    agent: ureq::Agent,
}

/// What is asked.
pub(crate) struct Request<'a> {
    pub(crate) method: Method,
    pub(crate) url: &'a str,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Option<&'a [u8]>,
    /// The longest body of an answer that is taken.
    pub(crate) answer_bytes_max: u64,
}

/// What was answered.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The length that it has, or would have.
    pub(crate) fn content_length(&self) -> Option<u64> {
        self.header("content-length").and_then(|text| text.parse().ok())
    }
}

impl Client {
    /// Of servers at `url`: authorities are read only where they are needed.
    pub(crate) fn new(url: &str, authorities: &Authorities, proxy: Proxy, limits: &Limits) -> Result<Self> {
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("leandisk/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(limits.connect))
            .timeout_connect(Some(limits.connect))
            .timeout_per_read(Some(limits.silence))
            .timeout_per_write(Some(limits.silence))
            .max_idle_connections(IDLE_MAX)
            .max_idle_connections_per_host(IDLE_MAX);
        if proxy == Proxy::Never {
            config = config.proxy(None);
        }
        if url.starts_with("https:") {
            config = config.tls_config(tls(authorities)?);
        }
        Ok(Self { agent: config.build().new_agent() })
    }

    /// Asks, and waits for the whole answer. Any status is an answer.
    pub(crate) fn send(&self, request: &Request<'_>) -> Attempt<Answer> {
        let mut built = HttpRequest::builder().method(request.method.clone()).uri(request.url);
        for (name, value) in &request.headers {
            let value = HeaderValue::from_str(value)
                .map_err(|_| Fault::Final(Error::invalid(format!("the value of the header {name}"))))?;
            built = built.header(HeaderName::from_static(name), value);
        }
        let invalid = |error| Fault::Final(Error::invalid(format!("the address: {error}")));
        let answered = match request.body {
            Some(body) => self.agent.run(built.body(body).map_err(invalid)?),
            None => self.agent.run(built.body(()).map_err(invalid)?),
        };
        let answered = answered.map_err(|error| fault(&request.method, error))?;
        let (parts, body) = answered.into_parts();
        let bytes_max = match parts.status.is_success() {
            true => request.answer_bytes_max,
            false => REASON_BYTES_MAX,
        };
        let body = match request.method {
            Method::HEAD => Vec::new(),
            _ => whole(body, bytes_max, parts.status.is_success())?,
        };
        Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, body })
    }
}

/// All of a body. One that says what went wrong may be cut.
fn whole(body: ureq::Body, bytes_max: u64, is_wanted: bool) -> Attempt<Vec<u8>> {
    let announced = body.content_length();
    let too_long = || {
        Fault::corrupt(format!("the server's answer is longer than the {bytes_max} bytes that it may have"))
    };
    if is_wanted && announced.is_some_and(|len_bytes| len_bytes > bytes_max) {
        return Err(too_long());
    }
    let mut bytes = Vec::new();
    let read = body.into_reader().take(bytes_max + 1).read_to_end(&mut bytes);
    match read {
        Err(_) if !is_wanted => {}
        Err(error) => return Err(fault_of_io("read the answer", error)),
        Ok(_) if bytes.len() as u64 > bytes_max && is_wanted => return Err(too_long()),
        Ok(_) => {}
    }
    match announced {
        Some(len_bytes) if is_wanted && bytes.len() as u64 != len_bytes => {
            Err(Fault::passing("the server's answer ends early", io::ErrorKind::UnexpectedEof))
        }
        _ => Ok(bytes),
    }
}

fn fault(method: &Method, error: ureq::Error) -> Fault {
    let what = if method.is_safe() { "read from the server" } else { "write to the server" };
    match error {
        ureq::Error::Io(error) => fault_of_io(what, error),
        ureq::Error::Timeout(_) => Fault::passing(what, io::ErrorKind::TimedOut),
        ureq::Error::ConnectionFailed => Fault::passing(what, io::ErrorKind::ConnectionRefused),
        ureq::Error::HostNotFound => Fault::Passing(Error::io(
            what,
            io::Error::new(io::ErrorKind::HostUnreachable, "the host's name is not known"),
        )),
        ureq::Error::Rustls(error) => not_believed(&error),
        ureq::Error::Protocol(error) => {
            Fault::corrupt(format!("the server's answer is no HTTP: {}", shown(&error.to_string())))
        }
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => {
            Fault::Final(Error::invalid("the repository's address"))
        }
        other => Fault::Passing(Error::io(what, io::Error::other(shown(&other.to_string())))),
    }
}

fn fault_of_io(what: &'static str, error: io::Error) -> Fault {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(tls) => not_believed(tls),
        None => Fault::Passing(Error::io(what, error)),
    }
}

fn not_believed(error: &rustls::Error) -> Fault {
    let told = Error::refused(format!("no connection by TLS: {error}"));
    Fault::Final(match error {
        rustls::Error::InvalidCertificate(_) => {
            told.hint("--cacert, or RESTIC_CACERT, names a file with the certificates of your own authority")
        }
        _ => told,
    })
}

/// What a status that no rule of the protocol expects here means.
pub(crate) fn unexpected(what: &str, answer: &Answer, reason: &str) -> Fault {
    let reason = if reason.is_empty() { phrase(answer.status) } else { reason.to_owned() };
    let told = format!("{what}: the server answers {} {}", answer.status, reason);
    let told = told.trim_end().to_owned();
    let io = |kind| Error::io(told.clone(), io::Error::new(kind, "the server failed"));
    match answer.status {
        401 | 403 => Fault::denied(told),
        404 => Fault::not_found(told),
        416 => Fault::too_short(told),
        408 | 429 => Fault::Passing(io(io::ErrorKind::TimedOut)),
        507 => Fault::Final(Error::io(told, io::ErrorKind::StorageFull.into())),
        500..=599 => Fault::Passing(io(io::ErrorKind::Other)),
        400..=499 => Fault::Final(Error::refused(told)),
        300..=399 => Fault::Final(
            Error::refused(told)
                .hint("redirections are not followed: name the place where the repository is"),
        ),
        _ => Fault::corrupt(told),
    }
}

fn phrase(status: u16) -> String {
    let status = ureq::http::StatusCode::from_u16(status).ok();
    status.and_then(|status| status.canonical_reason()).unwrap_or_default().to_owned()
}

/// Parts of a file: the header that asks for them.
pub(crate) fn range(offset: u64, len: usize) -> (&'static str, String) {
    let last = offset.saturating_add(len as u64).saturating_sub(1);
    ("range", format!("bytes={offset}-{last}"))
}

/// The part that was asked for, and no more or less.
pub(crate) fn part(answer: Answer, what: &str, len: usize) -> Attempt<Vec<u8>> {
    match answer.status {
        206 if answer.body.len() == len => Ok(answer.body),
        206 if answer.body.len() < len => Err(Fault::too_short(format!("{what}: the file ends before"))),
        _ => Err(Fault::corrupt(format!(
            "{what}: the server answers something else than the part that was asked for"
        ))),
    }
}

fn tls(authorities: &Authorities) -> Result<TlsConfig> {
    let path = match authorities {
        Authorities::In(path) => path.clone(),
        Authorities::System => bundle()?,
    };
    let roots = certificates(&path)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(provider)
        .root_certs(RootCerts::new_with_certs(&roots))
        .build())
}

fn bundle() -> Result<PathBuf> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let known = BUNDLES.iter().map(|path| PathBuf::from(*path)).find(|path| path.exists());
    named.or(known).ok_or_else(|| {
        Error::refused("no file with certificates of authorities was found")
            .hint("install ca-certificates, or name one by --cacert or SSL_CERT_FILE")
    })
}

fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>> {
    let text = std::fs::read(path)
        .map_err(|error| Error::io("read the authorities' certificates", error).path(path.display()))?;
    let found: Vec<_> = CertificateDer::pem_slice_iter(&text).filter_map(Result::ok).collect();
    if found.is_empty() {
        return Err(Error::invalid("there is no certificate in the file").path(path.display()));
    }
    Ok(found.iter().map(|der| Certificate::from_der(der).to_owned()).collect())
}

/// `user:password@` of an address as the header that says it.
pub(crate) fn basic_authorization(user: &str, password: &str) -> String {
    use base64::Engine as _;
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}")))
}

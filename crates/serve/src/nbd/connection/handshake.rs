//! The handshake, by a deadline; with TLS where the server wants it.

use std::io;
use std::time::Instant;

use super::Setting;
use crate::nbd::input::is_timeout;
use crate::nbd::negotiate::{Negotiation, Next, Session, TlsState, parse_option};
use crate::nbd::transport::Transport;

/// The longest part of a name that is logged.
const LOGGED_BYTES_MAX: usize = 256;

/// What was agreed on, or `None` if the client does not go on. `unknown` becomes the name that it asked for last, if nothing is called so.
pub(super) fn negotiate(
    transport: &mut Transport,
    setting: &Setting,
    deadline: Instant,
    unknown: &mut Option<String>,
) -> io::Result<Option<Session>> {
    transport.socket().set_timeouts(setting.handshake)?;
    transport.send_bytes(&Negotiation::greeting())?;
    let tls = if setting.tls.is_some() { TlsState::Required } else { TlsState::None };
    let mut flags = [0; 4];
    receive_exact(transport, &mut flags, deadline)?;
    let Some(mut negotiation) = Negotiation::new(&setting.exports.facts, tls, flags) else { return Ok(None) };
    let mut data = Vec::new();
    loop {
        let mut header = [0; 16];
        receive_exact(transport, &mut header, deadline)?;
        let Ok((code, len_bytes)) = parse_option(&header) else { return Ok(None) };
        data.resize(len_bytes as usize, 0);
        receive_exact(transport, &mut data, deadline)?;
        let (reply, next) = negotiation.answer(code, &data);
        *unknown = negotiation.unknown().map(logged);
        transport.send_bytes(&reply)?;
        match next {
            Next::Option => {}
            Next::Transmission(session) => return Ok(Some(session)),
            Next::Close => return Ok(None),
            Next::Tls => {
                start_tls(transport, setting, deadline)?;
                negotiation.tls_began();
            }
        }
    }
}

fn logged(name: &[u8]) -> String {
    String::from_utf8_lossy(&name[..name.len().min(LOGGED_BYTES_MAX)]).into_owned()
}

/// Why a handshake ended before its end.
pub(super) fn reason(error: &io::Error) -> String {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    match error.kind() {
        BrokenPipe | ConnectionReset | UnexpectedEof => "the client closed the connection".to_owned(),
        _ if is_timeout(error) => "the handshake took too long".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(feature = "tls")]
fn start_tls(transport: &mut Transport, setting: &Setting, deadline: Instant) -> io::Result<()> {
    // Nothing was received past the option: what came in the clear cannot pass for what came through TLS.
    match &setting.tls {
        Some(tls) => transport.start_tls(tls.config.clone(), deadline),
        None => Err(io::ErrorKind::Unsupported.into()),
    }
}

#[cfg(not(feature = "tls"))]
fn start_tls(_: &mut Transport, _: &Setting, _: Instant) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Receives exactly `buf`, and nothing after it.
fn receive_exact(transport: &Transport, buf: &mut [u8], deadline: Instant) -> io::Result<()> {
    let mut len = 0;
    while len < buf.len() {
        match transport.receive_before(&mut buf[len..], deadline)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => len += more,
        }
    }
    Ok(())
}

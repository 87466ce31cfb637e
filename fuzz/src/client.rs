//! What a client of the block server says: the negotiation, then requests.

use serve::nbd::PAYLOAD_BYTES_MAX;
use serve::nbd::protocol::{
    ExportFacts, Negotiation, Next, OPTION_BYTES_MAX, Request, Session, TlsState, parse_option,
};

fn exports() -> Vec<ExportFacts> {
    ["disk", ""]
        .into_iter()
        .zip([1 << 20, u64::MAX])
        .map(|(name, len_bytes)| ExportFacts {
            name: name.into(),
            description: "a disk".into(),
            len_bytes,
            preferred_bytes: 4096,
            is_read_only: len_bytes == 1 << 20,
            is_private: false,
        })
        .collect()
}

/// Takes `data` as all that a client sends; its first byte says whether there is TLS, which does not change the bytes.
pub fn nbd(data: &[u8]) {
    let exports = exports();
    let Some((first, rest)) = data.split_first() else { return };
    let tls = [TlsState::None, TlsState::Required, TlsState::Active][usize::from(first % 3)];
    let Some((flags, rest)) = rest.split_first_chunk() else { return };
    let Some(negotiation) = Negotiation::new(&exports, tls, *flags) else { return };
    if let Some((session, rest)) = negotiate(negotiation, tls, rest) {
        assert_eq!(session.len_bytes, exports[session.export_index].len_bytes);
        requests(&session, rest);
    }
}

fn negotiate<'data>(
    mut negotiation: Negotiation<'_>,
    tls: TlsState,
    mut data: &'data [u8],
) -> Option<(Session, &'data [u8])> {
    let mut is_open = tls != TlsState::Required;
    loop {
        let (header, rest) = data.split_first_chunk()?;
        let (code, len_bytes) = parse_option(header).ok()?;
        assert!(len_bytes <= OPTION_BYTES_MAX, "bounded before memory is taken");
        let (option, rest) = rest.split_at_checked(len_bytes as usize)?;
        data = rest;
        let (reply, next) = negotiation.answer(code, option);
        assert!(is_open || !reply.windows(6).any(|window| window == b"a disk"), "told before TLS");
        match next {
            Next::Option => assert!(!reply.is_empty(), "every option is answered"),
            Next::Close => return None,
            Next::Tls => {
                assert!(!is_open, "TLS begins once");
                is_open = true;
                negotiation.tls_began();
            }
            Next::Transmission(session) => {
                assert!(is_open, "nothing is served before TLS");
                return Some((session, data));
            }
        }
    }
}

fn requests(session: &Session, mut data: &[u8]) {
    while let Ok(Some(request)) = Request::parse(data, session.headers) {
        assert!(request.payload_bytes() <= PAYLOAD_BYTES_MAX, "bounded before memory is taken");
        let rest = &data[session.headers.request_bytes()..];
        let Some((payload, rest)) = rest.split_at_checked(request.payload_bytes() as usize) else { return };
        let request = match request.is_filtered(session) {
            true => request.with_payload(payload),
            false => Ok(request),
        };
        if let Ok((_, span)) = request.and_then(|request| request.check(session)) {
            assert!(span.end().get() <= session.len_bytes, "within the export");
        }
        data = rest;
    }
}

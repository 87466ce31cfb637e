//! Requests signed by Amazon's signature version 4, in headers: with the hash of the body, which the server compares.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use super::keys::Keys;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const HEX: &[u8; 16] = b"0123456789abcdef";

/// A request to be signed.
pub(crate) struct Signed<'a> {
    pub(crate) method: &'a str,
    pub(crate) host: &'a str,
    /// Encoded already.
    pub(crate) path: &'a str,
    pub(crate) query: &'a [(&'a str, &'a str)],
    pub(crate) body: &'a [u8],
    /// As `20060102T150405Z`.
    pub(crate) time: &'a str,
    pub(crate) region: &'a str,
}

/// As URIs have it: all but letters, digits and four marks, and the slashes of paths.
pub(crate) fn encoded(text: &str, is_path: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || (is_path && byte == b'/') {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push_str(&hex(&[byte]).to_uppercase());
        }
    }
    out
}

fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(HEX[usize::from(digit)])).collect()
}

fn hash(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn keyed(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

impl Signed<'_> {
    pub(crate) fn canonical_query(&self) -> String {
        let mut pairs: Vec<_> =
            self.query.iter().map(|(name, value)| (encoded(name, false), encoded(value, false))).collect();
        pairs.sort();
        pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
    }

    /// The headers that sign it; that of the host is the client's to send.
    pub(crate) fn headers(&self, keys: &Keys) -> Vec<(&'static str, String)> {
        let body_hash = hash(self.body);
        let mut sent =
            vec![("x-amz-content-sha256", body_hash.clone()), ("x-amz-date", self.time.to_owned())];
        sent.extend(keys.session.iter().map(|token| ("x-amz-security-token", token.0.clone())));
        let signed: Vec<_> =
            std::iter::once(("host", self.host.to_owned())).chain(sent.iter().cloned()).collect();
        let lines: String = signed.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
        let names = signed.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
        let Self { method, path, .. } = self;
        let canonical =
            format!("{method}\n{path}\n{}\n{lines}\n{names}\n{body_hash}", self.canonical_query());
        let day = self.time.get(..8).unwrap_or_default();
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let to_sign = format!("{ALGORITHM}\n{}\n{scope}\n{}", self.time, hash(canonical.as_bytes()));
        let signature = hex(&keyed(&self.key(&keys.secret.0, day), &to_sign));
        let credential = format!("{}/{scope}", keys.id);
        let value =
            format!("{ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}");
        sent.push(("authorization", value));
        sent
    }

    fn key(&self, secret: &str, day: &str) -> Vec<u8> {
        let of_day = keyed(format!("AWS4{secret}").as_bytes(), day);
        let of_region = keyed(&of_day, self.region);
        keyed(&keyed(&of_region, "s3"), "aws4_request")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;

    /// "GET Bucket (List Objects)" of Amazon's "Authenticating Requests: Using the Authorization Header".
    #[test]
    fn a_request_is_signed_as_amazon_signs_it() {
        let keys = Keys {
            id: "AKIAIOSFODNN7EXAMPLE".into(),
            secret: Secret("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into()),
            session: None,
        };
        let signed = Signed {
            method: "GET",
            host: "examplebucket.s3.amazonaws.com",
            path: "/",
            query: &[("prefix", "J"), ("max-keys", "2")],
            body: b"",
            time: "20130524T000000Z",
            region: "us-east-1",
        };
        let headers = signed.headers(&keys);
        let (_, authorization) = headers.last().unwrap();
        assert!(
            authorization
                .ends_with("Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
            "{authorization}"
        );
        assert_eq!(signed.canonical_query(), "max-keys=2&prefix=J");
        assert_eq!(encoded("/a b/ä+", true), "/a%20b/%C3%A4%2B");
    }
}

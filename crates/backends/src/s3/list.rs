//! What S3 answers in XML: pages of lists, and what went wrong.

use quick_xml::Reader;
use quick_xml::events::Event;

use crate::fault::{Attempt, Fault};

/// A page of a list of keys.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Listed {
    pub(crate) keys: Vec<String>,
    /// Where the next page begins.
    pub(crate) next: Option<String>,
}

/// Goes through all elements that hold text: their names, of the element around them and of their own, and the text. `None` if that is no XML.
fn each_text(xml: &[u8], mut visit: impl FnMut(&str, &str, String)) -> Option<()> {
    let text = std::str::from_utf8(xml).ok()?;
    let mut reader = Reader::from_str(text);
    let mut open: Vec<String> = Vec::new();
    let mut held = String::new();
    loop {
        match reader.read_event().ok()? {
            Event::Start(start) => {
                open.push(String::from_utf8(start.local_name().as_ref().to_vec()).ok()?);
                held.clear();
            }
            Event::Text(text) => held.push_str(&text.decode().ok()?),
            Event::CData(text) => held.push_str(&text.decode().ok()?),
            Event::GeneralRef(reference) => held.push(meant(&reference)?),
            Event::End(_) => {
                let name = open.pop()?;
                visit(open.last().map_or("", String::as_str), &name, std::mem::take(&mut held));
            }
            Event::Eof => return open.is_empty().then_some(()),
            _ => {}
        }
    }
}

/// The letter that `&...;` stands for.
fn meant(reference: &quick_xml::events::BytesRef<'_>) -> Option<char> {
    if let Ok(Some(letter)) = reference.resolve_char_ref() {
        return Some(letter);
    }
    let name = reference.decode().ok()?;
    quick_xml::escape::resolve_predefined_entity(&name)?.chars().next()
}

/// A page of `ListObjectsV2`.
pub(crate) fn parse(xml: &[u8]) -> Attempt<Listed> {
    let (mut keys, mut next, mut is_cut, mut is_list) = (Vec::new(), None, false, false);
    let read = each_text(xml, |around, name, text| match (around, name) {
        ("Contents", "Key") => keys.push(text),
        ("ListBucketResult", "NextContinuationToken") => next = Some(text),
        ("ListBucketResult", "IsTruncated") => is_cut = text.trim() == "true",
        ("", "ListBucketResult") => is_list = true,
        _ => {}
    });
    if read.is_none() || !is_list || (is_cut && next.is_none()) {
        return Err(Fault::corrupt("the server's answer is no list of files"));
    }
    Ok(Listed { keys, next: next.filter(|_| is_cut) })
}

/// The text of the first element of this name, if that is XML.
pub(crate) fn field(xml: &[u8], wanted: &str) -> Option<String> {
    let mut found = None;
    let _ = each_text(xml, |_, name, text| {
        if name == wanted && found.is_none() {
            found = Some(text);
        }
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_and_garbage_is_none() {
        let page = br#"<?xml version="1.0"?><ListBucketResult xmlns="x"><IsTruncated>true</IsTruncated><Contents><Key>a&amp;b&#47;c</Key>
            <Owner><ID>me</ID></Owner></Contents><NextContinuationToken>t==</NextContinuationToken></ListBucketResult>"#;
        assert_eq!(parse(page).unwrap(), Listed { keys: vec!["a&b/c".into()], next: Some("t==".into()) });
        for garbage in [
            &b""[..],
            b"<html></html>",
            b"\xff",
            b"<ListBucketResult>",
            &page[..80],
            b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        ] {
            assert!(parse(garbage).is_err(), "{}", String::from_utf8_lossy(garbage));
        }
        assert_eq!(field(b"<Error><Code>NoSuchKey</Code></Error>", "Code"), Some("NoSuchKey".into()));
        assert_eq!(field(b"no XML <", "Code"), None);
    }
}

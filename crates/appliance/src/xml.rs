//! XML as a small tree: bounded, without a document type, without entities but those that XML itself has.
//!
//! Names are taken without their prefixes: those who write these documents use different ones for the same namespaces.

use block::{Error, Result};
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use crate::corrupt::Corrupt;

/// How deep elements may lie.
const DEPTH_MAX: usize = 64;
/// How many elements a document may have.
const ELEMENT_COUNT_MAX: usize = 100_000;
/// How many attributes an element may have.
const ATTRIBUTE_COUNT_MAX: usize = 256;

/// An element.
#[derive(Debug, Default)]
pub(crate) struct Element {
    pub(crate) name: String,
    attributes: Vec<(String, String)>,
    pub(crate) children: Vec<Element>,
}

impl Element {
    /// The document's element. `Corrupt` unless it has the name.
    pub(crate) fn parse(text: &str, expected: &'static str) -> Result<Self> {
        let root = parse(text)?;
        match root.name == expected {
            true => Ok(root),
            false => Err(Error::corrupt(Corrupt::Root { found: root.name, expected })),
        }
    }

    pub(crate) fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// `Corrupt` if it has no such attribute.
    pub(crate) fn required(&self, name: &'static str) -> Result<&str> {
        self.attribute(name).ok_or_else(|| self.wrong(name, "missing"))
    }

    /// A number of an attribute, if there is one.
    pub(crate) fn number(&self, name: &'static str) -> Result<Option<u64>> {
        let Some(text) = self.attribute(name) else { return Ok(None) };
        text.trim().parse().map(Some).map_err(|_| self.wrong(name, &format!("'{text}', which is no number")))
    }

    pub(crate) fn wrong(&self, attribute: &'static str, found: &str) -> Error {
        let (element, found) = (self.name.clone(), found.to_owned());
        Error::corrupt(Corrupt::Attribute { element, attribute, found })
    }

    pub(crate) fn child(&self, name: &str) -> Option<&Self> {
        self.children.iter().find(|child| child.name == name)
    }

    pub(crate) fn children<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Self> {
        self.children.iter().filter(move |child| child.name == name)
    }
}

fn parse(text: &str) -> Result<Element> {
    let mut reader = Reader::from_str(text);
    // What is open, the document first.
    let mut open = vec![Element::default()];
    let mut count = 0;
    loop {
        let event = reader.read_event().map_err(|error| broken(&error.to_string()))?;
        match event {
            Event::Start(start) => {
                count += 1;
                if open.len() > DEPTH_MAX {
                    return Err(broken(&format!("elements lie deeper than {DEPTH_MAX}")));
                }
                open.push(element(&start)?);
            }
            Event::Empty(start) => {
                count += 1;
                let element = element(&start)?;
                last(&mut open)?.children.push(element);
            }
            Event::End(_) => {
                let element = open.pop().ok_or_else(|| broken("an end without a beginning"))?;
                last(&mut open)?.children.push(element);
            }
            Event::DocType(_) => return Err(broken("it has a document type, which is not read")),
            Event::Eof => break,
            _ => {}
        }
        if count > ELEMENT_COUNT_MAX {
            return Err(broken(&format!("it has more than {ELEMENT_COUNT_MAX} elements")));
        }
    }
    let (Some(mut document), true) = (open.pop(), open.is_empty()) else {
        return Err(broken("it ends within an element"));
    };
    match (document.children.pop(), document.children.is_empty()) {
        (Some(root), true) => Ok(root),
        _ => Err(broken("it has no element that holds all others")),
    }
}

fn last(open: &mut [Element]) -> Result<&mut Element> {
    open.last_mut().ok_or_else(|| broken("an end without a beginning"))
}

fn element(start: &BytesStart<'_>) -> Result<Element> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut attributes = Vec::new();
    for attribute in start.attributes() {
        let attribute = attribute.map_err(|error| broken(&error.to_string()))?;
        if attributes.len() >= ATTRIBUTE_COUNT_MAX {
            return Err(broken(&format!("an element has more than {ATTRIBUTE_COUNT_MAX} attributes")));
        }
        let is_namespace = attribute.key.as_namespace_binding().is_some();
        let value = attribute.unescape_value().map_err(|error| broken(&error.to_string()))?;
        if !is_namespace {
            attributes.push((text(attribute.key.local_name().as_ref()), value.into_owned()));
        }
    }
    Ok(Element { name: text(start.local_name().as_ref()), attributes, children: Vec::new() })
}

fn broken(why: &str) -> Error {
    let why = why.chars().take(300).collect();
    Error::corrupt(Corrupt::Xml { why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refuses(text: &str, why: &str) {
        let error = parse(text).err().unwrap_or_else(|| panic!("it was taken"));
        assert!(error.to_string().contains(why), "{error}");
    }

    #[test]
    fn a_document_is_a_tree() {
        let root = parse("<?xml version='1.0'?><!-- c --><a:b x:y='1 &amp; 2' xmlns:a='n'><c/>t<c d='&#65;'></c></a:b>\n \n").unwrap();
        assert_eq!((root.name.as_str(), root.attribute("y")), ("b", Some("1 & 2")));
        assert_eq!(root.attribute("a"), None);
        assert_eq!(root.children("c").count(), 2);
        assert_eq!(root.children[1].attribute("d"), Some("A"));
    }

    #[test]
    fn bombs_are_refused_within_bounds() {
        refuses("<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", "document type");
        refuses("<a b='&lol;'/>", "lol");
        refuses(&"<a>".repeat(100_000), "deeper than 64");
        refuses(&format!("<a>{}</a>", "<b/>".repeat(200_000)), "more than 100000 elements");
        let attributes: String = (0..100_000).map(|index| format!(" a{index}=''")).collect();
        refuses(&format!("<a{attributes}/>"), "more than 256 attributes");
        refuses("<a b='1' b='2'/>", "");
        refuses("<a>", "ends within an element");
        refuses("<a/><b/>", "no element that holds");
        refuses("", "no element that holds");
        refuses("</a>", "");
        refuses("no XML", "no element that holds");
    }
}

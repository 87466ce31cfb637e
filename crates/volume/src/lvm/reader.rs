//! Values of a section, with an error that names where one is missing or cannot be.

use std::collections::BTreeMap;

use block::{Error, Result};

use super::corrupt::Corrupt;
use super::layout::SECTOR_BYTES;
use super::text::{Section, Value};

/// A section with its name, for what is said of it.
pub(super) struct Reader<'a> {
    pub(super) section: &'a Section,
    pub(super) name: &'a str,
}

impl<'a> Reader<'a> {
    pub(super) fn text(&self, name: &str) -> Result<&'a str> {
        let text = self.section.value(name).and_then(Value::text);
        text.ok_or_else(|| Error::corrupt(missing(self.name, name)))
    }

    pub(super) fn number(&self, name: &str) -> Result<u64> {
        let number = self.section.value(name).and_then(Value::number);
        let number = number.ok_or_else(|| Error::corrupt(missing(self.name, name)))?;
        u64::try_from(number).map_err(|_| {
            Error::corrupt(Corrupt::OutOfRange {
                section: self.name.to_owned(),
                name: name.to_owned(),
                value: number,
            })
        })
    }

    /// A number of sectors, in bytes.
    pub(super) fn size(&self, name: &str) -> Result<u64> {
        let sectors = self.number(name)?;
        sectors.checked_mul(SECTOR_BYTES).ok_or_else(|| out_of_range(self.name, name, sectors))
    }

    pub(super) fn inner(&self, name: &str) -> Result<&'a Section> {
        self.section.section(name).ok_or_else(|| Error::corrupt(missing(self.name, name)))
    }

    pub(super) fn words(&self, name: &str) -> Vec<String> {
        let items = self.section.value(name).map_or(&[][..], |value| value.items());
        // A number among them is none of those that are known either.
        items.iter().map(|item| item.text().map_or_else(|| format!("{item:?}"), str::to_owned)).collect()
    }

    pub(super) fn words_but(&self, name: &str, known: &[&str]) -> Vec<String> {
        self.words(name).into_iter().filter(|word| !known.contains(&word.as_str())).collect()
    }

    /// Which of `names` stand anywhere in the section as a text, but as its kind.
    pub(super) fn names_of(&self, names: &[&str]) -> Vec<String> {
        let values = self.section.values.iter().filter(|(name, _)| name != "type");
        let texts = values.flat_map(|(_, value)| value.items());
        let texts = texts.filter_map(|value| value.text());
        texts.filter(|text| names.contains(text)).map(str::to_owned).collect()
    }

    /// Physical volumes that the segment names, each with its first extent there.
    pub(super) fn areas(&self, members: &BTreeMap<String, usize>) -> Result<Vec<(usize, u64)>> {
        let mut areas = Vec::new();
        for (name, value) in &self.section.values {
            let items = value.items();
            for (at, item) in items.iter().enumerate() {
                let Some(member) = item.text().and_then(|text| members.get(text)) else { continue };
                if !matches!(name.as_str(), "stripes" | "mirrors") {
                    let what = format!("LVM2 segment of {} with physical volumes as its {name}", self.name);
                    return Err(Error::unsupported(what));
                }
                let first = items.get(at + 1).and_then(Value::number);
                let first = first.and_then(|first| u64::try_from(first).ok());
                areas.push((*member, first.ok_or_else(|| Error::corrupt(missing(self.name, name)))?));
            }
        }
        Ok(areas)
    }
}

pub(super) fn missing(section: &str, name: &str) -> Corrupt {
    Corrupt::Missing { section: section.to_owned(), name: name.to_owned() }
}

pub(super) fn out_of_range(section: &str, name: &str, value: u64) -> Error {
    Error::corrupt(Corrupt::OutOfRange {
        section: section.to_owned(),
        name: name.to_owned(),
        value: i64::try_from(value).unwrap_or(i64::MAX),
    })
}

//! The parent locator (2.6.2.6): how a differencing disk names its parent.

use block::{Error, Result};
use extent::HostOffset;
use uuid::Uuid;
use zerocopy::FromBytes;

use super::corrupt::Corrupt;
use super::layout::{LOCATOR_VHDX, ParentLocatorEntry, ParentLocatorHeader};
use crate::vhd::names::{ParentNames, from_utf16};
use crate::{Format, ParentReference};

/// The reference in `item`, the whole metadata item, which lies at `at`.
pub(super) fn parse(item: &[u8], at: HostOffset) -> Result<ParentReference> {
    let corrupt = || Error::corrupt(Corrupt::ParentLocator).at(at);
    let Ok((header, entries)) = ParentLocatorHeader::read_from_prefix(item) else {
        return Err(corrupt().field("length", item.len(), "at least 20"));
    };
    if header.locator_type.uuid() != LOCATOR_VHDX {
        return Err(Error::unsupported("VHDX parent locator").at(at).field(
            "type",
            header.locator_type.uuid().to_string(),
            LOCATOR_VHDX,
        ));
    }
    let mut names = ParentNames::default();
    let mut ids = Vec::new();
    let mut rest = entries;
    for _ in 0..header.key_value_count.get() {
        let Ok((entry, after)) = ParentLocatorEntry::read_from_prefix(rest) else {
            return Err(corrupt().field(
                "entry count",
                header.key_value_count.get(),
                "as many as the item holds",
            ));
        };
        rest = after;
        let text = |offset, len| {
            text(item, offset, len).ok_or_else(|| {
                corrupt().field(
                    "text",
                    format!("{len} bytes at {offset:#x}"),
                    format!("within {} bytes", item.len()),
                )
            })
        };
        let key = text(entry.key_offset.get(), entry.key_length.get())?;
        let value = text(entry.value_offset.get(), entry.value_length.get())?;
        match key.as_str() {
            "parent_linkage" | "parent_linkage2" => ids.push(id(&value, at)?),
            "relative_path" => names.push_relative(&value),
            "absolute_win32_path" | "volume_path" => names.push_absolute(&value),
            // Unknown keys are allowed.
            _ => {}
        }
    }
    if ids.is_empty() {
        return Err(corrupt().field("parent_linkage", "missing", "the parent's data write GUID"));
    }
    Ok(ParentReference { names: names.into_vec(), format: Some(Format::Vhdx), ids, snapshot: None })
}

fn text(item: &[u8], offset: u32, len: u16) -> Option<String> {
    let start = usize::try_from(offset).ok()?;
    let bytes = item.get(start..start.checked_add(usize::from(len))?)?;
    let (units, _) = bytes.as_chunks::<2>();
    Some(from_utf16(units.iter().map(|unit| u16::from_le_bytes(*unit))))
}

/// `{GUID}` as [`crate::Facts::id`] writes it.
fn id(value: &str, at: HostOffset) -> Result<String> {
    let parsed = Uuid::try_parse(value.trim_start_matches('{').trim_end_matches('}'));
    parsed.map(|uuid| uuid.to_string()).map_err(|_| {
        Error::corrupt(Corrupt::ParentLocator).at(at).field(
            "parent_linkage",
            value.escape_default(),
            "a GUID",
        )
    })
}

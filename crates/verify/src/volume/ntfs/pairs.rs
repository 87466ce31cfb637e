//! Mapping pairs, decoded strictly: on the volume, ended, and no longer than they need be.

use block::Result;

use super::record::{Attribute, Mapped};

/// Consecutive clusters of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub(super) vcn: u64,
    /// `None` is a hole.
    pub(super) lcn: Option<u64>,
    pub(super) count: u64,
}

/// Calls `each` with the runs of one piece, which map exactly the clusters that its head says.
pub(super) fn each_run(
    attribute: &Attribute<'_>,
    mapped: &Mapped<'_>,
    cluster_count: u64,
    mut each: impl FnMut(Run) -> Result<()>,
) -> Result<()> {
    let bad = |found: &dyn std::fmt::Display, wanted: &str| attribute.error("mapping pairs", found, wanted);
    let (mut rest, mut vcn, mut last_lcn) = (mapped.pairs, mapped.lowest_vcn, 0i64);
    loop {
        let (&head, after) = rest.split_first().ok_or_else(|| bad(&"cut short", "a terminator"))?;
        if head == 0 {
            break;
        }
        let (count, after) = take(after, head & 15).ok_or_else(|| bad(&"cut short", "a terminator"))?;
        let (step, after) = take(after, head >> 4).ok_or_else(|| bad(&"cut short", "a terminator"))?;
        rest = after;
        let (Some(count), Some(step)) = (count, step) else {
            return Err(bad(
                &format!("a pair with head {head:#04x}"),
                "numbers of at most 8 bytes, none longer than need be",
            ));
        };
        let count = count.and_then(|count| u64::try_from(count).ok()).filter(|count| *count > 0);
        let count = count.ok_or_else(|| bad(&"a run of no clusters", "one or more"))?;
        let end = vcn.checked_add(count).filter(|end| *end <= mapped.end_vcn);
        let end = end.ok_or_else(|| {
            bad(&format!("{count} clusters at VCN {vcn}"), &format!("an end at VCN {}", mapped.end_vcn))
        })?;
        let lcn = match step {
            None => None,
            Some(step) => {
                last_lcn = last_lcn.checked_add(step).unwrap_or(-1);
                let lcn = u64::try_from(last_lcn).ok();
                let lcn = lcn.filter(|lcn| lcn.checked_add(count).is_some_and(|end| end <= cluster_count));
                Some(lcn.ok_or_else(|| {
                    bad(&format!("{count} clusters at LCN {last_lcn}"), "within the volume")
                })?)
            }
        };
        each(Run { vcn, lcn, count })?;
        vcn = end;
    }
    if vcn != mapped.end_vcn {
        return Err(bad(&format!("an end at VCN {vcn}"), &format!("one at VCN {}", mapped.end_vcn)));
    }
    Ok(())
}

/// What a number of `len` bytes may be: absent, of none; or `None` if it is longer than 8 bytes or than it need be.
type Number = Option<Option<i64>>;

/// Takes a little-endian number in two's complement off `bytes`. `None` if they end before.
fn take(bytes: &[u8], len: u8) -> Option<(Number, &[u8])> {
    let len = usize::from(len);
    let (number, rest) = bytes.split_at_checked(len)?;
    let Some(top) = number.last() else { return Some((Some(None), rest)) };
    if len > 8 {
        return Some((None, rest));
    }
    let fill = if top & 0x80 != 0 { 0xff } else { 0 };
    let mut whole = [fill; 8];
    whole[..len].copy_from_slice(number);
    // The last byte says nothing if it only repeats the sign of the one before.
    let is_padded = len > 1 && *top == fill && (number[len - 2] ^ fill) & 0x80 == 0;
    Some(((!is_padded).then(|| Some(i64::from_le_bytes(whole))), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_no_longer_than_need_be() {
        let number = |bytes: &[u8]| take(bytes, u8::try_from(bytes.len()).unwrap()).unwrap().0;
        assert_eq!(number(&[]), Some(None));
        assert_eq!(number(&[0x7f]), Some(Some(127)));
        assert_eq!(number(&[0xff]), Some(Some(-1)));
        assert_eq!(number(&[0xff, 0]), Some(Some(255)));
        assert_eq!(number(&[0x7f, 0]), None);
        assert_eq!(number(&[0xff, 0xff]), None);
        assert_eq!(number(&[0x7f, 0xff]), Some(Some(-129)));
        assert_eq!(number(&[1; 9]), None);
        assert!(take(&[1], 2).is_none());
    }
}

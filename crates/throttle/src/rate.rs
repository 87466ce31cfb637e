//! Whether progress is slow, by a sign test against the usual rate.

/// Slower than this share of the usual rate, in hundredths, is slow. What is copied is not alike everywhere: less is no sign of others.
const SLOW_PERCENT: f64 = 60.0;
/// As many looks make up the usual rate, roughly.
const LOOKS: f64 = 32.0;
/// As many looks until there is a usual rate.
const FIRST_LOOKS: u32 = 8;
/// If so many of a hundred runs of looks were as slow by chance, it is none.
const CHANCE_BAD: f64 = 0.05;
/// If so many of a hundred runs were as fast, nobody else is there.
const CHANCE_GOOD: f64 = 0.2;
/// A judgement is made after so many looks at the latest.
const LOOKS_MAX: u32 = 24;

/// What a run of looks says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Not enough looks.
    Open,
    /// As fast as usual.
    Good,
    /// Slower than chance explains.
    Bad,
}

/// The usual rate, and the looks since the last verdict.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Rate {
    /// Bytes a millisecond.
    usual: f64,
    seen_count: u32,
    count: u32,
    slow_count: u32,
    /// The last verdict was bad: one slow look confirms it.
    is_doubted: bool,
}

impl Rate {
    /// So much was done in so many milliseconds of work.
    #[allow(clippy::cast_precision_loss, reason = "rates need no more than 52 bits")]
    pub(crate) fn look(&mut self, done_bytes: u64, worked_ms: u64) -> Verdict {
        let rate = done_bytes as f64 / worked_ms.max(1) as f64;
        self.seen_count = self.seen_count.saturating_add(1);
        if self.seen_count <= FIRST_LOOKS {
            self.usual += (rate - self.usual) / f64::from(self.seen_count);
            return Verdict::Open;
        }
        let is_slow = rate < self.usual * SLOW_PERCENT / 100.0;
        self.count += 1;
        self.slow_count += u32::from(is_slow);
        self.usual += (rate - self.usual) / LOOKS;
        let verdict = if self.is_doubted && is_slow { Verdict::Bad } else { self.judge() };
        self.is_doubted &= is_slow;
        if verdict != Verdict::Open {
            (self.count, self.slow_count) = (0, 0);
            self.is_doubted = verdict == Verdict::Bad;
        }
        verdict
    }

    /// What is slow now is what is usual from now on: it stayed so through pauses in which others would have ended.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    fn judge(&self) -> Verdict {
        let as_slow: f64 = (self.slow_count..=self.count).map(|slow| chance(self.count, slow)).sum();
        let as_fast: f64 = (0..=self.slow_count).map(|slow| chance(self.count, slow)).sum();
        if as_slow <= CHANCE_BAD {
            Verdict::Bad
        } else if as_fast <= CHANCE_GOOD || self.count >= LOOKS_MAX {
            Verdict::Good
        } else {
            Verdict::Open
        }
    }
}

/// The chance that just so many of so many looks are slow, if half of them are.
fn chance(count: u32, slow: u32) -> f64 {
    let ways = (0..slow).fold(1.0, |ways, at| ways * f64::from(count - at) / f64::from(at + 1));
    ways * 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(rate: &mut Rate) {
        for _ in 0..FIRST_LOOKS {
            assert_eq!(rate.look(1000, 10), Verdict::Open);
        }
    }

    #[test]
    fn chances_add_up() {
        let all: f64 = (0..=10).map(|slow| chance(10, slow)).sum();
        assert!((all - 1.0).abs() < 1e-9);
        assert!((chance(5, 5) - 1.0 / 32.0).abs() < 1e-9);
    }

    #[test]
    fn five_slow_looks_are_no_chance() {
        let mut rate = Rate::default();
        first(&mut rate);
        let verdicts: Vec<_> = (0..5).map(|_| rate.look(300, 10)).collect();
        assert_eq!(verdicts[..4], [Verdict::Open; 4]);
        assert_eq!(verdicts[4], Verdict::Bad);
    }

    #[test]
    fn what_varies_is_usual() {
        let mut rate = Rate::default();
        first(&mut rate);
        for at in 0..200_u64 {
            assert_ne!(rate.look(700 + at % 7 * 100, 10), Verdict::Bad);
        }
    }
}
